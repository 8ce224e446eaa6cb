//! Objects of an emulated GPU: streams, events, and memory that is freed in stream order.

use super::machine::{Gpu, Machine};
use super::steps::{Mark, Step};
use crate::cuda::{Address, Element, Lines2d, MemoryOp};
use crate::error::Error;
use counterflow_emulator::open::{Compare, Launch, Memory as _, Point, StreamId, TwinLaunch, Work};
use std::sync::Arc;
use std::time::Duration;

/// A stream of an emulated GPU. Clones are the same stream.
#[derive(Clone, Debug)]
pub(crate) struct Stream(Arc<Lane>);

/// A stream that ends with its last handle.
#[derive(Debug)]
struct Lane {
    gpu: Gpu,
    id: StreamId,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.gpu.machine.recorded().remove(&self.id);
        self.gpu.machine.lock().close(self.id);
    }
}

impl Stream {
    pub fn new(gpu: &Gpu) -> Stream {
        Stream(Arc::new(Lane {
            id: gpu.machine.lock().stream(gpu.ordinal() as usize),
            gpu: gpu.clone(),
        }))
    }

    pub(super) fn machine(&self) -> &Arc<Machine> {
        &self.0.gpu.machine
    }

    pub(super) fn id(&self) -> StreamId {
        self.0.id
    }

    fn now(&self) -> Point {
        self.machine().lock().now(self.0.id)
    }

    /// Does the work in the stream's order, or records it.
    pub(super) fn submit(&self, work: Work) -> Result<(), Error> {
        if let Some(recorded) = self.machine().recorded().get_mut(&self.0.id) {
            recorded.steps.push(Step::Work(work));
            return Ok(());
        }
        self.machine().submit(self.0.id, work).map(drop)
    }

    pub fn is_capturing(&self) -> bool {
        self.machine().recorded().contains_key(&self.0.id)
    }

    /// Rejects what no graph records: points in streams, and what the host waits for.
    pub(super) fn does(&self, what: &str) -> Result<(), Error> {
        if self.is_capturing() {
            return Err(Error::Usage {
                what: format!("{what} in an emulated stream that records a graph"),
                legal: "launches, writes, copies and fills".into(),
            });
        }
        Ok(())
    }

    pub fn is(&self, other: &Stream) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub fn is_on(&self, gpu: &Gpu) -> bool {
        let own = &self.0.gpu;
        Arc::ptr_eq(&own.machine, &gpu.machine) && own.ordinal() == gpu.ordinal()
    }

    pub fn is_done(&self) -> Result<bool, Error> {
        self.does("a question")?;
        self.machine().poll(self.now())
    }

    pub fn synchronize(&self) -> Result<(), Error> {
        self.does("a wait of the host")?;
        self.machine().wait(self.now()).map(drop)
    }

    pub fn write<T: Element>(&self, to: Address, values: &[T]) -> Result<(), Error> {
        self.submit(Work::Write {
            to: to.get(),
            bytes: T::to_bytes(values),
        })
    }

    pub fn read<T: Element>(&self, from: Address, len: usize) -> Result<Vec<T>, Error> {
        self.does("a read")?;
        let state = self.machine().wait(self.now())?;
        let bytes = state
            .memory
            .bytes(from.get(), (len * size_of::<T>()) as u64)
            .map_err(|fault| Error::Driver {
                what: "copy from an emulated GPU".into(),
                code: fault.to_string(),
                help: "read memory that is there".into(),
            })?;
        Ok(T::from_bytes(&bytes))
    }

    pub fn copy(&self, to: Address, from: Address, bytes: u64) -> Result<(), Error> {
        self.copy_lines(&Lines2d {
            to: (to, bytes),
            from: (from, bytes),
            bytes,
            lines: 1,
        })
    }

    pub fn copy_lines(&self, copy: &Lines2d) -> Result<(), Error> {
        let place = |(at, pitch): (Address, u64)| (at.get(), pitch);
        self.submit(Work::Copy {
            to: place(copy.to),
            from: place(copy.from),
            bytes: copy.bytes,
            lines: copy.lines,
        })
    }

