//! The time limit of a stream's waits. A GPU lets a stream wait for ever, so the stream marks its progress in host
//! memory and a host thread watches it. After the limit, or when the communicator has ended, the thread lets the stream
//! drain: it says why, which also ends the waits of kernels, and only then stores the awaited values. So whatever
//! continues with data that never came, the host knows that it is bad.
//!
//! Only a store on the GPU ends a stream's wait. If no hardware queue is left for it, a context of its own makes it: in
//! the kernels' context, it could be queued behind the wait that it is to end. The driver makes such a context only
//! after the kernels have ended, which they do once they are told.
//!
//! So every wait of a launch has a limit. The head of a hardware queue is such a wait, or follows something that runs:
//! a kernel of ours, which gives up by the GPU's clock, or other programs' work, which ends. So the limit also ends
//! everything queued behind.

use crate::cuda::Aside;
use crate::driver::{Address, Gpu, MemoryOp, Pinned, Stream, is_done, read_words};
use crate::error::{Error, Stall};
use crate::group::Group;
use crate::retire;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The longest time between two looks of the thread.
const TICK: Duration = Duration::from_millis(100);
/// Launches that the host may be ahead of the stream. A stream holds about a thousand operations. Beyond that a
/// driver call blocks, and does not see that a peer gave up.
const AHEAD: usize = 8;
/// A value that ends any wait: the largest that the comparison, by signed difference, counts as more.
const RELEASE: u64 = i64::MAX as u64;

/// A wait that was enqueued.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    /// The cell.
    pub cell: Address,
    /// The count that it waits for.
    pub wanted: u64,
    /// The counter's name.
    pub counter: Arc<str>,
    /// Index of the cell in its counter.
    pub index: u32,
    /// The schedule's statement.
    pub at: counterflow_codegen::program::Loc,
}

/// The waits of one rank's copy stream.
#[derive(Debug)]
pub(crate) struct Waits {
    rank: u32,
    /// The stream's last mark.
    passed: Pinned<u64>,
    queue: Mutex<Queue>,
    /// The heap has the cells.
    group: Arc<Group>,
    /// True if nothing more is enqueued.
    closed: AtomicBool,
    gpu: Gpu,
    stream: Stream,
    /// The stream that ends a blocked wait. None if it may have no hardware queue.
    rescue: Option<Stream>,
}

#[derive(Debug, Default)]
struct Queue {
    /// The number of marks so far: one at the start of a launch's operations, one before and one after every wait.
    marks: u64,
    /// Waits that may not be over, each with the mark after it and its launch.
    pending: VecDeque<(u64, u64, Wait)>,
    /// The marks at the starts of the latest launches.
    launches: VecDeque<u64>,
}

impl Waits {
    /// No waits yet, and a thread that watches until they are closed and over. Keep them until then.
    pub fn watched(
        stream: Stream,
        gpu: &Gpu,
        rank: u32,
        group: &Arc<Group>,
    ) -> Result<Arc<Waits>, Error> {
        let passed = Pinned::new(gpu)?;
        let rescue = group.has_room(rank).then(|| gpu.stream()).transpose()?;
        // A stream's first work may get a queue in which another rank's stream waits, however many queues are free.
        // Later work does not. So the first work is done here: kernels are loaded before any is launched.
        for stream in [Some(&stream), rescue.as_ref()].into_iter().flatten() {
            let first = MemoryOp::Store {
                cell: passed.address(),
                value: 0,
            };
            gpu.current()?.memory_ops(stream, &[first])?;
            stream.synchronize()?;
        }
        let waits = Arc::new(Waits {
            rank,
            passed,
            queue: Mutex::default(),
            group: group.clone(),
            closed: AtomicBool::new(false),
            gpu: gpu.clone(),
            stream,
            rescue,
        });
        let (watched, limit) = (Arc::downgrade(&waits), group.timeout());
        let thread = std::thread::Builder::new().name(format!("waits of rank {rank}"));
        let started = thread.spawn(move || watch(&watched, limit));
        started.map(|_| waits).map_err(|error| Error::TooLarge {
            what: format!("a thread that watches the waits of rank {rank}: {error}"),
            help: "end what uses so many threads".into(),
        })
    }

