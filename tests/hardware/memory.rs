//! The tensors of one launch on one rank, as bytes: NaN wherever no input is, nor what is added to.

use crate::case::Fill;
use counterflow::codegen::interp::{Input, Output};
use counterflow::codegen::kernel::Buffer;
use counterflow::codegen::program::TensorId;
use counterflow::launch::{Loaded, Tensors};
use counterflow::op::Element;
use counterflow::{Checked, Communicator, Dtype, Error, Kernel, Plan, Tensor, UserBuffer};
use std::ops::Range;

/// A byte that makes every element a NaN.
const POISON: u8 = 0xff;

/// What peers address: one buffer a tensor for all launches, so that a peer which comes too early or too late with one
/// spoils another.
pub struct Heap<'a> {
    kernel: &'a Kernel,
    buffers: Vec<Option<UserBuffer<u8>>>,
}

/// What each tensor of one launch on one rank holds before it; nothing for scratch.
pub struct Words(Vec<Option<Vec<u8>>>);

/// The tensors of one launch, those in the heap as copies: filled before, and with the results after.
pub struct Memory<'a> {
    heap: &'a Heap<'a>,
    own: Vec<Option<Tensor<u8>>>,
}

/// Those values on the rank's GPU.
pub fn held<T: Element>(rank: &Communicator, values: &[T]) -> Result<Tensor<T>, Error> {
    let tensor = rank.zeros([values.len()])?;
    tensor.write(values)?;
    Ok(tensor)
}

fn ids(kernel: &Kernel) -> impl Iterator<Item = TensorId> {
    (0..kernel.buffers.len()).map(|index| TensorId(index as u16))
}

fn bytes(kernel: &Kernel, plan: &Plan, id: TensorId) -> usize {
    Loaded::needs(kernel, plan, id).0 as usize
}

impl<'a> Heap<'a> {
    /// For every plan, full of NaN, with room for a kernel's counters. Collective.
    pub fn new(
        rank: &Communicator,
        kernel: &'a Kernel,
        plans: &[&Checked<Plan>],
    ) -> Result<Heap<'a>, Error> {
        let symmetric = |id: &TensorId| kernel.buffers[id.index()].usage.placement.symmetric;
        let most = |id| plans.iter().map(|plan| bytes(kernel, plan, id)).max();
        let bytes = ids(kernel).filter(symmetric).filter_map(most);
        let bytes: u64 = bytes.map(|bytes| bytes as u64 + 1024).sum();
        let cells = plans.iter().map(|plan| plan.arrivals.len() as u64 * 128);
        rank.reserve(bytes + 2 * cells.max().unwrap_or(0) + (4 << 20))?;
        let buffer = |id: TensorId| {
            let scratch = kernel.buffers[id.index()].is_scratch();
            let bytes = most(id).filter(|_| symmetric(&id) && !scratch);
            let name = &kernel.buffers[id.index()].name;
            bytes.map(|bytes| rank.allocate(name, [bytes])).transpose()
        };
        let buffers = ids(kernel).map(buffer).collect::<Result<Vec<_>, _>>()?;
        for buffer in buffers.iter().flatten() {
            buffer.fill(POISON)?;
        }
        rank.synchronize()?;
        rank.barrier()?;
        Ok(Heap { kernel, buffers })
    }
}

impl Words {
    /// Inputs of launch `launch`, what it adds to, and NaN elsewhere.
    pub fn new(kernel: &Kernel, plan: &Plan, rank: u32, launch: usize, fill: Fill) -> Words {
        let mut inputs = fill.inputs();
        let mut all = Vec::new();
        for id in ids(kernel) {
            let buffer = &kernel.buffers[id.index()];
            if buffer.is_scratch() {
                all.push(None);
                continue;
            }
            let mut values = vec![POISON; bytes(kernel, plan, id)];
            if buffer.usage.counts_before() {
                let rows = match buffer.usage.is_gathered() {
                    true => plan.geometry.shard(buffer.rows, rank),
                    false => plan.geometry.held(buffer, rank),
                };
                let columns = plan.geometry.size(buffer.columns);
                let mut numbers = vec![0.0; rows.len() as usize * columns as usize];
                let input = Input {
                    launch,
                    rank,
                    tensor: id,
                    name: &buffer.name,
                    rows,
                    columns,
                };
                inputs(input, &mut numbers);
                let mut numbers = numbers.into_iter();
                for row in rows.range() {
                    for column in 0..columns as usize {
                        let number = numbers.next().unwrap_or(f32::NAN);
                        let width = width(buffer.dtype);
                        let first = at(plan, buffer, row, column) * width;
                        buffer
                            .dtype
                            .write(number, &mut values[first..first + width]);
                    }
                }
            }
            all.push(Some(values));
        }
        Words(all)
    }
}

