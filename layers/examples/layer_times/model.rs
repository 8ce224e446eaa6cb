//! The layers of a case, with the tensors of their steps.

use crate::apart::Apart;
use crate::case::{HISTORY, Job, Module};
use counterflow::{Communicator, Error, Tensor, prelude::bf16};
use counterflow_layers::overlap::Flags;
use counterflow_layers::{
    Activation, GradientPlace, Gradients, LayerNormLinear, LayerNormLinearConfig,
    LayerNormLinearGradients, LayerNormLinearParameters, LayerNormMlp, LayerNormMlpConfig,
    LayerNormMlpGradients, LayerNormMlpParameters, Linear, LinearConfig, Norm, Normalization,
    Parameters, Product, Userbuffers,
};

/// The layers of a module.
pub enum Layer {
    Mlp(Box<LayerNormMlp>),
    Attention(Box<LayerNormLinear>, Box<Linear>),
}

/// Sizes of the layers of a group, of which the whole has `[hidden, ffn, qkv]`; each rank of `parts` has its part of the weights.
fn configs(
    job: &Job,
    module: Module,
    flags: Flags,
    [hidden, ffn, qkv]: [usize; 3],
    parts: usize,
) -> (LayerNormMlpConfig, [LinearConfig; 2]) {
    // Without communication a group of one rank has one rank's part of the weights as its whole.
    let apart = if job.has_communication() { 1 } else { parts };
    let norm = Norm::new(Normalization::RmsNorm);
    let fp8 = job.recipe();
    let mlp = LayerNormMlpConfig {
        activation: match module {
            Module::SwiGlu | Module::QkvProj => Activation::SwiGlu,
            Module::Gelu => Activation::Gelu,
        },
        flags,
        fp8,
        ..LayerNormMlpConfig::new(hidden, ffn / apart, norm)
    };
    let linear = |config: LinearConfig, name: &str| LinearConfig {
        fp8,
        flags,
        ub_name: Some(name.into()),
        ..config
    };
    let qkv = linear(LinearConfig::column(hidden, qkv / apart), "qkv");
    let proj = linear(LinearConfig::row(hidden / apart, hidden), "proj");
    (mlp, [qkv, proj])
}

impl Layer {
    /// Collective.
    pub fn new(
        buffers: &Userbuffers,
        job: &Job,
        module: Module,
        flags: Flags,
        sizes: [usize; 3],
        parts: usize,
    ) -> Result<Layer, Error> {
        let rank = buffers.rank();
        let (mlp, [qkv, proj]) = configs(job, module, flags, sizes, parts);
        let room = |heap: u64| rank.reserve(rank.heap_use().reserved + heap + (4 << 20));
        if module != Module::QkvProj {
            room(mlp.workspace(buffers)?.heap)?;
            return Ok(Layer::Mlp(Box::new(LayerNormMlp::new(buffers, &mlp)?)));
        }
        room(qkv.workspace(buffers)?.heap + proj.workspace(buffers)?.heap)?;
        let norm = Norm::new(Normalization::RmsNorm);
        let proj = Linear::new(buffers, &proj)?;
        let qkv = LayerNormLinear::new(buffers, &LayerNormLinearConfig { norm, linear: qkv })?;
        Ok(Layer::Attention(Box::new(qkv), Box::new(proj)))
    }

    fn linears(&self) -> [&Linear; 2] {
        match self {
            Layer::Mlp(mlp) => mlp.linears(),
            Layer::Attention(qkv, proj) => [qkv.linear(), proj],
        }
    }

    pub fn products(&self) -> Vec<Product> {
        let each = self.linears().map(Linear::products);
        each.into_iter().flatten().collect()
    }
}

/// One block of so many of a weight's gradient is compared.
const PART: usize = 13;

/// Inputs and weights of a module, which layers with and without overlap share.
#[derive(Clone)]
pub struct Given {
    pub rows: usize,
    /// One, or that of each layer.
    inputs: Vec<Tensor<bf16>>,
    /// Gradients of outputs.
    of_outputs: Vec<Tensor<bf16>>,
    gamma: Tensor<bf16>,
    weights: [Tensor<bf16>; 2],
}

/// Numbers about as a normal distribution has them.
pub struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// Mean 0, with that deviation: of four even numbers the sum.
    pub fn number(&mut self, deviation: f32) -> f32 {
        let word = self.word();
        let parts = [0, 16, 32, 48].map(|at| (word >> at & 0xffff) as f32);
        let sum = parts.iter().sum::<f32>() / 65536.0 - 2.0;
        sum * deviation * 3f32.sqrt()
    }
}