    /// Waits until the stream has come to the launch [`AHEAD`] launches before the next one. Call it before
    /// [`Waits::begin`], in the rank's turn.
    pub fn catch_up(&self) -> Result<(), Error> {
        let reached = {
            let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let first = queue.launches.front();
            first.copied().filter(|_| queue.launches.len() == AHEAD)
        };
        while reached.is_some_and(|reached| self.passed.get() < reached) {
            self.alive()?;
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }

    /// The operation that marks the start of a launch.
    pub fn begin(&self) -> MemoryOp {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.launches.len() == AHEAD {
            queue.launches.pop_front();
        }
        let passed = self.passed.get();
        while queue
            .pending
            .front()
            .is_some_and(|(mark, ..)| *mark <= passed)
        {
            queue.pending.pop_front();
        }
        queue.marks += 1;
        let mark = queue.marks;
        queue.launches.push_back(mark);
        self.mark(mark)
    }

    /// Fails if nothing will continue: the communicator has ended, or the GPU's context is dead, which its streams
    /// report.
    fn alive(&self) -> Result<(), Error> {
        self.group.alive()?;
        is_done(&self.stream).map(drop)
    }

    /// The GPU of their stream.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Nothing more is enqueued: once all waits are over, they need no watching.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// True if they need none. In a dead context nothing passes any more.
    fn over(&self) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.closed.load(Ordering::Acquire)
            && (self.passed.get() >= queue.marks || is_done(&self.stream).is_err())
    }

    /// The operations of a wait, with a mark before it, so that a stream that is still copying does not count as
    /// waiting.
    pub fn wait(&self, wait: Wait) -> [MemoryOp; 3] {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.marks += 2;
        let mark = queue.marks;
        let wanted = MemoryOp::AtLeast {
            cell: wait.cell,
            value: wait.wanted,
        };
        let launch = self.group.ends().launched(self.rank);
        queue.pending.push_back((mark, launch, wait));
        [self.mark(mark - 1), wanted, self.mark(mark)]
    }

    fn mark(&self, mark: u64) -> MemoryOp {
        MemoryOp::Store {
            cell: self.passed.address(),
            value: mark,
        }
    }

    /// The mark after the wait at which the stream is: it made the mark before it.
    fn standing(&self) -> Option<u64> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = self.passed.get();
        let mut pending = queue.pending.iter().map(|(mark, ..)| *mark);
        pending
            .find(|mark| *mark > passed)
            .filter(|mark| *mark == passed + 1)
    }

    /// Ends the communicator, unless it has ended, and then lets the stream drain. False if the driver no longer answers.
    fn give_up(&self, mark: u64) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((_, launch, wait)) = queue.pending.iter().find(|(known, ..)| *known == mark)
        else {
            return true;
        };
        let cells = queue.pending.iter().map(|(.., wait)| (wait.cell, RELEASE));
        let beside = self.rescue.clone();
        let rescue = Rescue::new(&self.gpu, beside, wait.cell, cells.collect());
        self.group.die(Stall {
            rank: self.rank,
            role: "copy_engine".into(),
            waited_on: wait.counter.to_string(),
            index: Some(wait.index),
            seen: rescue.seen(),
            wanted: wait.wanted,
            at: Some(format!("{}:{}", wait.at.file(), wait.at.line())),
            stands_in: Some(*launch),
            enqueued: self.group.ends().all_launched(),
            ..Stall::default()
        });
        rescue.go()
    }
}

/// A thread that stores the values that end waits. Nobody waits for it for long: the stall is reported whatever the
/// driver does.
struct Rescue {
    seen: Receiver<Option<u64>>,
    go: SyncSender<()>,
    done: Receiver<()>,
}

