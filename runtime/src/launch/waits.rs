//! What bounds the waits of a stream. A GPU lets a stream wait for ever, so a thread of the host looks whether one stands
//! still: the stream marks in host memory how far it came. After the time limit the thread tells the story, tells every
//! kernel to give up, and stores what is waited for, so that the stream drains and nothing hangs.

use crate::communicator::Group;
use crate::cuda::{Address, CudaStream, Gpu, MemoryOp, Pinned, finished, memory_ops, read, write};
use crate::error::{Error, Stall};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often the thread looks, at least.
const TICK: Duration = Duration::from_millis(100);
/// How many launches the host is ahead of the stream, at most. A stream takes a thousand operations or so; beyond that
/// the driver would wait in the middle of a call, and ranks that share a context could not go on meanwhile.
const AHEAD: usize = 8;
/// What releases any wait: the largest number that the comparison, which is of signed differences, takes for more.
const RELEASE: u64 = i64::MAX as u64;

/// A wait that was enqueued.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    /// The cell.
    pub cell: Address,
    /// What it is waited to count.
    pub wanted: u64,
    /// The counter's name.
    pub counter: Arc<str>,
    /// Which of its cells.
    pub index: u32,
    /// Where the schedule waits.
    pub at: counterflow_codegen::program::Loc,
}

/// The waits of one rank's copy stream.
#[derive(Debug)]
pub(super) struct Waits {
    rank: u32,
    /// The last mark that the stream left.
    passed: Pinned<u64>,
    queue: Mutex<Queue>,
    group: Weak<Group>,
    /// A stream that nothing stands in the way of.
    rescue: Arc<CudaStream>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Marks given out: one when a launch's operations begin, one before and one after every wait.
    marks: u64,
    /// Waits that may not be over, each with the mark that follows it.
    pending: VecDeque<(u64, Wait)>,
    /// Marks of the latest launches' beginnings.
    launches: VecDeque<u64>,
}

impl Waits {
    /// None yet, watched by a thread that ends when they are dropped.
    pub fn watched(gpu: &Gpu, rank: u32, group: &Arc<Group>) -> Result<Arc<Waits>, Error> {
        let waits = Arc::new(Waits {
            rank,
            passed: Pinned::new(gpu)?,
            queue: Mutex::default(),
            group: Arc::downgrade(group),
            rescue: gpu.stream()?,
        });
        let (watched, limit) = (Arc::downgrade(&waits), group.timeout());
        let thread = std::thread::Builder::new().name(format!("waits of rank {rank}"));
        let started = thread.spawn(move || watch(&watched, limit));
        started.map(|_| waits).map_err(|error| Error::TooLarge {
            what: format!("a thread that watches the waits of rank {rank}: {error}"),
            help: "end what holds so many threads".into(),
        })
    }

