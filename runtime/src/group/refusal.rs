//! Refusal of one rank's call. All ranks get it, as an error of the same kind.

use super::peers::Peers;
use crate::device::Device;
use crate::error::{CompileError, Error, Stall};
use crate::rendezvous::Deadline;
use crate::shared::Handed;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;

/// An error that every rank gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    kind: Kind,
    what: String,
    help: String,
}

/// Kind of a refusal, with what only that kind has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Kind {
    Usage,
    TooLarge,
    Wrong,
    NoDevice(Device),
    NotYet,
    Toolkit,
    Compile {
        log: String,
    },
    Driver {
        code: String,
    },
    Mismatch,
    /// The communicator is dead: why.
    Stalled(Box<Stall>),
    /// The communicator is dead.
    Aborted,
    Rendezvous,
    File {
        path: String,
    },
}

/// So many bytes of a text are enough for others: who was refused has all of it.
const MOST: usize = 4096;

fn cut(text: &str) -> String {
    let mut end = MOST.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl Refusal {
    /// Makes a refusal of an error that only this rank has.
    pub fn own(error: &Error) -> Refusal {
        let (kind, what) = match error {
            // The schedule and the environment are that rank's: the others have a text of it.
            Error::Rejected(found) => (Kind::Usage, found.to_string()),
            Error::Usage { what, .. } | Error::Environment { what, .. } => {
                (Kind::Usage, what.clone())
            }
            Error::TooLarge { what, .. } => (Kind::TooLarge, what.clone()),
            Error::Wrong { what, .. } => (Kind::Wrong, what.clone()),
            Error::NoDevice { device, why, .. } => (Kind::NoDevice(*device), why.clone()),
            Error::NotYet { what, .. } => (Kind::NotYet, what.clone()),
            Error::Toolkit { what, .. } => (Kind::Toolkit, what.clone()),
            Error::Compile(error) => {
                let log = cut(&error.log);
                (Kind::Compile { log }, error.name.clone())
            }
            Error::Driver { what, code, .. } => (Kind::Driver { code: cut(code) }, what.clone()),
            Error::Mismatch { what, .. } => (Kind::Mismatch, what.clone()),
            Error::Stalled(stall) => (Kind::Stalled(stall.clone()), String::new()),
            Error::Aborted { what, .. } => (Kind::Aborted, what.clone()),
            Error::Rendezvous { what, .. } => (Kind::Rendezvous, what.clone()),
            Error::File { path, source } => {
                let path = path.display().to_string();
                (Kind::File { path }, source.to_string())
            }
        };
        Refusal {
            kind,
            what: cut(&what),
            help: cut(error.help().unwrap_or_default()),
        }
    }

    /// The ranks ask for different things.
    pub fn mismatch(what: String) -> Refusal {
        Refusal {
            kind: Kind::Mismatch,
            what,
            help: "make the same calls with the same sizes in the same order on every rank".into(),
        }
    }

    /// With another hint.
    pub fn help(self, help: &str) -> Refusal {
        Refusal {
            help: help.into(),
            ..self
        }
    }

    /// Request that was refused.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Advice on how to go on.
    pub fn helps(&self) -> &str {
        &self.help
    }

    /// Makes this a refusal of `rank`, for all ranks.
    pub fn of(self, rank: u32) -> Refusal {
        let what = format!("rank {rank}: {}", self.what);
        Refusal { what, ..self }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        let Refusal { kind, what, help } = refusal;
        match kind {
            Kind::Usage => Error::Usage { what, legal: help },
            Kind::TooLarge => Error::TooLarge { what, help },
            Kind::Wrong => Error::Wrong { what, help },
            Kind::NoDevice(device) => Error::NoDevice {
                device,
                why: what,
                help,
            },
            Kind::NotYet => Error::NotYet { what, help },
            Kind::Toolkit => Error::Toolkit { what, help },
            Kind::Compile { log } => Error::Compile(Box::new(CompileError {
                name: what,
                excerpts: Vec::new(),
                log,
            })),
            Kind::Driver { code } => Error::Driver { what, code, help },
            Kind::Mismatch => Error::Mismatch { what, help },
            Kind::Stalled(stall) => Error::Stalled(stall),
            Kind::Aborted => Error::Aborted { what, help },
            Kind::Rendezvous => Error::Rendezvous { what, help },
            Kind::File { path } => Error::File {
                path: path.into(),
                source: io::Error::other(what),
            },
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::own(&error)
    }
}

/// Messages of all ranks, each with a file descriptor or none; or the refusal of the first that could not.
pub(super) type Said<T> = Result<Vec<(T, Option<OwnedFd>)>, Refusal>;

/// Says something to all ranks, or why this one cannot, and gives what all said; or what the first was refused that could not,
/// on every rank the same. `what` says what this rank does.
///
/// # Errors
/// Why the communicator has ended.
pub(super) fn said<T: Serialize + DeserializeOwned>(
    peers: &Peers,
    what: &str,
    deadline: Deadline,
    mine: Result<(T, Option<OwnedFd>), Error>,
) -> Result<Said<T>, Error> {
    let (said, fd) = match mine {
        Ok((said, fd)) => (Ok(said), fd),
        Err(error) => (Err(Refusal::from(error)), None),
    };
    let text = serde_json::to_vec(&said).unwrap_or_default();
    let all = peers.exchange(what, text, fd.into_iter().collect(), deadline)?;
    let mut each = Vec::new();
    for (parcel, rank) in all.into_iter().zip(0..) {
        let said = serde_json::from_slice::<Result<T, Refusal>>(&parcel.text);
        match said.map_err(|_| peers.misled(rank))? {
            Ok(said) => each.push((said, parcel.fds.into_iter().next())),
            Err(refusal) => return Ok(Err(refusal.of(rank))),
        }
    }
    Ok(Ok(each))
}

/// Hands something over, or says why not, and gives what all ranks handed over; or what the first was refused that could not.
///
/// # Errors
/// Why the communicator has ended.
pub(super) fn handed(
    peers: &Peers,
    what: &str,
    deadline: Deadline,
    mine: Result<Option<Handed>, Error>,
) -> Result<Result<Vec<Option<Handed>>, Refusal>, Error> {
    let mine = mine.map(|handed| handed.map(Handed::parts).unwrap_or_default());
    let all = said::<Option<Vec<u8>>>(peers, what, deadline, mine)?;
    Ok(all.map(|each| {
        let each = each.into_iter();
        each.map(|(name, fd)| Handed::of(name.as_deref(), fd))
            .collect()
    }))
}

/// Agrees where a refusal of one rank is an error of all.
///
/// # Errors
/// On every rank: what the first rank was refused that could not.
pub(super) fn agreed(
    peers: &Peers,
    what: &str,
    deadline: Deadline,
    mine: Result<Option<Handed>, Error>,
) -> Result<Vec<Option<Handed>>, Error> {
    handed(peers, what, deadline, mine)?.map_err(Error::from)
}

#[cfg(test)]
mod tests {
    use super::Refusal;
    use crate::communicator::Communicator;
    use crate::device::Device;
    use crate::error::{CompileError, Error, Stall};
    use crate::rendezvous::Threads;

    const LONG: usize = 1 << 20;

    fn compile() -> Error {
        Error::Compile(Box::new(CompileError {
            name: "a.cu".into(),
            excerpts: Vec::new(),
            log: "é".repeat(LONG),
        }))
    }

    /// Refusals that a rank may have, each of another kind.
    fn each() -> Vec<Error> {
        let (what, help) = (|| "what".to_owned(), || "help".to_owned());
        vec![
            Error::Toolkit {
                what: "there is no compiler".into(),
                help: "install one".into(),
            },
            compile(),
            Error::NotYet {
                what: what(),
                help: help(),
            },
            Error::Mismatch {
                what: what(),
                help: help(),
            },
            Error::NoDevice {
                device: Device::Cuda,
                why: what(),
                help: help(),
            },
            Error::Usage {
                what: what(),
                legal: help(),
            },
            Error::TooLarge {
                what: what(),
                help: help(),
            },
            Error::Wrong {
                what: what(),
                help: help(),
            },
            Error::Driver {
                what: what(),
                code: "CODE".into(),
                help: help(),
            },
            Error::File {
                path: "a/b".into(),
                source: std::io::Error::other("full"),
            },
        ]
    }

    /// Rank 1 cannot do what the others come to do. All hear of it, and go on.
    fn refuses(rank: &Communicator) {
        for error in each() {
            let (kind, text, help) = (
                error.kind(),
                error.to_string(),
                error.help().map(str::to_owned),
            );
            let told = match rank.rank() {
                1 => rank.refuses(error),
                _ => rank.allocate::<u8>("x", [1]).expect_err("told"),
            };
            assert_eq!(told.kind(), kind);
            assert_eq!(told.help(), help.as_deref());
            if rank.rank() == 1 {
                assert_eq!(told.to_string(), text);
            } else {
                assert!(told.to_string().contains("rank 1: "), "{told}");
            }
            rank.barrier().expect("it lives");
        }
        // All cannot: each knows.
        assert_eq!(rank.refuses(compile()).kind(), "compile");
        rank.barrier().expect("it lives");
    }

    #[test]
    fn what_one_rank_cannot_do_all_are_told_as_an_error_of_that_kind_and_go_on() {
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

    #[test]
    fn others_have_the_beginning_of_a_long_text() {
        let told = Error::from(Refusal::from(compile()).of(1));
        let Error::Compile(error) = told else {
            panic!("{told}")
        };
        assert_eq!((&error.name[..], error.log.len()), ("rank 1: a.cu", 4096));
    }

    #[test]
    fn why_a_communicator_is_dead_stays_whole() {
        let stall = Stall {
            rank: 2,
            waited_on: "ranks".into(),
            enqueued: vec![1, 1],
            ..Stall::default()
        };
        let told = Error::from(Refusal::from(Error::Stalled(Box::new(stall.clone()))));
        assert!(matches!(told, Error::Stalled(same) if *same == stall));
        let dead = Error::Mismatch {
            what: "the ranks differ in launch 3".into(),
            help: "build a new one".into(),
        };
        let told = Error::from(Refusal::own(&dead));
        assert_eq!(
            (told.kind(), told.to_string(), told.help()),
            ("mismatch", dead.to_string(), dead.help())
        );
        let dead = Error::Aborted {
            what: "rank 1 panicked".into(),
            help: "mend it".into(),
        };
        let told = Error::from(Refusal::own(&dead));
        assert_eq!(
            (told.kind(), told.to_string(), told.help()),
            ("aborted", dead.to_string(), dead.help())
        );
    }
}