impl<'a> Memory<'a> {
    /// On the rank's GPU.
    pub fn new(
        rank: &Communicator,
        heap: &'a Heap<'a>,
        words: &Words,
    ) -> Result<Memory<'a>, Error> {
        let local = |values: &Option<Vec<u8>>| {
            let values = values.as_ref();
            values.map(|values| held(rank, values)).transpose()
        };
        let own = words.0.iter().map(local).collect::<Result<Vec<_>, _>>()?;
        Ok(Memory { heap, own })
    }

    /// What a launch takes.
    pub fn tensors(&self) -> Tensors {
        let mut tensors = Tensors::new();
        for (id, (own, heap)) in ids(self.heap.kernel).zip(self.own.iter().zip(&self.heap.buffers))
        {
            match (heap, own) {
                (Some(heap), _) => tensors.shared(id, heap),
                // SAFETY: the memory lives until the rank was waited for.
                (None, Some(own)) => unsafe {
                    tensors.local(id, own.address(), own.len() as u64);
                },
                (None, None) => {}
            }
        }
        tensors
    }

    /// Parameters in the heap get what they hold before the launch, in the order of the stream.
    pub fn before(&self) -> Result<(), Error> {
        let mut both = self.both();
        both.try_for_each(|(heap, own)| heap.copy_from(own))
    }

    /// What they hold after it is kept.
    pub fn after(&self) -> Result<(), Error> {
        let mut both = self.both();
        both.try_for_each(|(heap, own)| heap.copy_to(own))
    }

    /// Parameters in the heap, with their copies.
    fn both(&self) -> impl Iterator<Item = (&UserBuffer<u8>, &Tensor<u8>)> {
        let both = self.heap.buffers.iter().zip(&self.own);
        both.filter_map(|(heap, own)| Some((heap.as_ref()?, own.as_ref()?)))
    }

    /// What is compared, as it is on the GPU: the outputs, and what was gathered.
    pub fn raw(&self) -> Result<Raw, Error> {
        let kernel = self.heap.kernel;
        let all = ids(kernel).zip(&self.own);
        let all = all.filter(|(id, _)| shown(&kernel.buffers[id.index()]));
        all.filter_map(|(id, own)| Some((id, own.as_ref()?)))
            .map(|(id, own)| Ok((id, own.read()?)))
            .collect()
    }

    /// The same as numbers.
    pub fn outputs(
        &self,
        rank: &Communicator,
        plan: &Plan,
        launch: usize,
    ) -> Result<Vec<Output>, Error> {
        let raw = self.raw()?;
        Ok(outputs(self.heap.kernel, plan, rank.rank(), launch, &raw))
    }
}

/// What is compared, as bytes.
pub type Raw = Vec<(TensorId, Vec<u8>)>;

/// The same as numbers.
pub fn outputs(kernel: &Kernel, plan: &Plan, rank: u32, launch: usize, raw: &Raw) -> Vec<Output> {
    let output = |(tensor, bits): &(TensorId, Vec<u8>)| {
        let buffer = &kernel.buffers[tensor.index()];
        let rows = plan.geometry.held(buffer, rank);
        // Lines may be padded, and shards planes of their own.
        let values = if buffer.usage.scales_of().is_some() && !buffer.is_scratch() {
            let columns = plan.geometry.size(buffer.columns) as usize;
            let all = numbers(bits, buffer.dtype);
            let line = |row| (0..columns).map(move |column| (row, column));
            let each = rows.range().flat_map(line);
            each.map(|(row, column)| all[at(plan, buffer, row, column)])
                .collect()
        } else {
            let slots = slots_of(plan, buffer, rank);
            slots
                .flat_map(|words| numbers(&bits[words], buffer.dtype))
                .collect()
        };
        Output {
            launch,
            rank,
            tensor: *tensor,
            rows,
            values,
        }
    };
    raw.iter().map(output).collect()
}

/// The bytes that a rank holds of a tensor, slot by slot: each begins a whole shard after the one before it.
pub fn slots_of(plan: &Plan, buffer: &Buffer, rank: u32) -> impl Iterator<Item = Range<usize>> {
    let geometry = &plan.geometry;
    let row = geometry.size(buffer.columns) as usize * width(buffer.dtype);
    let words = geometry.held(buffer, rank).len() as usize * row;
    let slot = geometry.shard_rows(buffer.rows) as usize * row;
    let slots = 0..buffer.slots(geometry.world) as usize;
    slots.map(move |at| at * slot..at * slot + words)
}

/// Where an element is: rows one after another, or in each shard columns one after another.
fn at(plan: &Plan, buffer: &Buffer, row: usize, column: usize) -> usize {
    // Lines of scales of blocks are padded.
    let line = plan.geometry.contiguous(buffer) as usize;
    if buffer.mn_major {
        let columns = plan.geometry.size(buffer.columns) as usize;
        let shard = plan.geometry.shard_rows(buffer.rows) as usize;
        (row / shard * columns + column) * line + row % shard
    } else {
        row * line + column
    }
}

fn shown(buffer: &Buffer) -> bool {
    buffer.usage.is_left_behind()
}

/// Bytes of an element.
fn width(dtype: Dtype) -> usize {
    dtype.bytes() as usize
}

/// Bytes as numbers.
pub fn numbers(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    let elements = bytes.chunks_exact(width(dtype));
    elements.map(|bytes| dtype.read(bytes)).collect()
}
