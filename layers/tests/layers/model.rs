//! A transformer's layer with numbers: as one process computes it in f64, and as a rank has its part of it.

use super::reference::{Matrix, OF_BF16};
use super::tape::{self, Tape, Vars};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::{
    Activation, Gradients, LayerNormLinearGradients, LayerNormLinearParameters, LayerNormMlpConfig,
    LayerNormMlpGradients, LayerNormMlpParameters, MultiheadAttentionConfig,
    MultiheadAttentionGradients, MultiheadAttentionParameters, Norm, Normalization, Parameters,
    Rope, TransformerLayerConfig,
};

/// What a layer consists of.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub hidden: usize,
    pub ffn: usize,
    pub heads: usize,
    pub groups: usize,
    pub depth: usize,
    pub kind: Normalization,
    pub activation: Activation,
    pub bias: bool,
    pub causal: bool,
    pub rope: bool,
}

const BASE: f64 = 100.0;
const POSITIONS: usize = 32;

impl Sizes {
    pub fn layer(&self) -> TransformerLayerConfig {
        let norm = Norm::new(self.kind);
        TransformerLayerConfig {
            attention: MultiheadAttentionConfig {
                groups: self.groups,
                depth: self.depth,
                norm: Some(norm),
                causal: self.causal,
                bias: self.bias,
                rope: self.rope.then_some(Rope {
                    base: BASE,
                    positions: POSITIONS,
                }),
                ..MultiheadAttentionConfig::new(self.hidden, self.heads)
            },
            mlp: LayerNormMlpConfig {
                activation: self.activation,
                bias: self.bias,
                ..LayerNormMlpConfig::new(self.hidden, self.ffn, norm)
            },
            ..TransformerLayerConfig::new(self.hidden, self.ffn, self.heads, norm)
        }
    }

    fn has_beta(&self) -> bool {
        self.kind == Normalization::LayerNorm
    }

    fn qkv(&self) -> usize {
        (self.heads + 2 * self.groups) * self.depth
    }

    /// Rows and columns of each weight, in the order of `NAMES`.
    fn shapes(&self) -> [[usize; 2]; 12] {
        let (hidden, out, fc1) = (
            self.hidden,
            self.heads * self.depth,
            self.activation.inputs(self.ffn),
        );
        [
            [1, hidden],
            [1, hidden],
            [self.qkv(), hidden],
            [1, self.qkv()],
            [hidden, out],
            [1, hidden],
            [1, hidden],
            [1, hidden],
            [fc1, hidden],
            [1, fc1],
            [hidden, self.ffn],
            [1, hidden],
        ]
    }

    /// The rows and columns of each weight that a rank has.
    fn own(&self, rank: usize, world: usize) -> [[Vec<usize>; 2]; 12] {
        let part = |first: usize, of: usize| {
            let each = of / world;
            first + each * rank..first + each * (rank + 1)
        };
        let (heads, groups) = (self.heads * self.depth, self.groups * self.depth);
        let qkv: Vec<usize> = part(0, heads)
            .chain(part(heads, groups))
            .chain(part(heads + groups, groups))
            .collect();
        let fc1: Vec<usize> = match self.activation {
            Activation::Gelu => part(0, self.ffn).collect(),
            Activation::SwiGlu => part(0, self.ffn).chain(part(self.ffn, self.ffn)).collect(),
        };
        let all = |of: usize| (0..of).collect::<Vec<_>>();
        let shapes = self.shapes();
        std::array::from_fn(|at| {
            let [rows, columns] = shapes[at].map(all);
            match at {
                2 => [qkv.clone(), columns],
                3 => [rows, qkv.clone()],
                4 => [rows, part(0, heads).collect()],
                8 => [fc1.clone(), columns],
                9 => [rows, fc1.clone()],
                10 => [rows, part(0, self.ffn).collect()],
                _ => [rows, columns],
            }
        })
    }
}

pub const NAMES: [&str; 12] = [
    "γ of attention",
    "β of attention",
    "w of qkv",
    "b of qkv",
    "w of proj",
    "b of proj",
    "γ of the MLP",
    "β of the MLP",
    "w of fc1",
    "b of fc1",
    "w of fc2",
    "b of fc2",
];

/// Which part of the layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Attention,
    Mlp,
    Layer,
}

impl Part {
    /// Whether it has that weight.
    pub fn has(self, sizes: &Sizes, at: usize) -> bool {
        let inside = match self {
            Part::Attention => at < 6,
            Part::Mlp => at >= 6,
            Part::Layer => true,
        };
        let is_beta = at == 1 || at == 7;
        let is_bias = [3, 5, 9, 11].contains(&at);
        inside && (!is_beta || sizes.has_beta()) && (!is_bias || sizes.bias)
    }
}

