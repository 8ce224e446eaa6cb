//! A launch on an emulated GPU: the plan, and where its tensors and counters are.

use super::{Loaded, Tensors};
use crate::communicator::Communicator;
use crate::error::Error;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{CounterId, TensorId};
use counterflow_codegen::verify::Checked;
use counterflow_emulator::open::{Launch, Place, Watch};

impl Loaded {
    /// A launch on an emulated GPU.
    pub(super) fn emulated(
        &self,
        rank: &Communicator,
        plan: &Checked<Plan>,
        tensors: &Tensors,
    ) -> Result<Launch, Error> {
        let ids = (0..self.pipeline.kernel.buffers.len()).map(|index| TensorId(index as u16));
        let places = ids.map(|id| {
            let place = self.place(rank, tensors, plan, id)?;
            Ok(Some(Place {
                own: place.own.get(),
                shared: place.shared.map(|base| base.get()),
            }))
        });
        let counters = || 0..self.pipeline.kernel.counters.len();
        Ok(Launch {
            plan: plan.clone(),
            rank: rank.rank(),
            places: places.collect::<Result<_, Error>>()?,
            stride: self.stride,
            cells: self.heap.plus(self.placed.base).get(),
            first: counters().map(|counter| self.cells.at(counter)).collect(),
            scales: counters()
                .map(|counter| self.pipeline.scale(CounterId(counter as u16), plan))
                .collect(),
            ctas: plan.grid.gemm + plan.grid.comm,
            watch: Watch {
                id: self.watch.record.get(),
                kernel: self.watch.kernel,
                abort: self.watch.abort.get(),
                host: Some(self.watch.host.get()),
                limit: self.watch.timeout_ns,
            },
        })
    }
}
