//! State that the ranks of a process share: the heap, collective calls, and their end.

mod abort;
mod adopt;
mod answers;
mod apart;
mod board;
mod callers;
mod compared;
mod grow;
mod heap;
mod ledger;
mod meeting;
mod multicast;
mod multicasting;
mod orders;
mod peers;
mod pool;
mod refusal;
mod refused;
mod request;
mod rings;
mod roll;
mod seats;
mod signs;
mod split;
pub(crate) mod threads;
mod verdict;
mod within;

// The tests are declared here: the protocols are compiled by another package too, without their tests.
#[cfg(test)]
#[path = "meeting/tests.rs"]
mod meeting_tests;
#[cfg(test)]
#[path = "seats/tests.rs"]
mod seats_tests;

pub(crate) use abort::{Awaited, End, Named, Names, Replayed};
pub(crate) use callers::Passage;
pub(crate) use heap::Allocation;
pub(crate) use ledger::Entry;
pub(crate) use orders::Orders;
pub(crate) use pool::{Needs, PLACES, Placed, Readers, Scratch, places};
pub(crate) use refusal::Refusal;
pub(crate) use request::{Granted, Request, Wanted};
pub(crate) use roll::Gone;
pub(crate) use verdict::Verdict;

use crate::driver::{Address, Current, Event, Gpu, Lane, Reached, Slots, Stream, Turn, Watch};
use crate::error::{Error, Stall};
use crate::gpu_order::{Enqueueing, Member};
use crate::held::HeapUse;
use crate::multicast::MulticastState;
use crate::own::Own;
use adopt::Loan;
use callers::Callers;
use counterflow_codegen::host::Queues;
use counterflow_emulator::open::Compare;
use heap::Heap;
use ledger::{Behind, Ledger, Refused};
use meeting::Meeting;
use peers::Peers;
use pool::{Pool, credit_bytes};
use request::{differing_orders, refused, shared};
use rings::Rings;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use within::Within;

/// Bytes at the start of every slot for the abort flag (at 0) and the claim on the stall record (at 128). The credits of
/// shared scratch follow, and then the cells of the kernels that share it.
const CONTROL: u64 = 4096;
/// Bytes of those cells and of what compares launches: with what is before, at most as much as is mapped at once.
pub(crate) const CELLS: u64 = 1 << 20;
const ABORT: u64 = 0;
const CLAIM: u64 = 128;
/// Time that a kernel may need for everything but waits for counters.
const WORK: Duration = Duration::from_secs(10);

/// A rank waited too long for one that is too many launches behind.
fn too_far_ahead(rank: u32, entry: &Entry, behind: Behind) -> Stall {
    Stall {
        rank,
        role: format!(
            "its host holds back launch {} ({})",
            behind.next,
            entry.kernel()
        ),
        waited_on: format!("launches of rank {}", behind.rank),
        seen: Some(behind.made),
        wanted: behind.wanted,
        ..Stall::default()
    }
}

/// Offset in every slot at which launches are compared on the GPUs.
fn boards(world: u32) -> u64 {
    CONTROL + credit_bytes(world).next_multiple_of(1024)
}

/// Cells in every slot, in bytes.
fn cells(world: u32) -> std::ops::Range<u64> {
    let boards = boards(world);
    boards + Compare::bytes(world).next_multiple_of(1024)..boards + CELLS
}

/// The ranks, by what each asks.
fn differing(asked: impl Iterator<Item = String>) -> Refusal {
    let each = asked.enumerate();
    let each: Vec<String> = each
        .map(|(rank, asked)| format!("rank {rank} {asked}"))
        .collect();
    Refusal::mismatch(format!(
        "the ranks make different calls: {}",
        each.join(", ")
    ))
}

/// State that the ranks of a process share.
#[derive(Debug)]
pub(crate) struct Group {
    end: Arc<End>,
    pub(crate) heap: Arc<Heap>,
    ledger: Book,
    callers: Callers,
    order: Member,
    meeting: Meeting<Request, Answer>,
    pool: Mutex<Pool>,
    timeout: Duration,
    queues: Queues,
    /// True if ranks of this process, or of several, share a GPU: of this group, or of the one that it was split off.
    sharing: bool,
    /// The other ranks, if they are processes.
    peers: Option<Arc<Peers>>,
    /// Groups that a split made, until each rank takes its part: by the split's number, and the rank.
    parts: Mutex<BTreeMap<(u64, u32), Part>>,
    /// Held in a collective call of a rank that is a process.
    calling: Mutex<()>,
    /// Memory that processes share beside the heap, at its address on this process's GPU.
    #[expect(dead_code, reason = "kernels use it until the group is gone")]
    reached: Option<Reached>,
}

