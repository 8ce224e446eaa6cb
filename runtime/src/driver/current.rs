//! A GPU whose context is this thread's current one.

use super::event::{Event, Kind as EventKind, mixed};
use super::gpu::{Gpu, Kind as GpuKind};
use super::graph::{Capture, Graph};
use super::lane::Node;
use super::stream::{Kind as StreamKind, Stream};
use crate::cuda::{self, Lines2d, MemoryOp};
use crate::error::Error;
use std::marker::PhantomData;

/// Says that a GPU's context is this thread's current one, which most of the driver's calls want. To ask for it costs a
/// call, so a launch asks once, and all that it enqueues goes through this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current<'a> {
    gpu: &'a Gpu,
    /// Another thread has another context.
    here: PhantomData<*const ()>,
}

impl Gpu {
    /// Makes its context this thread's current one. No code of others' may run while that is relied on.
    pub(crate) fn current(&self) -> Result<Current<'_>, Error> {
        if let GpuKind::Cuda(gpu) = &self.0 {
            gpu.bind()?;
        }
        Ok(Current {
            gpu: self,
            here: PhantomData,
        })
    }
}

impl Gpu {
    /// Acts on what belongs to it, and leaves this thread's current context as it was. A launch on another GPU may be what
    /// does so.
    pub(crate) fn aside<T>(&self, act: impl FnOnce() -> T) -> T {
        match &self.0 {
            GpuKind::Cuda(_) => cuda::aside(act),
            GpuKind::Emulated(_) => act(),
        }
    }
}

impl Current<'_> {
    /// True if the stream's work is recorded into a graph instead of done.
    pub fn is_capturing(self, stream: &Stream) -> bool {
        match &stream.0 {
            StreamKind::Cuda(stream) => cuda::is_capturing(stream),
            StreamKind::Emulated(stream) => stream.is_capturing(),
        }
    }

    /// The priority of a stream's work: the smallest number comes first.
    pub fn priority(self, stream: &Stream) -> Result<i32, Error> {
        match &stream.0 {
            StreamKind::Cuda(stream) => cuda::priority(stream),
            StreamKind::Emulated(_) => Ok(0),
        }
    }

    /// An event after everything that is in this stream of the GPU now. It orders and keeps no time.
    pub fn order(self, stream: &Stream) -> Result<Event, Error> {
        match (&self.gpu.0, &stream.0) {
            (GpuKind::Cuda(gpu), StreamKind::Cuda(stream)) => gpu.order(stream).map(Event::from),
            (GpuKind::Emulated(_), StreamKind::Emulated(stream)) => Event::emulated(stream),
            (GpuKind::Emulated(_), StreamKind::Cuda(_))
            | (GpuKind::Cuda(_), StreamKind::Emulated(_)) => Err(mixed()),
        }
    }

    /// Moves an event to after everything that is in the stream now.
    pub fn record_again(self, event: &Event, stream: &Stream) -> Result<(), Error> {
        match (&event.0, &stream.0) {
            (EventKind::Cuda(event), StreamKind::Cuda(stream)) => event.record_again(stream),
            (EventKind::Emulated(event), StreamKind::Emulated(stream)) => event.record(stream),
            (EventKind::Cuda(_), StreamKind::Emulated(_))
            | (EventKind::Emulated(_), StreamKind::Cuda(_)) => Err(mixed()),
        }
    }

    /// Makes later work of `stream` wait until the event's stream has reached it.
    pub fn wait(self, stream: &Stream, event: &Event) -> Result<(), Error> {
        match (&stream.0, &event.0) {
            (StreamKind::Cuda(stream), EventKind::Cuda(event)) => event.hold(stream),
            (StreamKind::Emulated(stream), EventKind::Emulated(event)) => stream.wait(event),
            (StreamKind::Cuda(_), EventKind::Emulated(_))
            | (StreamKind::Emulated(_), EventKind::Cuda(_)) => Err(mixed()),
        }
    }

    /// State of the graph that a stream of the GPU records.
    pub fn capture(self, stream: &Stream) -> Result<Capture, Error> {
        match &stream.0 {
            StreamKind::Cuda(stream) => cuda::capture_of(stream).map(Capture::Cuda),
            StreamKind::Emulated(stream) => stream.capture().map(Capture::Emulated),
        }
    }

    /// The next work of a stream that records comes after that node, too.
    pub fn come_after(self, stream: &Stream, node: Node) -> Result<(), Error> {
        match &stream.0 {
            StreamKind::Cuda(stream) => cuda::come_after(stream, node),
            StreamKind::Emulated(_) => Ok(()),
        }
    }

    /// The next work of a stream that records waits, at each replay, for where the event is recorded by then.
    pub fn hold_replays(self, stream: &Stream, event: &Event) -> Result<(), Error> {
        match (&stream.0, &event.0) {
            (StreamKind::Cuda(stream), EventKind::Cuda(event)) => event.hold_replays(stream),
            (StreamKind::Emulated(stream), EventKind::Emulated(event)) => {
                stream.hold_replays(event)
            }
            (StreamKind::Cuda(_), EventKind::Emulated(_))
            | (StreamKind::Emulated(_), EventKind::Cuda(_)) => Err(mixed()),
        }
    }

    /// Each replay records the event after what the stream has recorded so far.
    pub fn record_in_replays(self, stream: &Stream, event: &Event) -> Result<(), Error> {
        match (&stream.0, &event.0) {
            (StreamKind::Cuda(stream), EventKind::Cuda(event)) => event.record_in_replays(stream),
            (StreamKind::Emulated(stream), EventKind::Emulated(event)) => {
                stream.record_in_replays(event)
            }
            (StreamKind::Cuda(_), EventKind::Emulated(_))
            | (StreamKind::Emulated(_), EventKind::Cuda(_)) => Err(mixed()),
        }
    }

    /// Enqueues waits and stores of cells, in order.
    pub fn memory_ops(self, stream: &Stream, ops: &[MemoryOp]) -> Result<(), Error> {
        match &stream.0 {
            StreamKind::Cuda(stream) => cuda::memory_ops(stream, ops),
            StreamKind::Emulated(stream) => stream.memory_ops(ops),
        }
    }

    /// Copies lines between GPUs that reach each other, or within one, by a copy engine, in stream order.
    pub fn copy_lines(self, stream: &Stream, copy: &Lines2d) -> Result<(), Error> {
        match &stream.0 {
            StreamKind::Cuda(stream) => cuda::copy_lines(stream, copy),
            StreamKind::Emulated(stream) => stream.copy_lines(copy),
        }
    }

    /// Puts a graph's work into the stream.
    pub fn launch(self, graph: &Graph, stream: &Stream) -> Result<(), Error> {
        graph.launch(stream)
    }
}
