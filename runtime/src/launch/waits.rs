//! What bounds the waits of a stream. A GPU lets a stream wait for ever, so a thread of the host looks whether one stands
//! still: the stream marks in host memory how far it came. After the time limit the thread tells the story, tells every
//! kernel to give up, and stores what is waited for, so that the stream drains and nothing hangs.

use crate::communicator::Group;
use crate::cuda::{Address, CudaStream, Gpu, MemoryOp, Pinned, memory_ops, read, write};
use crate::error::{Error, Stall};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often the thread looks, at least.
const TICK: Duration = Duration::from_millis(100);
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
    /// Marks given out: one when a launch's operations begin, one after every wait.
    marks: u64,
    /// Waits that may not be over, each with the mark that follows it.
    pending: VecDeque<(u64, Wait)>,
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

    /// The operation that marks where a launch begins.
    pub fn begin(&self) -> MemoryOp {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = self.passed.get();
        while queue
            .pending
            .front()
            .is_some_and(|(mark, _)| *mark <= passed)
        {
            queue.pending.pop_front();
        }
        queue.marks += 1;
        self.mark(queue.marks)
    }

    /// The operations of a wait.
    pub fn wait(&self, wait: Wait) -> [MemoryOp; 2] {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.marks += 1;
        let mark = queue.marks;
        let wanted = MemoryOp::AtLeast {
            cell: wait.cell,
            value: wait.wanted,
        };
        queue.pending.push_back((mark, wait));
        [wanted, self.mark(mark)]
    }

    fn mark(&self, mark: u64) -> MemoryOp {
        MemoryOp::Store {
            cell: self.passed.address(),
            value: mark,
        }
    }

    /// The mark after the wait that the stream has come to: all marks before it are there.
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
        let _ = self.rescue.synchronize();
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
                let dead = waits.group.upgrade().is_none_or(|group| group.dead());
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
