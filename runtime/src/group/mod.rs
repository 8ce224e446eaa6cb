//! What the ranks of a process share: the heap, collective calls, and reports of stalls.

mod heap;
mod ledger;
mod request;
mod seats;

pub(crate) use heap::Allocation;
pub(crate) use ledger::Entry;
pub(crate) use request::{Granted, Request, Wanted};

use crate::cuda::queues;
use crate::driver::{Address, Gpu, Record, Slots, Stream, Watch};
use crate::error::{Error, Stall};
use counterflow_codegen::host::Queues;
use heap::Heap;
use ledger::{Ledger, Refused};
use request::Refusal;
use seats::Seats;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes at the start of every slot for the abort flag (at 0) and the claim on the stall record (at 128).
const CONTROL: u64 = 4096;
const ABORT: u64 = 0;
const CLAIM: u64 = 128;

/// What the ranks of a process share.
#[derive(Debug)]
pub(crate) struct Group {
    records: Vec<Record>,
    /// Names of what each rank runs, for stall records.
    running: Vec<Mutex<Arc<Names>>>,
    /// How many launches each rank has enqueued.
    launched: Vec<AtomicU64>,
    heap: Arc<Heap>,
    ledger: Mutex<Ledger>,
    meeting: Mutex<Meeting>,
    turn: Condvar,
    timeout: Duration,
    queues: Queues,
}

/// The names of a kernel's roles and waits, by their numbers in stall records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Names {
    pub roles: Vec<String>,
    pub waits: Vec<Awaited>,
}

/// What a role can wait for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Awaited {
    pub name: String,
    /// What a record's index counts from.
    pub first: u32,
    /// Where the schedule waits for it.
    pub at: Option<String>,
}

type Answer = Result<Granted, Refusal>;

/// Why a communicator is dead.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    Stalled(Box<Stall>),
    /// Ranks launched different things.
    Differs(String),
}

impl From<Cause> for Error {
    fn from(cause: Cause) -> Error {
        match cause {
            Cause::Stalled(stall) => Error::Stalled(stall),
            Cause::Differs(what) => Error::Mismatch {
                what,
                help: "launch the same kernels with the same shapes and buffers in the same order on every rank; this communicator is dead, so build a new one"
                    .into(),
            },
        }
    }
}

impl From<Stall> for Cause {
    fn from(stall: Stall) -> Cause {
        Cause::Stalled(Box::new(stall))
    }
}

#[derive(Debug)]
struct Meeting {
    seats: Seats<Request, Answer>,
    /// How many kernels were loaded.
    kernels: u32,
    dead: Option<Cause>,
    /// Until when other ranks leave the report to the one that knows the cause.
    telling: Option<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cuda_gpus(gpus: &[Gpu]) -> Result<Vec<Arc<crate::cuda::Gpu>>, Error> {
    gpus.iter().map(|gpu| gpu.cuda().cloned()).collect()
}

impl Group {
    /// The ranks on these GPUs. A slot has that many bytes of addresses, by default as many as the largest GPU's
    /// memory.
    pub(crate) fn new(
        gpus: Vec<Gpu>,
        slot: Option<u64>,
        timeout: Duration,
    ) -> Result<Group, Error> {
        let most = gpus.iter().map(|gpu| gpu.memory()).max().unwrap_or(0);
        let slots = Slots::new(cuda_gpus(&gpus)?, slot.unwrap_or(most).max(CONTROL))?;
        let world = gpus.len();
        Ok(Group {
            records: gpus
                .iter()
                .map(|gpu| Record::new(gpu.cuda()?))
                .collect::<Result<_, Error>>()?,
            running: gpus.iter().map(|_| Mutex::default()).collect(),
            launched: gpus.iter().map(|_| AtomicU64::new(0)).collect(),
            ledger: Mutex::new(Ledger::new(world as u32)),
            meeting: Mutex::new(Meeting {
                seats: Seats::new(world),
                kernels: 0,
                dead: None,
                telling: None,
            }),
            turn: Condvar::new(),
            timeout,
            queues: Queues {
                count: queues()?,
                gpus: gpus.iter().map(|gpu| gpu.ordinal()).collect(),
            },
            heap: Arc::new(Heap::new(gpus, slots, CONTROL)?),
        })
    }

