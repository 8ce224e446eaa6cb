//! FP8 codes together with their scales: one value where a tensor stands.

use super::argument::{Needs, ScaleUse};
use super::given::{Argument, HeapInput, HeapOutput, Input, Output, sealed::Sealed};
use crate::communicator::Communicator;
use crate::driver::Element;
use crate::error::Error;
use crate::tensor::{Tensor, rows_and_columns};
use crate::user_buffer::UserBuffer;
use counterflow_codegen::encoding::Granularity;
use cudarc::driver::CudaSlice;
use float8::{F8E4M3, F8E5M2};
use std::ops::Range;

/// FP8 codes, their scales, and the amax if a launch measures it: one value for launches and quantisers, by `&` as an input and by
/// `&mut` as an output. `C` holds the codes and `S` the scales: a [`Tensor`], a [`UserBuffer`], or a slice of cudarc's.
///
/// A dequantised value is code × scale. Scales lie as [`Granularity::scales`] has them. Where ranks gather 1×128, each rank's shard
/// has such scales of its own, one behind the other.
///
/// ```
/// use counterflow::op::{Granularity, QuantTensor};
/// use counterflow::{Communicator, Dtype, Scales, prelude::{bf16, e4m3}, schedules::GemmOp};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let op = rank.op_of::<GemmOp>().dtype(Dtype::E4M3).scales(Scales::Blocks1d2d);
/// let op = op.first_options().up_to(64, 64, 256).build()?;
/// // What the op needs, of zeros: a quantiser fills it.
/// let x = QuantTensor::zeros::<e4m3>(rank, &op.needs("x")?)?;
/// x.codes().write(&[e4m3::ONE; 64 * 256])?;
/// x.scales().write(&[[0.5; 64], [2.0; 64]].concat())?; // a number for each row, 128 of K after another
/// // Or two parts that there are.
/// let (codes, scales) = (rank.zeros::<e4m3>([64, 256])?, rank.zeros::<f32>([1, 4])?);
/// codes.write(&[e4m3::ONE; 64 * 256])?;
/// scales.write(&[1.0, 1.0, 0.0, 0.0])?;
/// let w = QuantTensor::new(codes, scales, Granularity::BLOCK_128X128)?;
/// let mut y = rank.zeros::<bf16>([64, 64])?;
/// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
/// assert_eq!(y.read()?, [bf16::from_f32(128.0 * (0.5 + 2.0)); 64 * 64]);
///
/// assert_eq!(w.granularity(), Granularity::BLOCK_128X128);
/// // Codes alone, or scales of other elements, are refused.
/// let error = op.on(rank).x(&x).w(w.codes()).y(&mut y).launch().unwrap_err();
/// assert_eq!(error.to_string(), "w was given without its scales");
/// let error = op.on(rank).x(&w).w(&w).y(&mut y).launch().unwrap_err();
/// assert_eq!(error.to_string(), "x was given with scales of 128×128, and this op has scales of 1×128");
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// Codes are e4m3 or e5m2, and scales f32. Others do not compile:
///
/// ```compile_fail,E0277
/// # use counterflow::{Error, Tensor, op::{Granularity, QuantTensor}, prelude::bf16};
/// fn wrong(codes: Tensor<bf16>, scales: Tensor<f32>) -> Result<QuantTensor<Tensor<bf16>>, Error> {
///     QuantTensor::new(codes, scales, Granularity::PerTensor)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct QuantTensor<C = Tensor<F8E4M3>, S = Tensor<f32>> {
    codes: C,
    scales: S,
    is: ScaleUse,
    amax: Option<Tensor<f32>>,
}

/// Memory that holds elements of one type.
///
/// ```
/// use counterflow::{Tensor, op::{Memory, QuantTensor}, prelude::e4m3};
///
/// fn held<C: Memory<Element = e4m3>>(of: &QuantTensor<C, Tensor<f32>>) -> Option<[usize; 2]> {
///     of.codes().held()
/// }
/// # let rank = &counterflow::Communicator::emulated(1)?[0];
/// # let (codes, number) = (rank.zeros::<e4m3>([4, 16])?, rank.zeros::<f32>([1])?);
/// assert_eq!(held(&QuantTensor::output(codes, number)?), Some([4, 16]));
/// # Ok::<(), counterflow::Error>(())
/// ```
pub trait Memory: Sealed {
    /// The type of its elements.
    type Element: Element;

    /// Rows and columns; none of another library's slice, which has only a length.
    fn held(&self) -> Option<[usize; 2]>;