    /// The operation that marks where a launch begins; once the stream has come to the launch [`AHEAD`] before.
    pub fn begin(&self) -> Result<MemoryOp, Error> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.launches.len() == AHEAD {
            let reached = queue.launches.pop_front().unwrap_or(0);
            while self.passed.get() < reached {
                drop(queue);
                self.alive()?;
                std::thread::sleep(Duration::from_micros(20));
                queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            }
        }
        let passed = self.passed.get();
        while queue
            .pending
            .front()
            .is_some_and(|(mark, _)| *mark <= passed)
        {
            queue.pending.pop_front();
        }
        queue.marks += 1;
        let mark = queue.marks;
        queue.launches.push_back(mark);
        Ok(self.mark(mark))
    }

    /// Refuses where nothing will go on: a rank gave up, or the GPU's context is dead, which an idle stream tells.
    fn alive(&self) -> Result<(), Error> {
        if let Some(group) = self.group.upgrade() {
            group.alive()?;
            if let Some(stall) = group.stall(self.rank) {
                return Err(Error::Stalled(Box::new(group.die(stall))));
            }
        }
        finished(&self.rescue)
    }

    /// The operations of a wait, with a mark before it: a stream that does not get through a copy does not wait.
    pub fn wait(&self, wait: Wait) -> [MemoryOp; 3] {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.marks += 2;
        let mark = queue.marks;
        let wanted = MemoryOp::AtLeast {
            cell: wait.cell,
            value: wait.wanted,
        };
        queue.pending.push_back((mark, wait));
        [self.mark(mark - 1), wanted, self.mark(mark)]
    }

    fn mark(&self, mark: u64) -> MemoryOp {
        MemoryOp::Store {
            cell: self.passed.address(),
            value: mark,
        }
    }

    /// The mark after the wait at which the stream stands: it left the one before.
    fn standing(&self) -> Option<u64> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = self.passed.get();
        let mut pending = queue.pending.iter().map(|(mark, _)| *mark);
        pending
            .find(|mark| *mark > passed)
            .filter(|mark| *mark == passed + 1)
    }

    /// Tells why, unless somebody did, and lets everything drain.
    fn give_up(&self, mark: u64) {
        let Some(group) = self.group.upgrade() else {
            return;
        };
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, wait)) = queue.pending.iter().find(|(known, _)| *known == mark) {
            let seen = read::<u64>(&self.rescue, wait.cell, 1);
            group.die(Stall {
                rank: self.rank,
                role: "copy_engine".into(),
                block: None,
                waited_on: wait.counter.to_string(),
                index: wait.index,
                seen: seen.map_or(0, |seen| seen[0]),
                wanted: wait.wanted,
                at: Some(format!("{}:{}", wait.at.file(), wait.at.line())),
            });
        }
        // A context that is dead already refuses these, and has ended what they are to end.
        for flag in group.abort_flags() {
            let _ = write(&self.rescue, flag, &[1_u32]);
        }
        let cells = queue.pending.iter().map(|(_, wait)| MemoryOp::Store {
            cell: wait.cell,
            value: RELEASE,
        });
        let _ = memory_ops(&self.rescue, &cells.collect::<Vec<_>>());
        let _ = finished(&self.rescue);
    }
}

/// Looks until the waits are dropped, or one of them stood still for longer than the limit.
fn watch(waits: &Weak<Waits>, limit: Duration) {
    let mut since: Option<(u64, Instant)> = None;
    loop {
        std::thread::sleep(TICK.min(limit / 16));
        let Some(waits) = waits.upgrade() else {
            return;
        };
        let standing = waits.standing();
        match (standing, since) {
            (Some(mark), Some((known, start))) if mark == known => {
                let dead = waits
                    .group
                    .upgrade()
                    .is_none_or(|group| group.alive().is_err());
                if dead || start.elapsed() > limit {
                    waits.give_up(mark);
                    // A launch that was under way may have enqueued more: they are released in their turn.
                    since = None;
                }
            }
            (mark, _) => since = mark.map(|mark| (mark, Instant::now())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CopyStream;
    use super::*;
    use crate::communicator::Communicator;
    use crate::user_buffer::UserBuffer;
    use std::panic::Location;

    /// No kernel waits, so none can tell: the host does, and the GPU can be used afterwards.
    #[test]
    fn a_stream_that_waits_for_nobody_is_let_go_and_named() -> Result<(), Error> {
        let ranks = match Communicator::loopback(1) {
            Err(Error::NoDevice { why, .. }) => {
                eprintln!("SKIPPED: {why}");
                return Ok(());
            }
            made => made?,
        };
        let rank = &ranks[0];
        let cells: UserBuffer<u64> = rank.allocate(32)?;
        let CopyStream { stream, waits, .. } = rank.copies()?;
        let at = Location::caller();
        let wait = |index: u32| {
            waits.wait(Wait {
                cell: cells.address().plus(u64::from(index) * 128),
                wanted: 3,
                counter: "ready".into(),
                index,
                at,
            })
        };
        memory_ops(stream, &[waits.begin()?])?;
        memory_ops(stream, &wait(1))?;
        memory_ops(stream, &wait(0))?;
        let start = Instant::now();
        finished(stream)?;
        let took = start.elapsed();
        assert!(
            took > rank.timeout() && took < rank.timeout() * 2,
            "{took:?}"
        );
        let told = rank.synchronize().expect_err("told").to_string();
        let line = format!("{}:{}", at.file(), at.line());
        assert_eq!(
            told,
            format!("rank 0 waited too long: copy_engine saw 0 of 3 on ready[1] ({line})")
        );
        assert_eq!(cells.read()?[0], RELEASE);
        Ok(())
    }
}
