//! What a traced kernel's last launch wrote, as the analysis takes it.

use super::Loaded;
use crate::communicator::Communicator;
use crate::error::Error;
use counterflow_codegen::plan::COUNTER_LINE;
use counterflow_emitter::Site;
use counterflow_timeline::trace::{Mark, Recorded, Strand};

impl Loaded {
    /// The probes of its kernel, if a compiler with [`Probes::trace`](crate::jit::Probes) compiled it.
    pub fn sites(&self) -> &[Site] {
        self.code.sites()
    }

    /// The events of its last launch, if there was one since the last call. Waits for the rank's stream.
    ///
    /// # Errors
    /// [`Error::Usage`] if its kernel has no probes: compile it with [`Probes::trace`](crate::jit::Probes), on GPUs. What
    /// ended the launches.
    pub fn recorded(&self, rank: &Communicator) -> Result<Recorded, Error> {
        self.is_of(rank)?;
        let function = self.function().filter(|_| !self.sites().is_empty());
        let Some(function) = function else {
            return Err(Error::Usage {
                what: format!(
                    "a trace of {}, which has no probes",
                    self.pipeline.kernel.name
                ),
                legal: "load it on a GPU, with a compiler that has Probes { trace: true, .. }"
                    .into(),
            });
        };
        rank.synchronize()?;
        let strands = function.trace(rank.own_stream().cuda()?)?.into_iter();
        let strands = strands.map(|seen| Strand {
            block: seen.block,
            lost: seen.lost,
            marks: seen
                .events
                .iter()
                .map(|event| Mark {
                    time: event.time,
                    site: event.site,
                    number: event.number,
                    cell: self.signalled(event.place),
                })
                .collect(),
        });
        Ok(Recorded {
            clock: rank.gpu().ordinal(),
            strands: strands.collect(),
        })
    }

    /// Rank and cell of a counter so many bytes behind the first cell in slot 0.
    fn signalled(&self, place: u64) -> (u32, u32) {
        let stride = self.stride.max(1);
        (
            (place / stride) as u32,
            (place % stride / COUNTER_LINE) as u32,
        )
    }
}
