//! How ranks that are processes add memory to the heap. Each makes its own and hands it to the others, each maps what it
//! got, and each says whether it could. What one rank cannot do, no rank keeps.

use super::heap::Heap;
use super::peers::Peers;
use super::request::Refusal;
use crate::error::Error;
use crate::rendezvous::Deadline;
use std::os::fd::OwnedFd;

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
            Ok(Some(fd)) => Ok(vec![fd]),
            Err(refused) => Err(refused),
        };
        let added = agreed(peers, WHAT, deadline, offer).and_then(|offers| {
            let mapped = self.state().slots.take(offers);
            agreed(peers, WHAT, deadline, mapped.map(|()| Vec::new()))
        });
        self.state().slots.settle(added.is_ok());
        added.map(drop)
    }
}

/// Hands something over, or says why not, and gives what all ranks handed over. `what` says what this rank does.
///
/// # Errors
/// On every rank: what the first rank was refused that could not.
pub(super) fn agreed(
    peers: &Peers,
    what: &str,
    deadline: Deadline,
    mine: Result<Vec<OwnedFd>, Error>,
) -> Result<Vec<Option<OwnedFd>>, Error> {
    let (said, fds) = match mine {
        Ok(fds) => (Ok(()), fds),
        Err(error) => (Err(Refusal::from(error)), Vec::new()),
    };
    let text = serde_json::to_vec(&said).unwrap_or_default();
    let all = peers.exchange(what, text, fds, deadline)?;
    let each = all.into_iter().zip(0..).map(|(parcel, rank)| {
        let said = serde_json::from_slice::<Result<(), Refusal>>(&parcel.text);
        let said = said.map_err(|_| peers.misled(rank))?;
        said.map_err(|refusal| refusal.of(rank))?;
        Ok(parcel.fds.into_iter().next())
    });
    each.collect()
}
