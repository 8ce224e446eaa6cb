//! An emulated machine: its GPUs, and how far their streams are.

use super::memory::Allocations;
use super::steps::Recorded;
use crate::cuda::{Address, Told};
use crate::error::Error;
use crate::shared::Segment;
use counterflow_emulator::open::{Machine as Open, Memory as _, Point, StreamId, Work};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime};

/// SMs of an emulated GPU: as many as an H200 has.
pub(crate) const SMS: u32 = 132;
/// Bytes of an emulated GPU's L2 cache: few, so that trials take operands by turns as on a GPU, and little memory.
pub(crate) const L2: u64 = 1 << 20;
/// Bytes of addresses of an emulated GPU.
const MEMORY: u64 = 8 << 30;
/// Bytes of a record's first word, which says that there is one.
const FIRST: usize = 8;

/// GPUs that reach each other's memory.
pub(crate) struct Machine {
    state: Mutex<Open<Allocations>>,
    pub(super) turn: Condvar,
    /// Recordings of streams.
    recorded: Mutex<BTreeMap<StreamId, Recorded>>,
    start: Instant,
    /// Time of the clock then, in nanoseconds.
    before: u64,
    /// Most steps that a question which does not wait lets the machine take: few, as if the hosts were quick.
    piece: u64,
    /// Thread that runs it, if its peers are other processes.
    runner: OnceLock<Thread>,
}

/// All that belongs to a rank leads here, and all of its memory would follow.
impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}

impl Machine {
    /// So many GPUs. `seed` determines its choices; with small pieces, work is often still on its way when a host asks.
    pub fn new(gpus: usize, seed: u64, piece: u64) -> Arc<Machine> {
        Arc::new(Machine {
            state: Mutex::new(Open::new(Allocations::default(), &vec![SMS; gpus], seed)),
            turn: Condvar::new(),
            recorded: Mutex::default(),
            start: Instant::now(),
            before: 0,
            piece,
            runner: OnceLock::new(),
        })
    }

