//! Memory of other libraries in the heap: each rank lends its own, and all map what all lent. What one rank
//! cannot lend or map, no rank keeps.

use super::heap::{Allocation, Heap};
use super::peers::Peers;
use super::refusal::{Refusal, agreed};
use crate::driver::{Gpu, Lent};
use crate::error::Error;
use crate::rendezvous::Deadline;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that a rank lends, or why it cannot, until it is taken. It travels with the request, so that the memory
/// that is mapped for a request is what came with it, whatever other threads of the rank ask for.
#[derive(Clone)]
pub(crate) struct Loan(Arc<Mutex<Option<Result<Lent, Error>>>>);

impl Loan {
    /// So many bytes of a rank's GPU.
    pub fn of(gpu: &Gpu, address: u64, bytes: u64) -> Loan {
        Loan(Arc::new(Mutex::new(Some(lent(gpu, address, bytes)))))
    }

    /// Takes it. Nobody else has it then.
    pub fn take(&self) -> Option<Result<Lent, Error>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Each rank lends memory of its own: that says nothing about whether all ask the same.
impl PartialEq for Loan {
    fn eq(&self, _: &Loan) -> bool {
        true
    }
}

impl Eq for Loan {}

/// Text that is the same on every rank: processes compare it.
impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Loan(..)")
    }
}

/// Once all ranks ask for it, each with a loan: those of the ranks of this process.
pub(super) fn adopted<'a>(
    heap: &Arc<Heap>,
    peers: Option<&Peers>,
    (name, bytes): (&str, u64),
    loans: impl Iterator<Item = &'a Loan>,
) -> Result<Allocation, Refusal> {
    let taken = loans.filter_map(Loan::take);
    let range = match peers {
        None => among_threads(heap, bytes, taken),
        Some(peers) => among_processes(heap, peers, bytes, taken.collect()).map_err(Refusal::from),
    };
    range.map(|range| Allocation::lent(heap, name, range))
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

fn among_threads(
    heap: &Heap,
    bytes: u64,
    lends: impl Iterator<Item = Result<Lent, Error>>,
) -> Result<Range<u64>, Refusal> {
    let each = (0..).zip(lends);
    let each = each.map(|(rank, lent)| lent.map_err(|error| Refusal::from(error).of(rank)));
    let lent = each.collect::<Result<Vec<_>, _>>()?;
    let adopted = heap.state().slots.adopt(bytes, lent, None);
    adopted.map_err(Refusal::from)
}

fn among_processes(
    heap: &Heap,
    peers: &Peers,
    bytes: u64,
    mine: Result<Vec<Lent>, Error>,
) -> Result<Range<u64>, Error> {
    const WHAT: &str = "adopts memory";
    let deadline = Deadline::after(peers.limit());
    let (handed, mine) = match mine {
        Ok(lent) => (lent.first().map(Lent::export).transpose(), lent),
        Err(refused) => (Err(refused), Vec::new()),
    };
    let offered = agreed(peers, WHAT, deadline, handed)?;
    let mapped = heap.state().slots.adopt(bytes, mine, Some(offered));
    let (range, mapped) = match mapped {
        Ok(range) => (Some(range), Ok(None)),
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
