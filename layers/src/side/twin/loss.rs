//! Cross-entropy.

use super::numbers::{exp, larger, ln, narrow, sum, wide};
use counterflow::prelude::bf16;

/// A target that stands for none: the row has no loss and no gradient.
pub const IGNORED: u32 = u32::MAX;

/// The loss of a row of logits, and its gradient times `scale`. A target beyond the row makes both NaN.
///
/// ```
/// use counterflow::prelude::bf16;
/// use counterflow_layers::side::twin::{IGNORED, cross_entropy};
///
/// let (x, mut dx) = ([bf16::ZERO; 8], [bf16::ZERO; 8]);
/// let loss = cross_entropy(&x, 3, 1.0, &mut dx);
/// assert!((loss - 8f32.ln()).abs() < 1e-6 && dx[3].to_f32() == -0.875 && dx[0].to_f32() == 0.125);
/// assert_eq!((cross_entropy(&x, IGNORED, 1.0, &mut dx), dx), (0.0, [bf16::ZERO; 8]));
/// ```
///
/// # Panics
/// If `dx` has another length.
pub fn cross_entropy(x: &[bf16], target: u32, scale: f32, dx: &mut [bf16]) -> f32 {
    assert_eq!(x.len(), dx.len());
    if target == IGNORED {
        dx.fill(bf16::ZERO);
        return 0.0;
    }
    let target = target as usize;
    let most = x.iter().map(|x| wide(*x));
    let most = most.fold(f32::NEG_INFINITY, larger);
    let sum = sum(x.iter().map(|x| exp(wide(*x) - most)));
    if target >= x.len() {
        dx.fill(bf16::NAN);
        return f32::NAN;
    }
    for (at, dx) in dx.iter_mut().enumerate() {
        let part = exp(wide(x[at]) - most) / sum;
        *dx = narrow(if at == target { part - 1.0 } else { part } * scale);
    }
    most + ln(sum) - wide(x[target])
}
