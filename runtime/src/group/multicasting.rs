//! What of a heap multicast reaches, or why it reaches nothing.

use super::refusal::Refusal;
use crate::error::Error;
use crate::multicast::{MulticastState, View};

/// A heap's view, or why it has none.
#[derive(Debug, Default)]
pub(super) struct Multicasting {
    pub view: Option<View>,
    /// Reason that there is none, or that it does not reach what was added later.
    pub why: Option<Refusal>,
}

impl Multicasting {
    /// State of the view: what it reaches, or why there is none.
    pub fn state(&self) -> MulticastState {
        match (&self.view, &self.why) {
            (Some(view), _) => MulticastState::On {
                bytes: view.reaches(),
            },
            (None, Some(why)) => MulticastState::Off {
                why: why.what().to_owned(),
                help: why.helps().to_owned(),
            },
            (None, None) => MulticastState::Off {
                why: "nobody asked for multicast".into(),
                help: "ask for it by `Communicator::multicast`, on every rank".into(),
            },
        }
    }

    /// The address by which so many bytes at an offset are reached on every rank.
    pub fn address(&self, offset: u64, bytes: u64) -> Result<u64, Error> {
        let found = self.view.as_ref().map(|view| view.address(offset, bytes));
        if let Some(Some(address)) = found {
            return Ok(address);
        }
        let (why, help) = match (self.state(), &self.why) {
            (MulticastState::Off { why, help }, _) => (why, help),
            (MulticastState::On { .. }, Some(why)) => (why.what().into(), why.helps().into()),
            (MulticastState::On { bytes }, None) => (
                format!(
                    "it reaches the first {bytes} bytes of each slot, and adopted memory lies behind them"
                ),
                "allocate it with `allocate`".into(),
            ),
        };
        Err(Error::Usage {
            what: format!("memory that no multicast reaches: {why}"),
            legal: help,
        })
    }

    /// New memory must be a multiple of so many bytes.
    pub fn granularity(&self) -> u64 {
        self.view.as_ref().map_or(1, View::granularity)
    }
}
