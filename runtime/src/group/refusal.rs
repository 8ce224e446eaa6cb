//! What one rank is refused, and how all ranks get to know it.

use super::peers::Peers;
use crate::error::Error;
use crate::rendezvous::Deadline;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// An error that every rank gets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Refusal {
    Mismatch(String),
    Full {
        what: String,
        help: String,
    },
    Driver {
        what: String,
        code: String,
        help: String,
    },
}

impl Refusal {
    /// What that rank was refused, for all ranks.
    pub fn of(self, rank: u32) -> Refusal {
        let named = |what| format!("rank {rank}: {what}");
        match self {
            Refusal::Mismatch(what) => Refusal::Mismatch(named(what)),
            Refusal::Full { what, help } => Refusal::Full {
                what: named(what),
                help,
            },
            Refusal::Driver { what, code, help } => Refusal::Driver {
                what: named(what),
                code,
                help,
            },
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        match refusal {
            Refusal::Mismatch(what) => Error::Mismatch {
                what,
                help: "make the same calls with the same sizes in the same order on every rank"
                    .into(),
            },
            Refusal::Full { what, help } => Error::TooLarge { what, help },
            Refusal::Driver { what, code, help } => Error::Driver { what, code, help },
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        match error {
            Error::Driver { what, code, help } => Refusal::Driver { what, code, help },
            Error::TooLarge { what, help } => Refusal::Full { what, help },
            other => Refusal::Full {
                what: other.to_string(),
                help: other.help().unwrap_or_default().into(),
            },
        }
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
