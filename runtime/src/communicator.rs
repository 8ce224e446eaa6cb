//! The ranks: GPUs of one process, a thread each, or of a process each, with one symmetric heap.
//!
//! Collective calls (reserve, allocate, barrier) compare what the ranks ask for, and every launch is compared with the
//! peers' launch of the same number. A difference is an error on every rank; a rank that does not come is
//! [`Error::Stalled`] after the limit. A rank that ends early, or calls [`Communicator::abort`], ends the communicator:
//! the others get [`Error::Aborted`] within a second. None of this hangs, and a new communicator can be built after it.

mod captured;
mod counts;
mod handles;
mod multicast;
mod processes;
mod split;
mod start;
mod trial;

use crate::compares::Compares;
use crate::driver::{Address, Current, Event, Gpu, Stream, Watch, is_done, range};
use crate::error::Error;
use crate::gpu_order::Enqueueing;
use crate::group::{
    Allocation, End, Entry, Granted, Group, Named, Names, Needs, Orders, Passage, Placed, Refusal,
    Request, Verdict, Wanted,
};
use crate::held::HeapUse;
use crate::metrics::Metrics;
use crate::own::{Own, Turn};
use crate::proof::Proven;
use crate::retire;
use crate::streams::CopyStream;
use counterflow_codegen::host::Queues;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::program::Program;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tracing::debug;

/// One rank of a group: its GPU, its stream, its slot of the heap.
///
/// ```
/// use counterflow::Communicator;
///
/// let ranks = Communicator::emulated(2)?; // or `local(2)`: a GPU each
/// let read = Communicator::each(&ranks, |rank| {
///     rank.reserve(2 << 20)?; // a slot of the heap on every rank
///     let buffer = rank.allocate::<u32>("x", [4])?;
///     let peer = (rank.rank() + 1) % rank.world();
///     buffer.write_on(peer, &[rank.rank(); 4])?;
///     rank.synchronize()?; // what this rank enqueued is done
///     rank.barrier()?; // and what its peers enqueued
///     buffer.read()
/// })?;
/// assert_eq!(read, [[1; 4], [0; 4]]);
/// # Ok::<(), counterflow::Error>(())
/// ```
pub struct Communicator {
    rank: u32,
    own: Arc<Own>,
    /// Made for the first kernel whose data copy engines move.
    copies: Arc<OnceLock<CopyStream>>,
    /// Made for the first kernel that waits for peers.
    compares: Arc<OnceLock<Compares>>,
    group: Arc<Group>,
    /// Ops that the ranks of this process built: each choice and proof is made once.
    proven: Arc<Proven>,
    /// Counts of this rank's builds and launches.
    metrics: Arc<Metrics>,
    /// Rank numbers in the communicators that splits made this one of.
    ancestors: Arc<[(Weak<Group>, u32)]>,
    /// Time that kernels wait for a peer, if it is another than the communicator's.
    patience: Option<Duration>,
    /// True if it is the one that the user has: the rank leaves when that is dropped.
    seat: bool,
    /// Handle that all which is made with this one shares.
    shared: OnceLock<Arc<Communicator>>,
}

/// Names the rank alone: most other things have a communicator, and all that it has would follow.
impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank)
            .field("world", &self.world())
            .field("gpu", &self.gpu().ordinal())
            .finish_non_exhaustive()
    }
}

/// The value of [`Communicator::sms`] on a GPU with `sms` SMs that several ranks share, with or without copies by the
/// host. Use it to choose a variant before there are ranks.
pub fn share(sms: u32, sharing: u32, copied: bool) -> u32 {
    (sms - u32::from(copied && sharing > 1)) / sharing
}

