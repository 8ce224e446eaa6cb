//! The symmetric heap: which ranges of offsets are free, in use, or dropped while a kernel may still use them.

use super::multicasting::Multicasting;
use super::peers::{Dropped, Peers};
use super::refusal::agreed;
use crate::driver::{Address, Event, Gpu, Slots, Stream, fill};
use crate::error::Error;
use crate::gpu_order::lane;
use crate::held::{ALIGN, HeapUse, Holders, Owner};
use crate::multicast::MulticastState;
use crate::rendezvous::Deadline;
use crate::retire::{self, Mark, Retired};
use crate::undo::{Fix, undone};
use range_alloc::RangeAllocator;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Part of every slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// Bytes that `reserve` maps.
    Heap,
    /// A small part at the start, for counter cells that are to be near each other.
    Cells,
}

/// One slot a rank, and what is free in all of them.
#[derive(Debug)]
pub(crate) struct Heap {
    pub(super) gpus: Vec<Gpu>,
    /// Each rank's stream. All its work is in the order of it.
    streams: Vec<Stream>,
    state: Arc<Mutex<State>>,
    pub(super) world: u32,
    /// The other ranks, if they are processes: then the GPU and the stream here are this one's alone.
    pub(super) peers: Option<Arc<Peers>>,
}

#[derive(Debug)]
pub(super) struct State {
    /// Multicast view of the slots. It lets go of their memory before that is gone: fields are dropped in this order.
    pub multicast: Multicasting,
    pub slots: Slots,
    free: RangeAllocator<u64>,
    cells: RangeAllocator<u64>,
    retired: Retired<Mark, Range<u64>>,
    /// Ranges that are given out, and to whom.
    holders: Holders,
    /// Ranges that this rank has dropped and its stream has come past, and others have not, if they are processes.
    passed: Vec<Range<u64>>,
}

impl Heap {
    /// A heap with these slots. Their first bytes, up to where the cells are, are cleared and never given out. A thread waits
    /// so long for others that enqueue.
    pub fn new(
        gpus: Vec<Gpu>,
        mut slots: Slots,
        cells: Range<u64>,
        limit: Duration,
    ) -> Result<Heap, Error> {
        let control = cells.start;
        slots.grow(cells.end)?;
        let index = |rank: usize| {
            let before = gpus[..rank].iter();
            let same = |gpu: &&Gpu| gpu.ordinal() == gpus[rank].ordinal();
            before.filter(same).count()
        };
        let streams = gpus.iter().enumerate().map(|(rank, gpu)| {
            let stream = gpu.stream()?;
            Ok::<_, Error>(stream.in_lane(lane(gpu, index(rank)), limit))
        });
        let heap = Heap {
            streams: streams.collect::<Result<_, _>>()?,
            world: gpus.len() as u32,
            gpus,
            state: Arc::new(Mutex::new(State::new(slots, cells))),
            peers: None,
        };
        // The streams are new, so nothing can wait for what comes behind this.
        let cleared = heap.clear(&(0..control))?;
        for stream in &heap.streams {
            cleared.iter().try_for_each(|event| stream.wait(event))?;
        }
        Ok(heap)
    }

    /// The heap of ranks that are processes, for the one that has this GPU and this stream.
    pub fn apart(
        (gpu, stream): (Gpu, Stream),
        slots: Slots,
        cells: Range<u64>,
        peers: &Arc<Peers>,
        deadline: Deadline,
    ) -> Result<Heap, Error> {
        let end = cells.end;
        let heap = Heap {
            streams: vec![stream],
            gpus: vec![gpu],
            state: Arc::new(Mutex::new(State::new(slots, cells.clone()))),
            world: peers.world(),
            peers: Some(peers.clone()),
        };
        heap.grow_together(peers, end, deadline)?;
        heap.has_grown();
        heap.clear_together(peers, &(0..cells.start), deadline)?;
        Ok(heap)
    }

