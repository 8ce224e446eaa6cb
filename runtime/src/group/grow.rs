//! Growth of the heap where ranks are processes. Each makes its own and hands it to the others, each maps what it
//! got, and each says whether it could. What one rank cannot do, no rank keeps.

use super::heap::Heap;
use super::peers::Peers;
use super::refusal::agreed;
use crate::error::Error;
use crate::rendezvous::Deadline;

impl Heap {
    /// Lets every slot have at least so many bytes. All ranks have as much, and ask for as much. Nothing is locked while
    /// others are waited for.
    pub(super) fn grow_together(
        &self,
        peers: &Peers,
        bytes: u64,
        deadline: Deadline,
    ) -> Result<(), Error> {
        const WHAT: &str = "reserves memory";
        let offer = match self.state().slots.offer(bytes) {
            Ok(None) => return Ok(()),
            Ok(Some(handed)) => Ok(Some(handed)),
            Err(refused) => Err(refused),
        };
        let added = agreed(peers, WHAT, deadline, offer).and_then(|offers| {
            let mapped = self.state().slots.take(offers);
            agreed(peers, WHAT, deadline, mapped.map(|()| None))
        });
        self.state().slots.settle(added.is_ok());
        added.map(drop)
    }
}
