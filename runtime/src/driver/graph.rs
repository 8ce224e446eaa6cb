//! Graphs: a stream's work, recorded once and launched as a whole.

use super::refusal;
use super::stream::{Kind as StreamKind, Stream};
use crate::cuda;
use crate::emulated;
use crate::error::Error;

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

    /// What the stream recorded.
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
