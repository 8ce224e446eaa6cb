//! Quantisers on the host, in plain Rust: what GPUs must equal bit for bit, and what emulated ranks run.

use crate::plane::{Block, Layout, Plane};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::Granularity;
use counterflow_codegen::rule::{Fp8, Scale, ScaleRule};

/// A matrix that is quantised: rows of numbers, one after another, and the type that holds them exactly.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_quantise::Matrix;
///
/// let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let x = Matrix::new(&x, [2, 3], Dtype::F32);
/// assert_eq!(x.transposed(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// assert_eq!(x.shape(), [2, 3]);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Matrix<'a> {
    values: &'a [f32],
    shape: [usize; 2],
    from: Dtype,
}

impl<'a> Matrix<'a> {
    /// Rows and columns of these numbers, which are numbers of that type.
    ///
    /// # Panics
    /// For another number of numbers.
    pub fn new(values: &'a [f32], shape: [usize; 2], from: Dtype) -> Matrix<'a> {
        assert_eq!(values.len(), shape[0] * shape[1], "numbers of {shape:?}");
        Matrix {
            values,
            shape,
            from,
        }
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The numbers of the transposed matrix.
    pub fn transposed(&self) -> Vec<f32> {
        let [rows, columns] = self.shape;
        let value = |at| self.values[at % rows * columns + at / rows];
        (0..rows * columns).map(value).collect()
    }
}

/// Codes and scales of a matrix.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_quantise::{Fp8, Matrix, Granularity, Quantised, ScaleRule, twin};
///
/// let x = Matrix::new(&[1.0, -448.0], [1, 2], Dtype::F32);
/// let q: Quantised = twin::quantise(&x, &ScaleRule::transformer_engine(Fp8::E4M3), Granularity::PerTensor);
/// assert_eq!((&q.codes[..], &q.scales[..]), (&[0x38, 0xfe][..], &[1.0][..]));
/// assert_eq!(q.with_pitch(4), [0x38, 0xfe, 0, 0]);
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Quantised {
    /// A code for each element, row after row.
    pub codes: Vec<u8>,
    /// The stored scales of the pieces, those of a row of pieces next to each other.
    pub scales: Vec<f32>,
    /// Elements that share a scale.
    pub pieces: Granularity,
    /// Rows and columns of elements.
    pub shape: [usize; 2],
}

impl Quantised {
    /// The scales of blocks as memory holds them.
    ///
    /// # Panics
    /// If the layout is of other blocks.
    pub fn plane<L: Layout>(&self) -> Plane<L> {
        let blocks = [<L::Block as Block>::ROWS, 128];
        assert!(
            matches!(
                self.pieces,
                Granularity::BLOCK_1X128 | Granularity::BLOCK_128X128
            ) && self.pieces.extent(self.shape) == blocks,
            "a plane of blocks of {blocks:?} for {:?}",
            self.pieces
        );
        let [_, columns] = self.pieces.count(self.shape);
        Plane::of(self.shape, |[row, column]| {
            self.scales[row * columns + column]
        })
    }

    /// The codes with so many bytes from a row to the next. Those between are zero.
    ///
    /// # Panics
    /// If a row has more.
    pub fn with_pitch(&self, pitch: usize) -> Vec<u8> {
        let [rows, columns] = self.shape;
        assert!(pitch >= columns, "{columns} codes in {pitch} bytes");
        let mut codes = vec![0; rows * pitch];
        for row in 0..rows {
            codes[row * pitch..][..columns]
                .copy_from_slice(&self.codes[row * columns..][..columns]);
        }
        codes
    }
}

/// The largest absolute value of all elements, as the rule sees it. Of none: 0.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_quantise::{Fp8, Matrix, ScaleRule, twin};
///
/// let x = Matrix::new(&[1.0, f32::NAN, -3.0], [1, 3], Dtype::F32);
/// assert_eq!(twin::amax(&x, &ScaleRule::transformer_engine(Fp8::E4M3)), 3.0);
/// assert!(twin::amax(&x, &ScaleRule::deep_gemm()).is_nan());
/// ```
pub fn amax(of: &Matrix<'_>, rule: &ScaleRule) -> f32 {
    let values = of.values.iter();
    values.fold(0.0, |amax, value| rule.larger(amax, *value))
}

/// Codes by a scale that is known.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_quantise::{Fp8, Matrix, twin};
///
/// let x = Matrix::new(&[0.5, f32::INFINITY, -0.0], [1, 3], Dtype::F32);
/// assert_eq!(twin::cast(&x, Fp8::E4M3, 2.0), [0x38, 0x7e, 0x80]);
/// ```
pub fn cast(of: &Matrix<'_>, to: Fp8, multiplier: f32) -> Vec<u8> {
    let values = of.values.iter();
    values.map(|value| to.code(value * multiplier)).collect()
}

/// Codes and scales of a matrix, by the amaxes of its pieces. The transposed copy of a matrix is that of
/// [`Matrix::transposed`]: quantised from the source, since other elements share a scale there.
pub fn quantise(of: &Matrix<'_>, rule: &ScaleRule, pieces: Granularity) -> Quantised {
    let ([_, columns], [tall, wide]) = (of.shape, pieces.extent(of.shape));
    let [rows_of_pieces, columns_of_pieces] = pieces.count(of.shape);
    let place = |at: usize| at / columns / tall * columns_of_pieces + at % columns / wide;
    let mut amaxes = vec![0.0; rows_of_pieces * columns_of_pieces];
    for (at, value) in of.values.iter().enumerate() {
        let amax = &mut amaxes[place(at)];
        *amax = rule.larger(*amax, *value);
    }
    let scale = |amax: &f32| -> Scale {
        match pieces {
            Granularity::PerTensor | Granularity::PerRow => rule.of_tensor(*amax),
            Granularity::Block(_) => rule.of_block(*amax, of.from),
        }
    };
    let scales: Vec<Scale> = amaxes.iter().map(scale).collect();
    let each = of.values.iter().enumerate();
    Quantised {
        codes: each
            .map(|(at, value)| rule.to.code(value * scales[place(at)].multiplier))
            .collect(),
        scales: scales.iter().map(|scale| scale.stored).collect(),
        pieces,
        shape: of.shape,
    }
}
