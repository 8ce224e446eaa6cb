//! Normalisation of rows, on the host: the rule that a kernel will have to equal.

use counterflow::prelude::bf16;

/// How rows are normalised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Normalization {
    /// `(x - mean) / √(variance + ε) · γ + β`
    LayerNorm,
    /// `x / √(mean of x² + ε) · γ`
    RmsNorm,
}

/// A normalisation with its numbers. Arithmetic is f32: sums over a row are those of 32 lanes, each of every 32nd column, added in
/// pairs. What comes out is rounded once.
///
/// ```
/// use counterflow::prelude::bf16;
/// use counterflow_layers::{Norm, Normalization};
///
/// let norm = Norm::new(Normalization::RmsNorm);
/// let (x, ones) = ([3.0, -4.0].map(bf16::from_f32), [bf16::ONE; 2]);
/// let mut y = [bf16::ZERO; 2];
/// let scale = norm.forward(&x, (&ones, None), &mut y);
/// assert!((scale.rstd - 0.4f32.sqrt() / 5f32.sqrt()).abs() < 1e-6, "{scale:?}"); // 1 / √12.5
/// assert_eq!(y, [3.0 * scale.rstd, -4.0 * scale.rstd].map(bf16::from_f32));
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Norm {
    /// The formula.
    pub kind: Normalization,
    /// ε, which keeps rows of zeros finite.
    pub eps: f32,
    /// Whether γ is stored as its distance from 1.
    pub zero_centered_gamma: bool,
}

/// What a forward pass of a row leaves for the backward pass.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Statistics {
    /// The mean; 0 for RMSNorm.
    pub mean: f32,
    /// One over the root of the variance, or of the mean square.
    pub rstd: f32,
}

/// γ and β. RMSNorm has no β.
pub type Affine<'a> = (&'a [bf16], Option<&'a [bf16]>);

/// Where the gradients of γ and β are added.
pub type AffineGradients<'a> = (&'a mut [f32], Option<&'a mut [f32]>);

/// The sum in a fixed order: of lanes, then of pairs of lanes.
fn sum(values: impl Iterator<Item = f32>) -> f32 {
    const LANES: usize = 32;
    let mut lanes = [0f32; LANES];
    for (at, value) in values.enumerate() {
        lanes[at % LANES] += value;
    }
    let mut half = LANES / 2;
    while half > 0 {
        for at in 0..half {
            lanes[at] += lanes[at + half];
        }
        half /= 2;
    }
    lanes[0]
}

impl Norm {
    /// With ε = 1e-5, and γ as it is.
    pub fn new(kind: Normalization) -> Norm {
        Norm {
            kind,
            eps: 1e-5,
            zero_centered_gamma: false,
        }
    }

    fn gamma(&self, stored: bf16) -> f32 {
        let one = if self.zero_centered_gamma { 1.0 } else { 0.0 };
        stored.to_f32() + one
    }

    /// Normalises a row.
    ///
    /// # Panics
    /// If slices have other lengths than the row.
    pub fn forward(&self, x: &[bf16], (gamma, beta): Affine<'_>, y: &mut [bf16]) -> Statistics {
        let columns = x.len();
        assert!(gamma.len() == columns && y.len() == columns && columns > 0);
        assert!(beta.is_none_or(|beta| beta.len() == columns));
        let mean = match self.kind {
            Normalization::LayerNorm => sum(x.iter().map(|x| x.to_f32())) / columns as f32,
            Normalization::RmsNorm => 0.0,
        };
        let squares = x.iter().map(|x| (x.to_f32() - mean) * (x.to_f32() - mean));
        let rstd = 1.0 / (sum(squares) / columns as f32 + self.eps).sqrt();
        for (at, y) in y.iter_mut().enumerate() {
            let scaled = (x[at].to_f32() - mean) * rstd * self.gamma(gamma[at]);
            let beta = beta.map_or(0.0, |beta| beta[at].to_f32());
            *y = bf16::from_f32(scaled + beta);
        }
        Statistics { mean, rstd }
    }

    /// The gradient of a row, of the gradient of what came out; adds those of γ and β.
    ///
    /// # Panics
    /// As [`Norm::forward`].
    pub fn backward(
        &self,
        x: &[bf16],
        dy: &[bf16],
        (gamma, of): (&[bf16], Statistics),
        dx: &mut [bf16],
        (of_gamma, of_beta): AffineGradients<'_>,
    ) {
        let columns = x.len();
        assert!(dy.len() == columns && gamma.len() == columns && columns > 0);
        assert!(dx.len() == columns && of_gamma.len() == columns);
        assert!(of_beta.as_ref().is_none_or(|beta| beta.len() == columns));
        let normed = |at: usize| (x[at].to_f32() - of.mean) * of.rstd;
        let scaled = |at: usize| dy[at].to_f32() * self.gamma(gamma[at]);
        let mean = match self.kind {
            Normalization::LayerNorm => sum((0..columns).map(scaled)) / columns as f32,
            Normalization::RmsNorm => 0.0,
        };
        let along = sum((0..columns).map(|at| scaled(at) * normed(at))) / columns as f32;
        for at in 0..columns {
            let value = of.rstd * (scaled(at) - mean - normed(at) * along);
            dx[at] = bf16::from_f32(value);
            of_gamma[at] += dy[at].to_f32() * normed(at);
        }
        if let Some(of_beta) = of_beta {
            for (beta, dy) in of_beta.iter_mut().zip(dy) {
                *beta += dy.to_f32();
            }
        }
    }
}