    pub fn fill(&self, to: Address, byte: u8, bytes: u64) -> Result<(), Error> {
        self.submit(Work::Fill {
            to: to.get(),
            byte,
            bytes,
        })
    }

    pub fn memory_ops(&self, ops: &[MemoryOp]) -> Result<(), Error> {
        ops.iter().try_for_each(|op| {
            self.submit(match *op {
                MemoryOp::AtLeast { cell, value } => Work::AtLeast {
                    cell: cell.get(),
                    value,
                },
                MemoryOp::Store { cell, value } => Work::Store {
                    cell: cell.get(),
                    value,
                },
            })
        })
    }

    pub fn compare(&self, compare: Compare) -> Result<(), Error> {
        self.submit(Work::Compare(compare))
    }

    pub fn launch(&self, launch: Arc<Launch>) -> Result<(), Error> {
        self.submit(Work::Kernel(launch))
    }

    pub fn twin(&self, launch: TwinLaunch) -> Result<(), Error> {
        self.submit(Work::Twin(launch))
    }

    /// Makes later work of this stream wait for the event.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        self.on_the_machine_of(event)?;
        self.hold(&event.mark)
    }

    /// Has later work wait for an event of this machine.
    pub(super) fn hold(&self, mark: &Mark) -> Result<(), Error> {
        self.does("a wait for an event")?;
        match mark.get() {
            Some((point, _)) => self.submit(Work::After(point)),
            None => Ok(()),
        }
    }

    /// Records an event of this machine here.
    pub(super) fn set(&self, mark: &Mark) -> Result<(), Error> {
        self.does("an event")?;
        mark.set((self.now(), self.machine().now()));
        Ok(())
    }
}

impl Stream {
    /// Points of one machine mean nothing on another.
    pub fn on_the_machine_of(&self, event: &Event) -> Result<(), Error> {
        if !Arc::ptr_eq(&self.0.gpu.machine, &event.machine) {
            return Err(Error::Usage {
                what: "an event of another emulated machine".into(),
                legal: "events and streams of the GPUs of one communicator's machine".into(),
            });
        }
        Ok(())
    }
}

/// A point in a stream, and when it was recorded.
#[derive(Debug)]
pub(crate) struct Event {
    machine: Arc<Machine>,
    mark: Mark,
}

impl Event {
    /// Not recorded yet.
    pub fn new(gpu: &Gpu) -> Event {
        Event {
            machine: gpu.machine.clone(),
            mark: Mark::default(),
        }
    }

    /// Place of the event, now and later.
    pub(super) fn mark(&self) -> Mark {
        self.mark.clone()
    }

    pub fn of(stream: &Stream) -> Result<Event, Error> {
        let event = Event::new(&stream.0.gpu);
        event.record(stream).map(|()| event)
    }

    /// Moves it to after everything that is in the stream now.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        stream.on_the_machine_of(self)?;
        stream.set(&self.mark)
    }

    pub fn is_done(&self) -> Result<bool, Error> {
        match self.mark.get() {
            Some((point, _)) => self.machine.poll(point),
            None => Ok(true),
        }
    }

    pub fn wait(&self) -> Result<(), Error> {
        match self.mark.get() {
            Some((point, _)) => self.machine.wait(point).map(drop),
            None => Ok(()),
        }
    }

    /// The time between the calls that recorded them.
    pub fn since(&self, earlier: &Event) -> Duration {
        let at = |event: &Event| event.mark.get().map_or(0, |(_, time)| time);
        Duration::from_nanos(at(self).saturating_sub(at(earlier)))
    }
}

/// Memory of one GPU, freed in the order of its stream.
#[derive(Debug)]
pub(crate) struct Memory {
    stream: Stream,
    at: u64,
}

impl Memory {
    pub fn zeros(stream: &Stream, bytes: u64) -> Result<Memory, Error> {
        let at = stream.machine().lock().memory.allocate(bytes.max(1))?;
        Ok(Memory {
            stream: stream.clone(),
            at,
        })
    }

    pub fn address(&self) -> Address {
        Address::of(self.at)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A dead machine frees nothing, and no graph records it.
        let Lane { gpu, id } = &*self.stream.0;
        let _ = gpu.machine.submit(*id, Work::Free(self.at));
    }
}
