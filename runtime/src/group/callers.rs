//! Which ranks' launches stand in a caller's stream.
//!
//! Ranks that share a GPU may be given one stream. A launch is enqueued after what is in the stream and before what comes
//! later. So if the stream has a rank's launch that waits for a peer's launch of the same number, and the peer makes that
//! one on the same stream, each waits for the other.

use crate::driver::{Event, Stream};
use std::sync::Arc;

/// The latest launches in callers' streams that may still run.
#[derive(Debug, Default)]
pub(super) struct Callers(Vec<Standing>);

#[derive(Debug)]
struct Standing {
    stream: Stream,
    rank: u32,
    /// The launch's number in the ledger.
    launch: u64,
    done: Arc<Event>,
}

impl Callers {
    /// A peer, and its launch in that stream that waits for this rank's `launch`.
    pub fn before(&self, stream: &Stream, rank: u32, launch: u64) -> Option<(u32, u64)> {
        let standing = self.0.iter().find(|standing| {
            let waits = standing.rank != rank && standing.launch >= launch;
            // A context that is dead holds nothing up.
            waits && standing.stream.is(stream) && !standing.done.is_done().unwrap_or(true)
        });
        standing.map(|standing| (standing.rank, standing.launch))
    }

    /// A rank's launch stands in that stream until `done`.
    pub fn stands(&mut self, stream: &Stream, rank: u32, launch: u64, done: &Arc<Event>) {
        self.0.retain(|standing| {
            let same = standing.rank == rank && standing.stream.is(stream);
            !same && !standing.done.is_done().unwrap_or(true)
        });
        self.0.push(Standing {
            stream: stream.clone(),
            rank,
            launch,
            done: done.clone(),
        });
    }
}
