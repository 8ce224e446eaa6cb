//! Numbers beside a result of FP8: the scale that it is given, its amax, the scales that a launch makes.

use super::room::{NUMBER, Room, What};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::program::{Numbers, Scaling, TensorId};
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::{Communicator, Error};

/// Each of them, if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Beside<T> {
    /// Factor of results before they are rounded: one f32.
    pub scale: Option<T>,
    /// The largest absolute value of a result, before its scale: one f32.
    pub amax: Option<T>,
    /// The plane of scales that a launch makes.
    pub made: Option<T>,
}

impl<T> Beside<T> {
    pub(super) const NOTHING: Beside<T> = Beside {
        scale: None,
        amax: None,
        made: None,
    };

    pub(super) const fn each(&self) -> Beside<&T> {
        Beside {
            scale: self.scale.as_ref(),
            amax: self.amax.as_ref(),
            made: self.made.as_ref(),
        }
    }
}

impl Beside<TensorId> {
    /// The tensors of a kernel that stand beside one of its outputs.
    pub(super) fn of(kernel: &Kernel, y: TensorId) -> Beside<TensorId> {
        let mut found = Beside::NOTHING;
        for (index, buffer) in kernel.buffers.iter().enumerate() {
            let tensor = TensorId(index as u16);
            let Some(plane) = buffer.usage.plane.filter(|plane| plane.of == y) else {
                continue;
            };
            let place = match plane.numbers {
                Numbers::Scale(Scaling::Given(_)) => &mut found.scale,
                Numbers::Scale(Scaling::Computed(_)) => &mut found.made,
                Numbers::Amax => &mut found.amax,
            };
            *place = Some(tensor);
        }
        found
    }
}

impl Beside<Memory> {
    /// Memory for those of a kernel's result. One in FP8 has a scale also where launches make theirs: the same without them
    /// reads it.
    pub(super) fn new(
        (room, what): (&Room<'_>, fn(TensorId) -> What),
        kernel: &Kernel,
        y: TensorId,
        given: f32,
    ) -> Result<Beside<Memory>, Error> {
        let (of, rank) = (Beside::of(kernel, y), room.rank);
        let place = |tensor: TensorId| room.take(what(tensor));
        let narrow = kernel.buffers[y.index()].dtype.is_fp8();
        Ok(Beside {
            scale: narrow.then(|| scale(rank, given)).transpose()?,
            amax: of.amax.map(place).transpose()?,
            made: of.made.map(place).transpose()?,
        })
    }

    /// For a result of cuBLASLt, which measures it if that is asked.
    pub(super) fn of_theirs(
        rank: &Communicator,
        given: f32,
        amax: bool,
    ) -> Result<Beside<Memory>, Error> {
        let number = || Memory::new(rank, "amax", NUMBER, false);
        Ok(Beside {
            scale: Some(scale(rank, given)?),
            amax: amax.then(number).transpose()?,
            made: None,
        })
    }

    /// The memory of a kernel's tensor that stands beside its result.
    pub(super) fn place(&self, of: Beside<TensorId>, tensor: TensorId) -> Option<&Memory> {
        let each = [
            (of.scale, &self.scale),
            (of.amax, &self.amax),
            (of.made, &self.made),
        ];
        let mut each = each.into_iter();
        let (_, memory) = each.find(|(id, _)| *id == Some(tensor))?;
        memory.as_ref()
    }

    /// Tensors of these that a kernel reads or writes.
    pub(super) fn used(&self, of: Beside<TensorId>) -> Beside<&Memory> {
        let all = self.each();
        Beside {
            scale: all.scale.filter(|_| of.scale.is_some()),
            amax: all.amax.filter(|_| of.amax.is_some()),
            made: all.made.filter(|_| of.made.is_some()),
        }
    }
}

fn scale(rank: &Communicator, given: f32) -> Result<Memory, Error> {
    let memory = Memory::new(rank, "scale", NUMBER, false)?;
    memory.write(&given.to_le_bytes())?;
    Ok(memory)
}
