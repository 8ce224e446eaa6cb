//! Work that a step enqueues, pass by pass: each kernel and copy takes the host microseconds, so that their number is the host's time; and
//! the bytes of the copies.

use super::memory::flags;
use super::{each, userbuffers_of};
use crate::wide::in_turn;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::{
    Activation, DelayedScaling, Float8BlockScaling, Gradients, LayerNormLinear,
    LayerNormLinearConfig, LayerNormLinearGradients, LayerNormLinearParameters, LayerNormMlp,
    LayerNormMlpConfig, LayerNormMlpGradients, LayerNormMlpParameters, Linear, LinearConfig, Norm,
    Normalization, Parameters, QuantizationMode, Recipe, Userbuffers,
};
use std::sync::Arc;
use std::time::Instant;

const ROWS: usize = 32;
const HIDDEN: usize = 64;
const FFN: usize = 128;

/// Kernels of ops, steps of side kernels and quantisers, and copies. Fills are those by which debug builds spoil what they lend.
type Counts = [u64; 3];

/// Counts of what passes enqueue, each by the pass' name.
pub struct Counter<'a> {
    rank: &'a Communicator,
    /// Of the last step.
    found: Vec<(&'static str, Counts)>,
    /// Microseconds of the host, of all steps.
    took: Vec<(&'static str, f64)>,
    /// Bytes that the last step copied.
    copied: u64,
}

impl Counter<'_> {
    /// Microseconds that the host took for each pass, of all steps in turn.
    pub fn took(&self) -> &[(&'static str, f64)] {
        &self.took
    }

    /// Kernels and copies of the last step.
    pub fn enqueued(&self) -> u64 {
        self.found.iter().flat_map(|(_, counts)| counts).sum()
    }

    fn begins(&mut self) {
        self.found.clear();
        self.copied = 0;
    }

    fn pass<T>(
        &mut self,
        name: &'static str,
        pass: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let counted = || {
            let all = self.rank.enqueued();
            [all.kernels, all.steps, all.copies]
        };
        let (before, begun) = (counted(), Instant::now());
        let bytes = self.rank.enqueued().copied_bytes;
        let done = pass()?;
        self.copied += self.rank.enqueued().copied_bytes - bytes;
        self.took.push((name, 1e6 * begun.elapsed().as_secs_f64()));
        let after = counted();
        self.found
            .push((name, [0, 1, 2].map(|of| after[of] - before[of])));
        Ok(done)
    }
}

fn gradient<'a>(weight: &'a mut Tensor<f32>) -> Gradients<'a> {
    Gradients {
        weight: Some(weight),
        bias: None,
    }
}

fn norm() -> Norm {
    Norm::new(Normalization::RmsNorm)
}

fn parameters<'a>(
    gamma: &'a Tensor<bf16>,
    weight: &'a Tensor<bf16>,
) -> LayerNormLinearParameters<'a> {
    LayerNormLinearParameters {
        layer_norm_weight: gamma,
        layer_norm_bias: None,
        linear: of_weight(weight),
    }
}

fn of_weight(weight: &Tensor<bf16>) -> Parameters<'_> {
    Parameters { weight, bias: None }
}

/// A norm and a column-parallel layer, then a row-parallel one: the products around attention.
fn qkv_and_proj(
    buffers: &Userbuffers,
    recipe: Option<Recipe>,
    (on, firsts): (bool, &[Option<bool>]),
    counter: &mut Counter<'_>,
) -> Result<(), Error> {
    let rank = buffers.rank();
    let config = |linear: LinearConfig, name: &str| LinearConfig {
        fp8: recipe,
        flags: flags(on).flags(),
        ub_name: Some(name.into()),
        ..linear
    };
    let qkv = LayerNormLinearConfig {
        norm: norm(),
        linear: config(LinearConfig::column(HIDDEN, FFN), "qkv"),
    };
    let qkv = LayerNormLinear::new(buffers, &qkv)?;
    let proj = Linear::new(buffers, &config(LinearConfig::row(FFN, HIDDEN), "proj"))?;
    let gamma = rank.zeros([1, HIDDEN])?;
    let shapes = [qkv.linear().weight_shape(), proj.weight_shape()];
    let [w1, w2] = [rank.zeros(shapes[0])?, rank.zeros(shapes[1])?];
    let [mut dw1, mut dw2] = [rank.zeros(shapes[0])?, rank.zeros(shapes[1])?];
    let mut of_gamma = rank.zeros([1, HIDDEN])?;
    let x = rank.zeros(qkv.linear().input_shape(ROWS))?;
    let mut between = rank.zeros(proj.input_shape(ROWS))?;
    let mut y = rank.zeros(proj.output_shape(ROWS))?;
    let mut dx = rank.zeros(x.shape())?;
    for first in firsts {
        counter.begins();
        let step = recipe.map(|_| buffers.autocast(*first)).transpose()?;
        let of_qkv = parameters(&gamma, &w1);
        let qkv_saved = counter.pass("qkv forward", || {
            qkv.forward(ROWS, &x, &of_qkv, &mut between)
        })?;
        let proj_saved = counter.pass("proj forward", || {
            proj.forward(ROWS, &between, &of_weight(&w2), &mut y)
        })?;
        counter.pass("proj backward", || {
            let to = gradient(&mut dw2);
            proj.backward(proj_saved, &of_weight(&w2), &y, &mut between, to)
        })?;
        counter.pass("qkv backward", || {
            let gradients = LayerNormLinearGradients {
                layer_norm_weight: &mut of_gamma,
                layer_norm_bias: None,
                linear: gradient(&mut dw1),
            };
            qkv.backward(qkv_saved, &of_qkv, &between, &mut dx, gradients)
        })?;
        counter.pass("end", || step.map_or(Ok(()), |step| step.end()))?;
    }
    Ok(())
}

