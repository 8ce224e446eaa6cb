//! Whatever is done to the builder, lowering and everything after it answers: with a kernel or with diagnostics.

use crate::wide::wide;
use counterflow::codegen::builder::*;
use counterflow::codegen::program::{Pick, Program};
use counterflow::codegen::{lower, verify};
use counterflow::{Arch, Dtype, Layout, Machine, Plan, Shape, Variant};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;

/// A stream of small numbers that decides everything, so that a failing case shrinks.
struct Dice<'a> {
    rolls: std::slice::Iter<'a, u8>,
    /// One decision in this many is made without regard to sense.
    sense: u8,
}

impl Dice<'_> {
    fn roll(&mut self, sides: u8) -> u8 {
        self.rolls.next().copied().unwrap_or(0) % sides
    }
    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[usize::from(self.roll(u8::try_from(from.len()).unwrap_or(u8::MAX)))].clone()
    }
    fn wild(&mut self) -> bool {
        self.roll(self.sense) == 1
    }
    /// Mostly the innermost.
    fn near<T: Clone>(&mut self, from: &[T]) -> T {
        match (self.roll(8), from.last()) {
            (1.., Some(last)) => last.clone(),
            _ => self.pick(from),
        }
    }
    fn done(&self) -> bool {
        self.rolls.as_slice().is_empty()
    }
}

/// Handles, some of them from another builder: out of range there or plainly wrong here.
#[derive(Clone)]
struct Handles {
    tensors: Vec<TensorRef>,
    partitions: Vec<PartitionRef>,
    counters: Vec<CountersRef>,
    items: Vec<Item>,
    ranks: Vec<RankExpr>,
    values: Vec<Value>,
}

fn wild_tune(dice: &mut Dice<'_>) -> Tune {
    match dice.roll(7) {
        0 => tune([(128, 256), (256, 128)]),
        1 => 0.into(),
        2 => tune([128, 256]),
        3 => tune(Vec::<u32>::new()),
        4 => u32::MAX.into(),
        5 => (0, u32::MAX).into(),
        _ => (1, 1).into(),
    }
}

fn number(dice: &mut Dice<'_>) -> Tune {
    match (dice.wild(), dice.roll(3)) {
        (true, _) => wild_tune(dice),
        (_, 0) => tune([64, 128]),
        (_, 1) => 2.into(),
        (_, _) => 64.into(),
    }
}

fn pair(dice: &mut Dice<'_>) -> Tune {
    if dice.wild() {
        wild_tune(dice)
    } else {
        tune([(64, 64), (128, 32)])
    }
}

fn rank(dice: &mut Dice<'_>, have: &Handles) -> RankExpr {
    if !dice.wild() {
        return match dice.roll(3) {
            0 => me(),
            1 => (me() + 1) % world(),
            _ => dice.near(&have.ranks),
        };
    }
    let one = |dice: &mut Dice<'_>| match dice.roll(6) {
        0 => me(),
        1 => world(),
        2 => RankExpr::Const(i64::from(dice.roll(5)) - 1),
        3 => RankExpr::Const(i64::MAX),
        _ => dice.near(&have.ranks),
    };
    let first = one(dice);
    match dice.roll(8) {
        0 => first + one(dice),
        1 => first - one(dice),
        2 => first * one(dice),
        3 => first / one(dice),
        4 => (first + 1) % world(),
        5 => first ^ one(dice),
        _ => first,
    }
}

fn pick(dice: &mut Dice<'_>, have: &Handles) -> Pick {
    match dice.roll(3) {
        0 => others(),
        1 => everyone(),
        _ => Pick::One(rank(dice, have)),
    }
}

fn order(dice: &mut Dice<'_>) -> Ranks {
    let most = if dice.wild() { 9 } else { 5 };
    match dice.roll(most) {
        0 => ranks(),
        1 => ranks().from_me(),
        2 => ranks().after_me(),
        3 => ranks().before_me(),
        4 => ring(1).but_last(1),
        5 => ring(i32::MIN),
        6 => ranks().by(|me, step, world| (me ^ step) % world.max(1)),
        7 => ranks().by(|_, step, world| step + world),
        _ => ranks().before_me().but_last(u32::MAX),
    }
}

fn place(dice: &mut Dice<'_>, have: &Handles) -> PlaceRef {
    let tensor = dice.pick(&have.tensors);
    if !dice.wild() {
        let place: PlaceRef = match dice.roll(3) {
            0 => tensor.on(rank(dice, have)),
            _ => tensor.into(),
        };
        return place.at(dice.near(&have.items));
    }
    let mut place = match dice.roll(5) {
        0 => tensor.on(rank(dice, have)),
        1 => tensor.everywhere(),
        _ => tensor.into(),
    };
    for _ in 0..dice.roll(4) {
        place = match dice.roll(4) {
            0 => place.at(pick(dice, have)),
            _ => place.at(dice.near(&have.items)),
        };
    }
    place
}

