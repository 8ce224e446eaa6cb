//! End of a communicator: the first cause stays.

use super::roll::{Gone, Roll};
use crate::error::{Error, Stall};
use crate::sync::{Mutex, PoisonError};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Stalled(Stall),
    Aborted(String),
}

impl From<Stall> for Verdict {
    fn from(stall: Stall) -> Verdict {
        Verdict::Stalled(stall)
    }
}

#[derive(Debug)]
pub(crate) struct End {
    verdict: Mutex<Option<Verdict>>,
    roll: Roll,
}

impl End {
    pub fn new(world: usize) -> End {
        End {
            verdict: Mutex::new(None),
            roll: Roll::new(world),
        }
    }

    pub fn end(&self, cause: Verdict) -> Verdict {
        let mut verdict = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        verdict.get_or_insert(cause).clone()
    }

    pub fn alive(&self) -> Result<(), Error> {
        let verdict = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        verdict
            .clone()
            .map_or(Ok(()), |verdict| Err(verdict.into()))
    }

    pub fn gone(&self) -> Option<u32> {
        self.roll.gone()
    }

    pub fn how_left(&self, rank: u32) -> String {
        self.roll.how(rank).to_string()
    }

    pub fn leaves(&self, rank: u32) {
        if let Some(peer) = self.roll.leaves(rank, Gone::Dropped) {
            self.end(Verdict::Aborted(format!("rank {peer} waits")));
        }
    }
}