    /// Each rank's stream.
    pub(crate) fn streams(&self) -> &[Stream] {
        self.heap.streams()
    }

    /// The GPU of each rank.
    pub(crate) fn gpus(&self) -> &[Gpu] {
        self.heap.gpus()
    }

    /// The hardware queues of each rank's GPU.
    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Bytes from a rank's slot to the next.
    pub(crate) fn stride(&self) -> u64 {
        self.heap.stride()
    }

    /// What a kernel of that rank needs to give up after it waited longer than `limit`.
    pub(crate) fn watch(&self, rank: u32, limit: Duration) -> [u8; 48] {
        let watch = Watch {
            claim: self.address(rank, CLAIM),
            abort: self.address(0, ABORT),
            abort_stride: self.stride(),
            timeout_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX / 4),
            rank,
            world: self.gpus().len() as u32,
        };
        watch.bytes(&self.records[rank as usize])
    }

    /// Counts a launch of that rank, with the names for its next stall record.
    pub(crate) fn launches(&self, rank: u32, names: &Arc<Names>) {
        self.launched[rank as usize].fetch_add(1, Ordering::Relaxed);
        *lock(&self.running[rank as usize]) = names.clone();
    }

    /// A place in a rank's slot of the heap.
    pub(crate) fn address(&self, rank: u32, offset: u64) -> Address {
        self.heap.address(rank, offset)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Fails if a rank gave up before.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        match &lock(&self.meeting).dead {
            Some(cause) => Err(cause.clone().into()),
            None => Ok(()),
        }
    }

    /// Ends the group: every rank gets the report at its next call. The first report stays. A report that was announced
    /// comes first, because what gave up meanwhile did so because of it.
    pub(crate) fn die(&self, cause: impl Into<Cause>) -> Error {
        let mut meeting = lock(&self.meeting);
        while let (None, Some(end)) = (&meeting.dead, meeting.telling) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.turn.wait_timeout(meeting, left);
            meeting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let first = meeting.dead.get_or_insert_with(|| cause.into()).clone();
        drop(meeting);
        self.turn.notify_all();
        first.into()
    }

    /// Makes [`Group::die`] wait for the caller's report, for at most this long.
    pub(crate) fn about_to_tell(&self, most: Duration) {
        let mut meeting = lock(&self.meeting);
        meeting.telling.get_or_insert_with(|| Instant::now() + most);
    }

    /// Stores the announced report, unless there is one already.
    pub(crate) fn tell(&self, stall: Stall) {
        lock(&self.meeting).dead.get_or_insert(stall.into());
        self.turn.notify_all();
    }

    /// Whether each rank on that rank's GPU can have a hardware queue for one more stream, beside its own and its
    /// copies'. The margin of [`Queues::taken`] is for streams that have work while others wait; this one has none until a
    /// wait has lasted too long.
    pub(crate) fn has_room(&self, rank: u32) -> bool {
        self.queues.one_each(self.queues.gpus[rank as usize], 3)
    }

    /// The flags that every spinning kernel watches.
    pub(crate) fn abort_flags(&self) -> impl Iterator<Item = Address> {
        (0..self.gpus().len()).map(|rank| self.address(rank as u32, ABORT))
    }

    /// How many launches a rank has enqueued.
    pub(crate) fn launched(&self, rank: u32) -> u64 {
        self.launched[rank as usize].load(Ordering::Relaxed)
    }

    /// The same of each.
    pub(crate) fn all_launched(&self) -> Vec<u64> {
        let ranks = 0..self.gpus().len() as u32;
        ranks.map(|rank| self.launched(rank)).collect()
    }