/// The weights over all ranks.
pub type Weights = [Matrix; 12];

pub fn weights(sizes: &Sizes, seed: u64) -> Weights {
    let shapes = sizes.shapes();
    std::array::from_fn(|at| {
        let [rows, columns] = shapes[at];
        let largest = match at {
            0 | 6 => 1.5,
            1 | 3 | 5 | 7 | 9 | 11 => 0.5,
            // As much comes out as goes in.
            _ => (3.0 / columns as f32).sqrt(),
        };
        Matrix::random(rows, columns, largest, seed + at as u64)
    })
}

/// What a call should give: output, gradient of the input, gradients of the weights.
pub struct Exact {
    pub y: Vec<f64>,
    pub dx: Vec<f64>,
    pub gradients: Vec<Vec<f64>>,
}

pub fn exactly(
    sizes: &Sizes,
    part: Part,
    weights: &Weights,
    batch: usize,
    x: &Matrix,
    dy: &Matrix,
) -> Exact {
    let mut tape = Tape::default();
    let held = weights.each_ref().map(|weight| tape.input(weight));
    let input = tape.input(x);
    let y = match part {
        Part::Attention => attention(&mut tape, sizes, &held, batch, &input),
        Part::Mlp => mlp(&mut tape, sizes, &held, &input),
        Part::Layer => layer(&mut tape, sizes, &held, batch, &input),
    };
    let all = tape.back(&y, &dy.values);
    Exact {
        y: tape.values(&y),
        dx: tape.of(&all, &input),
        gradients: held.iter().map(|weight| tape.of(&all, weight)).collect(),
    }
}

pub fn layer(tape: &mut Tape, sizes: &Sizes, held: &[Vars; 12], batch: usize, x: &Vars) -> Vars {
    let of = attention(tape, sizes, held, batch, x);
    let middle = tape.add(x, &of);
    let of = mlp(tape, sizes, held, &middle);
    tape.add(&middle, &of)
}

fn mlp(tape: &mut Tape, sizes: &Sizes, held: &[Vars; 12], x: &Vars) -> Vars {
    let beta = sizes.has_beta().then_some(&held[7]);
    let bias = |at: usize| sizes.bias.then_some(&held[at]);
    let normed = tape.norm(x, &held[6], beta, 1e-5);
    let before = tape.linear(&normed, &held[8], bias(9));
    let mut of = Vec::new();
    for row in 0..before.rows() {
        let row = before.row(row);
        for at in 0..sizes.ffn {
            of.push(match sizes.activation {
                Activation::Gelu => tape.map(row[at], tape::gelu),
                Activation::SwiGlu => {
                    let gate = tape.map(row[at], tape::silu);
                    tape.product(gate, row[sizes.ffn + at])
                }
            });
        }
    }
    let after = Vars {
        of,
        columns: sizes.ffn,
    };
    tape.linear(&after, &held[10], bias(11))
}

fn attention(tape: &mut Tape, sizes: &Sizes, held: &[Vars; 12], batch: usize, x: &Vars) -> Vars {
    let beta = sizes.has_beta().then_some(&held[1]);
    let bias = |at: usize| sizes.bias.then_some(&held[at]);
    let normed = tape.norm(x, &held[0], beta, 1e-5);
    let mut qkv = tape.linear(&normed, &held[2], bias(3));
    let Sizes {
        heads,
        groups,
        depth,
        ..
    } = *sizes;
    if sizes.rope {
        for row in 0..qkv.rows() {
            for head in 0..heads + groups {
                for i in 0..depth / 2 {
                    let angle = (row / batch) as f64 * BASE.powf(-2.0 * i as f64 / depth as f64);
                    let (sin, cos) = angle.sin_cos();
                    let low = row * qkv.columns + head * depth + i;
                    let high = low + depth / 2;
                    let (a, b) = (qkv.of[low], qkv.of[high]);
                    qkv.of[low] = tape.sum(&[(a, cos), (b, -sin)]);
                    qkv.of[high] = tape.sum(&[(b, cos), (a, sin)]);
                }
            }
        }
    }
    let part = |row: usize, head: usize| qkv.row(row)[head * depth..][..depth].to_vec();
    let mut of = Vec::new();
    for (row, head) in (0..qkv.rows()).flat_map(|row| (0..heads).map(move |head| (row, head))) {
        let last = if sizes.causal {
            row / batch
        } else {
            qkv.rows() / batch - 1
        };
        let rows: Vec<usize> = (0..=last).map(|key| key * batch + row % batch).collect();
        let group = head / (heads / groups);
        let q = part(row, head);
        let mut parts = Vec::new();
        for key in &rows {
            let score = tape.dot(&q, &part(*key, heads + group));
            let score = tape.sum(&[(score, 1.0 / (depth as f64).sqrt())]);
            parts.push(tape.map(score, tape::exp));
        }
        let terms: Vec<_> = parts.iter().map(|part| (*part, 1.0)).collect();
        let all = tape.sum(&terms);
        let by = tape.map(all, tape::inverse);
        let parts: Vec<_> = parts
            .into_iter()
            .map(|part| tape.product(part, by))
            .collect();
        for at in 0..depth {
            let values: Vec<_> = rows
                .iter()
                .map(|key| part(*key, heads + groups + group)[at])
                .collect();
            of.push(tape.dot(&parts, &values));
        }
    }
    let out = Vars {
        of,
        columns: heads * depth,
    };
    tape.linear(&out, &held[4], bias(5))
}

