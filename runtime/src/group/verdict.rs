//! Why a communicator ended, as every rank gets it: between processes as text.

use crate::error::{Error, Stall};
use serde::{Deserialize, Serialize};

/// Reason that a communicator ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// Somebody waited too long.
    Stalled(Box<Stall>),
    /// Ranks launched different things: what each launched.
    Differs(String),
    /// A rank ended early, or somebody asked for the end: a sentence.
    Aborted(String),
}

impl Verdict {
    /// Verdict with names and sentences of at most so many bytes.
    pub(super) fn cut(&self, most: usize) -> Verdict {
        let cut = |text: &String| {
            let mut end = most.min(text.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            match end < text.len() {
                true => format!("{}…", &text[..end]),
                false => text.clone(),
            }
        };
        match self {
            Verdict::Stalled(stall) => Verdict::Stalled(Box::new(Stall {
                role: cut(&stall.role),
                kernel: stall.kernel.as_ref().map(cut),
                waited_on: cut(&stall.waited_on),
                at: stall.at.as_ref().map(cut),
                group: stall.group.as_ref().map(cut),
                refused: stall.refused.iter().take(4).map(cut).collect(),
                ..(**stall).clone()
            })),
            Verdict::Differs(what) => Verdict::Differs(cut(what)),
            Verdict::Aborted(what) => Verdict::Aborted(cut(what)),
        }
    }
}

impl From<Verdict> for Error {
    fn from(verdict: Verdict) -> Error {
        match verdict {
            Verdict::Stalled(stall) => Error::Stalled(stall),
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
        Verdict::Stalled(Box::new(stall))
    }
}