    /// As an input of a launch.
    #[doc(hidden)]
    fn read(&self) -> Argument<'_>;

    /// As an output of a launch.
    #[doc(hidden)]
    fn written(&mut self) -> Argument<'_>;
}

/// Memory of a rank, of which other handles have some rows or another shape.
///
/// ```
/// use counterflow::{Error, op::{Handle, Memory}, prelude::e4m3};
///
/// /// The first row, as two.
/// fn halves<H: Handle<Element = e4m3>>(of: &H) -> Result<H, Error> {
///     of.some_rows(0..1)?.of_shape([2, 8])
/// }
/// # let rank = &counterflow::Communicator::emulated(1)?[0];
/// assert_eq!(halves(&rank.zeros::<e4m3>([4, 16])?)?.held(), Some([2, 8]));
/// # Ok::<(), counterflow::Error>(())
/// ```
pub trait Handle: Memory + Sized {
    /// As [`Tensor::rows`] and [`UserBuffer::rows`].
    ///
    /// # Errors
    /// [`Error::Usage`] for rows that it does not have.
    fn some_rows(&self, rows: Range<usize>) -> Result<Self, Error>;

    /// As [`Tensor::shaped`] and [`UserBuffer::shaped`].
    ///
    /// # Errors
    /// [`Error::Usage`] for more elements than it has.
    fn of_shape(&self, shape: [usize; 2]) -> Result<Self, Error>;
}

#[diagnostic::on_unimplemented(
    message = "{Self} is no type of codes that have scales",
    note = "codes are `e4m3` or `e5m2`; give a tensor of another type as it is"
)]
/// The element types of FP8.
///
/// ```
/// use counterflow::op::Code;
/// use counterflow::prelude::{e4m3, e5m2};
///
/// fn bytes<T: Code>() -> usize {
///     size_of::<T>()
/// }
/// assert_eq!((bytes::<e4m3>(), bytes::<e5m2>()), (1, 1));
/// ```
pub trait Code: Element {}

impl Code for F8E4M3 {}
impl Code for F8E5M2 {}

impl<C: Memory<Element: Code>, S: Memory<Element = f32>> QuantTensor<C, S> {
    /// Codes and the scales that they are multiplied by.
    ///
    /// # Errors
    /// [`Error::Usage`] for scales that do not have the shape of that granularity: [`Granularity::scales`].
    pub fn new(codes: C, scales: S, granularity: Granularity) -> Result<Self, Error> {
        if let (Some(shape), Some(held)) = (codes.held(), scales.held()) {
            fits(granularity, shape, held)?;
        }
        Ok(QuantTensor {
            codes,
            scales,
            is: ScaleUse::Dequantises(granularity),
            amax: None,
        })
    }

    /// An output of [`OpBuilder::output`](crate::OpBuilder::output): results are multiplied by one number, and then rounded. A product
    /// that reads the codes is given the number's reciprocal: a launch refuses this one as an operand.
    ///
    /// ```
    /// use counterflow::op::QuantTensor;
    /// use counterflow::{Communicator, Dtype, prelude::{bf16, e4m3}, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().output(Dtype::E4M3).amax().first_options().up_to(64, 64, 64).build()?;
    /// let (x, by) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<f32>([1])?);
    /// x.write(&[bf16::ONE; 64 * 64])?;
    /// by.write(&[0.5])?;
    /// let mut y = QuantTensor::output(rank.zeros::<e4m3>([64, 64])?, by)?.with_amax(rank.zeros::<f32>([1])?)?;
    /// op.on(rank).x(&x).w(&x).y(&mut y).launch()?.wait()?;
    /// assert_eq!(y.codes().read()?, [e4m3::from_f32(32.0); 64 * 64]);
    /// assert_eq!(y.amax().expect("one").read()?, [64.0]);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for another number of numbers than one.
    pub fn output(codes: C, multiplier: S) -> Result<Self, Error> {
        if let (Some(shape), Some(held)) = (codes.held(), multiplier.held()) {
            fits(Granularity::PerTensor, shape, held)?;
        }
        Ok(QuantTensor {
            codes,
            scales: multiplier,
            is: ScaleUse::Quantises,
            amax: None,
        })
    }
}

