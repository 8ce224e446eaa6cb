//! Signs of life between ranks that are processes, and how one of them leaves.
//!
//! A rank leaves when its user drops the communicator. It says so at once, and once more when nothing of it runs: its
//! process may end then, whatever buffers and ops of the communicator are left there. Each peer says when it came past all
//! that it had enqueued by the time it heard of that. Until then its kernels may write to the memory of the rank that left,
//! a last credit for instance, so that rank keeps its memory mapped for so long, or until the time limit.

use super::abort::End;
use super::verdict::Verdict;
use crate::own::Own;
use crate::retire::{self, Mark};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest time between two looks.
const TICK: Duration = Duration::from_millis(50);
/// Time between looks while memory is kept for peers, who say soon that they are through.
const SOON: Duration = Duration::from_millis(2);

/// A peer's connection, to see whether it is closed.
type Socket = (u32, UnixStream);

/// State that a thread looks after for one rank.
pub(super) struct Signs {
    own: u32,
    world: u32,
    end: Arc<End>,
    limit: Duration,
    /// Nobody here has the communicator any more, and its work is done.
    over: AtomicBool,
    /// Ends a pause of the thread.
    wake: OwnedFd,
    /// The rank's stream, and who launches there.
    work: Mutex<Option<Arc<Own>>>,
    /// Memory that peers may still use.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl std::fmt::Debug for Signs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signs of rank {}", self.own)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signs {
    pub fn new((own, world): (u32, u32), end: &Arc<End>, limit: Duration) -> io::Result<Signs> {
        Ok(Signs {
            own,
            world,
            end: end.clone(),
            limit,
            over: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            work: Mutex::default(),
            kept: Mutex::default(),
        })
    }

    /// This rank's user has it, with this stream.
    pub fn seated(&self, own: &Arc<Own>) {
        *lock(&self.work) = Some(own.clone());
    }

    /// This rank's communicator was dropped.
    pub fn left(&self) {
        /// A stream says a moment after its last event that it is empty.
        const MOMENT: Duration = Duration::from_millis(2);
        let start = Instant::now();
        while !self.says_over() && start.elapsed() < MOMENT {
            std::thread::yield_now();
        }
    }

    /// Drops that once no peer uses it any more. This rank's stream is done.
    pub fn keep(&self, memory: impl Any + Send) {
        lock(&self.kept).push(Box::new(memory));
    }

    /// Nobody here has the communicator any more, and its work is done.
    pub fn ends(&self) {
        self.over.store(true, Ordering::Release);
        // The stream goes with what else was dropped.
        lock(&self.work).take();
        // It only counts up, so it is refused by no one; without it, the thread looks a little later.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Tells the peers that nothing of this rank runs any more, if it left and that is so. A launch by what it left behind
    /// takes that back, so nobody launches meanwhile.
    fn says_over(&self) -> bool {
        let work = lock(&self.work).clone();
        if let Some(work) = work
            && self.end.has_left(self.own)
            && !self.end.is_over(self.own)
        {
            work.while_idle(|| self.end.leaves_nothing(self.own));
        }
        self.end.is_over(self.own)
    }

    /// The other ranks.
    fn others(&self) -> impl Iterator<Item = u32> {
        let own = self.own;
        (0..self.world).filter(move |rank| *rank != own)
    }

    /// Looks who is gone, and what those need who left, until this rank's communicator is over, and for as long as it
    /// keeps its memory for others.
    pub fn watch(&self, mut sockets: Vec<Socket>) {
        let mut marks = BTreeMap::new();
        while !self.is_over() && self.world > 1 {
            for rank in closed(&mut sockets, Some(&self.wake), TICK) {
                if !self.end.is_over(rank) && !self.is_over() {
                    self.mourns(rank);
                }
            }
            self.sees_off(&mut marks);
            let over = self.others().filter(|rank| self.end.is_over(*rank));
            over.for_each(|rank| self.end.misses_replays(rank));
            if self.end.has_left(self.own) {
                // Peers hear soon that nothing of this rank runs any more, whatever its program does meanwhile.
                self.says_over();
                retire::sweep();
            }
        }
        drop(marks);
        self.waits_for_peers(sockets);
        // Not under the lock: what is dropped may have more to do.
        let kept = std::mem::take(&mut *lock(&self.kept));
        drop(kept);
    }

    /// A process ended, and had not told that nothing of it runs.
    fn mourns(&self, rank: u32) {
        let how = match self.end.has_left(rank) {
            true => "before its launches had ended",
            false => "without leaving the communicator",
        };
        self.end.end(Verdict::Aborted(format!(
            "rank {rank} ended early: its process ended {how}"
        )));
    }

    /// Tells each rank that left when this one came past all that it had enqueued by then.
    fn sees_off(&self, marks: &mut BTreeMap<u32, Mark>) {
        let leaving =
            |rank: &u32| self.end.has_left(*rank) && !self.end.is_through(self.own, *rank);
        let Some(work) = lock(&self.work).clone() else {
            return;
        };
        for rank in self.others().filter(leaving) {
            let mark = match marks.remove(&rank) {
                Some(mark) => Some(mark),
                None => work.mark(),
            };
            match mark {
                Some(mark) if mark.passed() => self.end.gets_through(self.own, rank),
                Some(mark) => drop(marks.insert(rank, mark)),
                // A stream that records a graph has no mark: the next look finds one.
                None => {}
            }
        }
    }

    /// Waits until no peer uses this rank's memory: each is through, over, or gone.
    fn waits_for_peers(&self, mut sockets: Vec<Socket>) {
        let start = Instant::now();
        let needs = |rank: &u32| !self.end.is_through(*rank, self.own) && !self.end.is_over(*rank);
        while !lock(&self.kept).is_empty() && start.elapsed() < self.limit {
            closed(&mut sockets, None, SOON);
            if !sockets.iter().any(|(rank, _)| needs(rank)) {
                return;
            }
        }
    }
}

/// Takes out the peers whose connections are closed. Pauses for so long, unless something happens or somebody wakes it.
fn closed(sockets: &mut Vec<Socket>, wake: Option<&OwnedFd>, pause: Duration) -> Vec<u32> {
    let each = sockets
        .iter()
        .map(|(_, socket)| PollFd::new(socket, PollFlags::RDHUP));
    let wake = wake.map(|wake| PollFd::new(wake, PollFlags::IN));
    let mut each: Vec<PollFd<'_>> = each.chain(wake).collect();
    let pause = Timespec {
        tv_sec: 0,
        tv_nsec: pause.subsec_nanos().into(),
    };
    // An interrupted look is followed by another.
    let _ = poll(&mut each, Some(&pause));
    let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
    let is_gone: Vec<bool> = each
        .iter()
        .map(|one| one.revents().intersects(gone))
        .collect();
    let mut is_gone = is_gone.into_iter();
    let gone = sockets.extract_if(.., |_| is_gone.next().unwrap_or(false));
    gone.map(|(rank, _)| rank).collect()
}
