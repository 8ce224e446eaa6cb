//! A `#[cube]` function after a product: `cargo run --manifest-path cube/Cargo.toml --example soft_cap`. On a GPU if there is one,
//! else on an emulated rank, which computes the function's twin.

use counterflow::prelude::*;
use counterflow::{Communicator, Device, Error};

mod caps {
    use counterflow_cube::cubecl::{self, prelude::*};

    /// About `x` where that is small, and `limit` at most.
    #[cube]
    pub fn soft_cap(x: f32, limit: f32) -> f32 {
        limit * (x / limit).tanh()
    }
}
counterflow_cube::epilogue! {
    /// The same after a product, and on the host.
    pub fn capped(x, limit) = caps::soft_cap;
}

/// y = soft_cap(x · wᵀ), with a limit for each column.
#[schedule]
fn logits(x: Local<bf16>, w: Local<bf16>, limit: Vector<f32>, y: Out<f32>) {
    let tiles = y.tiles((128, 128));
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]).map(capped, limit);
    }
}

fn main() -> Result<(), Error> {
    const SIDE: usize = 256;
    let ranks = match Device::Cuda.open() {
        Ok(_) => Communicator::local(1)?,
        Err(_) => Communicator::emulated(1)?,
    };
    let (rank, schedule) = (&ranks[0], logits());
    let op = rank.op(&schedule).first_options().up_to(SIDE, SIDE, SIDE);
    let op = op.build()?;
    let number = |at: usize, of: usize| (at * 37 % of) as f32 - (of / 2) as f32;
    let x: Vec<f32> = (0..SIDE * SIDE).map(|at| number(at, 17)).collect();
    let w: Vec<f32> = (0..SIDE * SIDE).map(|at| number(at, 23) / 64.0).collect();
    let limits: Vec<f32> = (0..SIDE).map(|column| 1.0 + column as f32).collect();
    let rounded = |values: &[f32]| {
        values
            .iter()
            .copied()
            .map(bf16::from_f32)
            .collect::<Vec<_>>()
    };
    let (left, right) = (rank.zeros([SIDE, SIDE])?, rank.zeros([SIDE, SIDE])?);
    let (limit, mut y) = (rank.zeros::<f32>([SIDE])?, rank.zeros::<f32>([SIDE, SIDE])?);
    left.write(&rounded(&x))?;
    right.write(&rounded(&w))?;
    limit.write(&limits)?;
    let stream = rank.gpu().stream()?;
    let launch = op.on(&stream).tensor("x", &left).tensor("w", &right);
    launch
        .tensor("limit", &limit)
        .tensor("y", &mut y)
        .launch()?
        .wait()?;

    let mut worst: f64 = 0.0;
    for (at, got) in y.read()?.into_iter().enumerate() {
        let (row, column) = (at / SIDE, at % SIDE);
        let terms =
            (0..SIDE).map(|k| f64::from(x[row * SIDE + k]) * f64::from(w[column * SIDE + k]));
        let (sum, limit) = (terms.sum::<f64>(), f64::from(limits[column]));
        let off = (f64::from(got) - limit * (sum / limit).tanh()).abs() / limit;
        assert!(off < 1e-5, "[{row}, {column}] is {got}");
        worst = worst.max(off);
    }
    println!(
        "{}: at most {worst:.1e} of the limit off",
        rank.gpu().name()
    );
    Ok(())
}
