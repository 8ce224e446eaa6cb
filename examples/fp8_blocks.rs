//! FP8 with scales of blocks: each rank quantises its own rows, and one launch gathers codes and scales and multiplies.
//!
//! Rows have a scale for each 128 of K (1×128), weights one for each 128×128, as in DeepSeek-V3. Ranks are emulated, and the host
//! quantises; on GPUs `quantise::Quantiser` does, into the same memory. `cargo run --release --features quantise --example fp8_blocks`

use counterflow::prelude::{bf16, e4m3};
use counterflow::quantise::{
    Fp8, Granularity, Matrix, Quantised, RowsLast, ScaleRule, SquarePadded, twin,
};
use counterflow::schedules::AgGemmOp;
use counterflow::{Communicator, Dtype, Error, QuantTensor, Scales};

/// Rows over all ranks, columns, depth.
const SIZE: [usize; 3] = [64, 128, 256];

/// Some number of rows whose sizes differ by powers of ten: one scale for all would lose the small ones.
fn number(row: usize, column: usize) -> f32 {
    let size = 10.0_f32.powi((row % 5) as i32 - 2);
    size * (((row * 37 + column * 11) % 29) as f32 - 14.0) / 14.0
}

fn quantised(rows: std::ops::Range<usize>, pieces: Granularity) -> Quantised {
    let [.., k] = SIZE;
    let count = rows.len();
    let of = |row: usize| (0..k).map(move |column| number(row, column));
    let values: Vec<f32> = rows.flat_map(of).collect();
    let rule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
    twin::quantise(
        &Matrix::new(&values, [count, k], Dtype::Bf16),
        &rule,
        pieces,
    )
}

fn codes(of: &Quantised) -> Vec<e4m3> {
    of.codes.iter().copied().map(e4m3::from_bits).collect()
}

/// The largest error of this rank's results, each over the sum of its terms' absolute values.
fn run(rank: &Communicator) -> Result<f32, Error> {
    let [m, n, k] = SIZE;
    rank.reserve(8 << 20)?;
    let op = rank
        .op_of::<AgGemmOp>()
        .dtype(Dtype::E4M3)
        .scales(Scales::Blocks1d2d);
    let op = op.first_options().up_to(m, n, k).build()?;
    // Codes and their scales: those of `x` in the heap, where peers address them.
    let x = QuantTensor::allocate::<e4m3>(rank, "x", &op.needs("x")?)?;
    let w = QuantTensor::zeros::<e4m3>(rank, &op.needs("w")?)?;
    let mut y = rank.zeros::<bf16>([m, n])?;

    let rows = op.shard("x", rank.rank(), m)?;
    let (own, mine) = (
        quantised(rows.clone(), Granularity::BLOCK_1X128),
        x.rows(rows)?,
    );
    mine.codes().write(&codes(&own))?;
    mine.scales().write(own.plane::<RowsLast>().values())?;
    let weights = quantised(0..n, Granularity::BLOCK_128X128);
    w.codes().write(&codes(&weights))?;
    w.scales().write(weights.plane::<SquarePadded>().values())?;

    op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    let y = y.read()?;
    let off = (0..m * n).map(|at| {
        let (row, column) = (at / n, at % n);
        let terms = (0..k).map(|at| number(row, at) * number(column, at));
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| {
            (sum + term, size + f32::abs(term))
        });
        (sum - y[at].to_f32()).abs() / size
    });
    Ok(off.fold(0.0, f32::max))
}

fn main() -> Result<(), Error> {
    let off = Communicator::each(&Communicator::emulated(4)?, run)?;
    let most = off.into_iter().fold(0.0, f32::max);
    println!(
        "at most {:.2} % of the sum of a result's terms, without their signs",
        100.0 * most
    );
    // A term has two codes, each off by 1/16 at most.
    assert!(most < 0.13, "{most}");
    Ok(())
}
