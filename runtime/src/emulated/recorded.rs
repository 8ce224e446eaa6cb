//! What a stream of an emulated GPU records instead of doing it.

use super::machine::Machine;
use super::stream::{Event, Stream};
use crate::error::Error;
use crate::retire::{self, Kept};
use counterflow_codegen::interp::open::{StreamId, Work};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A step of a graph.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Work(Work),
    /// Waits for where the event is recorded by then.
    Hold(Arc<Event>),
    /// Records the event.
    Record(Arc<Event>),
}

/// What was recorded so far.
#[derive(Debug)]
pub(super) struct Recorded {
    id: u64,
    pub steps: Vec<Step>,
    kept: Vec<Kept>,
}

/// A stream that records.
pub(crate) struct Capture {
    /// No other capture has it.
    pub id: u64,
    machine: Arc<Machine>,
    stream: StreamId,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "capture {}", self.id)
    }
}

impl Capture {
    /// Its graph keeps that.
    pub fn keep(&self, kept: Kept) -> Result<(), Error> {
        match self.machine.recorded().get_mut(&self.stream) {
            Some(recorded) => recorded.kept.push(kept),
            None => return Err(nobody()),
        }
        Ok(())
    }
}

fn nobody() -> Error {
    Error::Usage {
        what: "a recording that nobody began".into(),
        legal: "begin it".into(),
    }
}

impl Stream {
    /// Begins to record.
    pub fn record(&self) -> Result<(), Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.does("a recording")?;
        let recorded = Recorded {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            steps: Vec::new(),
            kept: Vec::new(),
        };
        self.machine().recorded().insert(self.id(), recorded);
        Ok(())
    }

    /// Ends that.
    pub fn recorded(&self) -> Result<Graph, Error> {
        let recorded = self.machine().recorded().remove(&self.id());
        let Recorded { steps, kept, .. } = recorded.ok_or_else(nobody)?;
        Ok(Graph {
            machine: self.machine().clone(),
            steps,
            kept,
        })
    }

    /// What is recorded.
    pub fn capture(&self) -> Result<Capture, Error> {
        let recorded = self.machine().recorded();
        let recorded = recorded.get(&self.id()).ok_or_else(nobody)?;
        Ok(Capture {
            id: recorded.id,
            machine: self.machine().clone(),
            stream: self.id(),
        })
    }

    /// A replay waits here for where the event is recorded by then.
    pub fn hold_replays(&self, event: &Event) -> Result<(), Error> {
        self.on_the_machine_of(event)?;
        self.step(Step::Hold(Arc::new(event.same())))
    }

    /// A replay records the event here.
    pub fn record_in_replays(&self, event: &Event) -> Result<(), Error> {
        self.on_the_machine_of(event)?;
        self.step(Step::Record(Arc::new(event.same())))
    }

    fn step(&self, step: Step) -> Result<(), Error> {
        match self.machine().recorded().get_mut(&self.id()) {
            Some(recorded) => recorded.steps.push(step),
            None => return Err(nobody()),
        }
        Ok(())
    }
}

/// Work that was recorded.
#[derive(Debug)]
pub(crate) struct Graph {
    machine: Arc<Machine>,
    steps: Vec<Step>,
    kept: Vec<Kept>,
}

impl Graph {
    /// Puts all of it into the stream.
    pub fn launch(&self, stream: &Stream) -> Result<(), Error> {
        if !Arc::ptr_eq(&self.machine, stream.machine()) {
            return Err(Error::Usage {
                what: "a graph of another emulated machine".into(),
                legal: "record it on this one".into(),
            });
        }
        self.steps.iter().try_for_each(|step| match step {
            Step::Work(work) => stream.submit(work.clone()),
            Step::Hold(event) => stream.wait(event),
            Step::Record(event) => event.record(stream),
        })
    }
}

/// On a GPU, the driver holds what is kept until its launches are done.
impl Drop for Graph {
    fn drop(&mut self) {
        self.kept.drain(..).for_each(retire::released);
    }
}
