//! From the largest absolute value of some elements to the scale that they share: as quantisers make it, and launches that
//! write FP8 with scales of their own.

use crate::dtype::Dtype;
use crate::encoding::ScaleBlock;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// One of the two types of one byte.
///
/// ```
/// use counterflow_codegen::rule::Fp8;
///
/// assert_eq!((Fp8::E4M3.largest(), Fp8::E5M2.largest()), (448.0, 57344.0));
/// assert_eq!(Fp8::E4M3.code(1000.0), Fp8::E4M3.code(448.0)); // too large: the largest
/// assert_eq!((Fp8::E4M3.code(1.0), Fp8::E4M3.value(0x38)), (0x38, 1.0));
/// assert_eq!(Fp8::E5M2.dtype().name(), "e5m2");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fp8 {
    /// 4 exponent bits, 3 of mantissa.
    E4M3,
    /// 5 exponent bits, 2 of mantissa.
    E5M2,
}

impl Fp8 {
    /// FP8 type of an element type, if it is one.
    ///
    /// ```
    /// use counterflow_codegen::{dtype::Dtype, rule::Fp8};
    ///
    /// assert_eq!([Dtype::E5M2, Dtype::F16].map(Fp8::of), [Some(Fp8::E5M2), None]);
    /// ```
    pub fn of(dtype: Dtype) -> Option<Fp8> {
        let mut both = [Fp8::E4M3, Fp8::E5M2].into_iter();
        both.find(|fp8| fp8.dtype() == dtype)
    }

    /// The element type of a tensor of it.
    pub const fn dtype(self) -> Dtype {
        match self {
            Fp8::E4M3 => Dtype::E4M3,
            Fp8::E5M2 => Dtype::E5M2,
        }
    }

    /// Largest number of the type.
    pub const fn largest(self) -> f32 {
        self.dtype().largest()
    }

    /// The code of a number: to nearest, ties to even. What is too large, infinities included, becomes the largest; every
    /// NaN becomes 0x7f.
    pub fn code(self, value: f32) -> u8 {
        let mut code = [0];
        self.dtype().write(value, &mut code);
        code[0]
    }

    /// The number of a code.
    pub fn value(self, code: u8) -> f32 {
        self.dtype().read(&[code])
    }
}

/// Library whose arithmetic makes a scale of an amax.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Convention {
    /// TransformerEngine's. The elements are multiplied by `s = largest / max(amax, eps)`, and `1 / s` is stored. An amax
    /// of 0 or infinity makes `s` 1, a quotient beyond f32 becomes the largest number of f32, or, in blocks, of the type
    /// that is quantised. An amax does not see NaN. As a power of two, `s` is rounded down.
    TransformerEngine,
    /// DeepGEMM's, as its Python says it: `max(amax, eps) / largest` is stored, and the elements are multiplied by its
    /// reciprocal. (PyTorch on a GPU multiplies by the rounded reciprocal of `largest`, so some of its scales differ in the
    /// last bit.) An amax keeps NaN: then all that shares it becomes NaN. As a power of two, the scale is rounded up.
    DeepGemm,
}

impl Convention {
    /// Every one.
    pub const ALL: [Convention; 2] = [Convention::TransformerEngine, Convention::DeepGemm];

    /// Name of the convention.
    pub const fn name(self) -> &'static str {
        match self {
            Convention::TransformerEngine => "te",
            Convention::DeepGemm => "deepgemm",
        }
    }

    /// Least amax, unless a rule says otherwise.
    const fn eps(self) -> f32 {
        match self {
            Convention::TransformerEngine => 0.0,
            Convention::DeepGemm => 1e-4,
        }
    }
}

/// ScaleRule by which an amax becomes a scale. Its text has all but the type of the codes.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_codegen::rule::{Convention, Fp8, ScaleRule};
///
/// let theirs = ScaleRule::transformer_engine(Fp8::E4M3);
/// let exact = theirs.of_tensor(3.0);
/// assert_eq!((exact.multiplier, exact.stored), (448.0 / 3.0, 1.0 / (448.0f32 / 3.0)));
/// assert_eq!(theirs.powers_of_two().of_tensor(3.0).multiplier, 128.0); // rounded down
///
/// let deep = ScaleRule::deep_gemm();
/// assert_eq!(deep.convention, Convention::DeepGemm);
/// assert_eq!(deep.of_block(0.0, Dtype::Bf16).stored, 1e-4 / 448.0); // its eps
/// assert_eq!(deep.powers_of_two().of_block(3.0, Dtype::Bf16).stored, 1.0 / 128.0); // rounded up
/// assert_eq!(theirs.with_eps(1e-4).of_tensor(0.0).multiplier, 448.0 / 1e-4);
///
/// for (text, rule) in [("te+pow2", theirs.powers_of_two()), ("deepgemm+eps=0.5", deep.with_eps(0.5))] {
///     assert_eq!((rule.to_string(), ScaleRule::parse(text, Fp8::E4M3)), (text.to_owned(), Some(rule)));
/// }
/// assert_eq!(ScaleRule::parse("te+eps=-1", Fp8::E4M3), None);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ScaleRule {
    /// The type of the codes.
    pub to: Fp8,
    /// Convention of the arithmetic.
    pub convention: Convention,
    /// True if scales are powers of two.
    pub power_of_two: bool,
    /// Least amax. Not negative.
    pub eps: f32,
}