    /// Writes a rank's next launch, before anything of it is enqueued. Does not wait for the other ranks, unless one is
    /// thousands of launches behind.
    ///
    /// # Errors
    /// The communicator is dead, or a peer's launch of the same number differs: then it is dead from now on.
    pub(crate) fn write(&self, rank: u32, entry: Entry) -> Result<u64, Error> {
        const PAUSE: Duration = Duration::from_micros(50);
        let mut end = None;
        loop {
            self.alive()?;
            match lock(&self.ledger).write(rank, entry) {
                Ok(launch) => return Ok(launch),
                Err(Refused::Differs(differs)) => {
                    return Err(self.die(Cause::Differs(differs.to_string())));
                }
                Err(Refused::Behind(peer)) => {
                    let end = *end.get_or_insert_with(|| Instant::now() + self.timeout);
                    if Instant::now() > end {
                        let stall = Stall {
                            rank,
                            role: "the host".into(),
                            waited_on: format!("launches of rank {peer}"),
                            enqueued: self.all_launched(),
                            ..Stall::default()
                        };
                        return Err(self.die(stall));
                    }
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until all ranks ask the same as this one, and gives the result. A second thread of the same rank waits its
    /// turn: one call of a rank at a time.
    pub(crate) fn meet(self: &Arc<Group>, rank: u32, request: &Request) -> Result<Granted, Error> {
        let me = rank as usize;
        let end = Instant::now() + self.timeout;
        let mut meeting = lock(&self.meeting);
        let mut seated = false;
        loop {
            if !seated && meeting.dead.is_none() {
                seated = meeting.seats.sit(me, request);
                if let Some(asked) = meeting.seats.complete() {
                    let answer = self.act(&asked, &mut meeting.kernels);
                    meeting.seats.answer(&answer);
                    self.turn.notify_all();
                }
            }
            if seated && let Some(answer) = meeting.seats.take(me) {
                drop(meeting);
                // Another thread of this rank may wait for the seat.
                self.turn.notify_all();
                return answer.map_err(Error::from);
            }
            if let Some(cause) = &meeting.dead {
                return Err(cause.clone().into());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let stall = Stall {
                    rank,
                    role: "the host".into(),
                    waited_on: format!("ranks: this one {request}; ranks that came"),
                    seen: Some(meeting.seats.asking() as u64),
                    wanted: self.gpus().len() as u64,
                    ..Stall::default()
                };
                meeting.dead = Some(stall.into());
                self.turn.notify_all();
                continue;
            }
            meeting = self
                .turn
                .wait_timeout(meeting, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Does what all ranks asked for, in the thread of the last.
    fn act(self: &Arc<Group>, asked: &[Request], kernels: &mut u32) -> Answer {
        let request = &asked[0];
        if asked.iter().any(|other| other != request) {
            let each: Vec<String> = asked
                .iter()
                .enumerate()
                .map(|(rank, asked)| format!("rank {rank} {asked}"))
                .collect();
            return Err(Refusal::Mismatch(format!(
                "the ranks make different calls: {}",
                each.join(", ")
            )));
        }
        match request {
            Request::Meet => Ok(Granted::Done),
            Request::Load { .. } => {
                *kernels += 1;
                Ok(Granted::Number(*kernels - 1))
            }
            Request::Reserve(bytes) => {
                self.heap.reserve(*bytes).map_err(Refusal::from)?;
                Ok(Granted::Done)
            }
            Request::Allocate(wanted) => {
                let Wanted { name, bytes, .. } = wanted;
                let allocation = self.heap.allocate(name, *bytes, self.timeout);
                let allocation = allocation.map_err(Refusal::from)?;
                Ok(Granted::Memory(Arc::new(allocation)))
            }
        }
    }

    /// The report of a kernel that gave up: this rank's own, or a peer's.
    pub(crate) fn stall(&self, rank: u32) -> Option<Stall> {
        let own = std::iter::once(rank as usize);
        let (told, names) = own.chain(0..self.records.len()).find_map(|rank| {
            Some((
                self.records[rank].stall()?,
                lock(&self.running[rank]).clone(),
            ))
        })?;
        let role = names.roles.get(told.role as usize).cloned();
        let awaited = names
            .waits
            .get(told.what as usize)
            .cloned()
            .unwrap_or_else(|| Awaited {
                name: format!("number {}", told.what),
                ..Awaited::default()
            });
        Some(Stall {
            rank: told.rank,
            role: role.unwrap_or_else(|| format!("role {}", told.role)),
            block: Some(told.block),
            waited_on: awaited.name,
            index: told.index.saturating_sub(awaited.first),
            seen: Some(told.seen),
            wanted: told.wanted,
            at: awaited.at,
            stands_in: None,
            enqueued: self.all_launched(),
        })
    }
}
