//! Errors, as far as the protocols make them.

use crate::group::abort::Verdict;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Error(pub Verdict);

impl From<Verdict> for Error {
    fn from(verdict: Verdict) -> Error {
        Error(verdict)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stall {
    pub rank: u32,
    pub role: String,
    pub waited_on: String,
    pub seen: Option<u64>,
    pub wanted: u64,
    pub index: Option<u32>,
}