fn mlp(
    buffers: &Userbuffers,
    recipe: Option<Recipe>,
    (on, firsts): (bool, &[Option<bool>]),
    counter: &mut Counter<'_>,
) -> Result<(), Error> {
    let rank = buffers.rank();
    let config = LayerNormMlpConfig {
        activation: Activation::SwiGlu,
        fp8: recipe,
        flags: flags(on).flags(),
        ..LayerNormMlpConfig::new(HIDDEN, FFN, norm())
    };
    let mlp = LayerNormMlp::new(buffers, &config)?;
    let gamma = rank.zeros([1, HIDDEN])?;
    let shapes = mlp.linears().map(Linear::weight_shape);
    let [w1, w2] = [rank.zeros(shapes[0])?, rank.zeros(shapes[1])?];
    let [mut dw1, mut dw2] = [rank.zeros(shapes[0])?, rank.zeros(shapes[1])?];
    let mut of_gamma = rank.zeros([1, HIDDEN])?;
    let x = rank.zeros(mlp.shape(ROWS))?;
    let (mut y, mut dx) = (rank.zeros(x.shape())?, rank.zeros(x.shape())?);
    for first in firsts {
        counter.begins();
        let step = recipe.map(|_| buffers.autocast(*first)).transpose()?;
        let of_mlp = LayerNormMlpParameters {
            fc1: parameters(&gamma, &w1),
            fc2: of_weight(&w2),
        };
        let saved = counter.pass("forward", || mlp.forward(ROWS, &x, &of_mlp, &mut y))?;
        counter.pass("backward", || {
            let gradients = LayerNormMlpGradients {
                fc1: LayerNormLinearGradients {
                    layer_norm_weight: &mut of_gamma,
                    layer_norm_bias: None,
                    linear: gradient(&mut dw1),
                },
                fc2: gradient(&mut dw2),
            };
            mlp.backward(saved, &of_mlp, &y, &mut dx, gradients)
        })?;
        counter.pass("end", || step.map_or(Ok(()), |step| step.end()))?;
    }
    Ok(())
}

/// Some layers, with or without overlap, in steps that are a first microbatch's or not.
type Layers = fn(
    &Userbuffers,
    Option<Recipe>,
    (bool, &[Option<bool>]),
    &mut Counter<'_>,
) -> Result<(), Error>;

/// The layers of these tests, by name.
pub const LAYERS: [(&str, Layers); 2] = [("qkv and proj", qkv_and_proj), ("SwiGLU MLP", mlp)];

/// Layers with delayed scaling, in steps of this rank.
pub fn steps<'a>(
    rank: &'a Arc<Communicator>,
    of: (bool, &[Option<bool>]),
    layers: Layers,
) -> Result<Counter<'a>, Error> {
    steps_of(rank, Some(DelayedScaling::default().into()), of, layers)
}

/// Layers with that recipe.
fn steps_of<'a>(
    rank: &'a Arc<Communicator>,
    recipe: Option<Recipe>,
    (on, firsts): (bool, &[Option<bool>]),
    layers: Layers,
) -> Result<Counter<'a>, Error> {
    let mode = recipe.map_or(QuantizationMode::None, |_| QuantizationMode::Fp8);
    let modes = vec![mode];
    let buffers = userbuffers_of(rank, [ROWS, HIDDEN], "", modes)?;
    let mut counter = Counter {
        rank,
        found: Vec::new(),
        took: Vec::new(),
        copied: 0,
    };
    layers(&buffers, recipe, (on, firsts), &mut counter)?;
    rank.synchronize()?;
    rank.barrier()?;
    Ok(counter)
}

