//! A communicator among those on its GPUs.

use super::order::{Last, Order, Turn, Where};
use crate::driver::{Current, Event, Gpu, Stream};
use crate::error::Error;
use crate::undo::{Fix, undone};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static ORDER: Mutex<Order<Stream, Arc<Event>>> = Mutex::new(Order::new());

/// The launches of all communicators of this process.
pub(super) fn order() -> MutexGuard<'static, Order<Stream, Arc<Event>>> {
    ORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A communicator among those on its GPUs.
#[derive(Debug)]
pub(crate) struct Member {
    number: u64,
    /// The GPU of each rank, and which of the communicator's ranks there it is.
    pub(super) ranks: Vec<(Gpu, usize)>,
    pub(super) streams: Vec<Stream>,
}

impl Member {
    /// A communicator with these ranks.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn join(gpus: &[Gpu], streams: &[Stream]) -> Result<Member, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let ranks = gpus.iter().zip(streams);
        let ranks = ranks.map(|(gpu, stream)| (gpu.into(), stream.clone()));
        order().join(number, ranks);
        let index = |rank: usize| {
            let before = gpus[..rank].iter();
            before
                .filter(|gpu| Where::from(*gpu) == Where::from(&gpus[rank]))
                .count()
        };
        let ranks = gpus.iter().enumerate();
        let member = Member {
            number,
            ranks: ranks
                .map(|(rank, gpu)| (gpu.clone(), index(rank)))
                .collect(),
            streams: streams.to_vec(),
        };
        // From here on the others' launches have events. Those before get one now, not under the lock: the driver may
        // let a full stream wait.
        let places: Vec<Where> = gpus.iter().map(Where::from).collect();
        let unmarked = order().unmarked(&places);
        for (other, place, index, stream) in unmarked {
            // A stream is on one of these GPUs.
            let Some(gpu) = gpus.iter().find(|gpu| Where::from(*gpu) == place) else {
                continue;
            };
            let mark = || gpu.current()?.order(&stream);
            let event = Arc::new(gpu.aside(mark)?);
            order().mark((other, place, index), event);
        }
        Ok(member)
    }

    /// No launch of another communicator waits for this one's.
    pub fn yields(&self) {
        order().yields(self.number);
    }

    /// True if another communicator of this process has ranks on one of this one's GPUs. What serves a trial is not counted.
    pub fn has_company(&self) -> bool {
        order().has_company(self.number)
    }

    /// True if a launch of another communicator of this process runs on that rank's GPU.
    pub fn is_busy_beside(&self, rank: u32) -> bool {
        let (gpu, _) = &self.ranks[rank as usize];
        order().is_busy_beside(self.number, gpu.into(), |event| event.is_past())
    }

    /// A rank is about to enqueue one or more launches of so many CTAs at most in its stream, which first wait for what
    /// does not fit beside them. Drop the result when they are enqueued. `alive` ends the wait for another thread that is
    /// enqueueing.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if this launch would wait for one that waits for it; what the driver refuses.
    pub fn begin<'a>(
        &'a self,
        (rank, current): (u32, Current<'a>),
        launches: RangeInclusive<u64>,
        ctas: u32,
        alive: impl Fn() -> Result<(), Error>,
    ) -> Result<Enqueueing<'a>, Error> {
        const PAUSE: Duration = Duration::from_micros(5);
        let (gpu, index) = &self.ranks[rank as usize];
        let (ours, place) = ((self.number, &launches), (gpu.into(), *index));
        // Once launches are captured, nobody knows what runs: all take turns.
        let captured = self.streams[rank as usize].lane();
        let captured = captured.is_some_and(|lane| lane.is_open());
        let room = (ctas, if captured { 0 } else { gpu.sms() });
        let refused = |what: String| {
            Error::Mismatch {
            what,
            help: "launch on communicators that share GPUs in the same order on every rank, or plan for fewer SMs so that both fit".into(),
        }
        };
        let past = |event: &Arc<Event>| event.is_past();
        let waits = loop {
            let turn = order().begin(ours, place, room, past);
            match turn {
                Turn::After(waits) => break waits,
                Turn::Busy => {
                    alive()?;
                    std::thread::sleep(PAUSE);
                }
                Turn::Crossed(crossed) => return Err(refused(crossed.to_string())),
                Turn::Split(split) => return Err(refused(split.to_string())),
            }
        };
        let enqueueing = Enqueueing {
            member: self,
            rank,
            current,
            // What comes behind these comes behind the last.
            launch: *launches.end(),
        };
        let stream = &self.streams[rank as usize];
        if !undone(Fix::Turns) {
            let mut waits = waits.iter();
            waits.try_for_each(|event| current.wait(stream, event))?;
        }
        Ok(enqueueing)
    }
}

/// Leaves when the communicator's launches are done: its group lives until then.
impl Drop for Member {
    fn drop(&mut self) {
        order().leave(self.number);
    }
}

/// A launch that is being enqueued.
#[derive(Debug)]
pub(crate) struct Enqueueing<'a> {
    member: &'a Member,
    rank: u32,
    current: Current<'a>,
    launch: u64,
}

impl Drop for Enqueueing<'_> {
    fn drop(&mut self) {
        let Member {
            number,
            ranks,
            streams,
        } = self.member;
        let (gpu, index) = &ranks[self.rank as usize];
        let ours = (*number, self.launch);
        // A communicator that joins later marks what is in the stream by now.
        if order().end_alone(ours, gpu.into(), *index) {
            return;
        }
        // A context that takes no event is dead, and runs nothing.
        let last = self.current.order(&streams[self.rank as usize]);
        let last = last.map_or(Last::Done, |event| Last::Marked(Arc::new(event)));
        order().end(ours, gpu.into(), *index, last);
    }
}