/// Book in which launches are compared.
#[derive(Debug)]
enum Book {
    /// Among ranks of one process.
    Own(Mutex<Ledger>),
    /// Among processes.
    Shared(Rings),
}

impl Book {
    fn next(&self, rank: u32) -> u64 {
        match self {
            Book::Own(ledger) => lock(ledger).next(rank),
            Book::Shared(rings) => rings.next(rank),
        }
    }

    fn write(&self, rank: u32, entry: &Entry) -> Result<u64, Refused> {
        match self {
            Book::Own(ledger) => lock(ledger).write(rank, entry),
            Book::Shared(rings) => rings.write(rank, entry),
        }
    }
}

/// A group that a split made, and which rank somebody is there.
type Part = (Arc<Group>, u32);

type Answer = Result<Granted, Refusal>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Group {
    /// The ranks on these GPUs. A slot has that many bytes of addresses, by default as many as the largest GPU's
    /// memory.
    pub(crate) fn new(
        gpus: Vec<Gpu>,
        slot: Option<u64>,
        timeout: Duration,
    ) -> Result<Group, Error> {
        let cells = cells(gpus.len() as u32);
        let most = gpus.iter().map(|gpu| gpu.memory()).max().unwrap_or(0);
        let slots = Slots::new(&gpus, slot.unwrap_or(most).max(cells.end))?;
        let world = gpus.len();
        let end = Arc::new(End::new(&gpus)?);
        let queues = Queues {
            count: gpus[0].queues()?,
            gpus: gpus.iter().map(|gpu| gpu.ordinal()).collect(),
        };
        let heap = Arc::new(Heap::new(gpus, slots, cells, timeout)?);
        let mut before = (1..).zip(&queues.gpus);
        let sharing = before.any(|(next, gpu)| queues.gpus[next..].contains(gpu));
        Ok(Group {
            sharing,
            order: Member::join(heap.gpus(), heap.streams())?,
            end,
            ledger: Book::Own(Mutex::new(Ledger::new(world as u32))),
            callers: Callers::default(),
            meeting: Meeting::new(world),
            pool: Mutex::new(Pool::new(CONTROL, world as u32)),
            timeout,
            queues,
            heap,
            peers: None,
            calling: Mutex::new(()),
            parts: Mutex::default(),
            reached: None,
        })
    }

    /// Number of ranks.
    pub(crate) fn world(&self) -> u32 {
        self.heap.world()
    }

    /// The ranks of this process, each with its stream.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = (u32, &Stream)> {
        let first = self.peers.as_ref().map_or(0, |peers| peers.rank());
        (first..).zip(self.heap.streams())
    }

    /// The stream of a rank of this process.
    pub(crate) fn stream(&self, rank: u32) -> &Stream {
        &self.heap.streams()[self.index(rank) as usize]
    }

    /// The place of a rank of this process among those of this process.
    fn index(&self, rank: u32) -> u32 {
        match &self.peers {
            Some(_) => 0,
            None => rank,
        }
    }

    /// The GPU of a rank of this process.
    pub(crate) fn gpu(&self, rank: u32) -> &Gpu {
        &self.heap.gpus()[self.index(rank) as usize]
    }

    /// The GPU of each rank of this process.
    pub(crate) fn gpus(&self) -> &[Gpu] {
        self.heap.gpus()
    }

    /// The hardware queues of each rank's GPU.
    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Bytes of the heap that are given out, by owner.
    pub(crate) fn heap_use(&self) -> HeapUse {
        self.heap.used()
    }

    /// Address at which a store reaches every rank's slot of the heap at that offset, and so many bytes behind it.
    pub(crate) fn everywhere(&self, offset: u64, bytes: u64) -> Result<Address, Error> {
        self.heap.everywhere(offset, bytes)
    }

    /// State of multicast for the heap.
    pub(crate) fn multicast(&self) -> MulticastState {
        self.heap.multicast()
    }

    /// Bytes from a rank's slot to the next.
    pub(crate) fn stride(&self) -> u64 {
        self.heap.stride()
    }

    /// Watch of a kernel of that rank, with this number, by which it gives up after it waited longer than `limit` for
    /// a counter. It waits for so many cells, each of which can be late once.
    pub(crate) fn watch(&self, rank: u32, kernel: u32, limit: Duration, cells: u32) -> Watch {
        let [record, host] = self.end.addresses(rank);
        let barrier = limit.saturating_mul(cells.saturating_add(2));
        let nanoseconds = |time: Duration| {
            let most = u64::MAX / 4;
            u64::try_from(time.as_nanos()).map_or(most, |time| time.min(most))
        };
        Watch {
            record,
            claim: self.address(rank, CLAIM),
            abort: self.address(0, ABORT),
            abort_stride: self.stride(),
            host,
            timeout_ns: nanoseconds(limit),
            barrier_ns: nanoseconds(barrier.saturating_add(WORK)),
            rank,
            world: self.world(),
            kernel,
        }
    }

    /// True if that is in this group's heap.
    pub(crate) fn owns(&self, range: &Allocation) -> bool {
        range.is_in(&self.heap)
    }

    /// A place in a rank's slot of the heap.
    pub(crate) fn address(&self, rank: u32, offset: u64) -> Address {
        self.heap.address(rank, offset)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// End of the group, with the number of each rank's launches.
    pub(crate) fn ends(&self) -> &Arc<End> {
        &self.end
    }

    /// A rank's user has its communicator, with this stream.
    pub(crate) fn seated(&self, own: &Arc<Own>) {
        if let Some(peers) = &self.peers {
            peers.seated(own);
        }
    }

    /// A rank's part of `each` ended, and others' go on: who waits for it is told.
    pub(crate) fn is_done(&self, rank: u32) {
        self.end.leaves(rank, Gone::Done);
        self.meeting.wake();
    }

    /// A rank's communicator is dropped.
    pub(crate) fn leaves(&self, rank: u32) {
        self.end.leaves(rank, Gone::Dropped);
        if let Some(peers) = &self.peers {
            peers.left();
        }
        self.meeting.wake();
    }

    /// Fails if the group has ended.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        self.end.alive()
    }

    /// Ends the group for this cause, unless it has ended before: kernels drain, and every rank gets the first cause from
    /// every call.
    pub(crate) fn die(&self, cause: impl Into<Verdict>) -> Error {
        let first = self.end.end(cause.into());
        self.meeting.wake();
        first.into()
    }

    /// True if each rank on that rank's GPU can have a hardware queue for one more stream, beside its own and its
    /// copies'. The margin of [`Queues::taken`] is for streams that have work while others wait; this one has none until a
    /// wait has lasted too long.
    pub(crate) fn has_room(&self, rank: u32) -> bool {
        self.queues.one_each(self.queues.gpus[rank as usize], 3)
    }

    /// A rank is about to enqueue launches of so many CTAs at most, which first wait for other communicators' launches
    /// that do not fit beside them. Drop the result when they are enqueued.
    ///
    /// # Errors
    /// The communicators take turns in another order elsewhere: then this one is dead from now on.
    pub(crate) fn order<'a>(
        &'a self,
        rank: u32,
        current: Current<'a>,
        launches: RangeInclusive<u64>,
        ctas: u32,
    ) -> Result<Enqueueing<'a>, Error> {
        let alive = || self.alive();
        let begun = self
            .order
            .begin((self.index(rank), current), launches, ctas, alive);
        begun
            .inspect_err(|error| {
                if let Error::Mismatch { what, .. } = error {
                    self.die(Verdict::Differs(what.clone()));
                }
            })
            .map_err(|error| self.told(error))
    }

    /// Opens the lane of a rank's launches, since one of them is captured.
    pub(crate) fn open_lane(
        &self,
        rank: u32,
        current: Current<'_>,
    ) -> Result<(&Lane, &Turn), Error> {
        self.order
            .open_lane(self.index(rank), current, self.timeout)
    }

    /// Address at which rank 0's launches are compared on the GPUs.
    pub(crate) fn boards(&self) -> Address {
        self.address(0, boards(self.world()))
    }

    /// Number of launches of a rank's host that peers wait for.
    pub(crate) fn made(&self, rank: u32) -> u64 {
        self.ledger.next(rank)
    }

    /// True if several ranks are on that rank's GPU.
    pub(crate) fn shares(&self, rank: u32) -> bool {
        let on = self.queues.gpus[rank as usize];
        self.queues.gpus.iter().filter(|gpu| **gpu == on).count() > 1
    }

    /// True if some ranks share a GPU, or some of the group that this one was split off. All ranks are told the same.
    pub(crate) fn any_shares(&self) -> bool {
        self.sharing
    }

    /// True if another communicator of this process has ranks on a GPU of this one's ranks here.
    pub(crate) fn has_company(&self) -> bool {
        self.order.has_company()
    }

    /// True if a launch of another communicator of this process runs on that rank's GPU.
    pub(crate) fn is_busy_beside(&self, rank: u32) -> bool {
        self.order.is_busy_beside(self.index(rank))
    }

    /// Bytes at the start of every slot that are the communicator's own.
    pub(crate) fn control(&self) -> u64 {
        cells(self.world()).end
    }

    /// Lets a rank enqueue so many launches that wait for peers, or other work, behind what is in these streams.
    ///
    /// # Errors
    /// [`Error::Usage`] if a peer's launch that waits for this rank stands in one of them.
    pub(crate) fn passes<'s>(
        &self,
        rank: u32,
        streams: impl Iterator<Item = &'s Stream> + Clone,
        launches: u64,
    ) -> Result<Passage<'_>, Error> {
        let next = self.ledger.next(rank);
        let until = (next, next + launches);
        let passes = self.callers.passes(rank, streams, until, self.shares(rank));
        passes.map_err(|error| self.told(error))
    }

    /// A rank's launches until that number stand in one more stream until `done`.
    pub(crate) fn stands(&self, rank: u32, stream: &Stream, launch: u64, done: &Arc<Event>) {
        self.callers.stands(rank, stream, launch, done);
    }

    /// Writes a rank's next launch, before anything of it is enqueued. Does not wait for the other ranks, unless one is
    /// thousands of launches behind.
    ///
    /// # Errors
    /// The communicator is dead, or a peer's launch of the same number differs: then it is dead from now on.
    pub(crate) fn write(&self, rank: u32, entry: &Entry) -> Result<u64, Error> {
        const PAUSE: Duration = Duration::from_micros(50);
        let mut end = None;
        loop {
            self.alive()?;
            match self.ledger.write(rank, entry) {
                Ok(launch) => return Ok(launch),
                Err(Refused::Differs(differs)) => {
                    return Err(self.die(Verdict::Differs(differs.to_string())));
                }
                Err(Refused::Behind(behind)) if self.end.has_left(behind.rank) => {
                    return Err(self.die(self.end.missed(behind.rank, rank)));
                }
                Err(Refused::Behind(behind)) => {
                    let end = *end.get_or_insert_with(|| Instant::now() + self.timeout);
                    if Instant::now() > end {
                        return Err(self.die(too_far_ahead(rank, entry, behind)));
                    }
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until all ranks ask the same as this one, and gives the result. A second thread of the same rank waits its
    /// turn: one call of a rank at a time.
    pub(crate) fn meet(&self, rank: u32, request: &Request) -> Result<Granted, Error> {
        self.met(rank, request).map_err(|error| self.told(error))
    }

    fn met(&self, rank: u32, request: &Request) -> Result<Granted, Error> {
        if let Some(peers) = &self.peers {
            let _one = lock(&self.calling);
            let mine = request.said();
            let asked = peers.gather(&request.to_string(), mine.as_bytes())?;
            let texts = asked.iter().map(|other| String::from_utf8_lossy(other));
            let texts: Vec<_> = texts.collect();
            if let Some(refusal) = refused(texts.iter().map(AsRef::as_ref)) {
                return Err(refusal.into());
            }
            if let Some(told) = shared(texts.iter().map(AsRef::as_ref)) {
                return Ok(Granted::Told(told));
            }
            if texts.iter().any(|other| *other != mine) {
                if let Some(refusal) = differing_orders(texts.iter().map(AsRef::as_ref)) {
                    return Err(refusal.into());
                }
                let texts = texts.iter().map(|text| text.split('\0').next_back());
                return Err(differing(texts.map(|text| text.unwrap_or("").to_owned())).into());
            }
            return self
                .grant(std::slice::from_ref(request))
                .map_err(Error::from);
        }
        let act = |asked: &[Request]| self.act(asked);
        let answer = self
            .meeting
            .meet(rank, request, &self.end, self.timeout, act)?;
        answer.map_err(Error::from)
    }

    /// A group of a split: its errors say which ranks of the world it has.
    fn within(&self, within: Within) {
        self.end.within(within);
    }

    /// A group in which ranks try something: its end is no failure, and nothing of other groups waits for it.
    fn is_trial(&self) {
        self.end.is_trial();
        self.order.yields();
    }

    /// An error of this group, which may name its ranks.
    fn told(&self, error: Error) -> Error {
        match self.end.group() {
            Some(within) => within.error(error),
            None => error,
        }
    }

    /// Memory of that rank's GPU for the heap. Waits until all ranks lend as much.
    pub(crate) fn adopt(&self, rank: u32, wanted: Wanted, address: u64) -> Result<Granted, Error> {
        let loan = Loan::of(self.gpu(rank), address, wanted.bytes);
        let adopted = self.meet(rank, &Request::Adopt(wanted, loan.clone()));
        // Where the ranks made different calls, nobody has taken it.
        drop(loan.take());
        adopted
    }
}