/// The second step of layers with delayed scaling, on each rank alike.
fn counts(
    world: u32,
    (on, first): (bool, Option<bool>),
    layers: Layers,
) -> Vec<(&'static str, Counts)> {
    let firsts = [Some(true), first];
    let found = each(world, |rank| Ok(steps(rank, (on, &firsts), layers)?.found));
    let found = found.expect("ranks");
    assert!(found.iter().all(|other| *other == found[0]), "{found:?}");
    found.into_iter().next().expect("a rank")
}

#[test]
fn a_step_of_qkv_and_proj_enqueues_no_more_than_this() {
    // The weight's codes, both ways; rows by the norm, or the activations' codes both ways; the product, whose sum comes to the caller.
    let forward = [("qkv forward", [1, 2, 0]), ("proj forward", [1, 2, 0])];
    // Codes of the gradient; both products; codes on their side. The norm, which reads the gradient's sum: one for x and the sums for γ, one that adds them.
    let backward = [("proj backward", [2, 2, 0]), ("qkv backward", [2, 4, 1])];
    // Amaxes of all tensors: gathered, and computed scales.
    let end = ("end", [1, 1, 0]);
    let fused = [forward[0], forward[1], backward[0], backward[1], end];
    assert_eq!(counts(2, (true, None), qkv_and_proj), fused);
    // Microbatches after the first take the weights' codes that are there.
    let mut later = fused;
    later[0].1[1] -= 1;
    later[1].1[1] -= 1;
    assert_eq!(counts(2, (true, Some(false)), qkv_and_proj), later);
    // Gathers and sums by themselves.
    let mut apart = fused;
    apart[0].1[0] += 1;
    apart[1].1[0] += 1;
    apart[2].1[0] += 1;
    apart[3].1[0] += 2;
    assert_eq!(counts(2, (false, None), qkv_and_proj), apart);
    let alone = [
        ("qkv forward", [1, 3, 0]),
        ("proj forward", [1, 2, 0]),
        ("proj backward", [2, 1, 0]),
        ("qkv backward", [2, 3, 0]),
        ("end", [0, 1, 0]),
    ];
    assert_eq!(counts(1, (false, None), qkv_and_proj), alone);
}

#[test]
fn a_step_of_an_mlp_enqueues_no_more_than_this() {
    // As above, and the activation in the place of a quantiser.
    let fused = [
        ("forward", [2, 4, 0]),
        ("backward", [4, 6, 1]),
        ("end", [1, 1, 0]),
    ];
    assert_eq!(counts(2, (true, None), mlp), fused);
    let later = [("forward", [2, 2, 0]), fused[1], fused[2]];
    assert_eq!(counts(2, (true, Some(false)), mlp), later);
}

/// Bytes that a step copies between memories of a rank: of bf16 the gradient of the last output, which is a tensor here, to where it is
/// gathered; of one scale a tensor the codes of the input that is gathered again; and in each step of FP8 nothing else.
#[test]
fn a_step_copies_no_more_bytes_than_this() {
    let shard = (ROWS / 2 * HIDDEN) as u64;
    let recipes: [(Option<Recipe>, u64); 3] = [
        (None, 2 * shard),
        (Some(DelayedScaling::default().into()), shard),
        (Some(Float8BlockScaling::default().into()), 0),
    ];
    for (at, (recipe, wanted)) in recipes.into_iter().enumerate() {
        for (nth, (name, layers)) in LAYERS.into_iter().enumerate() {
            // Without `WIDE` one of these for each, in turn.
            let ways = [(2, true), (2, false), (1, false)];
            for (world, on) in in_turn(ways, 2 * at + nth) {
                let firsts = [Some(true), Some(false)];
                let run = |rank: &Arc<Communicator>| {
                    Ok(steps_of(rank, recipe, (on, &firsts), layers)?.copied)
                };
                let wanted = if world == 1 { 0 } else { wanted };
                let found = each(world, run).expect("ranks");
                let told = format!("{name}, {recipe:?}, {world} ranks, overlap {on}");
                assert!(
                    found.iter().all(|bytes| *bytes == wanted),
                    "{found:?}: {told}"
                );
            }
        }
    }
}
