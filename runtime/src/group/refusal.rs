//! What one rank is refused, and how all ranks get to know it.

use super::peers::Peers;
use crate::error::Error;
use crate::rendezvous::Deadline;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// An error that every rank gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    Mismatch(String),
    Usage {
        what: String,
        legal: String,
    },
    Full {
        what: String,
        help: String,
    },
    Driver {
        what: String,
        code: String,
        help: String,
    },
    Other {
        what: String,
        help: String,
    },
}

/// So many bytes of a text are enough for others: who was refused has all of it.
const MOST: usize = 4096;

impl Refusal {
    /// Of an error that only this rank has.
    pub fn own(error: &Error) -> Refusal {
        let cut = |text: &str| {
            let mut end = MOST.min(text.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text[..end].to_owned()
        };
        let help = cut(error.help().unwrap_or_default());
        match error {
            Error::Driver { what, code, .. } => Refusal::Driver {
                what: cut(what),
                code: cut(code),
                help,
            },
            Error::TooLarge { what, .. } => Refusal::Full {
                what: cut(what),
                help,
            },
            Error::Usage { what, legal } => Refusal::Usage {
                what: cut(what),
                legal: cut(legal),
            },
            other => Refusal::Other {
                what: cut(&other.to_string()),
                help,
            },
        }
    }

    /// What was refused.
    pub fn what(&self) -> &str {
        match self {
            Refusal::Mismatch(what)
            | Refusal::Usage { what, .. }
            | Refusal::Full { what, .. }
            | Refusal::Driver { what, .. }
            | Refusal::Other { what, .. } => what,
        }
    }

    /// What that rank was refused, for all ranks.
    pub fn of(self, rank: u32) -> Refusal {
        let named = |what| format!("rank {rank}: {what}");
        match self {
            Refusal::Mismatch(what) => Refusal::Mismatch(named(what)),
            Refusal::Usage { what, legal } => Refusal::Usage {
                what: named(what),
                legal,
            },
            Refusal::Full { what, help } => Refusal::Full {
                what: named(what),
                help,
            },
            Refusal::Driver { what, code, help } => Refusal::Driver {
                what: named(what),
                code,
                help,
            },
            Refusal::Other { what, help } => Refusal::Other {
                what: named(what),
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
            Refusal::Usage { what, legal } => Error::Usage { what, legal },
            Refusal::Full { what, help } => Error::TooLarge { what, help },
            Refusal::Driver { what, code, help } => Error::Driver { what, code, help },
            Refusal::Other { what, help } => Error::Aborted { what, help },
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::own(&error)
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

#[cfg(test)]
mod tests {
    use crate::communicator::Communicator;
    use crate::error::Error;
    use crate::rendezvous::Threads;
    use std::time::{Duration, Instant};

    /// Rank 1 cannot do what the others come to do. All go on.
    fn refuses(rank: &Communicator) {
        let start = Instant::now();
        if rank.rank() == 1 {
            let error = rank.refuses(Error::Toolkit {
                what: "there is no compiler".into(),
                help: "install one".into(),
            });
            assert_eq!(error.kind(), "toolkit");
        } else {
            let error = rank.allocate::<u8>("x", [1]).expect_err("told");
            assert_eq!(error.to_string(), "rank 1: there is no compiler");
            assert_eq!(error.help(), Some("install one"));
        }
        assert!(start.elapsed() < Duration::from_secs(1));
        rank.barrier().expect("it lives");
        // All cannot: each knows.
        assert_eq!(
            rank.refuses(Error::Mismatch {
                what: "a".into(),
                help: String::new()
            })
            .kind(),
            "mismatch"
        );
        rank.barrier().expect("it lives");
    }

    #[test]
    fn what_one_rank_cannot_do_all_are_told_with_the_cause_and_go_on() {
        let ranks = Communicator::emulated(3).expect("ranks");
        let done = Communicator::each(&ranks, |rank| {
            refuses(rank);
            Ok(())
        });
        done.map(drop).expect("fine");
        std::thread::scope(|scope| {
            for seat in Threads::of(3) {
                scope.spawn(move || refuses(&Communicator::join_emulated(&seat).expect("joined")));
            }
        });
    }
}