    /// The machine of one rank, whose peers are other processes: a GPU with a clock that all of them have. Its streams
    /// go on by themselves, in a thread, since no peer can ask how far they are.
    pub fn apart() -> Result<Arc<Machine>, Error> {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let machine = Arc::new(Machine {
            state: Mutex::new(Open::new(Allocations::default(), &[SMS], 0)),
            turn: Condvar::new(),
            recorded: Mutex::default(),
            start: Instant::now(),
            before: u64::try_from(since.as_nanos()).unwrap_or(0),
            piece: u64::MAX,
            runner: OnceLock::new(),
        });
        let runs = Arc::downgrade(&machine);
        let thread = std::thread::Builder::new().name("emulated GPU".into());
        let started = thread.spawn(move || keep_running(&runs));
        let started = started.map_err(|error| Error::TooLarge {
            what: format!("a thread that runs an emulated GPU: {error}"),
            help: "end what uses so many threads".into(),
        })?;
        // Nothing was submitted yet, and it has no other.
        let _ = machine.runner.set(started.thread().clone());
        Ok(machine)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Open<Allocations>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> u64 {
        let since = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.before.saturating_add(since)
    }

    /// Takes up to `most` steps, and writes the records of waits that gave up. Says how many steps it took.
    pub(super) fn go(&self, state: &mut Open<Allocations>, most: u64) -> Result<u64, Error> {
        let taken = state.run(self.now(), most);
        for told in state.told() {
            let place = state.memory.bytes(told.id, Told::BYTES as u64);
            let Ok(mut place) = place.map(std::borrow::Cow::into_owned) else {
                continue;
            };
            Told::emulated(&told).record(&mut place);
            // Whoever sees the first word sees all of it.
            let first = place.drain(..FIRST).collect::<Vec<_>>();
            let wrote = state.memory.write(told.id + FIRST as u64, &place);
            let _ = wrote.and_then(|()| state.memory.write(told.id, &first));
        }
        match state.fault() {
            None => Ok(taken),
            Some(fault) => Err(Error::Driver {
                what: RUN.into(),
                code: fault.to_string(),
                help: "memory was used that is not there: an emulated GPU's machine ends with that"
                    .into(),
            }),
        }
    }

    /// The work of streams that record.
    pub(super) fn recorded(&self) -> MutexGuard<'_, BTreeMap<StreamId, Recorded>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts work on a stream.
    pub(super) fn submit(&self, stream: StreamId, work: Work) -> Result<Point, Error> {
        let point = self.lock().submit(stream, work);
        self.turn.notify_all();
        if let Some(runner) = self.runner.get() {
            runner.unpark();
        }
        Ok(point)
    }

    /// Bytes that are given out, and the most at a time since this was asked last.
    #[cfg(test)]
    pub fn taken_at_most(&self) -> [u64; 2] {
        self.lock().memory.taken_at_most()
    }

    /// Goes on, as far as a question lets it.
    pub(super) fn ask(&self, state: &mut Open<Allocations>) -> Result<(), Error> {
        let most = match self.piece {
            u64::MAX => u64::MAX,
            piece => state.draw(piece + 1),
        };
        self.go(state, most).map(drop)
    }

    /// True if a stream came to that point.
    pub(super) fn poll(&self, point: Point) -> Result<bool, Error> {
        let mut state = self.lock();
        self.ask(&mut state)?;
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

/// Name for what a machine does until it is dead.
const RUN: &str = "run an emulated GPU";

/// True if an error is that a machine is dead.
pub(crate) fn is_dead(error: &Error) -> bool {
    matches!(error, Error::Driver { what, .. } if what == RUN)
}

/// The thread sees at once that nobody has it any more.
impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(runner) = self.runner.get() {
            runner.unpark();
        }
    }
}

/// Runs a machine until nobody has it.
fn keep_running(machine: &Weak<Machine>) {
    /// Between two looks, while nothing can go on: a peer may have signalled. A long wait is looked at less often.
    const PAUSE: Duration = Duration::from_micros(200);
    const LONGEST: Duration = Duration::from_millis(2);
    /// The same while there is nothing to do: who submits something wakes it.
    const REST: Duration = Duration::from_millis(50);
    let mut last = Instant::now();
    while let Some(machine) = machine.upgrade() {
        let mut state = machine.lock();
        // A machine that is dead says so to who asks.
        let taken = machine.go(&mut state, u64::MAX);
        if taken.is_ok_and(|taken| taken > 0) {
            last = Instant::now();
        }
        let pause = match state.is_idle() {
            true => REST,
            false => (last.elapsed() / 64).clamp(PAUSE, LONGEST),
        };
        drop(state);
        machine.turn.notify_all();
        drop(machine);
        std::thread::park_timeout(pause);
    }
}

/// One GPU of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    pub(super) machine: Arc<Machine>,
    ordinal: u32,
}

impl Gpu {
    /// A machine's GPU, by its ordinal.
    pub fn of(machine: &Arc<Machine>, ordinal: u32) -> Gpu {
        Gpu {
            machine: machine.clone(),
            ordinal,
        }
    }

    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    pub fn memory(&self) -> u64 {
        MEMORY
    }

    /// Has the first bytes of memory that processes share among its own.
    pub fn reach(&self, segment: &Arc<Segment>, bytes: u64) -> Reached {
        let mut state = self.machine.lock();
        let at = state.memory.reserve(bytes);
        state.memory.share(at, segment, bytes);
        drop(state);
        Reached {
            machine: self.machine.clone(),
            at,
        }
    }
}

/// Memory that processes share, among a machine's own.
#[derive(Debug)]
pub(crate) struct Reached {
    machine: Arc<Machine>,
    at: u64,
}

impl Reached {
    /// Address of the memory.
    pub fn address(&self) -> Address {
        Address::of(self.at)
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        // It was put there, and nobody else takes it away.
        let _ = self.machine.lock().memory.free(self.at);
    }
}
