//! A row's bits do not depend on how many rows a launch has, nor by that on which rank adds them up.

use crate::fixtures::across;
use crate::fixtures::handed;
use crate::fixtures::library::{self, Sizes};
use crate::fixtures::wide::{sampled, wide};
use counterflow_codegen::bits::BitsClass;
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::{Kernel, OpKind, visit};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::{Choice, Program, RoleKind};
use counterflow_codegen::rule::{Fp8, ScaleRule};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify;
use counterflow_emulator::{self as interp, Input, Options};
use std::collections::HashMap;

const N: u32 = 24;
const K: u32 = 40;
/// Row counts that give a row to every rank of a world, with short and empty last shards.
const MANY: [u32; 9] = [1, 2, 3, 5, 8, 13, 21, 29, 40];

fn sizes() -> Sizes {
    Sizes {
        tiles: (4, 8).into(),
        chunks: 4.into(),
        copied: 4.into(),
        ctas: 2.into(),
        k: Some(8.into()),
        group: 2,
    }
}

/// Numbers of a rank's tensor, by row and column: the same ones whatever the number of rows is. All ranks have one bias.
fn by_place(input: Input<'_>, values: &mut [f32]) {
    let rank = if input.name == "bias" { 0 } else { input.rank };
    let seed = input.name.bytes().map(u64::from).sum::<u64>() + 977 * u64::from(rank);
    for (at, value) in values.iter_mut().enumerate() {
        let place = at as u64 + u64::from(input.rows.start) * u64::from(input.columns);
        let mut mixed = (seed << 32 | place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        *value = ((mixed ^ mixed >> 32) >> 40 & 0xff_ffff) as f32 / 8_388_608.0 - 1.0;
    }
}

/// The bits of every row of an output that ranks add up, from launches of `m` rows.
fn rows(program: &Program, variant: &Variant, m: u32) -> Vec<Vec<u32>> {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", program.name));
    let shape = Shape::new(m, N, K);
    let series = verify::series(&kernel, &shape, &Machine::h200());
    let series = series.unwrap_or_else(|error| panic!("{}: {error}", program.name));
    let plan = series.plan(&shape).expect("legal");
    let outcome = interp::run(&series, &[&plan], &Options::seed(3), by_place);
    let outcome = outcome.unwrap_or_else(|failure| panic!("{}: {failure}", program.name));
    let expected = interp::reference(&kernel, &plan, 0, by_place).expect("a reference");
    interp::compare(&outcome, &expected)
        .unwrap_or_else(|error| panic!("{}: {error}", program.name));
    let mut found: HashMap<usize, Vec<u32>> = HashMap::new();
    for output in &outcome.outputs {
        let buffer = &kernel.buffers[output.tensor.index()];
        if !buffer.usage.is_sum() {
            continue;
        }
        let columns = output.values.len() / (output.rows.len() as usize).max(1);
        for (row, values) in output
            .rows
            .range()
            .zip(output.values.chunks(columns.max(1)))
        {
            let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
            let known = found.entry(row).or_insert_with(|| bits.clone());
            assert_eq!(*known, bits, "row {row} on rank {}", output.rank);
        }
    }
    (0..m as usize)
        .map(|row| found.remove(&row).expect("every row is there"))
        .collect()
}

/// Row counts whose rows have other bits than in a launch of the most rows.
fn differing(program: &Program, variant: &Variant) -> Vec<u32> {
    let most = rows(program, variant, MANY[MANY.len() - 1]);
    let differs = |m: &u32| rows(program, variant, *m)[..] != most[..*m as usize];
    MANY.into_iter().filter(differs).collect()
}

fn has_own_terms(kernel: &Kernel) -> bool {
    let mut all = Vec::new();
    for role in &kernel.roles {
        visit(&role.body, &mut |op| {
            if let OpKind::Reduce { own, .. } = &op.kind {
                all.push(own.is_some());
            }
        });
    }
    !all.is_empty() && all.into_iter().all(|own| own)
}

#[test]
fn sums_over_ranks_have_the_bits_of_every_number_of_rows() {
    let schedules: [fn(&Sizes) -> Program; 4] = [
        library::gemm_rs,
        library::gemm_rs_bias,
        library::gemm_ar,
        library::bulk_rs,
    ];
    let all = (schedules.into_iter()).flat_map(|it| [1, 2, 3, 5, 8].map(|world| (it, world)));
    for (schedule, world) in sampled(all, 3) {
        let program = schedule(&sizes());
        let variant = Variant::new(world).arch(Arch::Cpu);
        let kernel = lower(&program, &variant).unwrap_or_else(|error| panic!("{error}"));
        assert!(has_own_terms(&kernel), "{}", kernel.text());
        let differ = differing(&program, &variant);
        assert!(
            differ.is_empty(),
            "{} in a world of {world}: {differ:?}",
            program.name
        );
    }
}

/// Every number of rows from 1 to 256, for tiles of a shard and across shards, whose parts go to their owners or to everybody.
#[test]
fn a_row_has_the_bits_of_every_launch_of_up_to_256_rows() {
    let tiles = || (8, 8).into();
    let programs = [
        library::gemm_rs(&sizes()),
        library::gemm_ar(&sizes()),
        across::one_shot(across::SUMS[0], tiles(), across::Mistake::None),
        across::one_shot(across::SUMS[1], tiles(), across::Mistake::None),
    ];
    let worlds: &[u32] = if wide() { &[2, 3, 4, 8] } else { &[4] };
    // The ends, and numbers that leave every remainder by tiles and ranks.
    let some = |m: &u32| wide() || m % 37 == 1 || *m == 256;
    let counts: Vec<u32> = (1..=256).filter(some).collect();
    for (program, world) in programs
        .iter()
        .flat_map(|it| worlds.iter().map(move |world| (it, *world)))
    {
        let variant = Variant::new(world).arch(Arch::Cpu);
        let most = rows(program, &variant, 256);
        for m in &counts {
            assert!(
                rows(program, &variant, *m)[..] == most[..*m as usize],
                "{} of {m} rows in a world of {world}",
                program.name
            );
        }
    }
}

/// What an item of a reduce-scatter sends, or adds to what it gets.
type Term = fn(&mut ScheduleBuilder, [TensorRef; 3], Item) -> Value;

fn product(s: &mut ScheduleBuilder, [x, w, _]: [TensorRef; 3], t: Item) -> Value {
    s.dot(x.at(t), w.at(t))
}

fn halved(s: &mut ScheduleBuilder, of: [TensorRef; 3], t: Item) -> Value {
    product(s, of, t).scale(0.37)
}

fn with_residual(s: &mut ScheduleBuilder, of: [TensorRef; 3], t: Item) -> Value {
    let product = product(s, of, t);
    let residual = s.load(of[2].at(t));
    product + residual
}

/// A reduce-scatter whose partial sums travel in `scratch`.
fn scattered(scratch: Dtype, sent: Term, own: Term, sum_first: bool) -> Program {
    tiled((4, 8), scratch, [sent, own], sum_first)
}

fn tiled(tile: (u32, u32), scratch: Dtype, [sent, own]: [Term; 2], sum_first: bool) -> Program {
    let mut s = ScheduleBuilder::new("scattered");
    let bf16 = Dtype::Bf16;
    let (x, w, z) = (s.local("x", bf16), s.local("w", bf16), s.local("z", bf16));
    let y = s.reduce_scattered("y", scratch);
    let tiles = s.tiles("tiles", y, tile);
    let partial = s.symmetric("partial", scratch, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let options = GemmOptions {
        k: Some(8.into()),
        ..GemmOptions::default()
    };
    s.gemm(options.clone(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let value = sent(s, [x, w, z], t);
                s.store(partial.on(&owner).at(me()).at(t), value);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
    });
    s.gemm(options, |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = (!sum_first).then(|| own(s, [x, w, z], t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            let sum = match mine {
                Some(mine) => mine + theirs,
                None => theirs + own(s, [x, w, z], t),
            };
            s.store(y.at(t), sum);
        });
    });
    s.finish()
}

#[test]
fn an_own_term_is_what_is_sent_however_it_is_written() {
    let cases = [
        scattered(Dtype::Bf16, product, product, true),
        scattered(Dtype::F32, product, product, false),
        // What the owner alone adds comes after the sum, unrounded.
        scattered(Dtype::Bf16, product, with_residual, false),
    ];
    for program in cases {
        let variant = Variant::new(3).arch(Arch::Cpu);
        let kernel = lower(&program, &variant).unwrap_or_else(|error| panic!("{error}"));
        assert!(has_own_terms(&kernel), "{}", kernel.text());
        // A residual is an input of the owner: other ranks have other ones.
        if !kernel.values.iter().any(|value| value.accs().len() > 1) {
            let differ = differing(&program, &variant);
            assert!(differ.is_empty(), "{differ:?}\n{}", kernel.text());
        }
    }
}

/// Scratch of f32 rounds nothing on its way: the sum is the one of f32 products, in the order of ranks.
#[test]
fn sums_in_f32_are_those_of_f32_products() {
    let world = 3;
    let variant = Variant::new(world).arch(Arch::Cpu);
    let [narrow, wide] = [Dtype::Bf16, Dtype::F32].map(|scratch| {
        let program = scattered(scratch, product, product, false);
        rows(&program, &variant, 13)
    });
    assert_ne!(narrow, wide, "partial sums are rounded on their way");
}

/// The owner adds another value than the others send: nothing says that it is their kind of term.
#[test]
fn a_term_that_is_not_sent_is_not_rounded() {
    let program = scattered(Dtype::Bf16, halved, product, false);
    let kernel = lower(&program, &Variant::new(3).arch(Arch::Cpu)).expect("it is legal");
    assert!(!has_own_terms(&kernel), "{}", kernel.text());
}

/// The class of a variant's bits, or why its rows have other ones from launch to launch.
fn class(program: &Program, variant: &Variant) -> Result<BitsClass, String> {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", program.name));
    BitsClass::of(&kernel).map_err(|found| found.first().text(&|_| String::new()))
}

#[test]
fn variants_say_whether_they_are_batch_invariant() {
    let variant = Variant::new(3).arch(Arch::Cpu);
    let invariant = [
        library::gemm,
        library::ag_gemm,
        library::gemm_rs,
        library::gemm_ar,
        library::bulk_rs,
    ];
    for schedule in invariant {
        let program = schedule(&sizes());
        let class = class(&program, &variant);
        assert_eq!(
            class.map(|class| class.to_string()),
            Ok("K in steps of 8".into()),
            "{}",
            program.name
        );
    }
    let told = |schedule: fn(&Sizes) -> Program, variant: &Variant| {
        class(&schedule(&sizes()), variant).expect_err("it varies")
    };
    insta::assert_snapshot!(told(library::gemm_rs_add, &variant), @"
    error[shape]: not batch-invariant: ranks add to `y` in the order in which they come
      help: scratch with a slot for each rank, and a sum by the rank that owns the rows
    ");
    insta::assert_snapshot!(told(library::rs_ring, &variant), @"
    error[shape]: not batch-invariant: `came` holds sums of the ranks before, and each rank adds to them in its turn
      help: scratch with a slot for each rank, and a sum by the rank that owns the rows
    ");
    let one_by_one = class(&handed::sums_in_order(), &Variant::new(4).arch(Arch::Cpu));
    insta::assert_snapshot!(one_by_one.expect_err("it varies"), @"
    error[shape]: not batch-invariant: what came in `partial` is added one by one: who owns the rows decides the order of the sum
      help: `.sum()`, which adds in the order of ranks, as in `dot(x[t], w[t]) + partial[others()][t].sum()`
    ");
    let codes = variant
        .clone()
        .quantised_reduction(ScaleRule::transformer_engine(Fp8::E4M3));
    let of_blocks = library::gemm_rs(&Sizes {
        tiles: (64, 128).into(),
        ..sizes()
    });
    insta::assert_snapshot!(class(&of_blocks, &codes).expect_err("it varies"), @"
    error[shape]: not batch-invariant: partial sums travel in e4m3, and this rank's own term does not
      help: partial sums of the schedule's type
    ");
    let other = scattered(Dtype::Bf16, halved, product, false);
    insta::assert_snapshot!(class(&other, &variant).expect_err("it varies"), @"
    error[shape]: not batch-invariant: what is added to the sum of `partial` is not what the others send there
      help: add what is sent: `dot(x[t], w[t]) + partial[others()][t].sum()`, where peers store `dot(x[t], w[t])`
    ");
    // One rank has no order of ranks.
    assert!(
        class(
            &library::rs_ring(&sizes()),
            &Variant::new(1).arch(Arch::Cpu)
        )
        .is_ok()
    );
}

/// Slots by their distance from the owner: it decides which rank's term comes first.
#[test]
fn slots_that_are_not_their_senders_own_are_not_batch_invariant() {
    let everyone_sends = |slot: fn(&RankExpr) -> RankExpr| {
        let mut s = ScheduleBuilder::new("everyone_sends");
        let bf16 = Dtype::Bf16;
        let (x, w, y) = (
            s.local("x", bf16),
            s.local("w", bf16),
            s.reduce_scattered("y", Dtype::F32),
        );
        let tiles = s.tiles("tiles", y, (4, 8));
        let partial = s.symmetric("partial", Dtype::F32, y, world());
        let landed = s.counters("landed", [world().into(), tiles.into()]);
        s.gemm(GemmOptions::default(), |s| {
            s.for_ranks("owner", ranks().after_me(), |s, owner| {
                s.for_items("t", tiles.of(&owner), |s, t| {
                    let product = s.dot(x.at(t), w.at(t));
                    s.store(partial.on(&owner).at(slot(&owner)).at(t), product);
                    s.signal(landed.on(&owner).at(slot(&owner)).at(t), 1);
                });
            });
            s.for_items("t", tiles.of(me()), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(partial.at(slot(&me())).at(t), product);
                s.signal(landed.on(me()).at(slot(&me())).at(t), 1);
            });
        });
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", tiles.of(me()), |s, t| {
                s.wait(landed.at(everyone()).at(t));
                let sum = s.sum(partial.at(everyone()).at(t));
                s.store(y.at(t), sum);
            });
        });
        s.finish()
    };
    let variant = Variant::new(3).arch(Arch::Cpu);
    let own = everyone_sends(|_| me());
    assert!(class(&own, &variant).is_ok());
    assert_eq!(differing(&own, &variant), [0; 0]);
    let by_distance = everyone_sends(|owner| (me() - owner + world()) % world());
    assert_ne!(differing(&by_distance, &variant), [0; 0]);
    insta::assert_snapshot!(class(&by_distance, &variant).expect_err("it varies"), @"
    error[shape]: not batch-invariant: slots of `partial` are not those of their senders: who owns the rows decides the order of the sum
      help: `slots = world()`, and the sender's own slot: `partial.on(owner)[me()][t]`
    ");
}

/// Rows are the same within a class, and need not be beyond it.
#[test]
fn a_class_has_one_set_of_bits() {
    // In f32, so that a sum in another order shows.
    let program = || scattered(Dtype::F32, product, product, false);
    let split = |split: u32| {
        let mut program = program();
        for role in &mut program.roles {
            if let RoleKind::Gemm { split: of, .. } = &mut role.kind {
                *of = Some(Choice::Fixed(split.into()));
            }
        }
        program
    };
    let variant = Variant::new(3).arch(Arch::Cpu);
    let larger = tiled((8, 16), Dtype::F32, [product; 2], false);
    let [one, other, two] = [program(), larger, split(2)];
    let classes =
        [&one, &other, &two].map(|program| class(program, &variant).expect("batch-invariant"));
    assert_eq!(classes[0], classes[1]);
    assert_ne!(classes[0], classes[2]);
    let [one, other, two] = [one, other, two].map(|program| rows(&program, &variant, 29));
    assert_eq!(one, other, "tiles decide no bits");
    assert_ne!(one, two, "CTAs that split K add in another order");
    assert!(differing(&split(2), &variant).is_empty());
}
