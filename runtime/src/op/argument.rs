//! Arguments of a launch, and their checks. Nothing here asks a GPU.

use crate::error::Error;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::{Granularity, Scaling};
use counterflow_codegen::kernel::{Buffer, Kernel};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{TensorId, Usage};
use counterflow_codegen::verify::Checked;
use counterflow_timeline::model::Volume;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Kind of memory, seen from the rank that launches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Home {
    /// In the symmetric heap of this rank's communicator.
    Heap,
    /// On this rank's GPU, for this rank alone.
    Own,
    /// Somewhere else; what it is.
    Elsewhere(&'static str),
}

/// Number of elements of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extent {
    /// Rows and columns, one row after another.
    Shaped([usize; 2]),
    /// So many, taken to have the columns that the schedule wants.
    Flat(usize),
}

impl Extent {
    /// The same elements with rows and columns, one row after another.
    ///
    /// # Errors
    /// [`Error::Usage`] of more or fewer elements than are there, or of a shape that differs from the one there is.
    pub fn shaped(self, shape: [usize; 2]) -> Result<Extent, Error> {
        let [rows, columns] = shape;
        let same = match self {
            Extent::Shaped(held) => held == shape,
            Extent::Flat(held) => rows.checked_mul(columns) == Some(held),
        };
        if same {
            return Ok(Extent::Shaped(shape));
        }
        let (held, legal) = match self {
            Extent::Shaped([rows, columns]) => (
                format!("{rows} x {columns}"),
                "`Tensor::shaped` and `UserBuffer::shaped` give memory another shape",
            ),
            Extent::Flat(held) => (
                format!("{held} elements"),
                "say the rows and columns that it has in memory, one row after another",
            ),
        };
        Err(Error::Usage {
            what: format!("{rows} x {columns} of memory that is {held}"),
            legal: legal.into(),
        })
    }
}

/// One tensor that a launch is given, without its memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Given {
    pub home: Home,
    /// None: its elements are no tensor's.
    pub dtype: Option<Dtype>,
    pub extent: Extent,
    /// True if the caller lent it to be written.
    pub writable: bool,
}

/// Requirements on a tensor of a launch: its type, shape and place.
///
/// ```
/// # use counterflow::{Communicator, schedules::AgGemmOp};
/// # let rank = &Communicator::emulated(1)?[0];
/// let op = rank.op_of::<AgGemmOp>().up_to(64, 32, 16).build()?;
/// let x = op.needs("x")?;
/// assert_eq!((x.shape, x.in_heap, x.bytes()), ([64, 16], true, 64 * 16 * 2));
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Needs {
    /// Use of the tensor.
    pub usage: Usage,
    /// Element type.
    pub dtype: Dtype,
    /// Rows and columns in memory, one row after another. More rows are fine. A transposed operand has its columns as rows.
    pub shape: [usize; 2],
    /// True if peers address it, so that it must be in the symmetric heap.
    pub in_heap: bool,
    /// Scales of the tensor, if it has some in this op: a launch takes both as a [`QuantTensor`](super::QuantTensor).
    pub scale: Option<Box<Needs>>,
    /// True if a launch measures its amax: one number.
    pub amax: bool,
}

/// Meaning of the numbers of a tensor's scales.
///
/// ```
/// use counterflow::op::{Granularity, ScaleUse};
///
/// assert_eq!(ScaleUse::Dequantises(Granularity::BLOCK_1X128).to_string(), "scales of 1×128");
/// assert_eq!(ScaleUse::Quantises.granularity(), Granularity::PerTensor);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScaleUse {
    /// A value is code × scale: scales of operands, and those that a launch computes.
    Dequantises(Granularity),
    /// A code is the result × scale, rounded: the number that an output is given.
    Quantises,
}

impl ScaleUse {
    /// Meaning of the numbers of a kernel's scale tensor.
    pub(super) fn of(kernel: &Kernel, scale: TensorId) -> Option<ScaleUse> {
        let usage = kernel.buffers[scale.index()].usage;
        let of = kernel.buffers[usage.scales_of()?.index()].usage;
        Some(ScaleUse::new(usage.scaling()?, of))
    }

    fn new(scaling: Scaling, of: Usage) -> ScaleUse {
        match scaling {
            Scaling::Given(_) if of.is_output() || of.is_scratch() => ScaleUse::Quantises,
            Scaling::Given(_) | Scaling::Computed(_) => {
                ScaleUse::Dequantises(scaling.granularity())
            }
        }
    }

    /// Elements that share a scale.
    pub const fn granularity(self) -> Granularity {
        match self {
            ScaleUse::Dequantises(granularity) => granularity,
            ScaleUse::Quantises => Granularity::PerTensor,
        }
    }
}