impl<C, S> QuantTensor<C, S> {
    /// Adds a number for the amax that launches measure ([`OpBuilder::amax`](crate::OpBuilder::amax)).
    ///
    /// # Errors
    /// [`Error::Usage`] for another number of numbers than one.
    pub fn with_amax(self, amax: Tensor<f32>) -> Result<Self, Error> {
        if amax.len() != 1 {
            return Err(Error::Usage {
                what: format!("an amax of {} numbers", amax.len()),
                legal: "give one f32: `rank.zeros::<f32>([1])`".into(),
            });
        }
        Ok(QuantTensor {
            amax: Some(amax),
            ..self
        })
    }

    /// The codes.
    pub fn codes(&self) -> &C {
        &self.codes
    }

    /// The codes, for a kernel that writes them alone: a transposed copy has the one scale of its tensor.
    ///
    /// ```
    /// # use counterflow::{Communicator, op::{Granularity, QuantTensor}, prelude::e4m3};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// # let (codes, scale) = (rank.zeros::<e4m3>([4, 16])?, rank.zeros::<f32>([1])?);
    /// let mut x = QuantTensor::new(codes, scale, Granularity::PerTensor)?;
    /// x.codes_mut().fill(0x38)?;
    /// assert_eq!(x.codes().read()?, [e4m3::ONE; 64]);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn codes_mut(&mut self) -> &mut C {
        &mut self.codes
    }

    /// The scales, as [`Granularity::scales`] has them; of [`QuantTensor::output`], its number.
    pub fn scales(&self) -> &S {
        &self.scales
    }

    /// The number that a launch measures, if there is one.
    pub fn amax(&self) -> Option<&Tensor<f32>> {
        self.amax.as_ref()
    }

    /// Elements that share a scale.
    pub fn granularity(&self) -> Granularity {
        self.is.granularity()
    }
}

impl<C: Handle, S: Handle> QuantTensor<C, S> {
    /// Codes and scales of some rows: another handle of the same memory. With scales of 1×128 these are the rows of a rank's
    /// shard ([`Op::shard`](crate::Op::shard)), which has fewer where a launch has; of one plane all rows. A quantiser zeroes
    /// what its lines have behind those rows. With 128×128 the rows begin at a multiple of 128.
    ///
    /// ```
    /// # use counterflow::op::QuantTensor;
    /// # use counterflow::{Communicator, Dtype, Scales, prelude::e4m3, schedules::AgGemmOp};
    /// # let ranks = Communicator::emulated(2)?;
    /// # Communicator::each(&ranks, |rank| {
    /// let op = rank.op_of::<AgGemmOp>().dtype(Dtype::E4M3).scales(Scales::Blocks1d2d);
    /// let op = op.first_options().up_to(64, 64, 256).build()?;
    /// # rank.reserve(2 << 20)?;
    /// let x = QuantTensor::allocate::<e4m3>(rank, "x", &op.needs("x")?)?; // in the heap, where peers address it
    /// let mine = x.rows(op.shard("x", rank.rank(), 64)?)?; // a quantiser fills it
    /// assert_eq!((mine.codes().shape(), mine.scales().shape()), (&[32, 256][..], &[2, 32][..]));
    /// # rank.barrier()
    /// # })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for rows that it does not have, or whose scales do not lie together.
    pub fn rows(&self, rows: Range<usize>) -> Result<Self, Error> {
        let codes = self.codes.some_rows(rows.clone())?;
        let [held, line] = self.scales.held().unwrap_or_default();
        let columns = codes.held().map_or(0, |[_, columns]| columns);
        let all = self.codes.held().map_or(0, |[rows, _]| rows);
        let [lines, own] = self.granularity().scales([rows.len(), columns]);
        let (first, count) = match self.granularity() {
            Granularity::PerTensor => (0, held),
            // A rank without rows: as many lines, of no row.
            Granularity::Block(block) if block.is_1d() && rows.is_empty() => {
                let none = self.scales.some_rows(0..0)?;
                return Ok(self.with(codes, none.of_shape([lines, 0])?));
            }
            Granularity::PerRow | Granularity::Block(_) if rows.is_empty() => (0, 0),
            Granularity::PerRow => (rows.start, rows.len()),
            Granularity::Block(block)
                if block.is_1d() && line > 0 && rows.start.is_multiple_of(line) =>
            {
                // One plane has no rank that may have fewer rows; but a launch of some fewer has the same lines.
                if rows.len() > line || (held == lines && rows.end < all && own != line) {
                    return Err(beyond(&rows, line));
                }
                (rows.start / line * lines, lines)
            }
            Granularity::Block(block) if block.is_1d() => return Err(within(&rows, line)),
            Granularity::Block(block) => {
                let each = block.rows as usize;
                if !rows.start.is_multiple_of(each) {
                    return Err(within(&rows, each));
                }
                (rows.start / each, lines)
            }
        };
        Ok(self.with(codes, self.scales.some_rows(first..first + count)?))
    }