fn cells(dice: &mut Dice<'_>, have: &Handles) -> CellsRef {
    let counters = dice.pick(&have.counters);
    if !dice.wild() {
        let cells = match dice.roll(2) {
            0 => counters.on(rank(dice, have)),
            _ => counters.into(),
        };
        let item = dice.near(&have.items);
        return match dice.roll(2) {
            0 => cells.at(item.rows()),
            _ => cells.at(item),
        };
    }
    let mut cells = match dice.roll(4) {
        0 => counters.on(rank(dice, have)),
        1 => counters.everywhere(),
        _ => counters.into(),
    };
    for _ in 0..dice.roll(4) {
        let item = dice.near(&have.items);
        cells = match dice.roll(4) {
            0 => cells.at(pick(dice, have)),
            1 => cells.at(item.rows()),
            _ => cells.at(item),
        };
    }
    cells
}

fn value(dice: &mut Dice<'_>, have: &Handles) -> Value {
    let first = dice.pick(&have.values);
    match dice.roll(4) {
        0 => first + dice.pick(&have.values),
        1 => first * dice.pick(&have.values),
        _ => first,
    }
}

/// Statements of a loop body, nested at most `depth` more times.
fn body(s: &mut ScheduleBuilder, dice: &mut Dice<'_>, have: &Handles, depth: u8, inside: bool) {
    let mut have = have.clone();
    for _ in 0..=dice.roll(4) {
        if dice.done() {
            return;
        }
        let statement = match (depth, inside, dice.wild()) {
            (0, ..) => dice.roll(7),
            (_, _, true) => dice.roll(11),
            (_, true, _) => dice.roll(8),
            (_, false, _) => 7 + dice.roll(6),
        };
        match statement {
            0 => s.wait(cells(dice, &have)),
            1 => s.wait_at_least(cells(dice, &have), u32::from(dice.roll(4))),
            2 => s.signal(cells(dice, &have), u32::from(dice.roll(3))),
            3 => s.copy(place(dice, &have), place(dice, &have)),
            4 => {
                let value = match dice.roll(3) {
                    0 => s.sum(place(dice, &have)),
                    1 => s.load(place(dice, &have)),
                    _ => s.dot(place(dice, &have), place(dice, &have)),
                };
                have.values.push(value);
            }
            5 => {
                let value = value(dice, &have);
                s.store(place(dice, &have), value);
            }
            6 => {
                let into = value(dice, &have);
                s.accumulate(&into, place(dice, &have), place(dice, &have));
                s.store_add(place(dice, &have), into);
            }
            7 => {
                let order = order(dice);
                s.for_ranks("r", order, |s, rank| {
                    let mut have = have.clone();
                    have.ranks.push(rank);
                    body(s, dice, &have, depth - 1, inside);
                });
            }
            8 => {
                let (a, b) = (rank(dice, &have), rank(dice, &have));
                let cond = Cond::Compare(Comparison::Lt, a, b);
                s.when(cond, |s| body(s, dice, &have, depth - 1, inside));
            }
            _ => {
                let items = dice.pick(&have.partitions);
                let items = match dice.roll(5) {
                    0 => items.of(rank(dice, &have)).grouped(number(dice)),
                    1 => items.all().column_major(),
                    2 => items.grouped(8),
                    _ => items.of(rank(dice, &have)),
                };
                s.for_items("t", items, |s, item| {
                    let mut have = have.clone();
                    have.items.push(item);
                    body(s, dice, &have, depth - 1, true);
                });
            }
        }
    }
}

/// Handles of a builder that has more of everything than the one under test.
fn stranger() -> Handles {
    let mut s = ScheduleBuilder::new("stranger");
    let mut have = Handles {
        tensors: Vec::new(),
        partitions: Vec::new(),
        counters: Vec::new(),
        items: Vec::new(),
        ranks: Vec::new(),
        values: Vec::new(),
    };
    for _ in 0..40 {
        let y = s.out("y", Dtype::Bf16);
        let tiles = s.tiles("tiles", y, (64, 64));
        have.tensors = vec![y];
        have.partitions = vec![tiles];
        have.counters = vec![s.counters("c", [tiles.into()])];
        have.values = vec![s.accumulator("acc")];
        s.gemm(GemmOptions::default(), |s| {
            s.for_ranks("r", ranks(), |s, rank| {
                have.ranks = vec![rank];
                s.for_items("t", tiles, |_, item| {
                    have.items = vec![item];
                });
            });
        });
    }
    have
}

