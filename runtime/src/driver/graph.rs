//! Graphs: a stream's work, recorded once and launched as a whole.

use super::lane::Node;
use super::refusal;
use super::stream::{Kind as StreamKind, Stream};
use crate::cuda;
use crate::emulated;
use crate::error::Error;

/// A stream of the program's that records, now.
#[derive(Debug)]
pub(crate) enum Capture {
    Cuda(cuda::Capture),
    Emulated(emulated::Capture),
}

impl Capture {
    /// No other capture has it.
    pub fn id(&self) -> u64 {
        match self {
            Capture::Cuda(capture) => capture.id,
            Capture::Emulated(capture) => capture.id,
        }
    }

    /// Nodes that the stream's next work comes after.
    pub fn last(&self) -> &[Node] {
        match self {
            Capture::Cuda(capture) => &capture.last,
            Capture::Emulated(_) => &[],
        }
    }

    /// Acts so once the graph is gone, and whatever is made of it, and their launches are done. What `act` has stays until
    /// then. It may call no GPU.
    pub fn once_gone(&self, act: impl FnOnce() + Send + Sync + 'static) -> Result<(), Error> {
        match self {
            Capture::Cuda(capture) => capture.once_gone(Box::new(act)),
            Capture::Emulated(capture) => capture.once_gone(Box::new(act)),
        }
    }
}

/// Recorded work, ready to be launched.
#[derive(Debug)]
pub(crate) struct Graph(Kind);

#[derive(Debug)]
enum Kind {
    Cuda(cuda::Graph),
    Emulated(emulated::Graph),
}

impl Graph {
    /// Begins to record a stream's work instead of doing it.
    pub(crate) fn record(stream: &Stream) -> Result<(), Error> {
        match &stream.0 {
            StreamKind::Cuda(stream) => cuda::record(stream),
            StreamKind::Emulated(stream) => stream.record(),
        }
    }

    /// Ends the recording of the stream, and gives its graph.
    pub(crate) fn recorded(stream: &Stream) -> Result<Graph, Error> {
        Ok(Graph(match &stream.0 {
            StreamKind::Cuda(stream) => Kind::Cuda(cuda::recorded(stream)?),
            StreamKind::Emulated(stream) => Kind::Emulated(stream.recorded()?),
        }))
    }

    /// Puts its work into the stream.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), Error> {
        match (&self.0, &stream.0) {
            (Kind::Cuda(graph), StreamKind::Cuda(stream)) => graph.launch(stream),
            (Kind::Emulated(graph), StreamKind::Emulated(stream)) => graph.launch(stream),
            (Kind::Cuda(_), StreamKind::Emulated(_)) | (Kind::Emulated(_), StreamKind::Cuda(_)) => {
                Err(refusal::emulated("one of a graph and a stream"))
            }
        }
    }
}