impl fmt::Display for ScaleUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScaleUse::Dequantises(granularity) => write!(f, "scales of {granularity}"),
            ScaleUse::Quantises => f.write_str("a number by which results are multiplied"),
        }
    }
}

impl Needs {
    /// Needs of a plan for that tensor on each rank.
    pub(crate) fn of(kernel: &Kernel, plan: &Plan, tensor: TensorId) -> Needs {
        let buffer = &kernel.buffers[tensor.index()];
        let line = plan.pitch(kernel, tensor) / u64::from(buffer.dtype.bytes());
        let [scale, amax] = Needs::planes(kernel, tensor);
        Needs {
            usage: buffer.usage,
            dtype: buffer.dtype,
            shape: [plan.held_lines(kernel, tensor), line].map(|side| side as usize),
            in_heap: kernel.is_in_heap(tensor),
            scale: scale.map(|scale| Box::new(Needs::of(kernel, plan, scale))),
            amax: amax.is_some(),
        }
    }

    /// The tensors of a kernel that have the scales and the amax of a tensor.
    pub(super) fn planes(kernel: &Kernel, tensor: TensorId) -> [Option<TensorId>; 2] {
        let find = |is: &dyn Fn(Usage) -> bool| {
            let found = kernel.buffers.iter().position(|buffer| is(buffer.usage));
            found.map(|at| TensorId(at as u16))
        };
        [
            find(&|usage| usage.scales_of() == Some(tensor)),
            find(&|usage| usage.amax_of() == Some(tensor)),
        ]
    }

    /// Meaning of the numbers of the tensor's scales. None if it has none.
    ///
    /// ```
    /// use counterflow::op::{Granularity, ScaleUse};
    /// # use counterflow::{Communicator, Dtype, Scales, schedules::GemmOp};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().dtype(Dtype::E4M3).scales(Scales::PerRow).up_to(64, 64, 64).build()?;
    /// assert_eq!(op.needs("x")?.scale_use(), Some(ScaleUse::Dequantises(Granularity::PerRow)));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn scale_use(&self) -> Option<ScaleUse> {
        let scaling = self.scale.as_ref()?.usage.scaling()?;
        Some(ScaleUse::new(scaling, self.usage))
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        (self.shape[0] * self.shape[1]) as u64 * u64::from(self.dtype.bytes())
    }
}

/// The plan of a launch, with what it needs of each tensor.
#[derive(Debug)]
pub(super) struct Planned {
    /// The bucket whose kernel it is for.
    pub bucket: usize,
    /// Plan by which its tensors are checked.
    pub plan: Arc<Checked<Plan>>,
    /// The plan of each of the bucket's stages.
    pub stages: Vec<Arc<Checked<Plan>>>,
    /// Bytes that cross the rank's links, at least.
    pub bytes: u64,
    /// By the kernel's tensors.
    needs: Vec<Needs>,
}

impl Planned {
    /// A plan of that bucket's kernel, for that rank, with tensors in the heap as `heap` says.
    pub fn new(
        kernel: &Kernel,
        bucket: usize,
        plan: Checked<Plan>,
        rank: u32,
        heap: impl Fn(TensorId) -> bool,
    ) -> Planned {
        let ids = (0..kernel.buffers.len()).map(|index| TensorId(index as u16));
        let plan = Arc::new(plan);
        let needs = |id: TensorId| {
            let mut needs = Needs::of(kernel, &plan, id);
            needs.in_heap |= heap(id);
            if !needs.in_heap && kernel.buffers[id.index()].usage.is_own_shard() {
                needs.shape[0] = plan.own_lines(kernel, id, rank) as usize;
            }
            needs
        };
        Planned {
            bucket,
            needs: ids.map(needs).collect(),
            bytes: Volume::least_of(kernel, &plan, rank),
            stages: vec![plan.clone()],
            plan,
        }
    }

    /// Number of counts of arrivals that it keeps.
    pub fn arrivals(&self) -> usize {
        let apart = self.stages.iter();
        let apart = apart.filter(|stage| !Arc::ptr_eq(stage, &self.plan));
        let all = apart.chain([&self.plan]);
        all.map(|plan| plan.arrivals.len()).sum()
    }

    /// Adds stages of other kernels.
    pub fn with_stages(self, stages: impl IntoIterator<Item = Checked<Plan>>) -> Planned {
        let stages = stages.into_iter().map(Arc::new).collect();
        Planned { stages, ..self }
    }
}

/// True if a launch writes a tensor. Peers write the rows that they send into one that is gathered.
fn written(buffer: &Buffer) -> bool {
    buffer.usage.is_left_behind() || buffer.is_scratch()
}

