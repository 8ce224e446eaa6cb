//! Functions of other languages that a schedule calls after the product: text that another compiler made.

use super::names;
use std::fmt;

/// A function that is text to this compiler. Lowering refuses text that is more than arithmetic on the arguments.
///
/// ```
/// use counterflow_codegen::value::{Foreign, ScalarFn};
///
/// let softplus = ScalarFn {
///     name: "softplus",
///     params: &["x"],
///     body: Foreign::new("return fmaxf(x, 0.0f) + log1p(exp(-fabsf(x)));", |x| {
///         x[0].max(0.0) + (-x[0].abs()).exp().ln_1p()
///     })
///     .into(),
/// };
/// assert_eq!(softplus.eval(&[40.0]), 40.0); // by the twin
/// ```
#[derive(Clone)]
pub struct Foreign {
    /// Body in CUDA: statements over the arguments' names, the last of which returns an f32. It includes nothing.
    pub cuda: String,
    /// Function on the host that emulated ranks compute. Both have the same arguments, in f32.
    pub twin: fn(&[f32]) -> f32,
    /// Deviation of the text from the twin, where both have the same arguments: so many units in the last place of
    /// the largest of the result and the arguments, as f32.
    pub ulps: u32,
}

impl Foreign {
    /// Deviation of text and twin unless it is said: a few roundings each.
    pub const ULPS: u32 = 16;

    /// A function by its body in CUDA and its twin on the host.
    pub fn new(cuda: impl Into<String>, twin: fn(&[f32]) -> f32) -> Foreign {
        Foreign {
            cuda: cuda.into(),
            twin,
            ulps: Foreign::ULPS,
        }
    }

    /// The functions that a text may call: those of numbers that need neither a header nor memory.
    pub fn callable() -> impl Iterator<Item = &'static str> {
        names::FUNCTIONS.split_whitespace()
    }

    /// What its twin says.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "its arguments are rounded to f32, as on a device"
    )]
    pub fn eval(&self, args: &[f64]) -> f64 {
        let args: Vec<f32> = args.iter().map(|arg| *arg as f32).collect();
        f64::from((self.twin)(&args))
    }
}

/// By the text: a twin is what the text says.
impl PartialEq for Foreign {
    fn eq(&self, other: &Foreign) -> bool {
        (&self.cuda, self.ulps) == (&other.cuda, other.ulps)
    }
}

/// Plans are told apart by it, on ranks of several processes: no addresses.
impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Foreign { cuda, ulps, .. } = self;
        write!(f, "Foreign({cuda:?} within {ulps})")
    }
}
