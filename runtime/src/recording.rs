//! What a graph is made of, while it is recorded.

use crate::communicator::Communicator;
use crate::driver::{Graph, Stream};
use crate::error::Error;
use crate::group::Entry;
use crate::launch::Loaded;
use std::any::Any;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

/// A graph that is being recorded: launch ops on it, and enqueue other work on its [stream](Recording::stream).
#[derive(Debug)]
pub struct Recording {
    rank: Arc<Communicator>,
    stream: Stream,
    frozen: Mutex<Frozen>,
}

/// The launches of a graph, and what they use.
#[derive(Debug, Default)]
pub(crate) struct Frozen {
    /// Each with what the ledger says of it, and how many CTAs it has.
    pub launches: Vec<(Arc<Loaded>, Option<Entry>, u32)>,
    pub kept: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Recording {
    /// Begins one.
    pub(crate) fn begin(rank: &Communicator) -> Result<Recording, Error> {
        let stream = rank.gpu().stream()?;
        Graph::record(&stream)?;
        Ok(Recording {
            rank: Arc::new(rank.handle()),
            stream,
            frozen: Mutex::default(),
        })
    }

    /// Ends it: the graph, and what it must keep.
    pub(crate) fn end(&self) -> Result<(Graph, Frozen), Error> {
        let graph = Graph::recorded(&self.stream)?;
        Ok((graph, mem::take(&mut *self.frozen())))
    }

    /// The rank whose launches it takes.
    pub(crate) fn rank(&self) -> &Arc<Communicator> {
        &self.rank
    }

    /// The stream that records. Other work may be enqueued there, too, and its memory must live as long as the graph.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Adds a launch that was recorded.
    pub(crate) fn add(
        &self,
        launch: (Arc<Loaded>, Option<Entry>, u32),
        kept: impl IntoIterator<Item = Arc<dyn Any + Send + Sync>>,
    ) {
        let mut frozen = self.frozen();
        frozen.launches.push(launch);
        frozen.kept.extend(kept);
    }

    fn frozen(&self) -> std::sync::MutexGuard<'_, Frozen> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
