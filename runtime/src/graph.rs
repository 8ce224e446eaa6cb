//! Launches that were recorded once and are replayed.

use crate::caller::{Caller, Place, in_order};
use crate::communicator::Communicator;
use crate::driver;
use crate::error::Error;
use crate::pending::Pending;
use crate::recording::{Frozen, Recording};
use crate::retire;
use std::sync::Arc;

/// Recorded launches with frozen arguments. It keeps the memory and the kernels that they use. Dropping it under a replay
/// is fine. Every rank replays its own, as it would launch: the ranks' launches are compared at each replay.
#[derive(Debug)]
pub struct Graph {
    rank: Arc<Communicator>,
    graph: Arc<driver::Graph>,
    frozen: Frozen,
}

impl Communicator {
    /// Records the launches that `record` makes on what it is given. Nothing of them runs now. Launches with copies by
    /// copy engine are refused: the values that these wait for change with every launch.
    ///
    /// # Errors
    /// Those of `record`; what the driver cannot record.
    pub fn capture(
        &self,
        record: impl FnOnce(&Recording) -> Result<(), Error>,
    ) -> Result<Graph, Error> {
        self.alive()?;
        let recording = Recording::begin(self)?;
        let told = record(&recording);
        // The stream must not stay as it is, also if that failed.
        let ended = recording.end();
        told?;
        let (graph, frozen) = ended?;
        Ok(Graph {
            rank: recording.rank().clone(),
            graph: Arc::new(graph),
            frozen,
        })
    }
}

impl Graph {
    /// Replays it: after everything that is in that stream now, and before everything that comes later. It waits for no
    /// peer.
    ///
    /// # Errors
    /// As [`Launch::launch`](crate::op::Launch::launch).
    pub fn launch<'a>(&self, on: impl Into<Caller<'a>>) -> Result<Pending, Error> {
        let rank = &self.rank;
        rank.alive()?;
        let caller = on.into();
        let outside = match caller.place(rank)? {
            Place::Own => None,
            Place::Outside(stream) => Some(stream),
            Place::Recording(_) => {
                return Err(Error::Usage {
                    what: "a graph launched in a graph".into(),
                    legal: "record its launches there".into(),
                });
            }
        };
        let _turn = rank.turn();
        let (mut launches, mut most) = (None, 0);
        for (loaded, entry, ctas) in &self.frozen.launches {
            if let Some(launch) = loaded.replay(rank, entry.as_ref())? {
                launches =
                    Some(launches.map_or(launch, |(first, _)| first)).map(|first| (first, launch));
                most = most.max(*ctas);
            }
        }
        let order = launches.map(|(first, last)| rank.order(first..=last, most));
        let _enqueueing = order.transpose()?;
        in_order(rank, outside, || self.graph.launch(rank.own_stream()))
    }

    /// How many launches it has.
    pub fn len(&self) -> usize {
        self.frozen.launches.len()
    }

    /// Whether it has none: then it holds other work at most.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Replays may still run.
impl Drop for Graph {
    fn drop(&mut self) {
        let kept = std::mem::take(&mut self.frozen);
        retire::later(
            self.rank.gpu(),
            self.rank.own_stream(),
            (self.graph.clone(), kept),
        );
    }
}
