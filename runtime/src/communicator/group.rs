//! What the ranks of a process do together, and how a stall is told.

use super::{ABORT, ALIGN, Answer, Awaited, Group, Refusal, Request, lock};
use crate::cuda::{Address, fill};
use crate::error::{Error, Stall};
use crate::user_buffer::Allocation;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Meet => write!(f, "meets"),
            Request::Reserve(bytes) => write!(f, "reserves {bytes} bytes"),
            Request::Allocate(bytes) => write!(f, "allocates {bytes} bytes"),
            Request::Launch { plan, m } => write!(f, "launches plan {plan:016x} of {m} rows"),
        }
    }
}

impl Group {
    pub(crate) fn address(&self, rank: u32, offset: u64) -> Address {
        lock(&self.heap).slots.address(rank, offset)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Refuses if a rank gave up before.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        match &lock(&self.meeting).dead {
            Some(stall) => Err(Error::Stalled(Box::new(stall.clone()))),
            None => Ok(()),
        }
    }

    /// Nothing goes on after this: every rank is told at its next call. The first story stays. Who was about to tell one
    /// comes first: what gave up meanwhile did so because of it.
    pub(crate) fn die(&self, stall: Stall) -> Stall {
        let mut meeting = lock(&self.meeting);
        while let (None, Some(end)) = (&meeting.dead, meeting.telling) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.turn.wait_timeout(meeting, left);
            meeting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let first = meeting.dead.get_or_insert(stall).clone();
        drop(meeting);
        self.turn.notify_all();
        first
    }

    /// Makes [`Group::die`] wait for the story of who calls this, which takes so long to tell at most.
    pub(crate) fn about_to_tell(&self, most: Duration) {
        let mut meeting = lock(&self.meeting);
        meeting.telling.get_or_insert_with(|| Instant::now() + most);
    }

    /// The story that was announced, unless there is one already.
    pub(crate) fn tell(&self, stall: Stall) {
        lock(&self.meeting).dead.get_or_insert(stall);
        self.turn.notify_all();
    }

    /// Whether a further stream of each rank on that rank's GPU has a hardware queue, beside its own and its copies'.
    pub(crate) fn has_room(&self, rank: u32) -> bool {
        self.queues.have_room(self.queues.gpus[rank as usize], 3)
    }

    /// The flags that every spinning kernel watches.
    pub(crate) fn abort_flags(&self) -> impl Iterator<Item = Address> {
        (0..self.gpus.len()).map(|rank| self.address(rank as u32, ABORT))
    }

    /// How many launches a rank has enqueued.
    pub(crate) fn launched(&self, rank: u32) -> u64 {
        self.launched[rank as usize].load(Ordering::Relaxed)
    }

    /// The same of each.
    pub(crate) fn all_launched(&self) -> Vec<u64> {
        let ranks = 0..self.gpus.len() as u32;
        ranks.map(|rank| self.launched(rank)).collect()
    }

    pub(crate) fn free(&self, range: std::ops::Range<u64>) {
        lock(&self.heap).free.free_range(range);
    }

    /// Does what all asked for, in the thread of the last.
    pub(super) fn act(self: &Arc<Group>, asked: &[Request]) -> Answer {
        let request = asked[0];
        if asked.iter().any(|other| *other != request) {
            let each: Vec<String> = asked
                .iter()
                .enumerate()
                .map(|(rank, asked)| format!("rank {rank} {asked}"))
                .collect();
            return Err(Refusal::Mismatch(format!(
                "the ranks do different things: {}",
                each.join(", ")
            )));
        }
        match request {
            Request::Meet | Request::Launch { .. } => Ok(None),
            Request::Reserve(bytes) => {
                let mut heap = lock(&self.heap);
                let before = heap.slots.backed();
                heap.slots.grow(bytes).map_err(refusal)?;
                let now = heap.slots.backed();
                if now > before {
                    heap.free.grow_to(now);
                }
                Ok(None)
            }
            Request::Allocate(bytes) => {
                let length = bytes.max(1).next_multiple_of(ALIGN);
                let range = {
                    let mut heap = lock(&self.heap);
                    let backed = heap.slots.backed();
                    heap.free
                        .allocate_range(length)
                        .map_err(|_| Refusal::Full {
                            what: format!(
                                "no room for {bytes} bytes in the {backed} that are reserved"
                            ),
                            help: format!("`reserve` at least {} first", backed + length),
                        })?
                };
                let allocation = Arc::new(Allocation::new(range.clone(), self.clone()));
                for (rank, gpu) in self.gpus.iter().enumerate() {
                    let zero = || {
                        let stream = gpu.stream()?;
                        fill(&stream, self.address(rank as u32, range.start), 0, length)?;
                        stream.synchronize().map_err(|error| Error::Driver {
                            what: "clear the memory".into(),
                            code: format!("{:?}", error.0),
                            help: "an earlier kernel died: start a new process".into(),
                        })
                    };
                    zero().map_err(refusal)?;
                }
                Ok(Some(allocation))
            }
        }
    }

    /// The story of a kernel that gave up: this rank's own, or a peer's.
    pub(crate) fn stall(&self, rank: u32) -> Option<Stall> {
        let own = std::iter::once(rank as usize);
        let (told, names) = own.chain(0..self.records.len()).find_map(|rank| {
            Some((
                self.records[rank].told()?,
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

fn refusal(error: Error) -> Refusal {
    match error {
        Error::Driver { what, code, help } => Refusal::Driver { what, code, help },
        other => Refusal::Full {
            what: other.to_string(),
            help: other.help().unwrap_or_default().into(),
        },
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        match refusal {
            Refusal::Mismatch(what) => Error::Mismatch {
                what,
                help: "every rank makes the same calls with the same sizes in the same order"
                    .into(),
            },
            Refusal::Full { what, help } => Error::TooLarge { what, help },
            Refusal::Driver { what, code, help } => Error::Driver { what, code, help },
        }
    }
}
