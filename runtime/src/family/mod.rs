//! Families: ops by what they compute. Each has several candidates, schedules of the library that compute the same, and is
//! built as the fastest of them.

mod candidates;
mod choose;

pub use crate::low_latency::Collective;
pub use candidates::{Candidate, Family, SCHEDULE, Source, Stage, mixtures, sources};
pub(crate) use candidates::{Wired, fits};
pub(crate) use choose::{Asked, Chosen};
pub use choose::{Choice, Reason, choose};
