//! Normalisation of rows.

use super::numbers::{THREADS, narrow, pairs, sum, wide_sum, wide_sum_of_products};
use counterflow::prelude::bf16;

/// Normalisation of rows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Normalization {
    /// `(x - mean) / √(variance + ε) · γ + β`
    LayerNorm,
    /// `x / √(mean of x² + ε) · γ`
    RmsNorm,
}

/// A normalisation with its numbers. Arithmetic is f32, and what comes out is rounded once. Sums over a row are those of 256 threads,
/// each of every 256th eight of columns, added in pairs; those of the backward pass are of 512 threads.
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
    /// True if γ is stored as its distance from 1.
    pub zero_centered_gamma: bool,
}

/// Numbers that a forward pass of a row leaves for the backward pass.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Statistics {
    /// The mean; 0 for RMSNorm.
    pub mean: f32,
    /// One over the root of the variance, or of the mean square.
    pub rstd: f32,
}

/// γ and β. RMSNorm has no β.
pub type Affine<'a> = (&'a [bf16], Option<&'a [bf16]>);

/// Gradients of γ and β that are added to.
pub type AffineGradients<'a> = (&'a mut [f32], Option<&'a mut [f32]>);

/// Sums of gradients over rows that a backward pass leaves: slab s has every 132nd row from row s on. An H100 SXM
/// and an H200 have so many SMs; on a card with fewer, some CTAs come in a second wave.
pub(in crate::side) const SLABS: usize = 132;

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
        match self.zero_centered_gamma {
            true => stored.to_f32() + 1.0,
            false => stored.to_f32(),
        }
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
            *y = narrow(beta.map_or(scaled, |beta| scaled + beta[at].to_f32()));
        }
        Statistics { mean, rstd }
    }

    /// The gradient of a row, of the gradient of what came out. What `residual` has is added before it is rounded.
    ///
    /// # Panics
    /// As [`Norm::forward`].
    pub fn backward(
        &self,
        x: &[bf16],
        dy: &[bf16],
        (gamma, of): (&[bf16], Statistics),
        residual: Option<&[bf16]>,
        dx: &mut [bf16],
    ) {
        let columns = x.len();
        assert!(dy.len() == columns && gamma.len() == columns && columns > 0);
        assert!(dx.len() == columns && residual.is_none_or(|more| more.len() == columns));
        let normed = |at: usize| (x[at].to_f32() - of.mean) * of.rstd;
        let scaled = |at: usize| dy[at].to_f32() * self.gamma(gamma[at]);
        let mean = match self.kind {
            Normalization::LayerNorm => wide_sum((0..columns).map(scaled)) / columns as f32,
            Normalization::RmsNorm => 0.0,
        };
        let along = wide_sum_of_products((0..columns).map(|at| [scaled(at), normed(at)]));
        let along = -(along / columns as f32);
        for at in 0..columns {
            let own = normed(at).mul_add(along, scaled(at) - mean);
            dx[at] = narrow(match residual {
                Some(more) => of.rstd.mul_add(own, more[at].to_f32()),
                None => of.rstd * own,
            });
        }
    }

    /// Adds the gradients of γ and β over rows. Those of every 132nd row are added up first, in order; then every eighth of these sums; then
    /// the eight, in pairs.
    ///
    /// # Panics
    /// As [`Norm::forward`].
    pub fn gradients(
        x: &[bf16],
        dy: &[bf16],
        of: &[Statistics],
        (of_gamma, of_beta): AffineGradients<'_>,
    ) {
        let columns = of_gamma.len();
        assert!(x.len() == of.len() * columns && dy.len() == x.len());
        assert!(of_beta.as_ref().is_none_or(|beta| beta.len() == columns));
        let slabs = Norm::slabs(x, dy, of, columns);
        Norm::add(&slabs, 0, of_gamma);
        if let Some(of_beta) = of_beta {
            Norm::add(&slabs, 1, of_beta);
        }
    }

    /// Sums of the gradients of γ, then those of β, of each slab.
    pub(in crate::side) fn slabs(
        x: &[bf16],
        dy: &[bf16],
        of: &[Statistics],
        columns: usize,
    ) -> Vec<f32> {
        let mut slabs = vec![0f32; of.len().min(SLABS) * 2 * columns];
        for (row, of) in of.iter().enumerate() {
            let slab = row % SLABS * 2 * columns;
            let (gammas, betas) = slabs[slab..slab + 2 * columns].split_at_mut(columns);
            for (column, (gamma, beta)) in gammas.iter_mut().zip(betas).enumerate() {
                let at = row * columns + column;
                let normed = (x[at].to_f32() - of.mean) * of.rstd;
                *gamma = dy[at].to_f32().mul_add(normed, *gamma);
                *beta += dy[at].to_f32();
            }
        }
        slabs
    }

    /// Adds one part of each slab to a gradient: 0 is that of γ, 1 that of β.
    pub(in crate::side) fn add(slabs: &[f32], part: usize, gradient: &mut [f32]) {
        let columns = gradient.len();
        for (column, to) in gradient.iter_mut().enumerate() {
            let mut warps = [0f32; THREADS / 32];
            for (at, slab) in slabs.chunks_exact(2 * columns).enumerate() {
                warps[at % (THREADS / 32)] += slab[part * columns + column];
            }
            *to += pairs(&mut warps);
        }
    }
}