fn program(rolls: &[u8]) -> Program {
    let dice = &mut Dice {
        rolls: rolls.iter(),
        sense: 0,
    };
    dice.sense = if dice.roll(4) == 0 { 2 } else { 60 };
    let mut s = ScheduleBuilder::new("fuzz");
    let mut have = stranger();
    if !dice.wild() {
        // Handles of its own only, so that more of these get past lowering.
        have.tensors = vec![s.local("x", Dtype::Bf16), s.out("y", Dtype::Bf16)];
        have.partitions = vec![s.tiles("tiles", have.tensors[1], (64, 64))];
        have.counters = vec![s.counters("landed", [have.partitions[0].into()])];
        have.values = vec![Value::Const(1.0)];
        have.ranks = vec![me()];
    }
    for index in 0..=dice.roll(4) {
        let dtype = dice.pick(&Dtype::ALL);
        let name = format!("t{index}");
        let like = dice.pick(&have.tensors);
        let tensor = match dice.roll(10) {
            0 => s.gathered(&name, dtype),
            1 => s.reduce_scattered(&name, dtype),
            2 => s.all_reduced(&name, dtype),
            3 => s.vector(&name, dtype),
            4 => s.symmetric(&name, dtype, like, world()),
            5 if !dice.wild() => s.symmetric(&name, dtype, like, 1),
            6 if !dice.wild() => s.all_reduced(&name, dtype),
            5 => s.symmetric(&name, dtype, like.shard(), u32::from(dice.roll(3))),
            6 => s.symmetric(&name, dtype, like.whole(), u32::MAX),
            7 => s.out(&name, dtype),
            8 => s.accumulated(&name, dtype),
            _ => s.local(&name, dtype),
        };
        have.tensors.push(tensor);
    }
    for _ in 0..=dice.roll(3) {
        let tensor = dice.pick(&have.tensors);
        let partition = match dice.roll(3) {
            0 => s.chunks("p", tensor, number(dice)),
            1 => s.panels("p", tensor, number(dice)),
            _ => s.tiles("p", tensor, pair(dice)),
        };
        have.partitions.push(partition);
    }
    for _ in 0..=dice.roll(2) {
        if !dice.wild() {
            let partition = dice.pick(&have.partitions);
            have.counters.push(s.counters("c", [partition.into()]));
            continue;
        }
        let axes: Vec<Axis> = (0..dice.roll(4))
            .map(|_| match dice.roll(5) {
                0 => world().into(),
                1 => 3.into(),
                2 => u32::MAX.into(),
                _ => dice.pick(&have.partitions).into(),
            })
            .collect();
        have.counters.push(s.counters("c", axes));
    }
    while !dice.done() {
        let most = if dice.wild() { 5 } else { 3 };
        match dice.roll(most) {
            0 => s.comm(number(dice), |s| body(s, dice, &have, 3, false)),
            3 => s.copy_engine(|s| body(s, dice, &have, 3, false)),
            // Outside every role.
            4 => body(&mut s, dice, &have, 1, false),
            1 => s.spare_warps(|s| body(s, dice, &have, 3, false)),
            _ => {
                let options = GemmOptions {
                    k: (dice.roll(2) == 0).then(|| number(dice)),
                    cluster: dice.wild().then(|| pair(dice)),
                    stages: dice.wild().then(|| number(dice)),
                    subtiles: dice.wild().then(|| number(dice)),
                    split: dice.wild().then(|| number(dice)),
                    ping_pong: dice.wild().then(|| number(dice)),
                };
                s.gemm(options, |s| body(s, dice, &have, 3, false));
            }
        }
    }
    s.finish()
}

/// Whether it got as far as a plan, which the verifier then judges.
fn answer(rolls: &[u8], variant: &Variant, m: u32) -> Result<bool, TestCaseError> {
    let program = program(rolls);
    prop_assert!(!program.text().is_empty());
    let (shape, machine) = (Shape::new(m, 64, 64), Machine::h200());
    let planned = lower::lower(&program, variant).and_then(|kernel| {
        assert!(!kernel.text().is_empty());
        let plan = Plan::new(&kernel, &shape, &machine)?;
        assert!(!plan.text(&kernel).is_empty());
        Ok(kernel)
    });
    let got = planned.is_ok();
    let judged = planned
        .and_then(verify::kernel)
        .and_then(|kernel| verify::plan(&kernel, &shape, &machine));
    if let Err(found) = judged {
        for finding in found.iter() {
            prop_assert!(!finding.message.is_empty());
        }
    }
    Ok(got)
}

#[test]
fn no_call_sequence_panics() {
    let planned = Cell::new(0);
    let cases = (
        proptest::collection::vec(any::<u8>(), 0..160),
        0u32..6,
        any::<bool>(),
        0usize..3,
        0u32..40,
    );
    let sequences = if wide() { 10_000 } else { 2_500 };
    let config = ProptestConfig {
        cases: sequences,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(&cases, |(rolls, world, cpu, layout, m)| {
        let arch = if cpu { Arch::Cpu } else { Arch::Sm90 };
        let variant = Variant::new(world).arch(arch).layout(Layout::ALL[layout]);
        if answer(&rolls, &variant, m * 8)? {
            planned.set(planned.get() + 1);
        }
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{} of {sequences} got as far as a plan", planned.get());
    assert!(planned.get() > 50, "few sequences got as far as a plan");
}
