//! A training step of two tensor-parallel layers with sequence parallelism: forward, all gradients, update.
//!
//! Ranks divide activations by rows and weights by hidden columns. All communication is fused; weight gradients add in f32. One
//! rank and four have the same losses. They are emulated: loss and update are the host's. `cargo run --example training_step`

use counterflow::prelude::bf16;
use counterflow::schedules::{AgGemmOp, GemmRsOp, WgradOp};
use counterflow::{
    Communicator, Error,
    Layout::{Nn, Nt, Tn},
};

/// Rows over all ranks, width of the model, hidden columns over all ranks.
const SIZE: [usize; 3] = [64, 64, 128];
const STEPS: usize = 6;
const RATE: f32 = 0.05;

/// Some numbers from -1 to 1.
fn numbers(seed: usize, rows: std::ops::Range<usize>, columns: std::ops::Range<usize>) -> Vec<f32> {
    let number = move |row, column| ((seed + row * 31 + column * 17) % 23) as f32 / 11.0 - 1.0;
    let row = |row| columns.clone().map(move |column| number(row, column));
    rows.flat_map(row).collect()
}

fn rounded(values: &[f32]) -> Vec<bf16> {
    values.iter().copied().map(bf16::from_f32).collect()
}

/// This rank's part of the loss, step by step.
fn train(rank: &Communicator) -> Result<Vec<f32>, Error> {
    let ([m, width, _], world) = (SIZE, rank.world() as usize);
    let (rows, hidden, me) = (m / world, SIZE[2] / world, rank.rank() as usize);
    let (mine, own) = (me * rows..(me + 1) * rows, me * hidden..(me + 1) * hidden);
    rank.reserve(16 << 20)?;
    let gather = |layout| rank.op_of::<AgGemmOp>().layout(layout).first_options();
    let scatter = |layout| rank.op_of::<GemmRsOp>().layout(layout).first_options();
    let wgrad = || rank.op_of::<WgradOp>().layout(Tn).first_options();
    let up = gather(Nt).up_to(m, hidden, width).build()?;
    let down = scatter(Nt).up_to(m, width, hidden).build()?;
    // Back through the same weights, whose rows are then the depth.
    let through_down = gather(Nn).up_to(m, hidden, width).build()?;
    let through_up = scatter(Nn).up_to(m, width, hidden).build()?;
    let of_up = wgrad().up_to(hidden, width, m).build()?;
    let of_down = wgrad().up_to(width, hidden, m).build()?;

    let x = rank.allocate("x", [m, width])?;
    let dz = rank.allocate("dz", [m, width])?;
    let mut z = rank.allocate::<bf16>("z", [rows, width])?;
    let mut dx = rank.allocate::<bf16>("dx", [rows, width])?;
    let (w, v) = (rank.zeros([hidden, width])?, rank.zeros([width, hidden])?);
    let mut h = rank.zeros::<bf16>([m, hidden])?;
    let mut dh = rank.zeros::<bf16>([m, hidden])?;
    let mut dw = rank.zeros::<f32>([hidden, width])?;
    let mut dv = rank.zeros::<f32>([width, hidden])?;

    // The weights in f32: this rank's hidden columns.
    let small = |numbers: Vec<f32>| numbers.iter().map(|number| 0.05 * number).collect();
    let mut w32: Vec<f32> = small(numbers(3, own.clone(), 0..width));
    let mut v32: Vec<f32> = small(numbers(5, 0..width, own));
    let targets = numbers(7, mine.clone(), 0..width);
    let inputs = rounded(&numbers(0, mine.clone(), 0..width));
    x.rows(mine.clone())?.write(&inputs)?;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        w.write(&rounded(&w32))?;
        v.write(&rounded(&v32))?;
        up.on(rank).x(&x).w(&w).y(&mut h).launch()?; // h = all_gather(x) · wᵀ
        down.on(rank).x(&h).w(&v).y(&mut z).launch()?.wait()?; // z = reduce_scatter(h · vᵀ)
        let off = z.read()?.into_iter().zip(&targets);
        let off = off.map(|(z, wanted)| (z.to_f32() - wanted) / m as f32);
        let off: Vec<f32> = off.collect();
        losses.push(off.iter().map(|off| off * off).sum::<f32>() * m as f32);
        dz.rows(mine.clone())?.write(&rounded(&off))?;
        dw.fill(0).and_then(|()| dv.fill(0))?;
        through_down.on(rank).x(&dz).w(&v).y(&mut dh).launch()?; // dh = all_gather(dz) · v
        through_up.on(rank).x(&dh).w(&w).y(&mut dx).launch()?; // for the layer before
        of_down.on(rank).dy(&dz).x(&h).grad(&mut dv).launch()?; // dv += dzᵀ · h
        of_up.on(rank).dy(&dh).x(&x).grad(&mut dw).launch()?; // dw += dhᵀ · x
        for (weights, change) in [(&mut w32, dw.read()?), (&mut v32, dv.read()?)] {
            (weights.iter_mut().zip(change)).for_each(|(own, change)| *own -= RATE * change);
        }
    }
    Ok(losses)
}

fn main() -> Result<(), Error> {
    let losses = |world| {
        let parts = Communicator::each(&Communicator::emulated(world)?, train)?;
        let sum = |step: usize| parts.iter().map(|part| part[step]).sum();
        Ok::<Vec<f32>, Error>((0..STEPS).map(sum).collect())
    };
    let (alone, together) = (losses(1)?, losses(4)?);
    println!("one rank:   {alone:.3?}\nfour ranks: {together:.3?}");
    assert!(together.is_sorted_by(|before, after| before > after));
    let near = |(one, four): (&f32, &f32)| (one - four).abs() < 0.01 * one;
    assert!(alone.iter().zip(&together).all(near), "more than rounding");
    Ok(())
}