    /// Number of ranks with a slot.
    pub fn world(&self) -> u32 {
        self.world
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The GPU of each rank.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// Each rank's stream.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Bytes from a rank's slot to the next.
    pub fn stride(&self) -> u64 {
        self.state().slots.stride()
    }

    /// A place in a rank's slot.
    pub fn address(&self, rank: u32, offset: u64) -> Address {
        self.state().slots.address(rank, offset)
    }

    /// Maps memory to the first `bytes` of every slot.
    pub fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let granularity = self.state().multicast.granularity();
        let bytes = bytes.checked_next_multiple_of(granularity).unwrap_or(bytes);
        match &self.peers {
            Some(peers) => self.grow_together(peers, bytes, Deadline::after(peers.limit()))?,
            None => self.state().slots.grow(bytes)?,
        }
        // Nobody has any of it before all can reach it alike.
        self.multicast_grown()?;
        self.has_grown();
        Ok(())
    }

    /// Address at which a store reaches every slot, `bytes` from `offset` on.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason why no multicast reaches them.
    pub fn everywhere(&self, offset: u64, bytes: u64) -> Result<Address, Error> {
        let address = self.state().multicast.address(offset, bytes)?;
        Ok(Address::of(address))
    }

    /// The part of the heap that multicast reaches.
    pub fn multicast(&self) -> MulticastState {
        self.state().multicast.state()
    }

    /// Gives out what has memory now.
    fn has_grown(&self) {
        let mut state = self.state();
        let now = state.slots.backed();
        if now > state.free.initial_range().end {
            state.free.grow_to(now);
        }
    }

    /// A range of that many cleared bytes. Waits for launches that use dropped buffers only where there is no other
    /// room, and at most for so long.
    pub fn allocate(
        self: &Arc<Heap>,
        (name, owner): (&str, Owner),
        bytes: u64,
        room: Room,
        patience: Duration,
    ) -> Result<Allocation, Error> {
        let range = self.take(name, bytes, room, patience)?;
        self.state().holders.add(name, owner, &range);
        match self.clear(&range) {
            Ok(cleared) => Ok(Allocation {
                range,
                // The host has cleared what is shared by processes, before this.
                ready: (0..self.world)
                    .map(|_| AtomicBool::new(self.peers.is_some()))
                    .collect(),
                cleared,
                heap: self.clone(),
            }),
            Err(error) => {
                let mut state = self.state();
                state.holders.remove(&range);
                state.retired.push(range);
                Err(error)
            }
        }
    }

    /// Bytes that are given out, by owner.
    pub fn used(&self) -> HeapUse {
        let state = self.state();
        state.holders.report(state.slots.backed())
    }

    /// Bytes of the largest range that is free for counter cells: as many, in any parts, find room. What was dropped counts once a
    /// collective call has found it unused, so every rank is told the same between two of those.
    pub fn room_for_cells(&self) -> u64 {
        let state = self.state();
        let (mut last, mut most) = (state.cells.initial_range().start, 0);
        for taken in state.cells.allocated_ranges() {
            most = most.max(taken.start - last);
            last = taken.end;
        }
        most.max(state.cells.initial_range().end - last)
    }

    /// Entries of `here` that hold on every rank. All ranks of one process know the same.
    pub fn on_all(&self, here: &[bool]) -> Result<Vec<bool>, Error> {
        match &self.peers {
            None => Ok(here.to_vec()),
            Some(peers) => peers.on_all(here),
        }
    }

    fn take(
        &self,
        name: &str,
        bytes: u64,
        room: Room,
        patience: Duration,
    ) -> Result<Range<u64>, Error> {
        const PAUSE: Duration = Duration::from_micros(50);
        let length = bytes.max(1).checked_next_multiple_of(ALIGN);
        let end = Instant::now() + patience;
        loop {
            let (gone, more) = self.gone(Instant::now() > end)?;
            let mut state = self.state();
            let State {
                slots, free, cells, ..
            } = &mut *state;
            let first = free.initial_range().start;
            for range in gone {
                match range.start < first {
                    true => cells.free_range(range),
                    false => free.free_range(range),
                }
            }
            let from = match room {
                Room::Heap => free,
                Room::Cells => cells,
            };
            if let Some(range) = length.and_then(|length| from.allocate_range(length).ok()) {
                return Ok(range);
            }
            if !more || room == Room::Cells {
                let backed = slots.backed();
                return Err(Error::TooLarge {
                    what: format!(
                        "no room for {name} of {bytes} bytes in the {backed} that are reserved"
                    ),
                    help: format!("`reserve` at least {} first", backed.saturating_add(bytes)),
                });
            }
            drop(state);
            std::thread::sleep(PAUSE);
        }
    }