impl Communicator {
    /// Ends the communicator, from any thread: kernels that wait give up within milliseconds and drain, and every rank's
    /// calls give [`Error::Aborted`] with that reason. The GPUs' contexts live, and a new communicator can be built. If
    /// it has ended before, the first cause stays.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let ranks = Communicator::emulated(2)?;
    /// ranks[1].abort("the server shuts down");
    /// let error = ranks[0].barrier().unwrap_err();
    /// assert_eq!(error.to_string(), "rank 1 ended the communicator: the server shuts down");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn abort(&self, reason: impl std::fmt::Display) {
        let rank = self.rank;
        let told = format!("rank {rank} ended the communicator: {reason}");
        self.group.die(Verdict::Aborted(told));
    }

    /// Tells the others that this rank ended early.
    pub(crate) fn ended_early(&self, why: &str) {
        if self.world() > 1 {
            let told = format!("rank {} ended early: {why}", self.rank);
            self.group.die(Verdict::Aborted(told));
        }
    }

    /// Tells who waits for it too long, or for this rank when it leaves, that it was refused a launch. That ends nothing.
    pub(crate) fn was_refused(&self, what: &str) {
        if self.world() > 1 {
            self.ends().refuses(self.rank, what);
        }
    }

    /// Tells the others, who come to do it, that this rank cannot do something, and why. All go on. Gives the error.
    pub(crate) fn refuses(&self, error: Error) -> Error {
        if self.world() > 1 {
            // What they do about it is not this rank's error.
            let _ = self.meet(&Request::Refuse(Refusal::own(&error)));
        }
        error
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    pub fn world(&self) -> u32 {
        self.group.world()
    }

    /// The rows of a rank's shard where ranks divide so many rows: as many as every other rank has, but for the last ones.
    /// [`Op::shard`](crate::Op::shard) says it of an op's tensor, whose shards may be larger.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let ranks = Communicator::emulated(3)?;
    /// assert_eq!([0, 1, 2].map(|rank| ranks[0].shard(rank, 64)), [0..22, 22..44, 44..64]);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn shard(&self, rank: u32, rows: usize) -> Range<usize> {
        let each = rows.div_ceil(self.world() as usize);
        let start = (rank as usize).saturating_mul(each).min(rows);
        start..(start + each).min(rows)
    }

    /// This rank's GPU.
    pub fn gpu(&self) -> &Gpu {
        self.group.gpu(self.rank)
    }

    /// SMs that a kernel's CTAs on this rank may take at once: its share of the GPU's SMs. Plan for this number.
    ///
    /// Plan for fewer ([`sm_margin`](crate::OpBuilder::sm_margin)) if other kernels run on the GPU meanwhile that wait for
    /// kernels of their own on other GPUs, as NCCL's do: if neither leaves the other the SMs it needs, both wait for ever.
    /// Or order them by events, alike on every GPU. Launches of several communicators that do not fit together take turns.
    ///
    /// The driver copies within a GPU by kernels, even if asked for a copy engine. One SM is left to them, because the
    /// kernels that wait for the copies keep their own SMs until the copies are done.
    ///
    /// ```
    /// use counterflow::codegen::lower::lower;
    /// use counterflow::{Communicator, Variant, schedules::ag_gemm};
    ///
    /// let ranks = Communicator::emulated(2)?;
    /// let kernel = lower(&ag_gemm(), &Variant::new(2))?;
    /// assert_eq!(ranks[0].sms(&kernel), ranks[0].gpu().sms()); // each rank has a GPU of its own
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn sms(&self, kernel: &Kernel) -> u32 {
        self.share(kernel.roles.iter().any(|role| role.kind.sequential()))
    }

    /// True if other ranks are on this rank's GPU.
    pub(crate) fn shares_gpu(&self) -> bool {
        self.group.shares(self.rank)
    }

    /// Share of the GPU, with or without copies by the host.
    pub(crate) fn share(&self, copied: bool) -> u32 {
        let gpus = self.group.gpus().iter();
        let sharing = gpus
            .filter(|gpu| gpu.ordinal() == self.gpu().ordinal())
            .count() as u32;
        share(self.gpu().sms(), sharing, copied)
    }

    /// This rank's stream: all launches, copies and fills of this rank are in its order. Others may use it too. From the
    /// first call on it may hold their kernels, so no launch there is a programmatic dependent launch any more. That call
    /// waits for a launch that another thread of the rank is enqueueing.
    ///
    /// Our kernels that only move data let the next kernel begin before their end: a kernel of yours that is launched there with
    /// programmatic stream serialization must wait (`griddepcontrol.wait`) before it touches what they write.
    ///
    /// ```
    /// use counterflow::{Communicator, driver::Event};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let tensor = rank.zeros::<f32>([64, 64])?;
    /// tensor.fill(0xff)?;
    /// let filled = Event::record(rank.stream())?;
    /// let mine = rank.gpu().stream()?;
    /// mine.wait(&filled)?; // what comes later in this stream comes after the fill
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn stream(&self) -> &Stream {
        self.own.lend()
    }

    /// Stream for work that only enqueues what is ours and waits for nobody.
    pub(crate) fn own_stream(&self) -> &Stream {
        self.own.stream()
    }

    /// State of that stream.
    pub(crate) fn own(&self) -> &Arc<Own> {
        &self.own
    }

    /// True if the stream may hold kernels that are not ours.
    pub(crate) fn has_lent(&self) -> bool {
        self.own.has_lent()
    }

    /// This rank's turn to launch.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn turn(&self, current: Current<'_>) -> Result<Turn<'_>, Error> {
        self.own.turn(current)
    }

    /// True if that is in this communicator's heap.
    pub(crate) fn owns(&self, range: &Allocation) -> bool {
        self.group.owns(range)
    }

    /// True if both are handles of one rank.
    pub(crate) fn is(&self, other: &Communicator) -> bool {
        self.rank == other.rank && Arc::ptr_eq(&self.group, &other.group)
    }

    /// True if this rank is that one in a group that splits made of the other's communicator.
    pub(crate) fn descends_from(&self, other: &Communicator) -> bool {
        let same = |(group, rank): &(Weak<Group>, u32)| {
            *rank == other.rank && std::ptr::eq(group.as_ptr(), Arc::as_ptr(&other.group))
        };
        self.ancestors.iter().any(same)
    }

    /// End of the communicator.
    pub(crate) fn ends(&self) -> &Arc<End> {
        self.group.ends()
    }

    /// Counts of this rank's builds and launches.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Ops that the ranks of this process built.
    pub(crate) fn proven(&self) -> &Proven {
        &self.proven
    }

    /// Maps memory to the first `bytes` of every rank's slot. Collective. No address changes. A little more than the first
    /// MiB is the communicator's own: reserve that beside what buffers and ops take.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// rank.reserve(2 << 20)?;
    /// let error = rank.allocate::<f32>("x", [1024, 1024]).unwrap_err();
    /// println!("{error}: {}", error.help().unwrap_or_default()); // it says how much to reserve
    /// rank.reserve(8 << 20)?;
    /// rank.allocate::<f32>("x", [1024, 1024])?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// Too little memory or too few addresses; [`Error::Mismatch`], [`Error::Stalled`].
    pub fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let _range = range(|| format!("reserve {bytes} bytes, rank {}", self.rank));
        self.meet(&Request::Reserve(bytes))?;
        debug!(rank = self.rank, bytes, "heap reserved");
        Ok(())
    }

    /// A number, counter cells and scratch for a kernel that all ranks load. Collective.
    pub(crate) fn place(&self, needs: Needs) -> Result<Arc<Placed>, Error> {
        match self.meet(&Request::Load(needs))? {
            Granted::Kernel(placed) => Ok(placed),
            other @ (Granted::Done | Granted::Memory(_) | Granted::Split(_) | Granted::Told(_)) => {
                Err(misled(&other))
            }
        }
    }

    /// Agrees on the orders by closure of a schedule that all ranks build. Collective, if it has any.
    pub(crate) fn agrees_on_orders(&self, program: &Program) -> Result<(), Error> {
        match Orders::of(program) {
            Some(orders) => self.meet(&Request::Orders(orders)).map(drop),
            None => Ok(()),
        }
    }

    /// Tells the other ranks that text, which has no zero in it, and gives what each rank tells. Collective.
    pub(crate) fn shares(&self, text: &str) -> Result<Arc<[String]>, Error> {
        match self.meet(&Request::Share(text.into()))? {
            Granted::Told(all) => Ok(all),
            other @ (Granted::Done
            | Granted::Kernel(_)
            | Granted::Memory(_)
            | Granted::Split(_)) => Err(misled(&other)),
        }
    }

    /// Waits until every rank's thread is here, not for their GPUs.
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::Stalled`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.meet(&Request::Meet).map(drop)
    }

    /// Writes this rank's next launch into the ledger that all ranks read, and compares it with what the peers wrote.
    /// Call it before anything of the launch is enqueued, and once for every replay of a captured launch. It does not
    /// wait for the peers.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if a peer launches something else: then every rank gets it, and the communicator is dead.
    pub(crate) fn write(&self, entry: &Entry) -> Result<u64, Error> {
        let launch = self.group.write(self.rank, entry)?;
        self.goes_on();
        Ok(launch)
    }

    /// This rank launches, or captured a launch, after what it was refused.
    pub(crate) fn goes_on(&self) {
        self.ends().goes_on(self.rank);
    }

    /// Lets launches of these numbers, of so many CTAs at most, wait in this rank's stream for launches of other
    /// communicators that do not fit on the GPU beside them. Drop the result when they are enqueued. Call it for every
    /// launch that waits for peers, and for every replay of a graph with such.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if it would wait for a launch that waits for it.
    pub(crate) fn order<'a>(
        &'a self,
        current: Current<'a>,
        launches: RangeInclusive<u64>,
        ctas: u32,
    ) -> Result<Enqueueing<'a>, Error> {
        self.group.order(self.rank, current, launches, ctas)
    }

    /// Lets this rank enqueue so many launches that wait for peers, or other work, behind what is in these streams, its
    /// own among them. The caller has the rank's turn.
    ///
    /// # Errors
    /// [`Error::Usage`] if a peer's launch that waits for this rank stands in one of them.
    pub(crate) fn passes<'s>(
        &self,
        streams: impl Iterator<Item = &'s Stream> + Clone,
        launches: u64,
    ) -> Result<Passage<'_>, Error> {
        self.group.passes(self.rank, streams, launches)
    }

    /// This rank's launches until that number stand in one more stream until `done`.
    pub(crate) fn stands(&self, stream: &Stream, launch: u64, done: &Arc<Event>) {
        self.group.stands(self.rank, stream, launch, done);
    }

    /// Waits for this rank's stream.
    ///
    /// # Errors
    /// [`Error::Stalled`] with who waited for what, if a kernel of any rank gave up; [`Error::Aborted`] if a rank ended
    /// early; otherwise the error that ended it.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.own.must_not_record("a wait of the host")?;
        // Replays that the program launched by now come before the end of this rank's stream.
        drop(self.own_stream().enter()?);
        self.until(|| is_done(self.own_stream()))
    }

    /// Waits for something of this rank's stream.
    pub(crate) fn until(&self, done: impl Fn() -> Result<bool, Error>) -> Result<(), Error> {
        self.own.waits()?;
        let ended = self.drained(done);
        self.judge(ended)
    }

    /// Passes an outcome on, unless the communicator ended: then the reason. Results of such a launch are none.
    pub(crate) fn judge<T>(&self, ended: Result<T, Error>) -> Result<T, Error> {
        // A kernel that gave up ended, too, and so did one that took its signals for good.
        self.alive()?;
        ended.map_err(|error| match error {
            Error::Driver { code, .. } => Error::Driver {
                what: format!("rank {} waits for its GPU", self.rank),
                code,
                help: "the kernel died: start a new process; `compute-sanitizer` names the line"
                    .into(),
            },
            other => other,
        })
    }

    /// Waits until `done`. Once the communicator has ended, it waits one more time limit at most: then something hangs that
    /// nothing of ours can end.
    fn drained(&self, done: impl Fn() -> Result<bool, Error>) -> Result<(), Error> {
        /// Most kernels end in microseconds, so polling costs less than sleeping. A long wait is told a 64th late at most.
        const EAGER: Duration = Duration::from_millis(1);
        const PAUSE: Duration = Duration::from_micros(50);
        let start = Instant::now();
        let mut dead = None;
        while !done()? {
            if start.elapsed() < EAGER {
                std::hint::spin_loop();
                continue;
            }
            if let Err(stalled) = self.alive() {
                let since = *dead.get_or_insert_with(Instant::now);
                if since.elapsed() > self.group.timeout() {
                    return Err(stalled);
                }
            }
            std::thread::sleep((start.elapsed() / 64).clamp(PAUSE, EAGER));
        }
        Ok(())
    }

    /// Bytes from a rank's slot to the next.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let ranks = Communicator::emulated(2)?;
    /// Communicator::each(&ranks, |rank| {
    ///     rank.reserve(2 << 20)?;
    ///     let x = rank.allocate::<u8>("x", [16])?;
    ///     assert_eq!(x.on(1), x.on(0).plus(rank.stride()));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn stride(&self) -> u64 {
        self.group.stride()
    }

    /// Memory of the heap by owner: what is given out now, and the most that was at once. Each group has a heap of its own.
    /// What was
    /// dropped is not in it, though a launch may still use it.
    ///
    /// ```
    /// use counterflow::{Communicator, Owner};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// rank.reserve(2 << 20)?;
    /// let x = rank.allocate::<f32>("x", [1024])?;
    /// drop(rank.allocate::<f32>("y", [512])?);
    /// let found = rank.heap_use();
    /// assert_eq!((found.used, found.peak), (4096, 6144));
    /// assert_eq!((&*found.held[0].name, found.held[0].owner), ("x", Owner::Program));
    /// assert_eq!((found.held[0].offset, found.held[0].bytes), (x.offset(), 4096));
    /// println!("{found}"); // a line for each
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn heap_use(&self) -> HeapUse {
        self.group.heap_use()
    }

    /// Bytes that are free for counter cells of kernels that share scratch: the same on every rank between two collective calls.
    pub(crate) fn room_for_cells(&self) -> u64 {
        self.group.heap.room_for_cells()
    }

    /// Address of slot 0 of the heap.
    pub(crate) fn heap(&self) -> Address {
        self.group.address(0, 0)
    }

    /// The stream of this rank's copies.
    pub(crate) fn copies(&self) -> Result<&CopyStream, Error> {
        if let Some(copies) = self.copies.get() {
            return Ok(copies);
        }
        let copies = CopyStream::new(self.gpu(), self.rank, &self.group)?;
        Ok(self.copies.get_or_init(|| copies))
    }

    /// Watch of a kernel of this rank, by which it gives up after it waited longer than `limit` for one of so many
    /// cells. Its names are known until the second result is dropped.
    pub(crate) fn watch(
        &self,
        kernel: u32,
        names: Names,
        limit: Duration,
        cells: u32,
    ) -> (Watch, Named) {
        let named = End::name(self.group.ends(), (self.rank, kernel), names);
        (self.group.watch(self.rank, kernel, limit, cells), named)
    }

    /// The hardware queues of each rank's GPU.
    pub(crate) fn queues(&self) -> &Queues {
        self.group.queues()
    }

    /// Counts a launch of this rank that peers wait for.
    ///
    /// # Errors
    /// If a peer was dropped that has not made it.
    pub(crate) fn launches(&self) -> Result<(), Error> {
        self.group.ends().launches(self.rank)
    }

    /// Fails if the communicator has ended.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        self.group.alive()
    }

    /// Lends memory at that address to the heap. Waits until all ranks do.
    pub(crate) fn lend(&self, wanted: Wanted, address: u64) -> Result<Granted, Error> {
        self.own.must_not_have_turn("a call of all ranks")?;
        self.group.adopt(self.rank, wanted, address)
    }

    /// Waits until all ranks ask the same, and gives the answer.
    pub(crate) fn meet(&self, request: &Request) -> Result<Granted, Error> {
        // Peers that come to it may wait for this rank's turn.
        self.own.must_not_have_turn("a call of all ranks")?;
        self.group.meet(self.rank, request)
    }
}

/// Kernels of this rank may still run, and use memory and records of the group: both stay until they are done.
impl Drop for Communicator {
    fn drop(&mut self) {
        if self.seat {
            self.group.leaves(self.rank);
        }
        retire::later(self.gpu(), self.own_stream(), self.group.clone());
    }
}

/// A meeting gave what nobody asked for.
pub(crate) fn misled(granted: &Granted) -> Error {
    Error::Mismatch {
        what: format!("a call of all ranks gave {granted:?}"),
        help: "report it".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_share_a_gpu_leave_the_driver_an_sm_for_its_copies() {
        let of = |sharing| [false, true].map(|copied| share(132, sharing, copied));
        assert_eq!(of(1), [132; 2], "copies between GPUs take no SM");
        assert_eq!(of(4), [33, 32]);
    }
}
