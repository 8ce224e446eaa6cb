//! The tensors of one launch on one rank, in words of 16 bits: NaN wherever no input is, nor what is added to.

use crate::case::Fill;
use counterflow::codegen::interp::{Input, Output};
use counterflow::codegen::kernel::Buffer;
use counterflow::codegen::program::{TensorId, TensorKind};
use counterflow::launch::{Loaded, Tensors};
use counterflow::{Checked, Communicator, Dtype, Error, Kernel, Plan, Tensor, UserBuffer};
use std::ops::Range;

/// A NaN of both 16-bit types, and twice one of f32.
const POISON: u16 = 0xffff;

/// What peers address: one buffer a tensor for all launches, so that a peer which comes too early or too late with one
/// spoils another.
pub struct Heap<'a> {
    kernel: &'a Kernel,
    buffers: Vec<Option<UserBuffer<u16>>>,
}

/// What each tensor of one launch on one rank holds before it; nothing for scratch.
pub struct Words(Vec<Option<Vec<u16>>>);

/// The tensors of one launch, those in the heap as copies: filled before, and with the results after.
pub struct Memory<'a> {
    heap: &'a Heap<'a>,
    own: Vec<Option<Tensor<u16>>>,
}

/// Those values on the rank's GPU.
pub fn held(rank: &Communicator, values: &[u16]) -> Result<Tensor<u16>, Error> {
    let tensor = rank.zeros([values.len()])?;
    tensor.write(values)?;
    Ok(tensor)
}

fn ids(kernel: &Kernel) -> impl Iterator<Item = TensorId> {
    (0..kernel.buffers.len()).map(|index| TensorId(index as u16))
}

fn words(kernel: &Kernel, plan: &Plan, id: TensorId) -> usize {
    (Loaded::needs(kernel, plan, id).0 / 2) as usize
}

impl<'a> Heap<'a> {
    /// For every plan, full of NaN, with room for a kernel's counters. Collective.
    pub fn new(
        rank: &Communicator,
        kernel: &'a Kernel,
        plans: &[&Checked<Plan>],
    ) -> Result<Heap<'a>, Error> {
        let symmetric = |id: &TensorId| kernel.buffers[id.index()].kind.symmetric();
        let most = |id| plans.iter().map(|plan| words(kernel, plan, id)).max();
        let bytes = ids(kernel).filter(symmetric).filter_map(most);
        let bytes: u64 = bytes.map(|words| words as u64 * 2 + 1024).sum();
        let cells = plans.iter().map(|plan| plan.arrivals.len() as u64 * 128);
        rank.reserve(bytes + 2 * cells.max().unwrap_or(0) + (4 << 20))?;
        let buffer = |id: TensorId| {
            let scratch = kernel.buffers[id.index()].is_scratch();
            let words = most(id).filter(|_| symmetric(&id) && !scratch);
            let name = &kernel.buffers[id.index()].name;
            words.map(|words| rank.allocate(name, [words])).transpose()
        };
        let buffers = ids(kernel).map(buffer).collect::<Result<Vec<_>, _>>()?;
        for buffer in buffers.iter().flatten() {
            buffer.fill(POISON.to_le_bytes()[0])?;
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
            let mut values = vec![POISON; words(kernel, plan, id)];
            if buffer.kind.counts_before() {
                let rows = match buffer.kind {
                    TensorKind::Gathered => plan.geometry.chunk(buffer.rows, rank),
                    _ => plan.geometry.held(buffer, rank),
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
                        let first = at(plan, buffer, row, column) * width(buffer.dtype);
                        let words = bits(number, buffer.dtype);
                        values[first..first + words.len()].copy_from_slice(&words);
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
        let local = |values: &Option<Vec<u16>>| {
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
                    tensors.local(id, own.address(), own.len() as u64 * 2);
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
    fn both(&self) -> impl Iterator<Item = (&UserBuffer<u16>, &Tensor<u16>)> {
        let both = self.heap.buffers.iter().zip(&self.own);
        both.filter_map(|(heap, own)| Some((heap.as_ref()?, own.as_ref()?)))
    }

    /// What is compared, as it is on the GPU: the outputs, and what was gathered.
    pub fn raw(&self) -> Result<Vec<(TensorId, Vec<u16>)>, Error> {
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
        let output = |(tensor, bits): (TensorId, Vec<u16>)| {
            let buffer = &self.heap.kernel.buffers[tensor.index()];
            let rows = plan.geometry.held(buffer, rank.rank());
            let values = slots_of(plan, buffer, rank.rank());
            let values = values.flat_map(|words| numbers(&bits[words], buffer.dtype));
            Output {
                launch,
                rank: rank.rank(),
                tensor,
                rows,
                values: values.collect(),
            }
        };
        Ok(self.raw()?.into_iter().map(output).collect())
    }
}

/// The words that a rank holds of a tensor, slot by slot: each begins a whole chunk after the one before it.
pub fn slots_of(plan: &Plan, buffer: &Buffer, rank: u32) -> impl Iterator<Item = Range<usize>> {
    let geometry = &plan.geometry;
    let row = geometry.size(buffer.columns) as usize * width(buffer.dtype);
    let words = geometry.held(buffer, rank).len() as usize * row;
    let slot = geometry.chunk_rows(buffer.rows) as usize * row;
    let slots = 0..buffer.slots(geometry.world) as usize;
    slots.map(move |at| at * slot..at * slot + words)
}

/// Where an element is: rows one after another, or in each chunk columns one after another.
fn at(plan: &Plan, buffer: &Buffer, row: usize, column: usize) -> usize {
    let columns = plan.geometry.size(buffer.columns) as usize;
    if buffer.mn_major {
        let chunk = plan.geometry.chunk_rows(buffer.rows) as usize;
        (row / chunk * columns + column) * chunk + row % chunk
    } else {
        row * columns + column
    }
}

fn shown(buffer: &Buffer) -> bool {
    !matches!(
        buffer.kind,
        TensorKind::Local | TensorKind::Vector | TensorKind::Scratch { .. }
    )
}

/// Words of an element.
fn width(dtype: Dtype) -> usize {
    dtype.bytes() as usize / size_of::<u16>()
}

/// A number's words, the lower one first.
fn bits(number: f32, dtype: Dtype) -> Vec<u16> {
    let mut bytes = vec![0; dtype.bytes() as usize];
    dtype.write(number, &mut bytes);
    let words = bytes.chunks_exact(2);
    words
        .map(|word| u16::from_le_bytes([word[0], word[1]]))
        .collect()
}

/// Words as numbers.
pub fn numbers(words: &[u16], dtype: Dtype) -> Vec<f32> {
    let number = |words: &[u16]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        dtype.read(&bytes)
    };
    words.chunks_exact(width(dtype)).map(number).collect()
}
