//! Work that a stream of an emulated GPU records instead of doing it.

use super::machine::Machine;
use super::steps::{Gone, Recorded, Step};
use super::stream::{Event, Stream};
use crate::error::Error;
use counterflow_emulator::open::StreamId;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Has the graph call `act` when it is gone.
    pub fn once_gone(&self, act: Box<dyn FnOnce() + Send + Sync>) -> Result<(), Error> {
        match self.machine.recorded().get_mut(&self.stream) {
            Some(recorded) => recorded.gone.push(Gone::new(act)),
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
            gone: Vec::new(),
        };
        self.machine().recorded().insert(self.id(), recorded);
        Ok(())
    }

    /// Ends that.
    pub fn recorded(&self) -> Result<Graph, Error> {
        let recorded = self.machine().recorded().remove(&self.id());
        let Recorded { steps, gone, .. } = recorded.ok_or_else(nobody)?;
        Ok(Graph {
            machine: self.machine().clone(),
            steps,
            gone,
        })
    }

    /// State of the graph that is recorded.
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
        self.step(Step::Hold(event.mark()))
    }

    /// A replay records the event here.
    pub fn record_in_replays(&self, event: &Event) -> Result<(), Error> {
        self.on_the_machine_of(event)?;
        self.step(Step::Record(event.mark()))
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
    gone: Vec<Gone>,
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
            Step::Hold(mark) => stream.hold(mark),
            Step::Record(mark) => stream.set(mark),
        })
    }
}

/// On a GPU, the driver waits with that until its launches are done.
impl Drop for Graph {
    fn drop(&mut self) {
        self.gone.drain(..).for_each(Gone::act);
    }
}
