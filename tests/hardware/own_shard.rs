//! Outputs of which each rank keeps its shard, in memory of the rank's own that ends with the shard: the same bits as in the heap, and
//! nothing beside them is written.

use crate::fine;
use crate::op::{Ranks, ranks};
use crate::wide::wide;
use counterflow::codegen::interp::Numbers;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Program, Variant, families, op::Argument, schedules};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

/// Rows of the largest launch; columns, which are the depth as well.
const SIZE: [usize; 2] = [640, 256];
/// Whole shards, a short one and an empty one.
const ROWS: [usize; 4] = [640, 513, 131, 1];
/// Elements before and behind the memory.
const AROUND: usize = 64;

#[derive(Clone, Copy)]
enum Which {
    Schedule(fn() -> Program),
    /// Of the family, by number: a product, and the sum behind it.
    Candidate(usize),
}

const ALL: [Which; 8] = [
    Which::Schedule(schedules::gemm_rs),
    Which::Schedule(schedules::gemm_rs_across),
    Which::Schedule(schedules::rs_ring),
    Which::Schedule(schedules::reduce_scatter),
    Which::Schedule(schedules::bulk_rs),
    Which::Schedule(schedules::mlp),
    Which::Candidate(1),
    Which::Candidate(2),
];

/// So many numbers of a rank's tensors, one behind the other. They are drawn once: nothing optimises tests.
fn random(rank: &Communicator, counts: [usize; 3]) -> Arc<[Vec<bf16>; 3]> {
    type Drawn = HashMap<(u32, [usize; 3]), Arc<[Vec<bf16>; 3]>>;
    static DRAWN: LazyLock<Mutex<Drawn>> = LazyLock::new(Mutex::default);
    let draw = || {
        let mut numbers = Numbers::new(7 + u64::from(rank.rank()));
        let mut number = || bf16::from_f32((numbers.below(513) as f32 - 256.0) / 64.0);
        Arc::new(counts.map(|count| (0..count).map(|_| number()).collect()))
    };
    let mut drawn = DRAWN.lock().expect("no panic");
    Arc::clone(drawn.entry((rank.rank(), counts)).or_insert_with(draw))
}

fn bits(of: &[bf16]) -> Vec<u16> {
    of.iter().map(|value| value.to_bits()).collect()
}

