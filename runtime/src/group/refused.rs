//! Refusals before anything was enqueued. A refusal ends nothing: the rank may correct it and launch. Who
//! waits for it too long is told, and so is who waits for a rank that leaves instead.

use super::board::Board;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Refusals of each rank since its last launch.
pub(super) struct Refused {
    said: Said,
    /// True if a rank of this process was refused something since its last launch: most never are.
    any: Vec<AtomicBool>,
}

enum Said {
    /// By ranks of one process.
    Own(Vec<Mutex<Option<String>>>),
    /// By processes.
    Shared(Board, u32),
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}

impl Refused {
    /// Nothing, of so many ranks of this process.
    pub fn new(world: usize) -> Refused {
        Refused::of_said(
            Said::Own((0..world).map(|_| Mutex::default()).collect()),
            world,
        )
    }

    /// Nothing, of ranks that are processes.
    pub fn on(board: Board, world: u32) -> Refused {
        Refused::of_said(Said::Shared(board, world), world as usize)
    }

    fn of_said(said: Said, world: usize) -> Refused {
        Refused {
            said,
            any: (0..world).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    fn put(&self, rank: u32, what: Option<&str>) {
        match &self.said {
            Said::Own(all) => {
                let mut said = all[rank as usize]
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                *said = what.map(str::to_owned);
            }
            Said::Shared(board, _) => board.refuses(rank, what.unwrap_or_default()),
        }
    }

    /// A rank of this process was refused that.
    pub fn says(&self, rank: u32, what: &str) {
        self.put(rank, Some(what));
        self.any[rank as usize].store(true, Ordering::Release);
    }

    /// Forgets a rank's refusals: it launches again.
    pub fn goes_on(&self, rank: u32) {
        if self.any[rank as usize].load(Ordering::Relaxed) {
            self.any[rank as usize].store(false, Ordering::Relaxed);
            self.put(rank, None);
        }
    }

    /// The refusal of a rank, if it has one.
    pub fn of(&self, rank: u32) -> Option<String> {
        match &self.said {
            Said::Own(all) => {
                let said = all[rank as usize].lock();
                said.unwrap_or_else(PoisonError::into_inner).clone()
            }
            Said::Shared(board, _) => board.refused(rank),
        }
    }

    /// Refusals of all ranks, each with its rank.
    pub fn all(&self) -> Vec<String> {
        let world = match &self.said {
            Said::Own(all) => all.len() as u32,
            Said::Shared(_, world) => *world,
        };
        let each = (0..world).filter_map(|rank| Some((rank, self.of(rank)?)));
        each.map(|(rank, what)| format!("rank {rank} was refused {what}"))
            .collect()
    }
}