    /// Gives the memory to a launch of fewer rows, whose scales of 1×128 have shorter lines
    /// ([`Op::needs_at`](crate::Op::needs_at)). A write to one is not what the other reads.
    ///
    /// ```
    /// # use counterflow::op::QuantTensor;
    /// # use counterflow::{Communicator, Dtype, Scales, prelude::e4m3, schedules::GemmOp};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().dtype(Dtype::E4M3).scales(Scales::Blocks1d2d);
    /// let op = op.first_options().up_to(64, 64, 256).build()?;
    /// let x = QuantTensor::zeros::<e4m3>(rank, &op.needs("x")?)?;
    /// let shorter = x.shaped(&op.needs_at("x", 39)?)?;
    /// assert_eq!((x.scales().shape(), shorter.scales().shape()), ([2, 64], [2, 40]));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for more than it has, and for scales of other elements.
    pub fn shaped(&self, needs: &Needs) -> Result<Self, Error> {
        let scale = scale_of(needs)?;
        if needs.scale_use() != Some(self.is) {
            return Err(Error::Usage {
                what: format!("{} as those of another tensor", self.is),
                legal: "give the needs of the tensor that it is given for".into(),
            });
        }
        Ok(self.with(
            self.codes.of_shape(needs.shape)?,
            self.scales.of_shape(scale.shape)?,
        ))
    }

    fn with(&self, codes: C, scales: S) -> Self {
        QuantTensor {
            codes,
            scales,
            is: self.is,
            amax: self.amax.clone(),
        }
    }
}

impl QuantTensor {
    /// Allocates the zeros that a launch needs of a tensor which no peer addresses: codes, scales, and the amax if it
    /// measures one.
    ///
    /// # Errors
    /// [`Error::Usage`] for a tensor without scales, of another type, or that peers address; when the GPU's memory is full.
    pub fn zeros<T: Code>(
        rank: &Communicator,
        needs: &Needs,
    ) -> Result<QuantTensor<Tensor<T>>, Error> {
        if needs.in_heap {
            return Err(Error::Usage {
                what: "memory of one rank for a tensor that peers address".into(),
                legal: "allocate it in the heap, on all ranks: `QuantTensor::allocate`".into(),
            });
        }
        let (scale, is) = (scale_of(needs)?, use_of::<T>(needs)?);
        let made = QuantTensor {
            codes: rank.zeros::<T>(needs.shape)?,
            scales: rank.zeros(scale.shape)?,
            is,
            amax: None,
        };
        made.measured_as(rank, needs)
    }

    /// Allocates the zeros that a launch needs of a tensor, in the symmetric heap: codes, scales, and the amax if it
    /// measures one. All ranks allocate it, with the same name.
    ///
    /// # Errors
    /// [`Error::Usage`] for a tensor without scales, or of another type; as [`Communicator::allocate`].
    pub fn allocate<T: Code>(
        rank: &Communicator,
        name: &str,
        needs: &Needs,
    ) -> Result<QuantTensor<UserBuffer<T>, UserBuffer<f32>>, Error> {
        let (scale, is) = (scale_of(needs)?, use_of::<T>(needs)?);
        let made = QuantTensor {
            codes: rank.allocate::<T>(name, needs.shape)?,
            scales: rank.allocate(&format!("scales of {name}"), scale.shape)?,
            is,
            amax: None,
        };
        made.measured_as(rank, needs)
    }
}

impl<C, S> QuantTensor<C, S> {
    /// With an amax if a launch measures one.
    fn measured_as(self, rank: &Communicator, needs: &Needs) -> Result<Self, Error> {
        match needs.amax {
            true => self.with_amax(rank.zeros([1])?),
            false => Ok(self),
        }
    }
}

/// The refusal of rows that begin elsewhere than at a multiple of so many.
fn within(rows: &Range<usize>, each: usize) -> Error {
    Error::Usage {
        what: format!("rows {rows:?}, whose scales begin within those of others"),
        legal: format!(
            "begin at a multiple of {each} rows; a launch of fewer rows has other lines: `shaped(&op.needs_at(…)?)`"
        ),
    }
}

fn beyond(rows: &Range<usize>, line: usize) -> Error {
    Error::Usage {
        what: format!("rows {rows:?}, whose scales lie in lines of {line} rows"),
        legal: "give all rows of a shard (`op.shard(…)`); a launch of fewer rows has other lines: `shaped(&op.needs_at(…)?)`".into(),
    }
}

