//! Element types: size and rounding.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use std::fmt;

/// The NaN that a conversion to either FP8 type gives, whatever NaN it is given.
const FP8_NAN: u8 = 0x7f;

/// The numbers that codes of e4m3 stand for.
static OF_E4M3: [f32; 256] = {
    let mut numbers = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        numbers[code] = F8E4M3::from_bits(code as u8).to_f32();
        code += 1;
    }
    numbers
};

/// The numbers that codes of e5m2 stand for.
static OF_E5M2: [f32; 256] = {
    let mut numbers = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        numbers[code] = F8E5M2::from_bits(code as u8).to_f32();
        code += 1;
    }
    numbers
};

/// The element type of a tensor in memory. Accumulation is always f32.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
///
/// let dtype = Dtype::from_name("bf16").expect("a type");
/// assert_eq!((dtype.name(), dtype.bytes()), ("bf16", 2));
/// assert_eq!(dtype.round(1.001), 1.0);
/// assert_eq!((Dtype::F16.largest(), Dtype::E4M3.largest()), (65504.0, 448.0));
/// assert!(f64::from(1.001 - dtype.round(1.001)) < dtype.unit_roundoff() + dtype.half_subnormal());
/// let mut memory = [0; 2];
/// dtype.write(1.001, &mut memory);
/// assert_eq!(dtype.read(&memory), 1.0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Dtype {
    /// bfloat16: 8 exponent bits, 8 bits of precision.
    Bf16,
    /// IEEE binary16: 5 exponent bits, 11 bits of precision.
    F16,
    /// IEEE binary32.
    F32,
    /// FP8 of 4 exponent bits, 4 bits of precision, no infinities: up to 448. Conversions saturate.
    E4M3,
    /// FP8 of 5 exponent bits, 3 bits of precision: up to 57344. Conversions saturate: no number becomes an infinity.
    E5M2,
}

impl Dtype {
    /// Every element type, in the order shown to a user.
    pub const ALL: [Dtype; 5] = [
        Dtype::Bf16,
        Dtype::F16,
        Dtype::F32,
        Dtype::E4M3,
        Dtype::E5M2,
    ];

    /// Bytes one element takes in memory.
    pub const fn bytes(self) -> u32 {
        match self {
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F32 => 4,
            Dtype::E4M3 | Dtype::E5M2 => 1,
        }
    }

    /// True for e4m3 and e5m2, the types of one byte.
    ///
    /// ```
    /// use counterflow_codegen::dtype::Dtype;
    ///
    /// assert!(Dtype::E4M3.is_fp8() && !Dtype::F16.is_fp8());
    /// assert_eq!(Dtype::E4M3.round(1000.0), 448.0); // what is too large becomes the largest
    /// assert_eq!(Dtype::E5M2.round(f32::INFINITY), 57344.0);
    /// ```
    pub const fn is_fp8(self) -> bool {
        match self {
            Dtype::E4M3 | Dtype::E5M2 => true,
            Dtype::Bf16 | Dtype::F16 | Dtype::F32 => false,
        }
    }

    /// The value that memory holds after `value` is stored: round to nearest, ties to even. FP8 saturates: what is
    /// larger than its largest number, infinities included, becomes that number.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Dtype::Bf16 => bf16::from_f32(value).to_f32(),
            Dtype::F16 => f16::from_f32(value).to_f32(),
            Dtype::F32 => value,
            Dtype::E4M3 => E4M3.round(value),
            Dtype::E5M2 => E5M2.round(value),
        }
    }

    /// Rounds each number.
    #[doc(hidden)]
    pub fn round_all(self, values: &mut [f32]) {
        // A loop for each type: the processor's vectors need one without a choice in it.
        match self {
            Dtype::F32 => {}
            Dtype::Bf16 => each_number(values, |value| Dtype::Bf16.round(value)),
            Dtype::F16 => each_number(values, |value| Dtype::F16.round(value)),
            Dtype::E4M3 => each_number(values, |value| E4M3.round(value)),
            Dtype::E5M2 => each_number(values, |value| E5M2.round(value)),
        }
    }

    /// Largest finite number of the type.
    pub const fn largest(self) -> f32 {
        match self {
            Dtype::Bf16 => f32::from_bits(0x7f7f_0000),
            Dtype::F16 => 65504.0,
            Dtype::F32 => f32::MAX,
            Dtype::E4M3 => E4M3.largest,
            Dtype::E5M2 => E5M2.largest,
        }
    }

    /// The largest relative error one rounding makes (half a unit in the last place).
    pub fn unit_roundoff(self) -> f64 {
        match self {
            Dtype::Bf16 => 2f64.powi(-8),
            Dtype::F16 => 2f64.powi(-11),
            Dtype::F32 => 2f64.powi(-24),
            Dtype::E4M3 => 2f64.powi(-4),
            Dtype::E5M2 => 2f64.powi(-3),
        }
    }

    /// Half of the spacing of its subnormals: what rounding may lose of a number next to zero.
    pub fn half_subnormal(self) -> f64 {
        match self {
            Dtype::Bf16 => 2f64.powi(-134),
            Dtype::F16 => 2f64.powi(-25),
            Dtype::F32 => 2f64.powi(-150),
            Dtype::E4M3 => 2f64.powi(-10),
            Dtype::E5M2 => 2f64.powi(-17),
        }
    }

    /// Writes an element as memory holds it, rounded as [`Dtype::round`] does.
    ///
    /// # Panics
    /// If `place` has another size than an element.
    pub fn write(self, value: f32, place: &mut [u8]) {
        match self {
            Dtype::Bf16 => place.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            Dtype::F16 => place.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            Dtype::F32 => place.copy_from_slice(&value.to_le_bytes()),
            Dtype::E4M3 => place.copy_from_slice(&[E4M3.code(value)]),
            Dtype::E5M2 => place.copy_from_slice(&[E5M2.code(value)]),
        }
    }

    /// Reads an element from the bytes that memory holds.
    ///
    /// # Panics
    /// If there are fewer bytes than an element has.
    pub fn read(self, bytes: &[u8]) -> f32 {
        match self {
            Dtype::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Dtype::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Dtype::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            Dtype::E4M3 => OF_E4M3[usize::from(bytes[0])],
            Dtype::E5M2 => OF_E5M2[usize::from(bytes[0])],
        }
    }

    /// Reads elements that lie one behind the other.
    #[doc(hidden)]
    pub fn read_all(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            Dtype::Bf16 => each_read(bytes, values, |own| bf16::from_le_bytes(own).to_f32()),
            Dtype::F16 => each_read(bytes, values, |own| f16::from_le_bytes(own).to_f32()),
            Dtype::F32 => each_read(bytes, values, f32::from_le_bytes),
            Dtype::E4M3 => each_read(bytes, values, |[code]| OF_E4M3[usize::from(code)]),
            Dtype::E5M2 => each_read(bytes, values, |[code]| OF_E5M2[usize::from(code)]),
        }
    }

    /// Writes elements one behind the other, as [`Dtype::write`] does.
    #[doc(hidden)]
    pub fn write_all(self, values: &[f32], bytes: &mut [u8]) {
        match self {
            Dtype::Bf16 => each_written(values, bytes, |own| bf16::from_f32(own).to_le_bytes()),
            Dtype::F16 => each_written(values, bytes, |own| f16::from_f32(own).to_le_bytes()),
            Dtype::F32 => each_written(values, bytes, f32::to_le_bytes),
            Dtype::E4M3 => each_written(values, bytes, |own| [E4M3.code(own)]),
            Dtype::E5M2 => each_written(values, bytes, |own| [E5M2.code(own)]),
        }
    }

    /// The name a user types: `bf16`, `f16`, `f32`, `e4m3`, `e5m2`.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
            Dtype::F32 => "f32",
            Dtype::E4M3 => "e4m3",
            Dtype::E5M2 => "e5m2",
        }
    }

    /// The element type of that name.
    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads each number of so many bytes.