/// A tensor of such numbers: pieces of rows, each drawn by a thread.
pub fn random(
    rank: &Communicator,
    shape: [usize; 2],
    seed: u64,
    number: impl Fn(&mut Random) -> f32 + Sync,
) -> Result<Tensor<bf16>, Error> {
    const PIECE: usize = 1 << 21;
    const THREADS: usize = 8;
    let tensor = rank.zeros::<bf16>(shape)?;
    let [rows, columns] = shape;
    let each = (PIECE / columns.max(1)).max(1);
    let starts: Vec<usize> = (0..rows).step_by(each).collect();
    for starts in starts.chunks(THREADS) {
        let draw = |from: usize| {
            let count = (rows.min(from + each) - from) * columns;
            let mut random = Random(seed << 40 ^ (from as u64) << 8);
            let numbers = (0..count).map(|_| bf16::from_f32(number(&mut random)));
            numbers.collect::<Vec<_>>()
        };
        let drawn: Vec<Vec<bf16>> = std::thread::scope(|scope| {
            let spawn = |from: &usize| {
                let (draw, from) = (&draw, *from);
                scope.spawn(move || draw(from))
            };
            let threads: Vec<_> = starts.iter().map(spawn).collect();
            let ended = threads.into_iter();
            ended
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        for (from, numbers) in starts.iter().zip(&drawn) {
            let to = rows.min(from + each);
            tensor.rows(*from..to)?.write(numbers)?;
        }
    }
    Ok(tensor)
}

impl Given {
    /// Each rank draws numbers of its own, but for the norm's.
    pub fn new(
        buffers: &Userbuffers,
        layer: &Layer,
        rows: usize,
        seat: u32,
    ) -> Result<Given, Error> {
        let rank = buffers.rank();
        let [first, second] = layer.linears();
        let usual = |shape, seed: u64| {
            random(rank, shape, 31 * u64::from(seat) + seed, |random| {
                random.number(1.0)
            })
        };
        let weight = |shape, seed: u64| {
            random(rank, shape, 31 * u64::from(seat) + seed, |random| {
                random.number(0.02)
            })
        };
        let (inputs, of_outputs) = match layer {
            Layer::Mlp(_) => (
                vec![usual(first.input_shape(rows), 1)?],
                vec![usual(second.output_shape(rows), 2)?],
            ),
            Layer::Attention(..) => (
                vec![
                    usual(first.input_shape(rows), 1)?,
                    usual(second.input_shape(rows), 3)?,
                ],
                vec![
                    usual(first.output_shape(rows), 4)?,
                    usual(second.output_shape(rows), 2)?,
                ],
            ),
        };
        let hidden = first.config().in_features;
        Ok(Given {
            rows,
            inputs,
            of_outputs,
            gamma: random(rank, [1, hidden], 5, |random| 1.0 + random.number(0.1))?,
            weights: [
                weight(first.weight_shape(), 6)?,
                weight(second.weight_shape(), 7)?,
            ],
        })
    }

    fn first(&self) -> LayerNormLinearParameters<'_> {
        LayerNormLinearParameters {
            layer_norm_weight: &self.gamma,
            layer_norm_bias: None,
            linear: linear(&self.weights[0]),
        }
    }
}

fn linear(weight: &Tensor<bf16>) -> Parameters<'_> {
    Parameters { weight, bias: None }
}

fn gradients(weight: &mut Tensor<f32>) -> Gradients<'_> {
    Gradients {
        weight: Some(weight),
        bias: None,
    }
}

/// Which layers a forward pass has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    All,
    First,
    Second,
}

/// A module that steps, with its results.
pub struct Running {
    buffers: Userbuffers,
    pub layer: Layer,
    given: Given,
    is_fp8: bool,
    /// FP8 weights are quantised in the first step with a backward pass, and then kept.
    first: bool,
    outputs: Vec<Tensor<bf16>>,
    /// Gradient of the last output, where the layer behind would write it.
    last: GradientPlace,
    of_inputs: Vec<Tensor<bf16>>,
    /// Of the norm, and of both weights: steps add to them.
    of_weights: [Tensor<f32>; 3],
}

impl Running {
    pub fn new(buffers: &Userbuffers, layer: Layer, given: &Given) -> Result<Running, Error> {
        let rank = buffers.rank();
        let zeros = |of: &Vec<Tensor<bf16>>| {
            let each = of.iter().map(|tensor| rank.zeros(tensor.shape()));
            each.collect::<Result<Vec<_>, _>>()
        };
        let [first, second] = [0, 1].map(|at: usize| rank.zeros(given.weights[at].shape()));
        let is_fp8 = layer.linears()[0].config().fp8.is_some();
        let last = layer.linears()[1].gradient_place(given.rows)?;
        if let Some(dy) = given.of_outputs.last().filter(|dy| !dy.is_empty()) {
            last.copy_from(dy)?;
        }
        Ok(Running {
            last,
            buffers: buffers.clone(),
            outputs: zeros(&given.of_outputs)?,
            of_inputs: zeros(&given.inputs)?,
            of_weights: [rank.zeros(given.gamma.shape())?, first?, second?],
            given: given.clone(),
            layer,
            is_fp8,
            first: true,
        })
    }