/// True if only a `&mut` may be given for it. Many launches may gather into one tensor, each its own rows.
fn takes_mut(buffer: &Buffer) -> bool {
    written(buffer) && !buffer.usage.is_gathered()
}

/// Alignment of a tensor's first byte: that of TMA, or of a number that is read by itself.
const fn align(buffer: &Buffer) -> u64 {
    if buffer.usage.is_number() { 4 } else { 16 }
}

/// Rejects one tensor that a launch of `plan` cannot have, wherever it starts.
pub(super) fn check_one(
    kernel: &Kernel,
    planned: &Planned,
    tensor: TensorId,
    given: &Given,
) -> Result<(), Error> {
    let buffer = &kernel.buffers[tensor.index()];
    let name = || called(kernel, tensor);
    let needs = &planned.needs[tensor.index()];
    let refuse = |what: String, legal: String| Err(Error::Usage { what, legal });
    match given.home {
        Home::Heap => {}
        Home::Own if !needs.in_heap => {}
        Home::Own => {
            return refuse(
                format!("{} is not in the symmetric heap", name()),
                "`allocate` it: peers address it".into(),
            );
        }
        Home::Elsewhere(what) => {
            return refuse(
                format!("{} is memory of {what}", name()),
                "give memory of the rank that built the op: of its communicator and its GPU".into(),
            );
        }
    }
    if given.dtype != Some(needs.dtype) {
        let held = given.dtype.map_or("no tensor's type", Dtype::name);
        return refuse(
            format!("the elements of {} are {held}", name()),
            format!(
                "this op was built for {} there; `OpBuilder::dtype` chooses the type",
                needs.dtype
            ),
        );
    }
    let [rows, columns] = needs.shape;
    let fits = match given.extent {
        Extent::Shaped([held_rows, held_columns]) => held_columns == columns && held_rows >= rows,
        Extent::Flat(held) => held >= rows * columns,
    };
    if !fits {
        let shaped = match given.extent {
            Extent::Shaped([_, held]) => held != columns && buffer.usage.blocks().is_some(),
            Extent::Flat(_) => false,
        };
        // Lines of scales are as long as a launch has rows.
        let divided = buffer.usage.sharded() && kernel.dims[usize::from(buffer.rows.0)].sharded;
        let rest = match (shaped, divided) {
            (true, _) => {
                "`needs_at` has the shape for each number of rows, and `shaped` gives it to larger memory"
            }
            (false, true) => {
                "more rows are fine, and `Op::shard` says which of them a rank has: shards are equally long, but for the last ones"
            }
            (false, false) => "more rows are fine",
        };
        return refuse(
            match given.extent {
                Extent::Shaped([held_rows, held_columns]) => {
                    format!("{} is {held_rows} x {held_columns}", name())
                }
                Extent::Flat(held) => format!("{} has {held} elements", name()),
            },
            format!("give {rows} x {columns} for {}; {rest}", planned.plan.shape),
        );
    }
    if takes_mut(buffer) && !given.writable {
        let name = name();
        return refuse(
            format!("{name} is an output and was given by a shared reference, or may only be read"),
            format!("give `&mut` of memory that may be written: the launch writes {name}"),
        );
    }
    Ok(())
}

/// Rejects tensors by where they start: unaligned, or overlapping where one is written. Each must be one that
/// [`check_one`] accepts.
pub(super) fn check_starts(
    kernel: &Kernel,
    planned: &Planned,
    given: &[(TensorId, u64)],
) -> Result<(), Error> {
    let range = |(tensor, start): &(TensorId, u64)| -> Range<u64> {
        *start..*start + planned.needs[tensor.index()].bytes()
    };
    for (at, one) in given.iter().enumerate() {
        let buffer = &kernel.buffers[one.0.index()];
        let align = align(buffer);
        if !one.1.is_multiple_of(align) {
            let name = called(kernel, one.0);
            return Err(Error::Usage {
                what: format!("{name} starts at an address that is not a multiple of {align}"),
                legal: format!(
                    "start it at a multiple of {align} bytes: the GPU's copies need that"
                ),
            });
        }
        let a = range(one);
        for other in &given[at + 1..] {
            let b = range(other);
            let both = a.start < b.end && b.start < a.end;
            let [first, second] = [one, other].map(|(id, _)| *id);
            let written = |id: TensorId| written(&kernel.buffers[id.index()]);
            if both && (written(first) || written(second)) {
                let writes = if written(first) { first } else { second };
                let [first, second, writes] = [first, second, writes].map(|id| called(kernel, id));
                return Err(Error::Usage {
                    what: format!("{first} and {second} overlap, and the launch writes {writes}"),
                    legal: "give tensors that do not overlap".into(),
                });
            }
        }
    }
    Ok(())
}

