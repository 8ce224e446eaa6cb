//! How a launch is enqueued.

use crate::driver::{Current, Stream};
use crate::recording::Recording;

/// How a launch is enqueued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How<'a> {
    /// The rank's GPU.
    pub current: Current<'a>,
    /// Where: the rank's stream, or one that records a graph which is launched there.
    pub stream: &'a Stream,
    /// Whether it may be a programmatic dependent launch: all that is in the stream are kernels of ours.
    pub early: bool,
    /// The priority of the caller's stream.
    pub priority: i32,
    /// The graph that it becomes part of. What it needs beside the kernel is enqueued in the rank's stream now.
    pub recording: Option<&'a Recording>,
    /// Whether the stream records: for a graph of ours, or below ops for anybody's.
    pub records: bool,
}
