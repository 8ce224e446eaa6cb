//! Error bound of a sum of products: `differ_exact` in `fp8.cu` goes by it, and tests by the same on the host.

use super::{Scale, Terms};
use counterflow_codegen::dtype::Dtype;

/// Deviation of a sum of products by roundings.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Bounds {
    /// Relative loss of products that are codes before they are added, beside the loss of the least code of a block.
    pub loses: f64,
    /// Of the sizes of all terms together: roundings of their sums before the last one.
    pub between: f32,
    /// Of the size of the result: its own rounding.
    pub last: f32,
    /// Least deviation that is allowed.
    pub floor: f64,
    /// Largest result: those of FP8 saturate.
    pub limit: f64,
}

/// A product of one rank, known to within what its sums may be off.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Term {
    pub value: f64,
    pub off: f32,
    /// Loss of the least code of its block, if it was a code before it was added.
    pub least: Option<f32>,
}

impl Terms {
    /// Deviation of a result in that type by roundings.
    pub(crate) fn bounds(&self, dtype: Dtype, scale: Scale) -> Bounds {
        // Sums in f32 are rounded, too. What is rounded again is larger by what it was rounded before.
        let of_f32 = self.parts.saturating_sub(1) as f32 * Dtype::F32.unit_roundoff() as f32;
        let between = 1.02 * (self.rounded as f32 * dtype.unit_roundoff() as f32 + of_f32);
        let limit = match dtype.is_fp8() {
            true => f64::from(dtype.largest()),
            false => f64::INFINITY,
        };
        let (last, floor, limit) = match scale {
            // A hundredth more, for the quotient in f32.
            Scale::Given(by) => (
                1.01 * dtype.unit_roundoff() as f32,
                dtype.half_subnormal() / f64::from(by),
                limit / f64::from(by),
            ),
            // That is the rounding of its only term, and its scale leaves none too large.
            Scale::Plane { .. } => (0.0, 0.0, f64::INFINITY),
        };
        Bounds {
            loses: self.narrowed.map_or(0.0, |narrowed| narrowed.loses),
            between,
            last,
            floor: floor.max(1e-30),
            limit,
        }
    }
}

#[cfg(test)]
impl Bounds {
    /// True if a number may be the sum of them. NaN is none.
    pub(crate) fn allow(&self, got: f64, terms: &[Term]) -> bool {
        let (want, most) = self.of(terms);
        (got - want).abs() <= most
    }

    /// Sum of the terms, and how far off it a result may be.
    fn of(&self, terms: &[Term]) -> (f64, f64) {
        let (mut want, mut size, mut most) = (0.0, 0.0, 0.0);
        for Term { value, off, least } in terms {
            let mut off = f64::from(*off);
            if let Some(least) = least {
                off += self.loses * (value.abs() + off) + f64::from(*least);
            }
            want += value;
            most += off;
            size += value.abs() + off;
        }
        most += f64::from(self.between) * size;
        want = want.clamp(-self.limit, self.limit);
        most += f64::from(self.last) * (want.abs() + most) + self.floor;
        (want, most)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Exactly, Narrowed};
    use super::*;
    use counterflow_codegen::bounds::of_codes;
    use counterflow_codegen::rule::{Fp8, ScaleRule};
    use counterflow_runtime::driver::Address;

    fn exact() -> Terms {
        let none = Address::default();
        let exact = Exactly {
            value: none,
            allowed: none,
        };
        exact.alone()
    }

    const PLAIN: Scale = Scale::Given(1.0);

    /// A lost term is larger than what is allowed for all of them, in worlds as large as are measured.
    #[test]
    fn what_sums_are_allowed_hides_no_term() {
        let terms = |parts, rounded| Terms {
            parts,
            rounded,
            ..exact()
        };
        let unit = Dtype::Bf16.unit_roundoff() as f32;
        let alone = exact().bounds(Dtype::Bf16, PLAIN);
        assert!(alone.last > unit && alone.last < 1.02 * unit && alone.between == 0.0);
        for parts in 2..=8 {
            let once = terms(parts, 1).bounds(Dtype::Bf16, PLAIN).between;
            let each = terms(parts, parts).bounds(Dtype::Bf16, PLAIN).between;
            assert!(once > unit && once < 1.03 * unit, "{parts}: {once}");
            assert!(each > parts as f32 * unit && parts as f32 * each < 0.5);
        }
    }

    /// Bounds hide no term where all but a rank's own are codes before they are added, if they are of one size.
    #[test]
    fn what_codes_are_allowed_hides_no_term() {
        for to in [Fp8::E4M3, Fp8::E5M2] {
            let rule = ScaleRule::transformer_engine(to).powers_of_two();
            for parts in 2..=8 {
                let narrowed = Narrowed {
                    least: Address::default(),
                    loses: of_codes(&rule),
                    shard: None,
                };
                let terms = Terms {
                    parts,
                    narrowed: Some(narrowed),
                    ..exact()
                };
                let own = Term {
                    value: 1.0,
                    off: 0.0,
                    least: None,
                };
                let mut all = vec![own];
                all.resize(
                    parts as usize,
                    Term {
                        least: Some(1e-5),
                        ..own
                    },
                );
                let (want, most) = terms.bounds(Dtype::Bf16, PLAIN).of(&all);
                let units = f64::from(parts - 1) * to.dtype().unit_roundoff();
                assert_eq!(want, f64::from(parts));
                assert!(most > units && most < 1.0, "{to:?} {parts}: {most}");
            }
        }
    }

    /// One that is not rounded on its way is allowed no more than its sum.
    #[test]
    fn a_ranks_own_product_is_no_code() {
        let rule = ScaleRule::transformer_engine(Fp8::E4M3);
        let bounds = Bounds {
            loses: of_codes(&rule),
            between: 0.0,
            last: 0.0,
            floor: 0.0,
            limit: f64::INFINITY,
        };
        let own = Term {
            value: -2.0,
            off: 0.5,
            least: None,
        };
        assert_eq!(bounds.of(&[own]), (-2.0, 0.5));
        let (_, sent) = bounds.of(&[Term {
            least: Some(0.25),
            ..own
        }]);
        assert!((sent - (0.75 + 2.5 / 16.0)).abs() < 1e-6, "{sent}");
    }

    /// By a given scale the largest code stands for all that is larger, and for nothing else.
    #[test]
    fn results_that_are_too_large_saturate() {
        let bounds = exact().bounds(Dtype::E4M3, Scale::Given(2.0));
        let of = |value: f64| Term {
            value,
            off: 0.0,
            least: None,
        };
        assert!(bounds.allow(224.0, &[of(1000.0)]) && bounds.allow(-224.0, &[of(-1e9)]));
        assert!(!bounds.allow(1000.0, &[of(1000.0)]) && !bounds.allow(224.0, &[of(100.0)]));
        let wide = exact().bounds(Dtype::Bf16, PLAIN);
        assert!(wide.allow(1e9, &[of(1e9)]) && !wide.allow(448.0, &[of(1000.0)]));
    }
}
