//! Graphs: a stream's work, recorded once and launched as a whole.

use super::Stream;
use crate::cuda;
use crate::error::Error;

/// Recorded work, ready to be launched.
#[derive(Debug)]
pub(crate) struct Graph(Kind);

#[derive(Debug)]
enum Kind {
    Cuda(cuda::Graph),
}

impl Graph {
    /// Begins to record a stream's work instead of doing it.
    pub(crate) fn record(stream: &Stream) -> Result<(), Error> {
        cuda::record(stream.cuda()?)
    }

    /// What the stream recorded.
    pub(crate) fn recorded(stream: &Stream) -> Result<Graph, Error> {
        cuda::recorded(stream.cuda()?).map(|graph| Graph(Kind::Cuda(graph)))
    }

    /// Puts its work into the stream.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), Error> {
        let Kind::Cuda(graph) = &self.0;
        graph.launch(stream.cuda()?)
    }
}