/// The deviation of what rounding to bf16 changes, as a part of [`OF_BF16`]: the error is anywhere within half a unit of the last place, of
/// numbers whose logarithms are anywhere between two powers of two: √(1/3 · 3 / (8 ln 2)).
const DEVIATION: f64 = 0.4247;

/// How far elements may be off that come of so many roundings one behind another.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Roundings to bf16 between the inputs and an element, each counted as often as it comes in, times what multiplies its variance on the
    /// way: products, norms and softmaxes of the usual sizes of [`weights`] do not, activations do.
    pub roundings: f64,
    /// A limit in [`OF_BF16`], whatever the count says.
    pub most: f64,
}

/// Fails where an element is further off than the roundings on its path explain. NaN is.
///
/// Roundings are independent, so that n of them deviate by √n times what one does, as a part of the element or of a number of the usual size
/// in its row or column: terms that cancel in it are as large. Of N elements one is beyond √(2 ln (2 N / p)) deviations with a probability
/// of p, one in a hundred; all together deviate by √n, which N of them know to 1 / √(2 N), of which six are allowed. Seeds are fixed: what
/// passes once passes always.
pub fn close(what: &str, found: &[f64], wanted: &[f64], columns: usize, path: Path) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    if wanted.is_empty() {
        return;
    }
    let count = wanted.len() as f64;
    let one = path.roundings.sqrt() * DEVIATION;
    let largest = f64::min(path.most, (2.0 * (200.0 * count).ln()).sqrt() * one);
    let together = f64::min(2.0, one * (1.0 + 6.0 / (2.0 * count).sqrt()));
    let usual = |of: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = of.fold((0.0, 0.0), |(sum, count), x| (sum + x * x, count + 1.0));
        f64::sqrt(sum / count)
    };
    let of_rows = wanted
        .chunks(columns)
        .map(|row| usual(&mut row.iter().copied()));
    let of_rows: Vec<f64> = of_rows.collect();
    let column = |at| usual(&mut wanted.iter().skip(at).step_by(columns).copied());
    let of_columns: Vec<f64> = (0..columns.min(wanted.len())).map(column).collect();
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let usual = of_rows[at / columns].max(of_columns[at % columns]);
        let bound = largest * OF_BF16 * usual.max(wanted.abs());
        let near = (found - wanted).abs() <= bound;
        assert!(near, "{what}[{at}] is {found}, not {wanted} ± {bound}");
    }
    let size = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>().sqrt();
    let far = size(
        &mut found
            .iter()
            .zip(wanted)
            .map(|(found, wanted)| found - wanted),
    );
    let part = far / size(&mut wanted.iter().copied()).max(f64::MIN_POSITIVE);
    assert!(
        part <= together * OF_BF16,
        "{what} is off by {part} of its size, and not by {}",
        together * OF_BF16
    );
}

/// A rank's part of the weights, and its gradients.
pub struct Held {
    sizes: Sizes,
    own: [[Vec<usize>; 2]; 12],
    pub weights: [Tensor<bf16>; 12],
    pub gradients: [Tensor<f32>; 12],
}

pub fn tensor(
    rank: &Communicator,
    shape: [usize; 2],
    values: &[bf16],
) -> Result<Tensor<bf16>, Error> {
    let tensor = rank.zeros(shape)?;
    tensor.write(values)?;
    Ok(tensor)
}

impl Held {
    pub fn new(rank: &Communicator, sizes: &Sizes, whole: &Weights) -> Result<Held, Error> {
        let own = sizes.own(rank.rank() as usize, rank.world() as usize);
        let mut weights = Vec::new();
        let mut gradients = Vec::new();
        for ([rows, columns], whole) in own.iter().zip(whole) {
            let shape = [rows.len(), columns.len()];
            let part = part(&whole.values, whole.columns, rows, columns);
            let part: Vec<bf16> = part.into_iter().map(bf16::from_f64).collect();
            weights.push(tensor(rank, shape, &part)?);
            gradients.push(rank.zeros(shape)?);
        }
        Ok(Held {
            sizes: *sizes,
            own,
            weights: weights.try_into().expect("twelve"),
            gradients: gradients.try_into().expect("twelve"),
        })
    }