fn of_rank(rank: &Communicator, which: Which) -> Result<(), Error> {
    let [most, side] = SIZE;
    let (program, family, name);
    let builder = match which {
        Which::Schedule(make) => {
            program = make();
            rank.op(&program)
        }
        Which::Candidate(number) => {
            family = families::gemm_reduce_scatter();
            name = family.candidates()[number].name();
            rank.family(&family).schedule(&name)
        }
    };
    let builder = builder.first_options().up_to(most, side, side);
    rank.reserve(2 * builder.workspace()?.heap + (8 << 20))?;
    let op = builder.build()?;
    // What each rank keeps its shard of.
    let sum = if op.needs("r").is_ok() { "r" } else { "y" };
    assert!(!op.needs(sum)?.in_heap, "peers do not address it");
    let x = rank.zeros::<bf16>([most, side])?;
    let w = rank.zeros::<bf16>([side, side])?;
    let each = most.div_ceil(rank.world() as usize);
    let mut heap = rank.allocate::<bf16>("y", [each, side])?;
    let gathered = rank.allocate::<bf16>("x", [each * rank.world() as usize, side])?;
    let numbers = random(rank, [x.len(), w.len(), gathered.len()]);
    x.write(&numbers[0])?;
    w.write(&numbers[1])?;
    gathered.write(&numbers[2])?;
    let mut beside = rank.zeros::<bf16>([most, side])?;
    for rows in ROWS {
        let mut launch = |y: Argument<'_>| {
            let launch = op.on(rank).tensor(sum, y).rows(rows);
            // Operands that it has, of those that these have.
            let launch = match op.needs("up") {
                Ok(_) => launch
                    .tensor("x", &gathered)
                    .tensor("up", &w)
                    .tensor("down", &w),
                Err(_) if op.needs("x").is_ok() => launch.tensor("x", &x).tensor("w", &w),
                Err(_) => launch,
            };
            match (op.needs("g"), sum) {
                (Ok(_), "r") => launch.tensor("g", &x).tensor("y", &mut beside).launch(),
                (Ok(_), _) => launch.tensor("g", &x).launch(),
                (Err(_), _) => launch.launch(),
            }
        };
        let own = rank.shard(rank.rank(), rows).len();
        heap.fill(0xff)?;
        rank.synchronize()?;
        rank.barrier()?;
        launch((&mut heap).into())?.wait()?;
        let wanted = bits(&heap.read()?[..own * side]);
        let around = rank.zeros::<bf16>([1, own * side + 2 * AROUND])?;
        around.fill(0xff)?;
        let held = around.shaped([around.len() / 8, 8])?;
        let held = held.rows(AROUND / 8..held.shape()[0] - AROUND / 8)?;
        let mut held = held.shaped([own, side])?;
        rank.synchronize()?;
        rank.barrier()?;
        launch((&mut held).into())?.wait()?;
        let found = bits(&around.read()?);
        let (before, rest) = found.split_at(AROUND);
        let (found, behind) = rest.split_at(own * side);
        assert!(found == wanted, "{rows} rows on rank {}", rank.rank());
        let untouched = before.iter().chain(behind).all(|bits| *bits == 0xffff);
        assert!(
            untouched,
            "{rows} rows: beside those of rank {}",
            rank.rank()
        );
        assert!(bits(&held.read()?).iter().all(|bits| *bits != 0xffff));
        rank.barrier()?;
    }
    rank.synchronize()?;
    rank.barrier()
}

/// Kernels of these that no other test of the suite has, for what compiles them ahead.
pub fn kernels() -> impl Iterator<Item = (Program, Variant)> {
    [2, 3]
        .map(|world| (schedules::reduce_scatter(), Variant::new(world)))
        .into_iter()
}

fn in_worlds(worlds: impl IntoIterator<Item = Ranks>) {
    for world in worlds {
        let emulated = world.ranks[0].gpu().is_emulated();
        for (at, which) in ALL.into_iter().enumerate() {
            // Without `WIDE` each in one world of emulated ranks.
            if emulated && !wide() && at % 2 != world.ranks.len() % 2 {
                continue;
            }
            fine(Communicator::each(&world.ranks, |rank| {
                of_rank(rank, which)
            }));
        }
        println!("  sums in memory of ranks' own: {}", world.told);
    }
}

#[test]
fn sums_of_two_ranks() {
    in_worlds(ranks(2));
}

#[test]
fn sums_of_three_ranks() {
    in_worlds(ranks(3));
}

/// A schedule that adds to its peers' rows, or stores them, needs the heap on every rank.
#[test]
fn what_peers_address_is_refused() {
    for world in ranks(2) {
        let told = Communicator::each(&world.ranks, |rank| {
            let program = schedules::gemm_rs_add();
            let builder = rank.op(&program).first_options().up_to(256, 256, 256);
            rank.reserve(2 * builder.workspace()?.heap + (8 << 20))?;
            let op = builder.build()?;
            let x = rank.zeros::<bf16>([256, 256])?;
            let w = rank.zeros::<bf16>([256, 256])?;
            let mut y = rank.zeros::<bf16>([128, 256])?;
            let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
            let told = launch.tensor("y", &mut y).launch().expect_err("refused");
            assert!(op.needs("y")?.in_heap);
            rank.barrier()?;
            Ok(told.to_string())
        });
        for told in fine(told) {
            assert_eq!(told, "y is not in the symmetric heap", "{}", world.told);
        }
    }
}
