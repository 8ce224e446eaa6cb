//! A product for cuBLASLt: sizes, types, scales, epilogue, and the places of its matrices.

use super::super::fp8::Pieces;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::variant::Layout;
use counterflow_runtime::driver::Address;
use cudarc::cublaslt::sys;

/// A multiplication: sizes, types and layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Rows, columns, depth.
    pub size: [u32; 3],
    /// Type of the operands, the left one first. Sums are in f32.
    pub dtypes: [Dtype; 2],
    /// Scales of FP8 operands, and the way that their products are added.
    pub scaled: Option<Scaled>,
    /// Type of the result, and of what is added to it: nothing is to results of FP8.
    pub result: Dtype,
    /// The epilogue in the same call.
    pub fused: Fused,
    /// As for our own kernels.
    pub layout: Layout,
}

/// cuBLASLt's epilogue, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fused {
    /// Adds a matrix of the result's type (beta is 1).
    pub added: bool,
    /// Adds a vector of the result's type along every row.
    pub bias: Option<Address>,
    /// GELU by tanh. It has no other.
    pub gelu: bool,
}

impl Fused {
    /// Number in cuBLASLt's enumeration.
    pub(super) fn epilogue(self) -> sys::cublasLtEpilogue_t {
        use sys::cublasLtEpilogue_t::{
            CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_GELU,
            CUBLASLT_EPILOGUE_GELU_BIAS,
        };
        match (self.bias.is_some(), self.gelu) {
            (false, false) => CUBLASLT_EPILOGUE_DEFAULT,
            (true, false) => CUBLASLT_EPILOGUE_BIAS,
            (false, true) => CUBLASLT_EPILOGUE_GELU,
            (true, true) => CUBLASLT_EPILOGUE_GELU_BIAS,
        }
    }
}

/// The scales of FP8 operands, and how their products are added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Scaled {
    /// Pieces that have a scale each, in the left operand and in the right one.
    pub pieces: [Pieces; 2],
    /// True if the tensor cores' own sums, of 13 bits, go on over all of K.
    pub fast: bool,
}

impl Scaled {
    /// Every kind that the library has for Hopper, but for operands without scales.
    pub const ALL: [Scaled; 7] = {
        use Pieces::{OneBy128, Rows, Square, Whole};
        const fn of(x: Pieces, w: Pieces, fast: bool) -> Scaled {
            let pieces = [x, w];
            Scaled { pieces, fast }
        }
        [
            of(Whole, Whole, true),
            of(Whole, Whole, false),
            of(Rows, Rows, true),
            of(Rows, Rows, false),
            of(OneBy128, Square, false),
            of(Square, OneBy128, false),
            of(OneBy128, OneBy128, false),
        ]
    };

    /// Name beside the library's.
    pub fn name(self) -> String {
        let [x, w] = self.pieces.map(Pieces::name);
        let blocks = |of| matches!(of, Pieces::OneBy128 | Pieces::Square);
        match (x == w, self.fast) {
            _ if self.pieces.into_iter().any(blocks) => format!("{x} by {w}"),
            (true, true) => format!("{x}, fast"),
            (true, false) => format!("{x}, promoted"),
            (false, true) => format!("{x} by {w}, fast"),
            (false, false) => format!("{x} by {w}, promoted"),
        }
    }
}

/// The matrices' addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operands {
    /// The left one.
    pub x: Address,
    /// The right one.
    pub w: Address,
    /// Matrix that is added to the product, if [`Fused::added`].
    pub c: Option<Address>,
    /// The result.
    pub y: Address,
    /// The scales of the left operand and of the right one, where they have some.
    pub scales: [Option<Address>; 2],
    /// Factor of an FP8 result before it is rounded, and the place of its amax before that, if it is FP8.
    pub of_result: [Option<Address>; 2],
}
