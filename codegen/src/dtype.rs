//! Element types: size and rounding.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use std::fmt;

/// The NaN that a conversion to either FP8 type gives, whatever NaN it is given.
const FP8_NAN: u8 = 0x7f;

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
            Dtype::E4M3 => F8E4M3::from_bits(e4m3(value)).to_f32(),
            Dtype::E5M2 => F8E5M2::from_bits(e5m2(value)).to_f32(),
        }
    }

    /// Largest finite number of the type.
    pub const fn largest(self) -> f32 {
        match self {
            Dtype::Bf16 => f32::from_bits(0x7f7f_0000),
            Dtype::F16 => 65504.0,
            Dtype::F32 => f32::MAX,
            Dtype::E4M3 => 448.0,
            Dtype::E5M2 => 57344.0,
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
            Dtype::E4M3 => place.copy_from_slice(&[e4m3(value)]),
            Dtype::E5M2 => place.copy_from_slice(&[e5m2(value)]),
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
            Dtype::E4M3 => F8E4M3::from_bits(bytes[0]).to_f32(),
            Dtype::E5M2 => F8E5M2::from_bits(bytes[0]).to_f32(),
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

/// The code that `cvt.rn.satfinite` gives: the crate keeps a NaN's sign and bits.
fn e4m3(value: f32) -> u8 {
    match value.is_nan() {
        true => FP8_NAN,
        false => F8E4M3::from_f32(value).to_bits(),
    }
}

/// Code of the type with the wider range.
fn e5m2(value: f32) -> u8 {
    match value.is_nan() {
        true => FP8_NAN,
        false => F8E5M2::from_f32(value).to_bits(),
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
