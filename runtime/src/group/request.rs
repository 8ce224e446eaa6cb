//! Requests that all ranks make together, and the error that all of them get.

use super::heap::Allocation;
use super::pool::{Needs, Placed, Scratch};
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// What a rank asks for. All must ask the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    Meet,
    Reserve(u64),
    Allocate(Wanted),
    /// A number and memory for a kernel that every rank loads.
    Load(Needs),
    /// A group of all ranks that ask for the same color, in the order of their keys.
    Split {
        color: u32,
        key: u32,
    },
}

impl Request {
    /// The color and the key of a split.
    pub fn split(&self) -> Option<(u32, u32)> {
        match self {
            Request::Split { color, key } => Some((*color, *key)),
            Request::Meet | Request::Reserve(_) | Request::Allocate(_) | Request::Load(_) => None,
        }
    }
}

/// A buffer that is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub name: Arc<str>,
    pub shape: Arc<[usize]>,
    /// The element's type.
    pub element: &'static str,
    pub bytes: u64,
}

/// What all ranks get.
#[derive(Clone, Debug)]
pub(crate) enum Granted {
    Done,
    Kernel(Arc<Placed>),
    Memory(Arc<Allocation>),
    /// A split, by its number.
    Split(u64),
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Meet => write!(f, "is at a barrier"),
            Request::Split { color, key } => write!(f, "splits by color {color} and key {key}"),
            Request::Reserve(bytes) => write!(f, "reserves {bytes} bytes"),
            Request::Allocate(wanted) => {
                let Wanted {
                    name,
                    shape,
                    element,
                    bytes,
                } = wanted;
                write!(
                    f,
                    "allocates {name}, {shape:?} of {element} ({bytes} bytes)"
                )
            }
            Request::Load(needs) => {
                let Needs {
                    kernel,
                    most,
                    plan,
                    cells,
                    scratch,
                } = needs;
                write!(
                    f,
                    "loads {kernel} for up to {most} (plan {plan:016x}) with {cells} counter cells"
                )?;
                for Scratch { name, bytes, .. } in scratch {
                    write!(f, ", scratch {name} of {bytes} bytes")?;
                }
                Ok(())
            }
        }
    }
}

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