impl Rescue {
    /// Time that the driver may take to read a cell. Others are told after that.
    const GLANCE: Duration = Duration::from_millis(500);
    /// Time that it may take for a context and some stores. Usually it takes a fraction of a second.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// A thread that reads a cell at once, if there is a stream `beside` the kernels, and stores later.
    fn new(
        gpu: &Gpu,
        beside: Option<Stream>,
        cell: Address,
        stores: Vec<(Address, u64)>,
    ) -> Rescue {
        let (tell, seen) = sync_channel(1);
        let (go, gone) = sync_channel(1);
        let (end, done) = sync_channel(1);
        let gpu = gpu.clone();
        // Without a thread the channels are closed, which counts as no answer.
        let _ = std::thread::Builder::new().spawn(move || {
            let read = |stream| read_words(stream, cell, 1).map(|words| words[0]);
            let _ = tell.send(beside.as_ref().and_then(read));
            if gone.recv().is_ok() {
                // A dead context rejects this, and has already ended the waits.
                let _ = Door::new(&gpu, beside).and_then(|door| door.store(&stores));
            }
            let _ = end.send(());
        });
        Rescue { seen, go, done }
    }

    /// The cell's count.
    fn seen(&self) -> Option<u64> {
        self.seen.recv_timeout(Rescue::GLANCE).ok().flatten()
    }

    /// True if everything is stored, or nothing can be.
    fn go(self) -> bool {
        let _ = self.go.send(());
        self.done.recv_timeout(Rescue::PATIENCE).is_ok()
    }
}

/// A way to the GPU's memory while a wait blocks.
enum Door {
    /// A stream with a hardware queue of its own, which its first work got while nothing waited.
    Stream(Gpu, Stream),
    /// A context of its own, which is behind no other queue.
    Aside(Aside),
}

impl Door {
    fn new(gpu: &Gpu, beside: Option<Stream>) -> Result<Door, Error> {
        match beside {
            Some(stream) => Ok(Door::Stream(gpu.clone(), stream)),
            None => Aside::new(gpu.cuda()?).map(Door::Aside),
        }
    }

    fn store(&self, stores: &[(Address, u64)]) -> Result<(), Error> {
        let ops: Vec<MemoryOp> = stores
            .iter()
            .map(|(cell, value)| MemoryOp::Store {
                cell: *cell,
                value: *value,
            })
            .collect();
        match self {
            Door::Stream(gpu, stream) => gpu.current()?.memory_ops(stream, &ops),
            Door::Aside(aside) => aside.run(&ops),
        }
    }
}

/// Watches until the waits are closed and over, or the driver no longer answers. The thread has them only while it looks:
/// what they need is not kept by a pause.
fn watch(watched: &Weak<Waits>, limit: Duration) {
    let mut since: Option<(u64, Instant)> = None;
    loop {
        std::thread::sleep(TICK.min(limit / 16));
        let Some(waits) = watched.upgrade() else {
            return;
        };
        if waits.over() {
            drop(waits);
            // They may have been all that had yet to come past something.
            return retire::sweep();
        }
        let standing = waits.standing();
        match (standing, since) {
            (Some(mark), Some((known, start))) if mark == known => {
                if waits.group.alive().is_err() || start.elapsed() > limit {
                    if !waits.give_up(mark) {
                        return;
                    }
                    // A launch in progress may have enqueued more waits. They are released in turn.
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

    /// No kernel waits, so the host reports the stall, and the GPU can be used afterwards.
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
        let cells: UserBuffer<u64> = rank.allocate("cells", [32])?;
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
        let current = rank.gpu().current()?;
        current.memory_ops(stream, &[waits.begin()])?;
        current.memory_ops(stream, &wait(1))?;
        current.memory_ops(stream, &wait(0))?;
        let start = Instant::now();
        while !is_done(stream)? {
            std::thread::sleep(Duration::from_millis(1));
        }
        let took = start.elapsed();
        assert!(
            took > rank.timeout() && took < rank.timeout() * 2,
            "{took:?}"
        );
        let told = rank.synchronize().expect_err("told").to_string();
        let line = format!("{}:{}", at.file(), at.line());
        assert_eq!(
            told,
            format!(
                "rank 0 waited too long: copy_engine saw 0 of 3 on ready[1] ({line}), in launch 0; nothing behind it has begun; launches enqueued, rank by rank: 0"
            )
        );
        let (stream, cell) = (rank.own_stream(), cells.address());
        assert_eq!(read_words(stream, cell, 1), Some(vec![RELEASE]));
        Ok(())
    }
}
