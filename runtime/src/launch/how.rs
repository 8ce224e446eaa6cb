//! How a launch is enqueued.

use crate::driver::Stream;

/// How a launch is enqueued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How<'a> {
    /// Where: the rank's stream, or one that records a graph which is launched there.
    pub stream: &'a Stream,
    /// Whether it may be a programmatic dependent launch: all that is in the stream are kernels of ours.
    pub early: bool,
    /// Whether it becomes part of a graph, and what it needs beside the kernel is enqueued in the rank's stream now.
    pub graph: bool,
    /// Whether the stream records: for a graph of ours, or below ops for anybody's.
    pub records: bool,
}
