//! Partial sums of FP8: their scratch, and the plane of scales beside it, are as large as launches need.

use counterflow::schedules;
use counterflow_codegen::program::Program;
use counterflow_codegen::rule::{Fp8, ScaleRule};
use counterflow_runtime::{Communicator, Error, HeapUse};
use half::bf16;

/// No shard, tile or block divides these.
const ROWS: [usize; 3] = [389, 130, 1];
const N: usize = 272;
const K: usize = 64;

/// What each rank's `x` has in a row.
fn of_row(row: usize) -> f32 {
    2f32.powi((row % 5) as i32)
}

fn sums(program: &Program, world: u32) -> Result<(), Error> {
    let ranks = Communicator::emulated(world)?;
    let theirs = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
    Communicator::each(&ranks, |rank| {
        let op = rank.op(program).quantised_reduction(theirs);
        let op = op.set("tiles", (128, 128)).up_to(ROWS[0], N, K);
        // What the heap has for the op is what was told, to the byte.
        rank.reserve(8 << 20)?;
        let told = op.workspace()?.heap;
        let op = op.build()?;
        rank.barrier()?;
        let HeapUse { used, .. } = rank.heap_use();
        assert_eq!(used, told, "{} of {world}", program.name);
        rank.barrier()?;
        let x = rank.zeros::<bf16>([ROWS[0], K])?;
        let w = rank.zeros::<bf16>([N, K])?;
        let values = (0..ROWS[0] * K).map(|at| bf16::from_f32(of_row(at / K)));
        x.write(&values.collect::<Vec<_>>())?;
        w.write(&[bf16::ONE; N * K])?;
        let [lines, line] = op.needs("y")?.shape;
        let mut y = rank.allocate::<bf16>("y", [lines, line])?;
        for rows in ROWS {
            y.fill(0xff)?;
            rank.synchronize()?;
            rank.barrier()?;
            let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
            launch.tensor("y", &mut y).rows(rows).launch()?.wait()?;
            rank.barrier()?;
            let got = y.read()?;
            let shard = rows.div_ceil(world as usize);
            let first = match lines < ROWS[0] {
                true => (rank.rank() as usize * shard).min(rows),
                false => 0,
            };
            let held = match lines < ROWS[0] {
                true => shard.min(rows - first),
                false => rows,
            };
            for row in 0..held {
                let wanted = bf16::from_f32(of_row(first + row) * K as f32 * world as f32);
                let got = &got[row * N..][..N];
                assert!(
                    got.iter().all(|got| *got == wanted),
                    "{} of {world}, {rows} rows, row {row}: {} for {wanted}",
                    program.name,
                    got[0]
                );
            }
        }
        rank.barrier()
    })
    .map(drop)
}

#[test]
fn ops_have_memory_for_partial_sums_and_their_scales() -> Result<(), Error> {
    for program in [schedules::gemm_rs(), schedules::gemm_ar()] {
        (2..=4).try_for_each(|world| sums(&program, world))?;
    }
    Ok(())
}