fn each_read<const BYTES: usize>(
    bytes: &[u8],
    values: &mut [f32],
    number: impl Fn([u8; BYTES]) -> f32,
) {
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = number(*bytes);
    }
}

/// Writes each number of so many bytes.
fn each_written<const BYTES: usize>(
    values: &[f32],
    bytes: &mut [u8],
    number: impl Fn(f32) -> [u8; BYTES],
) {
    for (value, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
        *bytes = number(*value);
    }
}

fn each_number(values: &mut [f32], to: impl Fn(f32) -> f32) {
    for value in values {
        *value = to(*value);
    }
}

/// A type of one byte: how it rounds, as `cvt.rn.satfinite` does. By arithmetic, of which a processor does several numbers at
/// once: a run draws and rounds tens of millions.
struct Fp8 {
    mantissa_bits: u32,
    /// The least number that is not subnormal.
    least: f32,
    largest: f32,
}

const E4M3: Fp8 = Fp8 {
    mantissa_bits: 3,
    least: 1.0 / 64.0,
    largest: 448.0,
};

const E5M2: Fp8 = Fp8 {
    mantissa_bits: 2,
    least: 1.0 / 16384.0,
    largest: 57344.0,
};

impl Fp8 {
    /// The nearest number of the type, of two as near the even one.
    #[inline]
    fn round(&self, value: f32) -> f32 {
        const EXPONENT: u32 = 0x7f80_0000;
        const MANTISSA_BITS: u32 = f32::MANTISSA_DIGITS - 1;
        let size = value.abs().min(self.largest);
        let power = size.max(self.least).to_bits() & EXPONENT;
        // Numbers of f32 from here on are as far apart as those of the type at `size`.
        let coarse =
            f32::from_bits(power + ((MANTISSA_BITS - self.mantissa_bits) << MANTISSA_BITS));
        let rounded = ((size + coarse) - coarse).copysign(value);
        if value.is_nan() { f32::NAN } else { rounded }
    }

    /// The code of the nearest number.
    fn code(&self, value: f32) -> u8 {
        const MANTISSA_BITS: u32 = f32::MANTISSA_DIGITS - 1;
        if value.is_nan() {
            return FP8_NAN;
        }
        let rounded = self.round(value).abs();
        let size = if rounded < self.least {
            // Subnormals are multiples of the first one.
            (rounded / self.least * (1 << self.mantissa_bits) as f32) as u32
        } else {
            // The exponent's code of the least normal number is 1.
            let above = rounded.to_bits() - self.least.to_bits() + (1 << MANTISSA_BITS);
            above >> (MANTISSA_BITS - self.mantissa_bits)
        };
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        size as u8 | sign
    }
}

/// A Rust type that can be a tensor's element.
pub trait Element: Copy + 'static {
    /// The element type it stands for.
    const DTYPE: Dtype;
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}
impl Element for f16 {
    const DTYPE: Dtype = Dtype::F16;
}
impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}
impl Element for F8E4M3 {
    const DTYPE: Dtype = Dtype::E4M3;
}
impl Element for F8E5M2 {
    const DTYPE: Dtype = Dtype::E5M2;
}
