//! Options of a launch as it is enqueued.

use crate::attempt::Attempt;
use crate::driver::{Current, Stream};
use crate::recording::Keeps;
use crate::unfinished::Unfinished;

/// Manner in which a launch is enqueued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How<'a> {
    /// Attempt that the launch is part of, which tells whether peers know of it yet.
    pub attempt: &'a Attempt<'a>,
    /// The rank's GPU.
    pub current: Current<'a>,
    /// Stream of the launch: the rank's, or one that records a graph which is launched there.
    pub stream: &'a Stream,
    /// True if it may be a programmatic dependent launch: all that is in the stream are kernels of ours.
    pub early: bool,
    /// Launches of the stream that may still run. None where the program captures it: there no launch begins early.
    pub unfinished: Option<&'a Unfinished>,
    /// CTAs of the launch behind it that may begin while this one waits for peers.
    pub follower: u32,
    /// The priority of the caller's stream.
    pub priority: i32,
    /// For the graph that it becomes part of. What it needs beside the kernel is enqueued in the rank's stream now.
    pub keeps: Option<&'a dyn Keeps>,
    /// True if the stream records.
    pub records: bool,
}