    fn in_step<T>(
        &mut self,
        passes: impl FnOnce(&mut Running) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let first = Some(self.first);
        let step = self.is_fp8.then(|| self.buffers.autocast(first));
        let step = step.transpose()?;
        let done = passes(self)?;
        step.map_or(Ok(()), |step| step.end())?;
        Ok(done)
    }

    /// Forward pass that saves what a backward pass needs, and lets it go.
    pub fn forward(&mut self, which: Which) -> Result<(), Error> {
        self.in_step(|running| {
            let Running {
                layer,
                given,
                outputs,
                ..
            } = running;
            let rows = given.rows;
            match layer {
                Layer::Mlp(mlp) => {
                    let parameters = LayerNormMlpParameters {
                        fc1: given.first(),
                        fc2: linear(&given.weights[1]),
                    };
                    mlp.forward(rows, &given.inputs[0], &parameters, &mut outputs[0])
                        .map(drop)
                }
                Layer::Attention(qkv, proj) => {
                    if which != Which::Second {
                        qkv.forward(rows, &given.inputs[0], &given.first(), &mut outputs[0])?;
                    }
                    if which != Which::First {
                        let weight = linear(&given.weights[1]);
                        proj.forward(rows, &given.inputs[1], &weight, &mut outputs[1])?;
                    }
                    Ok(())
                }
            }
        })
    }

    /// Forward and backward pass.
    pub fn both(&mut self) -> Result<(), Error> {
        self.in_step(|running| {
            let Running {
                layer,
                given,
                outputs,
                last,
                of_inputs,
                of_weights: [of_gamma, of_first, of_second],
                ..
            } = running;
            let rows = given.rows;
            let of_first = LayerNormLinearGradients {
                layer_norm_weight: of_gamma,
                layer_norm_bias: None,
                linear: gradients(of_first),
            };
            let second = linear(&given.weights[1]);
            match layer {
                Layer::Mlp(mlp) => {
                    let parameters = LayerNormMlpParameters {
                        fc1: given.first(),
                        fc2: second,
                    };
                    let saved =
                        mlp.forward(rows, &given.inputs[0], &parameters, &mut outputs[0])?;
                    let of_weights = LayerNormMlpGradients {
                        fc1: of_first,
                        fc2: gradients(of_second),
                    };
                    mlp.backward(saved, &parameters, &*last, &mut of_inputs[0], of_weights)
                }
                Layer::Attention(qkv, proj) => {
                    let [x, between] = &given.inputs[..] else {
                        return Ok(());
                    };
                    let of_qkv = qkv.forward(rows, x, &given.first(), &mut outputs[0])?;
                    let of_proj = proj.forward(rows, between, &second, &mut outputs[1])?;
                    let dy = &given.of_outputs[0];
                    let to = gradients(of_second);
                    proj.backward(of_proj, &second, &*last, &mut of_inputs[1], to)?;
                    qkv.backward(of_qkv, &given.first(), dy, &mut of_inputs[0], of_first)
                }
            }
        })?;
        self.first = false;
        Ok(())
    }

    /// The results of a step behind some others, whose amaxes make its scales: as many as delayed scaling remembers, and the few in which
    /// these amaxes come to stay.
    pub fn settle(&mut self) -> Result<(), Error> {
        let before = if self.is_fp8 { HISTORY + 3 } else { 3 };
        for _ in 0..before {
            self.both()?;
        }
        for gradient in &self.of_weights {
            gradient.fill(0)?;
        }
        for result in self.outputs.iter().chain(&self.of_inputs) {
            // Not a number, in case that nothing is written.
            result.fill(0xff)?;
        }
        self.both()
    }

    /// How far these results are from the other's, all outputs and gradients of inputs, and a part of the weights' gradients, which
    /// take most of the time: of outputs and of gradients, the largest difference by the norm of all (Frobenius),
    /// and the largest by the largest number.
    pub fn compare(&self, other: &Running) -> Result<Vec<f64>, Error> {
        let (mut outputs, mut gradients) = (Apart::default(), Apart::default());
        for (own, other) in self.outputs.iter().zip(&other.outputs) {
            outputs.add((own, other), 1, bf16::to_f64)?;
        }
        for (own, other) in self.of_inputs.iter().zip(&other.of_inputs) {
            gradients.add((own, other), 1, bf16::to_f64)?;
        }
        for (own, other) in self.of_weights.iter().zip(&other.of_weights) {
            gradients.add((own, other), PART, f64::from)?;
        }
        let Apart { norm, most } = gradients;
        Ok(vec![outputs.norm, outputs.most, norm, most])
    }
}
