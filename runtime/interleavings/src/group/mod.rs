//! The run time's own files, and the end of a communicator without GPUs.

pub(crate) mod abort;
pub(crate) mod models;

#[path = "../../../src/group/meeting.rs"]
mod meeting;
#[path = "../../../src/group/roll.rs"]
#[allow(dead_code, reason = "reports are made elsewhere")]
mod roll;
#[path = "../../../src/group/seats.rs"]
mod seats;
mod verdict {
    pub(crate) use super::abort::Verdict;
}