/// A tensor in reports: its name, or that of the tensor whose scales or amax it has.
pub(super) fn called(kernel: &Kernel, tensor: TensorId) -> Cow<'_, str> {
    let buffer = &kernel.buffers[tensor.index()];
    let name = |of: TensorId| &kernel.buffers[of.index()].name;
    match (buffer.usage.scales_of(), buffer.usage.amax_of()) {
        (Some(of), _) if kernel.buffers[of.index()].is_scratch() => {
            format!("the number of {}", name(of)).into()
        }
        (Some(of), _) => format!("the scale tensor of {}", name(of)).into(),
        (_, Some(of)) => format!("the amax of {}", name(of)).into(),
        (None, None) => buffer.name.as_str().into(),
    }
}

/// True if launches are given it by its name: scratch is the op's own, and scales and amaxes come with their tensors.
fn is_named(buffer: &&Buffer) -> bool {
    !buffer.is_scratch() && buffer.usage.plane.is_none()
}

/// The number by which a hidden layer of that name is scaled: launches are given it under the layer's name.
fn hidden(kernel: &Kernel, name: &str) -> Option<TensorId> {
    let mut buffers = kernel.buffers.iter();
    let layer = buffers.position(|buffer| buffer.is_scratch() && buffer.name == name)?;
    let [scale, _] = Needs::planes(kernel, TensorId(layer as u16));
    scale.filter(|scale| !kernel.buffers[scale.index()].is_scratch())
}

/// The tensor of that name.
pub(super) fn find(kernel: &Kernel, name: &str) -> Result<TensorId, Error> {
    if let Some(number) = hidden(kernel, name) {
        return Ok(number);
    }
    let found = same(kernel, name);
    let usage = found.map(|id| kernel.buffers[id.index()].usage);
    let of = usage.and_then(|usage| usage.plane).map(|plane| plane.of);
    match (found, of) {
        (Some(id), None) => Ok(id),
        (_, Some(of)) => {
            let of = &kernel.buffers[of.index()].name;
            Err(Error::Usage {
                what: format!("`{name}` is no tensor of its own"),
                legal: format!(
                    "give `{of}` as a `QuantTensor`, which has its codes, scales and amax; `needs(\"{of}\")` says what they hold"
                ),
            })
        }
        (None, None) => Err(Error::Usage {
            what: format!("{} has no tensor `{name}`", kernel.name),
            legal: format!(
                "its tensors are {}",
                names(kernel.buffers.iter().filter(is_named))
            ),
        }),
    }
}

/// The tensor of another kernel of the op that a launch's tensor of that name is.
pub(super) fn same(kernel: &Kernel, name: &str) -> Option<TensorId> {
    let mut buffers = kernel.buffers.iter();
    let at = buffers.position(|buffer| !buffer.is_scratch() && buffer.name == name);
    at.map(|at| TensorId(at as u16))
}

/// Rejects a launch without all of its tensors.
pub(super) fn check_all(kernel: &Kernel, given: &[TensorId]) -> Result<(), Error> {
    let given = |at: usize| given.iter().any(|id| id.index() == at);
    let all = kernel.buffers.iter().enumerate();
    let mut absent = all.filter(|(at, buffer)| !buffer.is_scratch() && !given(*at));
    let Some(first) = absent.next() else {
        return Ok(());
    };
    let absent = std::iter::once(first).chain(absent);
    let (named, planes): (Vec<_>, Vec<_>) = absent.partition(|(_, buffer)| is_named(buffer));
    if let [(at, plane), ..] = planes[..]
        && named.is_empty()
    {
        let of = plane
            .usage
            .plane
            .map(|plane| &kernel.buffers[plane.of.index()]);
        return Err(Error::Usage {
            what: format!(
                "a launch of {} without {}",
                kernel.name,
                called(kernel, TensorId(at as u16))
            ),
            legal: match of {
                Some(layer) if layer.is_scratch() => {
                    format!("give one f32 as the tensor `{}`", layer.name)
                }
                _ => "give a `QuantTensor` with what the tensor needs".into(),
            },
        });
    }
    if named.is_empty() {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!(
            "a launch of {} without {}",
            kernel.name,
            names(named.into_iter().map(|(_, buffer)| buffer))
        ),
        legal: "give every tensor of the schedule".into(),
    })
}

fn names<'a>(buffers: impl IntoIterator<Item = &'a Buffer>) -> String {
    let names: Vec<&str> = buffers
        .into_iter()
        .map(|buffer| buffer.name.as_str())
        .collect();
    names.join(", ")
}

#[cfg(test)]
mod tests;
