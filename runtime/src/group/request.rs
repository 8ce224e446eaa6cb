//! Requests that all ranks make together, and the error that all of them get.

use crate::error::Error;
use std::fmt;

/// What a rank asks for. All must ask the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    Meet,
    Reserve(u64),
    Allocate(u64),
    Launch { plan: u64, m: u32 },
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Meet => write!(f, "meets"),
            Request::Reserve(bytes) => write!(f, "reserves {bytes} bytes"),
            Request::Allocate(bytes) => write!(f, "allocates {bytes} bytes"),
            Request::Launch { plan, m } => write!(f, "launches plan {plan:016x} of {m} rows"),
        }
    }
}

/// An error that every rank gets.
#[derive(Clone, Debug)]
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
            other => Refusal::Full {
                what: other.to_string(),
                help: other.help().unwrap_or_default().into(),
            },
        }
    }
}
