//! A launch of an exchange of low latency in place of a schedule's kernel: its numbers, on a GPU and on an emulated one.

use super::Loaded;
use super::code::Code;
use super::how::How;
use super::prepared::Parameters;
use super::tensors::{Placement, Tensors};
use crate::communicator::Communicator;
use crate::cuda::LaunchConfig;
use crate::error::Error;
use crate::group::Allocation;
use crate::low_latency::{At, Launched, Sizes, THREADS};
use crate::slots::Slots;
use crate::unfinished::Next;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::plan::Plan;
use counterflow_emulator::open::{TwinLaunch, Watch};
use std::sync::Arc;

impl Loaded {
    /// The memory that peers write in an exchange, of more ranks than one.
    pub(super) fn slots(&self) -> Option<&Arc<Allocation>> {
        match &self.code {
            Code::LowLatency { .. } => self.placed.scratch.first().map(|(slots, _)| slots),
            Code::Cuda { .. } | Code::Emulated { .. } => None,
        }
    }

    /// Launch parameters of an exchange. A kernel of ours before it may end while its CTAs come: they wait for that end.
    pub(super) fn exchange_grid(
        &self,
        how: &How<'_>,
        ctas: u32,
        tensors: &Tensors,
    ) -> LaunchConfig {
        let next = Next {
            early: how.early && !how.records,
            only_beside: false,
            ctas,
            room: None,
        };
        let early = how.unfinished.is_some_and(|unfinished| {
            let bytes = |tensor| self.given(tensors, tensor).map(Placement::bytes);
            let written = self.written.iter().copied().filter_map(bytes);
            unfinished.begins_early(next, std::iter::empty(), written)
        });
        LaunchConfig {
            dependent_launch: early,
            priority: how.priority,
            ..LaunchConfig::of(ctas, THREADS)
        }
    }

    /// The parameters of an exchange.
    pub(super) fn exchanges(
        &self,
        parameters: &mut Parameters,
        (largest, dtype): (&Sizes, Dtype),
        rank: &Communicator,
        plan: &Plan,
        tensors: &Tensors,
    ) -> Result<(), Error> {
        let kernel = &self.pipeline.kernel;
        let (sizes, [sent, received]) = Sizes::of_plan(largest.collective, kernel, plan)?;
        // As many as the schedule may have, which knows what is left to others.
        parameters.ctas = Some(sizes.ctas(self.series.sms()));
        let at = |tensor| Ok::<_, Error>(self.place(rank, tensors, plan, tensor)?.own.get());
        let at = At {
            launches: self.finished.address().get(),
            x: at(sent)?,
            y: at(received)?,
        };
        let slots = Slots {
            rank: rank.rank().into(),
            world: rank.world().into(),
            first: self.slots().map(|slots| (slots.on(0).get(), self.stride)),
            each: largest.each(),
        };
        if let Code::LowLatency { function: None, .. } = &self.code {
            let watch = &self.watch;
            parameters.twin = Some(TwinLaunch {
                twin: Arc::new(Launched::new(slots, sizes, dtype, at)),
                rank: rank.rank(),
                world: rank.world(),
                stride: self.stride,
                watch: Watch {
                    id: watch.record.get(),
                    kernel: watch.kernel,
                    abort: watch.abort.get(),
                    host: Some(watch.host.get()),
                    limit: watch.timeout_ns,
                },
            });
            return Ok(());
        }
        let arguments = &mut parameters.arguments;
        arguments.bytes(&self.watch_bytes);
        let (first, stride) = slots.first.unwrap_or_default();
        arguments.bytes(&[first, stride, slots.each].map(u64::to_le_bytes).concat());
        for address in [at.launches, at.x, at.y] {
            arguments.bytes(&address.to_le_bytes());
        }
        let words = self.finished.len() as u32;
        for number in [words, sizes.rows, sizes.shard, sizes.pieces()] {
            arguments.number(number);
        }
        Ok(())
    }
}
