//! An emulated machine: its GPUs, and how far their streams are.

use super::memory::Allocations;
use crate::cuda::Told;
use crate::error::Error;
use counterflow_codegen::interp::open::{Machine as Open, Memory as _, Point, StreamId, Work};

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// SMs of an emulated GPU: as many as an H200 has.
pub(crate) const SMS: u32 = 132;
/// Bytes of addresses of an emulated GPU.
const MEMORY: u64 = 8 << 30;
/// Steps after which a machine that runs in small pieces stops, at most.
const PIECE: u64 = 40;

/// GPUs that reach each other's memory.
#[derive(Debug)]
pub(crate) struct Machine {
    state: Mutex<Open<Allocations>>,
    pub(super) turn: Condvar,
    start: Instant,
    /// Whether a question that does not wait lets it run only a few steps: as if the host were quick.
    pub(super) pieces: bool,
}

impl Machine {
    /// So many GPUs. `seed` determines its choices; with `pieces`, work is often still on its way when a host asks.
    pub fn new(gpus: usize, seed: u64, pieces: bool) -> Arc<Machine> {
        Arc::new(Machine {
            state: Mutex::new(Open::new(Allocations::default(), &vec![SMS; gpus], seed)),
            turn: Condvar::new(),
            start: Instant::now(),
            pieces,
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Open<Allocations>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes up to `most` steps, and writes the records of waits that gave up.
    pub(super) fn go(&self, state: &mut Open<Allocations>, most: u64) -> Result<(), Error> {
        state.run(self.now(), most);
        for told in state.told() {
            let place = state.memory.bytes_mut(told.id, Told::BYTES as u64);
            if let Ok(place) = place {
                Told::emulated(&told).record(place);
            }
        }
        match state.fault() {
            None => Ok(()),
            Some(fault) => Err(Error::Driver {
                what: "run an emulated GPU".into(),
                code: fault.to_string(),
                help: "memory was used that is not there: an emulated GPU's machine ends with that"
                    .into(),
            }),
        }
    }

    /// Puts work on a stream.
    pub(super) fn submit(&self, stream: StreamId, work: Work) -> Result<Point, Error> {
        let mut state = self.lock();
        let point = state.submit(stream, work);
        let done = match self.pieces {
            true => self.piece(&mut state),
            false => Ok(()),
        };
        drop(state);
        self.turn.notify_all();
        done.map(|()| point)
    }

    /// Takes a few steps.
    pub(super) fn piece(&self, state: &mut Open<Allocations>) -> Result<(), Error> {
        let most = state.draw(PIECE);
        self.go(state, most)
    }

    /// Whether a stream came to that point.
    pub(super) fn poll(&self, point: Point) -> Result<bool, Error> {
        let mut state = self.lock();
        match self.pieces {
            true => self.piece(&mut state)?,
            false => self.go(&mut state, u64::MAX)?,
        }
        Ok(state.is_past(point))
    }

    /// Waits until a stream came to that point. A launch that waits for a peer's ends by its own time limit.
    pub(super) fn wait(&self, point: Point) -> Result<MutexGuard<'_, Open<Allocations>>, Error> {
        /// Another thread may submit what this one waits for.
        const PAUSE: Duration = Duration::from_millis(20);
        let mut state = self.lock();
        loop {
            self.go(&mut state, u64::MAX)?;
            if state.is_past(point) {
                return Ok(state);
            }
            let left = state.deadline().map(|end| end.saturating_sub(self.now()));
            let pause = left.map_or(PAUSE, |left| Duration::from_nanos(left + 1).min(PAUSE));
            let waited = self.turn.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// One GPU of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    pub(super) machine: Arc<Machine>,
    ordinal: u32,
}

impl Gpu {
    /// That GPU of a machine.
    pub fn of(machine: &Arc<Machine>, ordinal: u32) -> Gpu {
        Gpu {
            machine: machine.clone(),
            ordinal,
        }
    }

    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    pub fn memory(&self) -> u64 {
        MEMORY
    }
}
