//! A rank's own stream, and who may put work into it when.

use crate::done::Latest;
use crate::driver::{Current, Gpu, Stream, is_done};
use crate::error::Error;
use crate::retire::Mark;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use tracing::debug;

/// A rank's own stream.
#[derive(Debug)]
pub(crate) struct Own {
    gpu: Gpu,
    stream: Stream,
    /// Whether others were given the stream: then it may hold their kernels.
    lent: AtomicBool,
    /// Held while something is enqueued that waits for others: threads of a rank launch one after another.
    turn: Mutex<()>,
    latest: Latest,
}

impl Own {
    /// Nobody has it yet.
    pub fn new(gpu: &Gpu, stream: &Stream) -> Own {
        Own {
            gpu: gpu.clone(),
            stream: stream.clone(),
            lent: AtomicBool::new(false),
            turn: Mutex::default(),
            latest: Latest::default(),
        }
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The stream, for what waits for nobody.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Where its latest launch ends.
    pub fn latest(&self) -> &Latest {
        &self.latest
    }

    /// Whether it may hold kernels that are not ours.
    pub fn has_lent(&self) -> bool {
        self.lent.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn to launch: what is written into the ledger first is enqueued first.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn turn(&self, current: Current<'_>) -> Result<MutexGuard<'_, ()>, Error> {
        let turn = self.lock();
        self.latest.settle(current, &self.stream).map(|()| turn)
    }

    /// The turn to enqueue something else that may wait for others.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn settled(&self) -> Result<MutexGuard<'_, ()>, Error> {
        self.turn(self.gpu.current()?)
    }

    /// Does that if nothing is in the stream, while nobody launches.
    pub fn while_idle(&self, act: impl FnOnce()) {
        let turn = match self.turn.try_lock() {
            Err(TryLockError::WouldBlock) => return,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Ok(turn) => turn,
        };
        let idle = || !self.stream.is_capturing() && is_done(&self.stream).unwrap_or(false);
        if self.gpu.aside(idle) {
            act();
        }
        drop(turn);
    }

    /// After everything that is in the stream now. None if the driver refuses, as where it records a graph.
    pub fn mark(&self) -> Option<Mark> {
        let mark = || Mark::of([(&self.gpu, &self.stream)]).ok();
        self.gpu.aside(mark)
    }

    /// From now on the stream may get others' work at any time.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn joins(&self) -> Result<(), Error> {
        let _turn = self.lock();
        self.join()
    }

    fn join(&self) -> Result<(), Error> {
        let current = self.gpu.current();
        current.and_then(|current| self.latest.join(current, &self.stream))
    }

    /// The stream, for others. Nobody gets it before the latest launch has an event.
    pub fn lend(&self) -> &Stream {
        if !self.has_lent() {
            let _turn = self.lock();
            if !self.has_lent()
                && let Err(error) = self.join()
            {
                debug!(%error, "the end of a launch is not known");
                self.latest.lost(&error);
            }
            self.lent.store(true, Ordering::Release);
        }
        &self.stream
    }
}
