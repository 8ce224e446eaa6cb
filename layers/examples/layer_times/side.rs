//! Times of side kernels beside that of a copy.

use crate::clock::Clock;
use crate::model::random;
use counterflow::{Communicator, Error, prelude::bf16};
use counterflow_layers::side::twin::Mask;
use counterflow_layers::side::{ElementKernels, LossKernels, NormKernels, RopeKernels};
use counterflow_layers::{Activation, Norm, Normalization};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Numbers of a head.
const DEPTH: usize = 128;

/// Milliseconds of each, and the bytes that it reads and writes, for so many rows.
pub fn run(
    clock: &Clock<'_>,
    rank: &Arc<Communicator>,
    rows: usize,
    [hidden, ffn, qkv]: [usize; 3],
) -> Result<Map<String, Value>, Error> {
    let between = ffn / rank.world() as usize;
    let (mut cells, mut bytes) = (Map::new(), Map::new());
    let mut timed = |name: &str, elements: usize, run: &mut dyn FnMut() -> Result<(), Error>| {
        cells.insert(name.into(), json!(clock.steps(run)?));
        bytes.insert(name.into(), json!(elements * size_of::<bf16>()));
        Ok::<_, Error>(())
    };
    let numbers = |shape, seed| random(rank, shape, seed, |random| random.number(1.0));
    let x = numbers([rows, hidden], 1)?;
    let dy = numbers([rows, hidden], 2)?;
    let residual = numbers([rows, hidden], 3)?;
    let mut y = rank.zeros::<bf16>([rows, hidden])?;
    let all = rows * hidden;
    let wide = numbers([rows, 2 * between], 4)?;
    let mut of_wide = rank.zeros::<bf16>([rows, 2 * between])?;
    timed("copy", 4 * rows * between, &mut || of_wide.copy_from(&wide))?;

    let gamma = numbers([1, hidden], 5)?;
    let mut statistics = rank.zeros::<f32>([rows, 2])?;
    let mut of_gamma = rank.zeros::<f32>([1, hidden])?;
    let mut of_beta = rank.zeros::<f32>([1, hidden])?;
    for (kind, name) in [
        (Normalization::RmsNorm, "rms_norm"),
        (Normalization::LayerNorm, "layer_norm"),
    ] {
        let norm = NormKernels::load(rank, Norm::new(kind))?;
        let beta = (kind == Normalization::LayerNorm).then_some(&gamma);
        timed(name, 2 * all, &mut || {
            norm.forward([rows, hidden], &x, (&gamma, beta), &mut y, &mut statistics)
        })?;
        timed(&format!("{name}_backward"), 3 * all, &mut || {
            let of = (&gamma, &statistics);
            norm.backward([rows, hidden], [&x, &dy], of, None, &mut y)
        })?;
        timed(&format!("{name}_gradients"), 2 * all, &mut || {
            let of_beta = beta.map(|_| &mut of_beta);
            let of = (&statistics, &mut of_gamma);
            norm.gradients([rows, hidden], [&x, &dy], of.0, of.1, of_beta)
        })?;
    }

    let elements = ElementKernels::load(rank)?;
    let dz = numbers([rows, between], 6)?;
    let mut z = rank.zeros::<bf16>([rows, between])?;
    let mut of_narrow = rank.zeros::<bf16>([rows, between])?;
    let shape = [rows, between];
    timed("swiglu", 3 * rows * between, &mut || {
        elements.activation(Activation::SwiGlu, shape, &wide, &mut z)
    })?;
    timed("swiglu_backward", 5 * rows * between, &mut || {
        let both = [&wide, &dz];
        elements.activation_backward(Activation::SwiGlu, shape, both, &mut of_wide)
    })?;
    let narrow = numbers(shape, 7)?;
    timed("gelu", 2 * rows * between, &mut || {
        elements.activation(Activation::Gelu, shape, &narrow, &mut z)
    })?;
    timed("gelu_backward", 3 * rows * between, &mut || {
        let both = [&narrow, &dz];
        elements.activation_backward(Activation::Gelu, shape, both, &mut of_narrow)
    })?;
    timed("residual_add", 3 * all, &mut || {
        elements.dropout_add(&x, &residual, None, &mut y)
    })?;
    let mask = Mask::new(1234, 0, 0.1);
    timed("dropout_add", 3 * all, &mut || {
        elements.dropout_add(&x, &residual, Some((&mask, 0)), &mut y)
    })?;
    timed("dropout_backward", 2 * all, &mut || {
        elements.dropout(&dy, (&mask, 0), &mut y)
    })?;

    let depth = DEPTH.min(hidden / 4);
    let columns = qkv / rank.world() as usize;
    let rope = RopeKernels::load(rank, rows, depth, 10_000.0)?;
    let mut heads = numbers([rows, columns], 8)?;
    timed("rope", 2 * rows * columns, &mut || {
        rope.turn(&mut heads, [columns / depth, 1], false)
    })?;

    let loss = LossKernels::load(rank)?;
    let targets = rank.zeros::<u32>([rows])?;
    targets.write(&Vec::from_iter((0..rows as u32).map(|row| row % 64)))?;
    let mut losses = rank.zeros::<f32>([rows])?;
    timed("cross_entropy", 4 * rows * between, &mut || {
        let to = (&mut losses, &mut of_wide);
        loss.cross_entropy(&wide, &targets, 1.0, to.0, to.1)
    })?;
    let mut result = Map::new();
    result.insert("cells".into(), Value::Object(cells));
    result.insert("bytes".into(), Value::Object(bytes));
    Ok(result)
}
