//! Why a communicator ended, as every rank gets it: between processes as text.

use crate::error::{Error, Stall};
use serde::{Deserialize, Serialize};

/// Why a communicator ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// Somebody waited too long.
    Stalled(Stall),
    /// Ranks launched different things: what each launched.
    Differs(String),
    /// A rank ended early, or somebody asked for the end: a sentence.
    Aborted(String),
}

impl From<Verdict> for Error {
    fn from(verdict: Verdict) -> Error {
        match verdict {
            Verdict::Stalled(stall) => Error::Stalled(Box::new(stall)),
            Verdict::Differs(what) => Error::Mismatch {
                what,
                help: "launch the same kernels with the same shapes and buffers in the same order on every rank; this communicator is dead, so build a new one"
                    .into(),
            },
            Verdict::Aborted(what) => Error::Aborted {
                what,
                help: "correct that, and build a new communicator".into(),
            },
        }
    }
}

impl From<Stall> for Verdict {
    fn from(stall: Stall) -> Verdict {
        Verdict::Stalled(stall)
    }
}