    /// Ranges that nobody uses any more, and whether others will be free in time. Whatever uses a dropped range was
    /// enqueued by who had a handle of it, so it is in the streams by now.
    fn gone(&self, late: bool) -> Result<(Vec<Range<u64>>, bool), Error> {
        let mut state = self.state();
        let gone = state.retired.sweep(
            |_| Mark::of(self.gpus.iter().zip(&self.streams)).ok(),
            Mark::passed,
        );
        let Some(peers) = &self.peers else {
            return Ok((gone, !late && !state.retired.is_empty()));
        };
        state.passed.extend(gone);
        let mine = Dropped {
            passed: state.passed.clone(),
            used: state.retired.things().cloned().collect(),
            late,
        };
        drop(state);
        let agreed = peers.agree(&mine)?;
        let free = agreed.free;
        self.state().passed.retain(|range| !free.contains(range));
        Ok((free, agreed.more))
    }

    /// Clears a range on every rank, in the order of its stream. Nothing uses it, so the streams' earlier work does not
    /// matter, and the host waits for none of it.
    fn clear(&self, range: &Range<u64>) -> Result<Vec<Event>, Error> {
        if let Some(peers) = &self.peers {
            let deadline = Deadline::after(peers.limit());
            return self
                .clear_together(peers, range, deadline)
                .map(|()| Vec::new());
        }
        let ranks = (0..).zip(self.gpus.iter().zip(&self.streams));
        let clear = |(rank, (gpu, stream)): (u32, (&Gpu, &Stream))| {
            let bytes = range.end - range.start;
            let other = match undone(Fix::Drops) {
                true => Some(gpu.stream()?),
                false => None,
            };
            let stream = other.as_ref().unwrap_or(stream);
            fill(stream, self.address(rank, range.start), 0, bytes)?;
            let event = gpu.event()?;
            event.record_again(stream)?;
            Ok(event)
        };
        // Most of the ranks have another GPU than this thread's.
        ranks.map(|of| of.1.0.aside(|| clear(of))).collect()
    }

    /// Clears a range of ranks that are processes. All have agreed that nobody uses the range, and nobody gets it
    /// before all are here. Who could not clear it is here too, and says why.
    fn clear_together(
        &self,
        peers: &Peers,
        range: &Range<u64>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        // Not under the lock: it takes its time.
        let clearing = self.state().slots.clearing(peers.rank(), range);
        let cleared = clearing().map(|()| None);
        agreed(peers, "clears new memory", deadline, cleared).map(drop)
    }
}

impl State {
    fn new(slots: Slots, cells: Range<u64>) -> State {
        State {
            multicast: Multicasting::default(),
            free: RangeAllocator::new(cells.end..slots.backed().max(cells.end)),
            cells: RangeAllocator::new(cells),
            slots,
            retired: Retired::new(),
            holders: Holders::default(),
            passed: Vec::new(),
        }
    }
}

/// Copies to or from the heap may still run: its memory stays until they are done.
impl Drop for Heap {
    fn drop(&mut self) {
        for (gpu, stream) in self.gpus.iter().zip(&self.streams) {
            let last = Last {
                state: Some(self.state.clone()),
                peers: self.peers.clone(),
            };
            retire::later(gpu, stream, last);
        }
    }
}

/// Heap until its streams are done. Ranks that are processes then keep their memory until their peers are done, too.
struct Last {
    state: Option<Arc<Mutex<State>>>,
    peers: Option<Arc<Peers>>,
}

impl Drop for Last {
    fn drop(&mut self) {
        if let (Some(state), Some(peers)) = (self.state.take(), &self.peers) {
            peers.keep(state);
        }
    }
}

