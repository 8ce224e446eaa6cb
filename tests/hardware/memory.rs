//! The tensors of one launch on one rank: fresh memory, NaN wherever no input is.

use crate::case::Fill;
use counterflow::codegen::interp::{Input, Output};
use counterflow::codegen::kernel::Buffer;
use counterflow::codegen::program::{TensorId, TensorKind};
use counterflow::cuda::Local;
use counterflow::launch::Tensors;
use counterflow::{Checked, Communicator, Dtype, Error, Kernel, Plan, UserBuffer};
use half::{bf16, f16};

/// A NaN of both 16-bit types.
const POISON: u16 = 0xffff;

enum Place {
    /// With its bytes.
    Own(Local<u16>, u64),
    Heap(UserBuffer<u16>),
}

/// Scratch that all launches share: what one leaves there, the next finds.
pub struct Scratch {
    buffers: Vec<(TensorId, UserBuffer<u16>)>,
}

/// The tensors of one launch.
pub struct Memory<'a> {
    places: Vec<(TensorId, Place)>,
    scratch: &'a Scratch,
}

/// Bytes of the heap that a launch needs.
pub fn heap_bytes(kernel: &Kernel, plan: &Plan) -> u64 {
    let heap = ids(kernel).filter(|id| kernel.buffers[id.index()].kind.symmetric());
    heap.map(|id| plan.bytes(kernel, id) + 1024).sum()
}

/// Bytes of the heap that counters need, with something to spare.
pub fn cell_bytes(plans: &[&Checked<Plan>]) -> u64 {
    let cells = plans.iter().map(|plan| plan.arrivals.len() as u64 * 128);
    2 * cells.max().unwrap_or(0) + (4 << 20)
}

fn ids(kernel: &Kernel) -> impl Iterator<Item = TensorId> {
    (0..kernel.buffers.len()).map(|index| TensorId(index as u16))
}

fn words(kernel: &Kernel, plan: &Plan, id: TensorId) -> usize {
    (plan.bytes(kernel, id) / 2) as usize
}

impl Memory<'_> {
    /// Scratch for every plan.
    pub fn scratch(
        rank: &Communicator,
        kernel: &Kernel,
        plans: &[&Checked<Plan>],
    ) -> Result<Scratch, Error> {
        let mut buffers = Vec::new();
        for id in ids(kernel).filter(|id| kernel.buffers[id.index()].is_scratch()) {
            let words = plans.iter().map(|plan| words(kernel, plan, id)).max();
            buffers.push((id, rank.allocate(words.unwrap_or(0))?));
        }
        let scratch = Scratch { buffers };
        scratch.poison()?;
        rank.synchronize()?;
        rank.barrier()?;
        Ok(scratch)
    }
}

impl Scratch {
    /// NaN everywhere on this rank.
    pub fn poison(&self) -> Result<(), Error> {
        for (_, buffer) in &self.buffers {
            buffer.fill(POISON.to_le_bytes()[0])?;
        }
        Ok(())
    }
}

impl<'a> Memory<'a> {
    /// Inputs of launch `launch`, and outputs full of NaN. Collective.
    pub fn new(
        rank: &Communicator,
        kernel: &Kernel,
        plan: &Plan,
        launch: usize,
        fill: Fill,
        scratch: &'a Scratch,
    ) -> Result<Memory<'a>, Error> {
        let mut inputs = fill.inputs();
        let mut places = Vec::new();
        for id in ids(kernel) {
            let buffer = &kernel.buffers[id.index()];
            if buffer.is_scratch() {
                continue;
            }
            let mut values = vec![POISON; words(kernel, plan, id)];
            if buffer.kind.is_input() {
                let rows = match buffer.kind {
                    TensorKind::Gathered => plan.geometry.chunk(buffer.rows, rank.rank()),
                    _ => plan.geometry.held(buffer, rank.rank()),
                };
                let columns = plan.geometry.size(buffer.columns);
                let mut numbers = vec![0.0; rows.len() as usize * columns as usize];
                let input = Input {
                    launch,
                    rank: rank.rank(),
                    tensor: id,
                    name: &buffer.name,
                    rows,
                    columns,
                };
                inputs(input, &mut numbers);
                let at = rows.start as usize * columns as usize;
                for (place, number) in values[at..].iter_mut().zip(numbers) {
                    *place = bits(number, buffer.dtype);
                }
            }
            let place = if buffer.kind.symmetric() {
                let heap = rank.allocate(values.len())?;
                heap.write(&values)?;
                Place::Heap(heap)
            } else {
                Place::Own(Local::of(rank.stream(), &values)?, values.len() as u64 * 2)
            };
            places.push((id, place));
        }
        Ok(Memory { places, scratch })
    }

    /// For a launch.
    pub fn tensors(&self) -> Tensors {
        let mut tensors = Tensors::new();
        for (id, place) in &self.places {
            match place {
                Place::Own(own, bytes) => tensors.local(*id, own.address(), *bytes),
                Place::Heap(heap) => tensors.shared(*id, heap),
            }
        }
        for (id, heap) in &self.scratch.buffers {
            tensors.shared(*id, heap);
        }
        tensors
    }

    /// What is compared, as it is on the GPU: the outputs, and what was gathered.
    pub fn raw(&self, kernel: &Kernel) -> Result<Vec<(TensorId, Vec<u16>)>, Error> {
        let shown = self
            .places
            .iter()
            .filter(|(id, _)| shown(&kernel.buffers[id.index()]));
        shown
            .map(|(id, place)| {
                Ok((
                    *id,
                    match place {
                        Place::Own(own, _) => own.read()?,
                        Place::Heap(heap) => heap.read()?,
                    },
                ))
            })
            .collect()
    }

    /// The same as numbers.
    pub fn outputs(
        &self,
        rank: &Communicator,
        kernel: &Kernel,
        plan: &Plan,
        launch: usize,
    ) -> Result<Vec<Output>, Error> {
        let raw = self.raw(kernel)?;
        let output = |(tensor, bits): (TensorId, Vec<u16>)| {
            let buffer = &kernel.buffers[tensor.index()];
            let rows = plan.geometry.held(buffer, rank.rank());
            let columns = plan.geometry.size(buffer.columns);
            let elements = rows.len() as usize * columns as usize;
            Output {
                launch,
                rank: rank.rank(),
                tensor,
                rows,
                values: numbers(&bits[..elements], buffer.dtype),
            }
        };
        Ok(raw.into_iter().map(output).collect())
    }
}

fn shown(buffer: &Buffer) -> bool {
    !matches!(
        buffer.kind,
        TensorKind::Local | TensorKind::Vector | TensorKind::Scratch { .. }
    )
}

fn bits(number: f32, dtype: Dtype) -> u16 {
    match dtype {
        Dtype::Bf16 => bf16::from_f32(number).to_bits(),
        Dtype::F16 => f16::from_f32(number).to_bits(),
        Dtype::F32 => panic!("no kernel for GPUs takes f32"),
    }
}

/// 16-bit floats as numbers.
pub fn numbers(bits: &[u16], dtype: Dtype) -> Vec<f32> {
    let number = |bits: &u16| match dtype {
        Dtype::Bf16 => bf16::from_bits(*bits).to_f32(),
        Dtype::F16 => f16::from_bits(*bits).to_f32(),
        Dtype::F32 => panic!("no kernel for GPUs takes f32"),
    };
    bits.iter().map(number).collect()
}
