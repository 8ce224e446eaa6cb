//! A rank's launches that a program captures, whose replays no host sees.

use super::Communicator;
use crate::compares::{Compares, NUMBER, compile_agree};
use crate::cuda::Boards;
use crate::driver::{Current, Lane, Stream, Turn, is_past};
use crate::error::Error;
use crate::group::{End, Entry, Replayed};
use crate::jit::{self, Compiler};
use std::sync::Arc;
use std::time::Duration;

impl Communicator {
    /// Loads what compares launches on the GPUs, before the first one that waits for peers may be captured.
    pub(crate) fn loads_compares(&self, compiler: Option<&Compiler>) -> Result<(), Error> {
        if self.compares.get().is_none() {
            let watch = self.group.watch(self.rank, NUMBER, self.timeout(), 0);
            let places = Boards {
                boards: self.group.boards(),
                stride: self.stride(),
                far: self.ends().far(self.rank),
            };
            self.own().loads();
            if self.fills()? {
                compile_agree(&jit::filling()?)?;
            }
            let made = Compares::new(self.gpu(), compiler, places, watch)?;
            self.compares.get_or_init(|| made);
        }
        Ok(())
    }

    /// From now on launches of this rank are compared on the GPUs. The caller has the rank's turn.
    pub(crate) fn starts_comparing(&self) -> Result<(), Error> {
        let made = self.group.made(self.rank);
        self.compares
            .get()
            .map_or(Ok(()), |compares| compares.start(self.own_stream(), made))
    }

    /// Enqueues the comparison of a launch that follows in the stream, if launches of this rank are compared on the GPUs.
    /// `launch`: which of this rank's host it is; none of one that is captured. The GPU is current.
    pub(crate) fn compare(
        &self,
        stream: &Stream,
        entry: &Entry,
        launch: Option<u64>,
    ) -> Result<(), Error> {
        match self
            .compares
            .get()
            .filter(|compares| compares.has_started())
        {
            None => Ok(()),
            Some(compares) => {
                if launch.is_some() {
                    self.ends().compares(self.rank, entry);
                }
                compares.enqueue(stream, entry, launch)
            }
        }
    }

    /// Replays of a captured launch have its name in errors, for as long as the result is there.
    pub(crate) fn names_replays_of(&self, entry: &Entry) -> Arc<Replayed> {
        Arc::new(End::replays(self.ends(), self.rank, entry))
    }

    /// Opens the lane of this rank's launches, since one of them is captured.
    pub(crate) fn open_lane(&self, current: Current<'_>) -> Result<(&Lane, &Turn), Error> {
        self.group.open_lane(self.rank, current)
    }

    /// This rank's part of [`Communicator::each`] ended, and others' go on until `all` have.
    pub(crate) fn is_done(&self, all: impl Fn() -> bool) {
        const PAUSE: Duration = Duration::from_millis(5);
        self.group.is_done(self.rank);
        // No host counts replays: they are looked for, once this rank's own are over.
        let compared = self.compares.get().is_some_and(Compares::has_started);
        if compared {
            let after = || self.own_stream().enter().map(drop).is_ok();
            let known = self.gpu().aside(after);
            while known && !all() && self.alive().is_ok() {
                if is_past(self.own_stream()) {
                    self.ends().misses_replays(self.rank);
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
}
