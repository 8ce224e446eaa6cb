//! How ranks give memory of other libraries to the heap: each lends its own, and all map what all lent. What one rank
//! cannot lend or map, no rank keeps.

use super::heap::{Allocation, Heap};
use super::peers::Peers;
use super::refusal::{Refusal, agreed};
use super::request::Wanted;
use crate::driver::{Gpu, Lent};
use crate::error::Error;
use crate::rendezvous::Deadline;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What each rank of this process lends, or why it cannot, until all have.
#[derive(Debug, Default)]
pub(super) struct Lends(Mutex<Each>);

type Each = BTreeMap<u32, Result<Lent, Error>>;

impl Lends {
    fn each(&self) -> MutexGuard<'_, Each> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of a rank's GPU.
    pub fn lend(&self, rank: u32, gpu: &Gpu, address: u64, bytes: u64) {
        let lent = lent(gpu, address, bytes);
        self.each().insert(rank, lent);
    }

    /// Where the ranks made different calls, nobody has taken it.
    pub fn take_back(&self, rank: u32) {
        self.each().remove(&rank);
    }

    /// Once all ranks have lent as much.
    pub fn adopted(
        &self,
        heap: &Arc<Heap>,
        peers: Option<&Peers>,
        wanted: &Wanted,
    ) -> Result<Allocation, Refusal> {
        let lends = std::mem::take(&mut *self.each());
        let range = match peers {
            None => among_threads(heap, lends),
            Some(peers) => {
                let mine = lends.into_values().next();
                let mine = mine.unwrap_or_else(|| Err(nothing_lent(wanted)));
                among_processes(heap, peers, mine).map_err(Refusal::from)
            }
        };
        range.map(|range| Allocation::lent(heap, range))
    }
}

fn lent(gpu: &Gpu, address: u64, bytes: u64) -> Result<Lent, Error> {
    if bytes == 0 {
        return Err(Error::Usage {
            what: "memory of no bytes".into(),
            legal: "adopt one byte at least".into(),
        });
    }
    gpu.lent(address, bytes)
}

fn nothing_lent(wanted: &Wanted) -> Error {
    Error::Usage {
        what: format!("{} that nobody lent", wanted.name),
        legal: "one call of a rank at a time".into(),
    }
}

fn among_threads(heap: &Heap, lends: Each) -> Result<Range<u64>, Refusal> {
    let each = lends.into_iter();
    let each = each.map(|(rank, lent)| lent.map_err(|error| Refusal::from(error).of(rank)));
    let lent = each.collect::<Result<Vec<_>, _>>()?;
    heap.state().slots.adopt(lent, None).map_err(Refusal::from)
}

fn among_processes(
    heap: &Heap,
    peers: &Peers,
    mine: Result<Lent, Error>,
) -> Result<Range<u64>, Error> {
    const WHAT: &str = "adopts memory";
    let deadline = Deadline::after(peers.limit());
    let (fd, mine) = match mine {
        Ok(lent) => (lent.export().map(|fd| vec![fd]), Some(lent)),
        Err(refused) => (Err(refused), None),
    };
    let offered = agreed(peers, WHAT, deadline, fd)?;
    let mapped = heap
        .state()
        .slots
        .adopt(mine.into_iter().collect(), Some(offered));
    let (range, mapped) = match mapped {
        Ok(range) => (Some(range), Ok(Vec::new())),
        Err(refused) => (None, Err(refused)),
    };
    let all = agreed(peers, WHAT, deadline, mapped);
    match (all, range) {
        (Ok(_), Some(range)) => Ok(range),
        (Err(refused), range) => {
            if let Some(range) = range {
                heap.state().slots.abandon(&range);
            }
            Err(refused)
        }
        (Ok(_), None) => Err(peers.misled(peers.rank())),
    }
}