/// A range of offsets. It can be given out again once every rank has dropped it and no stream has work left that was
/// enqueued before.
#[derive(Debug)]
pub(crate) struct Allocation {
    range: Range<u64>,
    heap: Arc<Heap>,
    /// In each rank's stream, after its memory was cleared.
    cleared: Vec<Event>,
    /// True of a rank whose stream has come past all of these.
    ready: Vec<AtomicBool>,
}

impl Allocation {
    /// Memory that another library lent. It holds what it held, and stays in the slots for as long as the heap.
    pub(super) fn lent(heap: &Arc<Heap>, name: &str, range: Range<u64>) -> Allocation {
        heap.state().holders.add(name, Owner::Library, &range);
        Allocation {
            range,
            ready: (0..heap.world).map(|_| AtomicBool::new(true)).collect(),
            cleared: Vec::new(),
            heap: heap.clone(),
        }
    }

    /// Number of ranks with a slot.
    pub(crate) fn world(&self) -> u32 {
        self.heap.world
    }

    /// True if it is in that heap.
    pub(super) fn is_in(&self, heap: &Arc<Heap>) -> bool {
        Arc::ptr_eq(&self.heap, heap)
    }

    /// Address in a rank's slot.
    pub fn on(&self, rank: u32) -> Address {
        assert!(rank < self.world(), "rank {rank} of {}", self.world());
        self.heap.address(rank, self.range.start)
    }

    /// Address at which a store reaches every rank's copy.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason why no multicast reaches it.
    pub fn everywhere(&self) -> Result<Address, Error> {
        self.heap.everywhere(self.range.start, self.bytes())
    }

    /// True if one mapping is behind that part of each rank's slot.
    pub(crate) fn is_one_piece(&self, range: Range<u64>) -> bool {
        self.heap.state().slots.is_one_piece(&range)
    }

    /// Offset in each rank's slot, in bytes.
    pub fn offset(&self) -> u64 {
        self.range.start
    }

    /// Size on each rank, in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// True if what comes later in a rank's stream finds the memory cleared on every rank.
    pub fn is_ready(&self, rank: u32) -> bool {
        self.ready[rank as usize].load(Ordering::Acquire)
    }

    /// Lets a rank's stream wait until the memory is cleared on every rank. Call it in the rank's turn, before anything in
    /// that stream uses a peer's. The host does not wait.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn ready(&self, rank: u32) -> Result<(), Error> {
        if self.is_ready(rank) {
            return Ok(());
        }
        let stream = &self.heap.streams[rank as usize];
        for event in &self.cleared {
            if !event.is_done()? {
                stream.wait(event)?;
            }
        }
        self.ready[rank as usize].store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let mut state = self.heap.state();
        state.holders.remove(&self.range);
        if self.range.start >= state.slots.own_end() {
            return;
        }
        if undone(Fix::Drops) && self.range.start >= state.free.initial_range().start {
            state.free.free_range(self.range.clone());
        } else {
            state.retired.push(self.range.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Group;
    use crate::emulated::{self, Machine};
    use crate::rendezvous::{Deadline, Threads};
    use crate::shared::Links;
    use std::thread::scope;
    use std::time::Duration;

    #[test]
    fn what_one_process_cannot_clear_all_hear_of_and_go_on() {
        scope(|scope| {
            for seat in Threads::of(2) {
                scope.spawn(move || {
                    let deadline = Deadline::after(Duration::from_secs(60));
                    let links = Links::make(&seat, deadline).expect("connected");
                    let rank = links.rank();
                    let machine = Machine::new(1, 0, u64::MAX);
                    let open = || Ok(emulated::Gpu::of(&machine, 0).into());
                    let group = Group::apart(open, true, links, deadline).expect("a group");
                    let heap = &group.heap;
                    heap.reserve(1 << 20).expect("memory");
                    // Rank 1 has no memory there.
                    let end = heap.state().slots.backed();
                    let start = [end - 1024, end][rank as usize];
                    let error = heap.clear(&(start..start + 1024)).expect_err("refused");
                    assert_eq!(error.kind(), "driver", "{error}");
                    assert!(error.to_string().contains("rank 1: "), "{error}");
                    let after = heap.on_all(&[true, rank == 0]).expect("all go on");
                    assert_eq!(after, [true, false]);
                });
            }
        });
    }
}
