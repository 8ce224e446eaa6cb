//! What is computed element by element, and rotary positions.
#![allow(
    clippy::excessive_precision,
    reason = "digits are those of the kernels' text"
)]

use super::numbers::{logistic, narrow, wide};
use super::random::Mask;
use counterflow::prelude::bf16;

/// Activation between the two products of an MLP.
///
/// ```
/// use counterflow::prelude::bf16;
/// use counterflow_layers::Activation;
///
/// let x = [1.0, -1.0, 2.0, 2.0].map(bf16::from_f32);
/// let mut y = [bf16::ZERO; 4];
/// Activation::Gelu.forward(&x, 4, &mut y);
/// assert_eq!(y[0].to_f32(), 0.83984375); // 0.8412 as bf16 has it
/// Activation::SwiGlu.forward(&x, 2, &mut y[..2]); // silu of the first two, times the others
/// assert_eq!((Activation::SwiGlu.inputs(2), y[0].to_f32()), (4, 1.4609375));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activation {
    /// `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))`, TransformerEngine's `gelu`.
    Gelu,
    /// `silu(a) · b`, where a row has those of `a`, then those of `b`.
    SwiGlu,
}

/// Beyond these limits GELU is as good as 0 and x, and its gradient as good as 0 and 1.
const OF_GELU: f32 = 9.9375;
/// The same of x · σ(x).
const OF_SILU: f32 = 86.0;

/// GELU(x) / x = σ(2u) = 1 / (1 + 2ᵖ), p = -2u · log₂ e.
fn gelu_share(x: f32) -> f32 {
    logistic(x, f32::mul_add(-0.102_943_242, x * x, -2.302_208_19))
}

fn gelu(x: f32) -> f32 {
    x.clamp(-OF_GELU, f32::INFINITY) * gelu_share(x.clamp(-OF_GELU, OF_GELU))
}

fn gelu_slope(x: f32) -> f32 {
    let x = x.clamp(-OF_GELU, OF_GELU);
    let s = gelu_share(x);
    let of_u = f32::mul_add(0.214_064_449, x * x, 1.595_769_12);
    (x * s).mul_add((1.0 - s) * of_u, s)
}

fn lowest(gate: f32) -> f32 {
    gate.clamp(-OF_SILU, f32::INFINITY)
}

fn silu_share(x: f32) -> f32 {
    logistic(x.clamp(-OF_SILU, OF_SILU), -std::f32::consts::LOG2_E)
}

impl Activation {
    /// Columns of the input for so many of the output.
    pub fn inputs(self, columns: usize) -> usize {
        match self {
            Activation::Gelu => columns,
            Activation::SwiGlu => 2 * columns,
        }
    }

    /// Rows of so many columns of the output.
    ///
    /// # Panics
    /// If slices do not have the same rows.
    pub fn forward(self, x: &[bf16], columns: usize, y: &mut [bf16]) {
        assert_eq!(self.inputs(y.len()), x.len());
        match self {
            Activation::Gelu => {
                for (x, y) in x.iter().zip(y) {
                    *y = narrow(gelu(wide(*x)));
                }
            }
            Activation::SwiGlu => {
                let rows = x.chunks_exact(2 * columns);
                for (x, y) in rows.zip(y.chunks_exact_mut(columns)) {
                    for (at, y) in y.iter_mut().enumerate() {
                        let (gate, up) = (lowest(wide(x[at])), wide(x[columns + at]));
                        *y = narrow(gate * silu_share(gate) * up);
                    }
                }
            }
        }
    }

    /// The gradient of the input, of that of the output.
    ///
    /// # Panics
    /// As [`Activation::forward`].
    pub fn backward(self, x: &[bf16], dy: &[bf16], columns: usize, dx: &mut [bf16]) {
        assert!(self.inputs(dy.len()) == x.len() && dx.len() == x.len());
        match self {
            Activation::Gelu => {
                for ((x, dy), dx) in x.iter().zip(dy).zip(dx) {
                    *dx = narrow(wide(*dy) * gelu_slope(wide(*x)));
                }
            }
            Activation::SwiGlu => {
                let rows = x.chunks_exact(2 * columns).zip(dy.chunks_exact(columns));
                for ((x, dy), dx) in rows.zip(dx.chunks_exact_mut(2 * columns)) {
                    for at in 0..columns {
                        let (gate, up, dy) = (wide(x[at]), wide(x[columns + at]), wide(dy[at]));
                        let gate = lowest(gate);
                        let s = silu_share(gate);
                        let by = gate * s;
                        dx[at] = narrow(dy * up * by.mul_add(1.0 - s, s));
                        dx[columns + at] = narrow(dy * by);
                    }
                }
            }
        }
    }
}

/// y = residual + dropout(x), or without a mask residual + x. `first`: the number of the first element among those of all ranks.
///
/// # Panics
/// If slices do not have the same length.
pub fn dropout_add(x: &[bf16], residual: &[bf16], mask: Option<(&Mask, u64)>, y: &mut [bf16]) {
    assert!(x.len() == residual.len() && x.len() == y.len());
    for (at, y) in y.iter_mut().enumerate() {
        let kept = mask.map_or(wide(x[at]), |mask| dropped(mask, at, x[at]));
        *y = narrow(wide(residual[at]) + kept);
    }
}

/// The gradient of dropout: dx = dy where elements were kept, scaled, and 0 elsewhere.
///
/// # Panics
/// As [`dropout_add`].
pub fn dropout(dy: &[bf16], mask: (&Mask, u64), dx: &mut [bf16]) {
    assert_eq!(dy.len(), dx.len());
    for (at, dx) in dx.iter_mut().enumerate() {
        *dx = narrow(dropped(mask, at, dy[at]));
    }
}

fn dropped((mask, first): (&Mask, u64), at: usize, x: bf16) -> f32 {
    match mask.keeps(first + at as u64) {
        true => wide(x) * mask.scale(),
        false => 0.0,
    }
}

/// Turns the first `heads` heads of each row by the angles of its position, in place: pairs are numbers i and i + depth / 2. A row's
/// position is its number divided by `batch`. `back`: the other way around, for gradients.
///
/// # Panics
/// If tables have too few positions.
pub fn rope(
    x: &mut [bf16],
    columns: usize,
    [heads, depth, batch]: [usize; 3],
    [cosines, sines]: [&[f32]; 2],
    back: bool,
) {
    let half = depth / 2;
    for (row, x) in x.chunks_exact_mut(columns).enumerate() {
        let position = row / batch;
        for head in x.chunks_exact_mut(depth).take(heads) {
            for i in 0..half {
                let c = cosines[position * half + i];
                let s = sines[position * half + i];
                let s = if back { -s } else { s };
                let (low, high) = (wide(head[i]), wide(head[half + i]));
                head[i] = narrow(low * c - high * s);
                head[half + i] = narrow(high * c + low * s);
            }
        }
    }
}
