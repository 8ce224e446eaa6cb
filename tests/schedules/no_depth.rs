//! Products of depth 0, whose operands have no columns: what is left is the function after them.

use counterflow::prelude::bf16;
use counterflow::schedules::{self, LinearGeluOp, WgradOp};
use counterflow::{Communicator, Error, Layout};

const M: usize = 70;
const N: usize = 24;

fn alone() -> Communicator {
    Communicator::emulated(1).expect("a rank").remove(0)
}

/// Bits of a layer whose operands are zeros of that depth, in two rows less than it may have; behind them is NaN.
fn layer(rank: &Communicator, depth: usize) -> Result<Vec<u16>, Error> {
    let op = rank.op_of::<LinearGeluOp>().up_to(M, N, depth).build()?;
    let [x, w] = [M, N].map(|rows| rank.zeros::<bf16>([rows, depth]));
    let (bias, mut y) = (rank.zeros::<bf16>([N])?, rank.zeros::<bf16>([M, N])?);
    let values = (0..N).map(|at| bf16::from_f32(at as f32 / 4.0 - 3.0));
    bias.write(&values.collect::<Vec<_>>())?;
    y.fill(0xff)?;
    let (x, w) = (x?, w?);
    assert_eq!(op.needs("x")?.shape, [M, depth]);
    let launch = op.on(rank).x(&x).w(&w).bias(&bias).y(&mut y);
    launch.rows(M - 2).launch()?.wait()?;
    Ok(y.read()?.into_iter().map(bf16::to_bits).collect())
}

#[test]
fn sums_of_nothing_are_those_of_zeros() -> Result<(), Error> {
    let rank = &alone();
    let made = layer(rank, 0)?;
    assert_eq!(made, layer(rank, 16)?);
    let (rows, behind) = made.split_at((M - 2) * N);
    assert!(behind.iter().all(|bits| *bits == 0xffff));
    // What is added is not 0.
    assert!(rows.iter().filter(|bits| **bits != 0).count() > rows.len() / 2);
    Ok(())
}

#[test]
fn a_gradient_of_no_rows_leaves_what_it_is_added_to() -> Result<(), Error> {
    let rank = &alone();
    let op = rank
        .op_of::<WgradOp>()
        .layout(Layout::Tn)
        .up_to(M + 2, N, 0)
        .build()?;
    let (dy, x) = (rank.zeros::<bf16>([0, M + 2])?, rank.zeros::<bf16>([0, N])?);
    let mut grad = rank.zeros::<f32>([M + 2, N])?;
    let before: Vec<f32> = (0..(M + 2) * N).map(|at| at as f32 / 3.0).collect();
    grad.write(&before)?;
    for _ in 0..2 {
        op.on(rank).dy(&dy).x(&x).grad(&mut grad).launch()?.wait()?;
    }
    assert_eq!(grad.read()?, before);
    Ok(())
}

/// Rows that would move have no bytes.
#[test]
fn what_is_gathered_has_columns() {
    let rank = &alone();
    let built = rank
        .op(&schedules::ag_gemm())
        .first_options()
        .up_to(M, N, 0)
        .build();
    let error = built.expect_err("refused");
    assert_eq!(error.kind(), "rejected");
    let text = error.to_string();
    assert!(text.contains("k is 0"), "{text}");
    assert!(text.contains("nothing of it is gathered"), "{text}");
}
