//! A row has the same bits in a launch of any number of rows: whichever rank adds it up, and in tiles of any shape of one class.

use crate::case::checked;
use crate::fine;
use crate::op::ranks;
use crate::wide::wide;
use counterflow::codegen::bits::BitsClass;
use counterflow::codegen::interp::Numbers;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Dtype, Error, Op, Program, Variant, schedules};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

/// The most rows of a launch, columns that no tile divides, and a depth of several steps and a part of one.
const MOST: usize = 256;
const COLUMNS: usize = 264;
const DEPTH: usize = 328;
/// Tiles whose rows agree: one class of bits.
const TILES: [(u32, u32); 2] = [(128, 256), (128, 128)];
/// Rows of launches on emulated ranks, which are slow; GPUs have all numbers. In each a row has another owner, and another place
/// in its tile.
const ROWS: [usize; 14] = [256, 8, 1, 2, 3, 5, 13, 16, 31, 64, 100, 128, 200, 255];

/// Numbers of a rank's tensor, by row and column: the same ones whatever the number of rows is.
fn numbers(rank: &Communicator, tensor: u64, count: usize) -> Arc<Vec<bf16>> {
    // Drawn once: each launch has them again.
    type Drawn = HashMap<(u64, usize), Arc<Vec<bf16>>>;
    static DRAWN: LazyLock<Mutex<Drawn>> = LazyLock::new(Mutex::default);
    let seed = 977 * u64::from(rank.rank()) + tensor;
    let of = |at: usize| {
        let drawn = Numbers::new(seed << 32 | at as u64).draw();
        bf16::from_f32((drawn >> 40) as f32 / 8_388_608.0 - 1.0)
    };
    let mut drawn = DRAWN.lock().expect("no panic");
    let all = drawn.entry((seed, count));
    Arc::clone(all.or_insert_with(|| Arc::new((0..count).map(of).collect())))
}

fn built(rank: &Communicator, program: &Program, tiles: (u32, u32)) -> Result<Op, Error> {
    let builder = rank.op(program).dtype(Dtype::Bf16).batch_invariant();
    let builder = builder.up_to(MOST, COLUMNS, DEPTH);
    let builder = builder.set("tiles", tiles).first_options();
    rank.reserve(2 * builder.workspace()?.heap + (8 << 20))?;
    builder.build()
}

/// The rows of a launch of `m` that this rank has afterwards, the first of them, and their bits.
fn rows(rank: &Communicator, op: &Op, m: usize) -> Result<(usize, Vec<Vec<u16>>), Error> {
    let own = op.needs("y")?.shape[0] < MOST;
    let shard = m.div_ceil(rank.world() as usize);
    let first = if own { rank.rank() as usize * shard } else { 0 };
    let held = if own { shard } else { m };
    let x = rank.zeros::<bf16>([MOST, DEPTH])?;
    let w = rank.zeros::<bf16>([COLUMNS, DEPTH])?;
    let mut y = rank.allocate::<bf16>("y", [op.needs("y")?.shape[0], COLUMNS])?;
    x.write(&numbers(rank, 1, MOST * DEPTH))?;
    w.write(&numbers(rank, 2, COLUMNS * DEPTH))?;
    y.fill(0xff)?;
    rank.synchronize()?;
    rank.barrier()?;
    let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
    launch.tensor("y", &mut y).rows(m).launch()?.wait()?;
    let values = y.read()?;
    rank.barrier()?;
    let held = held.min(m.saturating_sub(first));
    let lines = values.chunks(COLUMNS).take(held);
    let bits = |line: &[bf16]| {
        assert!(line.iter().all(|value| value.is_finite()), "a row is whole");
        line.iter().map(|value| value.to_bits()).collect()
    };
    Ok((first, lines.map(bits).collect()))
}

/// The bits of every row of a launch, from all ranks. Where several have a row, they agree.
fn gathered(each: Vec<(usize, Vec<Vec<u16>>)>, m: usize) -> Vec<Vec<u16>> {
    let mut all: Vec<Option<Vec<u16>>> = vec![None; m];
    for (first, lines) in each {
        for (row, line) in (first..).zip(lines) {
            let known = all[row].get_or_insert_with(|| line.clone());
            assert!(*known == line, "ranks differ in row {row} of {m}");
        }
    }
    let whole = |row: Option<Vec<u16>>| row.expect("every row has an owner");
    all.into_iter().map(whole).collect()
}

/// In worlds of two and of four; without `WIDE` emulated ranks are so many.
fn same_bits(schedule: fn() -> Program, some: usize) {
    let program = schedule();
    for world in ranks(2).chain(ranks(4)) {
        let class = |tiles: (u32, u32)| {
            let variant = Variant::new(world.ranks.len() as u32).set("tiles", tiles);
            BitsClass::of(&checked(&program, &variant).0).expect("batch-invariant")
        };
        assert_eq!(class(TILES[0]), class(TILES[1]), "{}", program.name);
        let emulated = world.ranks[0].gpu().is_emulated();
        if emulated && !wide() && world.ranks.len() != some {
            continue;
        }
        let counts: Vec<usize> = match (emulated, wide()) {
            (false, _) => (1..=MOST).rev().collect(),
            (true, true) => ROWS.into(),
            (true, false) => ROWS[..3].into(),
        };
        let (mut most, mut launches) = (Vec::new(), 0);
        for tiles in TILES {
            let ops = fine(Communicator::each(&world.ranks, |rank| {
                built(rank, &program, tiles)
            }));
            for m in counts.iter().copied() {
                let each = Communicator::each(&world.ranks, |rank| {
                    rows(rank, &ops[rank.rank() as usize], m)
                });
                let found = gathered(fine(each), m);
                if most.is_empty() {
                    most = found.clone();
                }
                let differ = (0..m).filter(|row| found[*row] != most[*row]).count();
                assert_eq!(
                    differ, 0,
                    "{} {}: rows of a launch of {m} in tiles of {tiles:?} that differ from those of {MOST} in {:?}",
                    program.name, world.told, TILES[0]
                );
                launches += 1;
            }
        }
        println!(
            "  {}: {launches} launches, the same bits: {}",
            program.name, world.told
        );
    }
}

#[test]
fn gemm_rs_gives_a_row_the_same_bits_for_every_number_of_rows() {
    same_bits(schedules::gemm_rs, 2);
}

#[test]
fn gemm_ar_gives_a_row_the_same_bits_for_every_number_of_rows() {
    same_bits(schedules::gemm_ar, 4);
}

#[test]
fn gemm_rs_across_gives_a_row_the_same_bits_for_every_number_of_rows() {
    same_bits(schedules::gemm_rs_across, 4);
}

#[test]
fn gemm_ar_one_shot_gives_a_row_the_same_bits_for_every_number_of_rows() {
    same_bits(schedules::gemm_ar_one_shot, 2);
}