    /// Of a tensor over all ranks, what this rank has of that weight.
    pub fn part(&self, at: usize, whole: &[f64]) -> Vec<f64> {
        let [rows, columns] = &self.own[at];
        let [_, all] = self.sizes.shapes()[at];
        part(whole, all, rows, columns)
    }

    fn linear(&self, weight: usize) -> Parameters<'_> {
        Parameters {
            weight: &self.weights[weight],
            bias: self.sizes.bias.then_some(&self.weights[weight + 1]),
        }
    }

    fn beta(&self, at: usize) -> Option<&Tensor<bf16>> {
        self.sizes.has_beta().then_some(&self.weights[at])
    }

    pub fn attention(&self) -> MultiheadAttentionParameters<'_> {
        MultiheadAttentionParameters {
            layer_norm_weight: Some(&self.weights[0]),
            layer_norm_bias: self.beta(1),
            qkv: self.linear(2),
            proj: self.linear(4),
        }
    }

    pub fn mlp(&self) -> LayerNormMlpParameters<'_> {
        LayerNormMlpParameters {
            fc1: LayerNormLinearParameters {
                layer_norm_weight: &self.weights[6],
                layer_norm_bias: self.beta(7),
                linear: self.linear(8),
            },
            fc2: self.linear(10),
        }
    }

    /// A product's weight and bias, and where their gradients are added.
    pub fn pair(&mut self, at: usize) -> ([&Tensor<bf16>; 2], [&mut Tensor<f32>; 2]) {
        let [weight, bias] = &mut self.gradients[at..at + 2] else {
            unreachable!("two of twelve");
        };
        ([&self.weights[at], &self.weights[at + 1]], [weight, bias])
    }

    /// Both parts' gradients at once; of frozen weights there is none.
    #[allow(clippy::type_complexity, reason = "two things that are used at once")]
    pub fn split(
        &mut self,
        frozen: [bool; 4],
    ) -> (
        (
            MultiheadAttentionParameters<'_>,
            MultiheadAttentionGradients<'_>,
        ),
        (LayerNormMlpParameters<'_>, LayerNormMlpGradients<'_>),
    ) {
        let (bias, beta) = (self.sizes.bias, self.sizes.has_beta());
        let Held {
            weights, gradients, ..
        } = self;
        let weights = &*weights;
        let linear = |at: usize| Parameters {
            weight: &weights[at],
            bias: bias.then_some(&weights[at + 1]),
        };
        let [
            g1,
            b1,
            qkv,
            of_qkv,
            proj,
            of_proj,
            g2,
            b2,
            fc1,
            of_fc1,
            fc2,
            of_fc2,
        ] = gradients;
        let attention = MultiheadAttentionParameters {
            layer_norm_weight: Some(&weights[0]),
            layer_norm_bias: beta.then_some(&weights[1]),
            qkv: linear(2),
            proj: linear(4),
        };
        let mlp = LayerNormMlpParameters {
            fc1: LayerNormLinearParameters {
                layer_norm_weight: &weights[6],
                layer_norm_bias: beta.then_some(&weights[7]),
                linear: linear(8),
            },
            fc2: linear(10),
        };
        let of_attention = MultiheadAttentionGradients {
            layer_norm_weight: Some(g1),
            layer_norm_bias: beta.then_some(b1),
            qkv: Gradients {
                weight: (!frozen[0]).then_some(qkv),
                bias: bias.then_some(of_qkv),
            },
            proj: Gradients {
                weight: (!frozen[1]).then_some(proj),
                bias: bias.then_some(of_proj),
            },
        };
        let of_mlp = LayerNormMlpGradients {
            fc1: LayerNormLinearGradients {
                layer_norm_weight: g2,
                layer_norm_bias: beta.then_some(b2),
                linear: Gradients {
                    weight: (!frozen[2]).then_some(fc1),
                    bias: bias.then_some(of_fc1),
                },
            },
            fc2: Gradients {
                weight: (!frozen[3]).then_some(fc2),
                bias: bias.then_some(of_fc2),
            },
        };
        ((attention, of_attention), (mlp, of_mlp))
    }
}

/// Some rows and columns of a matrix.
fn part(whole: &[f64], all: usize, rows: &[usize], columns: &[usize]) -> Vec<f64> {
    let mut found = Vec::with_capacity(rows.len() * columns.len());
    for row in rows {
        found.extend(columns.iter().map(|column| whole[row * all + column]));
    }
    found
}
