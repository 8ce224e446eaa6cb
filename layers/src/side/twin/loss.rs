//! Cross-entropy.

use super::numbers::{exp, larger, ln, narrow, normal, raised, wide, wide_sum};
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
    let part = cross_entropy_part(x, (target as usize) < x.len(), target as usize);
    cross_entropy_of_parts(x, target, (0, x.len()), &[part], scale, dx)
}

/// Message of a rank that has some of a row's classes to the others: its largest logit; the sum of e to the power of
/// each less that; the logit of `target`, if `has` it; and 0.
///
/// ```
/// use counterflow::prelude::bf16;
/// use counterflow_layers::side::twin::cross_entropy_part;
///
/// assert_eq!(cross_entropy_part(&[bf16::ONE; 8], true, 3), [1.0, 8.0, 1.0, 0.0]);
/// // Classes that are all masked count nothing.
/// assert_eq!(cross_entropy_part(&[bf16::NEG_INFINITY; 8], false, 0), [f32::NEG_INFINITY, 0.0, 0.0, 0.0]);
/// ```
pub fn cross_entropy_part(x: &[bf16], has: bool, target: usize) -> [f32; 4] {
    let most = x.iter().map(|x| wide(*x));
    let most = most.fold(f32::NEG_INFINITY, larger) + 0.0; // never -0
    // Minus infinity less itself would be NaN.
    let less = if most == f32::NEG_INFINITY { 0.0 } else { most };
    let sum = wide_sum(x.iter().map(|x| raised(wide(*x) - less)));
    // A row with NaN or infinity has no sum.
    let sum = if less.is_finite() { sum } else { f32::NAN };
    [most, sum, if has { wide(x[target]) } else { 0.0 }, 0.0]
}

/// The loss of a row of which `x` has the classes from `first` on of so many, and the gradient of `x` times `scale`, of the parts of all
/// ranks in their order. A target beyond the classes makes both NaN.
///
/// # Panics
/// If `dx` has another length.
pub fn cross_entropy_of_parts(
    x: &[bf16],
    target: u32,
    (first, classes): (usize, usize),
    parts: &[[f32; 4]],
    scale: f32,
    dx: &mut [bf16],
) -> f32 {
    assert_eq!(x.len(), dx.len());
    if target == IGNORED {
        dx.fill(bf16::ZERO);
        return 0.0;
    }
    let target = target as usize;
    if target >= classes {
        dx.fill(narrow(f32::NAN));
        return f32::NAN;
    }
    let most = parts.iter().map(|part| part[0]);
    let most = most.fold(f32::NEG_INFINITY, larger);
    let (mut sum, mut own) = (0.0, 0.0);
    for part in parts {
        sum += part[1] * exp(part[0] - most);
        own += part[2];
    }
    let by = 1.0 / sum;
    let scaled = normal(by * scale);
    for (at, dx) in dx.iter_mut().enumerate() {
        let e = raised(wide(x[at]) - most);
        *dx = narrow(match first + at == target {
            true => (normal(e * normal(by)) - 1.0) * scale,
            false => normal(e * scaled),
        });
    }
    // The difference first: `most + ln(sum)` would round away the loss of a row that is sure of its target.
    ln(sum) - (own - most)
}