/// A scale, as it is used and as it is stored.
///
/// ```
/// use counterflow_codegen::rule::{Fp8, ScaleRule, Scale};
///
/// let scale: Scale = ScaleRule::transformer_engine(Fp8::E5M2).powers_of_two().of_tensor(1.0);
/// assert_eq!(scale.multiplier * scale.stored, 1.0);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scale {
    /// Factor of elements before they are rounded.
    pub multiplier: f32,
    /// Factor of products of codes: it stands in the plane. NaN is always the same NaN.
    pub stored: f32,
}

impl ScaleRule {
    /// TransformerEngine's, with its defaults for tensors: no eps, any scale. Its blocks have powers of two by default.
    pub const fn transformer_engine(to: Fp8) -> ScaleRule {
        ScaleRule {
            to,
            convention: Convention::TransformerEngine,
            power_of_two: false,
            eps: Convention::TransformerEngine.eps(),
        }
    }

    /// DeepGEMM's, which is of e4m3 alone.
    pub const fn deep_gemm() -> ScaleRule {
        ScaleRule {
            to: Fp8::E4M3,
            convention: Convention::DeepGemm,
            power_of_two: false,
            eps: Convention::DeepGemm.eps(),
        }
    }

    /// Makes scales powers of two.
    #[must_use]
    pub const fn powers_of_two(self) -> ScaleRule {
        ScaleRule {
            power_of_two: true,
            ..self
        }
    }

    /// Sets another eps.
    #[must_use]
    pub const fn with_eps(self, eps: f32) -> ScaleRule {
        ScaleRule { eps, ..self }
    }

    /// The rule that a text says: a convention, and what differs from its defaults, `te`, `deepgemm+pow2`, `te+pow2+eps=1e-6`.
    pub fn parse(text: &str, to: Fp8) -> Option<ScaleRule> {
        let mut words = text.split('+');
        let first = words.next()?;
        let mut all = Convention::ALL.into_iter();
        let convention = all.find(|convention| convention.name() == first)?;
        let rule = ScaleRule {
            to,
            convention,
            power_of_two: false,
            eps: convention.eps(),
        };
        words.try_fold(rule, |rule, word| match word.strip_prefix("eps=") {
            Some(eps) => {
                let eps: f32 = eps.parse().ok()?;
                (eps >= 0.0 && eps.is_finite()).then(|| rule.with_eps(eps))
            }
            None => (word == "pow2").then(|| rule.powers_of_two()),
        })
    }

    /// The larger of an amax and the absolute value of an element. NaN is not seen, or stays.
    ///
    /// ```
    /// use counterflow_codegen::rule::{Fp8, ScaleRule};
    ///
    /// let theirs = ScaleRule::transformer_engine(Fp8::E4M3);
    /// assert_eq!((theirs.larger(2.0, -3.0), theirs.larger(2.0, f32::NAN)), (3.0, 2.0));
    /// let deep = ScaleRule::deep_gemm();
    /// assert!(deep.keeps_nan() && deep.larger(2.0, f32::NAN).is_nan());
    /// ```
    pub fn larger(&self, amax: f32, value: f32) -> f32 {
        match self.keeps_nan() && (amax.is_nan() || value.is_nan()) {
            true => f32::NAN,
            false => amax.max(value.abs()),
        }
    }