fn scale_of(needs: &Needs) -> Result<&Needs, Error> {
    needs.scale.as_deref().ok_or_else(|| Error::Usage {
        what: "scales for a tensor that has none in this op".into(),
        legal: "build the op with `scales`, `output` or `output_scales`; or give a tensor".into(),
    })
}

/// Meaning of the scales that a launch needs with codes of that type.
fn use_of<T: Code>(needs: &Needs) -> Result<ScaleUse, Error> {
    scale_of(needs)?;
    match needs.scale_use() {
        Some(is) if T::TENSOR == Some(needs.dtype) => Ok(is),
        _ => Err(Error::Usage {
            what: format!(
                "codes of {} for a tensor of {}",
                T::TENSOR.map_or("another type", |dtype| dtype.name()),
                needs.dtype
            ),
            legal: "name the type that the op was built for".into(),
        }),
    }
}

/// Rejects scales that codes of that shape cannot have.
fn fits(
    granularity: Granularity,
    shape: [usize; 2],
    [held, line]: [usize; 2],
) -> Result<(), Error> {
    let [lines, least] = granularity.scales(shape);
    let fits = match granularity {
        Granularity::PerTensor => held * line == 1,
        // Each shard's lines lie behind those of the shard before.
        Granularity::Block(block) if block.is_1d() => {
            let padded = line.is_multiple_of(block.line() as usize);
            lines == 0 || held >= lines && padded && held / lines * line >= shape[0]
        }
        Granularity::PerRow | Granularity::Block(_) => held >= lines && line == least,
    };
    match fits {
        true => Ok(()),
        false => Err(Error::Usage {
            what: format!(
                "{held} x {line} scales of {granularity} for {} x {} codes",
                shape[0], shape[1]
            ),
            legal: format!(
                "give {lines} x {least}: `Granularity::scales` says how they lie, and `Op::needs` where ranks gather them"
            ),
        }),
    }
}

macro_rules! memory {
    ($($memory:ty: |$of:ident| $held:expr;)*) => {$(
        impl<T: Element> Sealed for $memory {}
        impl<T: Element> Memory for $memory {
            type Element = T;

            fn held(&self) -> Option<[usize; 2]> {
                let $of = self;
                $held
            }

            fn read(&self) -> Argument<'_> {
                self.into()
            }

            fn written(&mut self) -> Argument<'_> {
                self.into()
            }
        }
    )*};
}
memory! {
    Tensor<T>: |tensor| Some(tensor.shape());
    UserBuffer<T>: |buffer| Some(rows_and_columns(buffer.shape()));
    CudaSlice<T>: |_slice| None;
}

macro_rules! handle {
    ($($memory:ident),*) => {$(
        impl<T: Element> Handle for $memory<T> {
            fn some_rows(&self, rows: Range<usize>) -> Result<Self, Error> {
                self.rows(rows)
            }

            fn of_shape(&self, shape: [usize; 2]) -> Result<Self, Error> {
                self.shaped(shape)
            }
        }
    )*};
}
handle!(Tensor, UserBuffer);

impl<'a, C: Memory, S: Memory> From<&'a QuantTensor<C, S>> for Argument<'a> {
    fn from(given: &'a QuantTensor<C, S>) -> Self {
        let amax = given.amax.as_ref().map(Memory::read);
        given
            .codes
            .read()
            .with_planes((given.is, given.scales.read()), amax)
    }
}

impl<'a, C: Memory, S: Memory> From<&'a mut QuantTensor<C, S>> for Argument<'a> {
    fn from(given: &'a mut QuantTensor<C, S>) -> Self {
        let amax = given.amax.as_mut().map(Memory::written);
        let scale = (given.is, given.scales.written());
        given.codes.written().with_planes(scale, amax)
    }
}

impl<C: Memory, S: Memory> Sealed for &QuantTensor<C, S> {}
impl<C: Memory, S: Memory> Sealed for &mut QuantTensor<C, S> {}
impl<'a, C: Memory, S: Memory> Input<'a> for &'a QuantTensor<C, S> {}
impl<'a, C: Memory, S: Memory> Output<'a> for &'a mut QuantTensor<C, S> {}
impl<'a, T: Code, S: Memory> HeapInput<'a> for &'a QuantTensor<UserBuffer<T>, S> {}
impl<'a, T: Code, S: Memory> HeapOutput<'a> for &'a mut QuantTensor<UserBuffer<T>, S> {}