    /// Multiplies rows of f32, one after another, so that only rounding is left to be done: 128 next to each other in a row, or as
    /// many as are left, by their scale. Gives what is stored of these: for each 128 columns a line with a number a row.
    ///
    /// ```
    /// use counterflow_codegen::rule::{Fp8, ScaleRule};
    ///
    /// let mut values = [[2.0; 128], [7.0; 128]].concat();
    /// let scales = ScaleRule::transformer_engine(Fp8::E4M3).scale_lines(&mut values, 256);
    /// assert_eq!((values[0], values[255], scales), (448.0, 448.0, vec![1.0 / 224.0, 1.0 / 64.0]));
    /// ```
    pub fn scale_lines(&self, values: &mut [f32], columns: usize) -> Vec<f32> {
        let (columns, block) = (columns.max(1), self.block().columns as usize);
        let rows = values.len() / columns;
        let mut scales = vec![0.0; columns.div_ceil(block) * rows];
        for (row, values) in values.chunks_mut(columns).enumerate() {
            for (line, values) in values.chunks_mut(block).enumerate() {
                let larger = |amax, value: &f32| self.larger(amax, *value);
                let scale = self.of_block(values.iter().fold(0.0, larger), Dtype::F32);
                values
                    .iter_mut()
                    .for_each(|value| *value *= scale.multiplier);
                scales[line * rows + row] = scale.stored;
            }
        }
        scales
    }

    /// Blocks whose scales stores compute by it, and [`ScaleRule::scale_lines`].
    #[doc(hidden)]
    pub const fn block(&self) -> ScaleBlock {
        ScaleBlock::F32_1X128
    }

    /// True if an amax can be held against its eps.
    pub(crate) fn has_finite_eps(&self) -> bool {
        (0.0..f32::INFINITY).contains(&self.eps)
    }

    /// True if an amax keeps NaN.
    pub const fn keeps_nan(&self) -> bool {
        match self.convention {
            Convention::TransformerEngine => false,
            Convention::DeepGemm => true,
        }
    }

    /// The scale of a whole tensor, or of a row.
    pub fn of_tensor(&self, amax: f32) -> Scale {
        self.of(amax, f32::MAX)
    }

    /// The scale of a block of 128 or 128×128 elements of that type.
    pub fn of_block(&self, amax: f32, from: Dtype) -> Scale {
        self.of(amax, from.largest())
    }

    fn of(&self, amax: f32, most: f32) -> Scale {
        match self.convention {
            Convention::TransformerEngine => self.multiplied(amax, most),
            Convention::DeepGemm => self.divided(self.floored(amax) / self.to.largest()),
        }
    }

    /// An amax that is at least eps. NaN stays.
    fn floored(&self, amax: f32) -> f32 {
        if amax < self.eps { self.eps } else { amax }
    }

    /// From what elements are multiplied by.
    fn multiplied(&self, amax: f32, most: f32) -> Scale {
        let amax = self.floored(amax);
        if amax == 0.0 || !amax.is_finite() {
            return Scale {
                multiplier: 1.0,
                stored: 1.0,
            };
        }
        let exact = self.to.largest() / amax;
        let exact = if exact.is_infinite() { most } else { exact };
        let multiplier = match self.power_of_two {
            true => f32::from_bits(exact.to_bits() & 0xff80_0000),
            false => exact,
        };
        Scale {
            multiplier,
            stored: 1.0 / multiplier,
        }
    }

    /// From what is stored.
    fn divided(&self, exact: f32) -> Scale {
        let stored = match self.power_of_two {
            true => power_above(exact),
            false => exact,
        };
        let same_nan = |value: f32| if value.is_nan() { f32::NAN } else { value };
        Scale {
            multiplier: same_nan(1.0 / stored),
            stored: same_nan(stored),
        }
    }
}

/// The least power of two that is not below a positive number, between 2^-126 and 2^127; NaN and infinity become 2^127.
fn power_above(value: f32) -> f32 {
    let bits = value.to_bits() & 0x7fff_ffff;
    let exponent = (bits >> 23) + u32::from(bits & 0x7f_ffff != 0);
    f32::from_bits(exponent.clamp(1, 254) << 23)
}

impl ScaleRule {
    /// Key that distinguishes rules: eps by its bits.
    const fn key(&self) -> (Fp8, Convention, bool, u32) {
        let ScaleRule {
            to,
            convention,
            power_of_two,
            eps,
        } = *self;
        (to, convention, power_of_two, eps.to_bits())
    }
}

impl PartialEq for ScaleRule {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for ScaleRule {}

impl Hash for ScaleRule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialOrd for ScaleRule {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScaleRule {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl fmt::Display for ScaleRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.convention.name())?;
        if self.power_of_two {
            f.write_str("+pow2")?;
        }
        match self.eps.to_bits() == self.convention.eps().to_bits() {
            true => Ok(()),
            false => write!(f, "+eps={}", self.eps),
        }
    }
}
