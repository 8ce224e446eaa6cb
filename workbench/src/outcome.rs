//! The result of a verb.

use serde_json::{Map, Value as Json};

/// Good: proven, and right if it ran.
pub const GOOD: u8 = 0;
/// Rejected by a stage, wrong in a run, not compared, or not possible here; a machine that is not ready.
pub const REJECTED: u8 = 1;
/// The command line is invalid.
pub const USAGE: u8 = 2;

/// A verb's result: whether it is good, and the fields of its JSON object.
pub(super) struct Outcome {
    pub good: bool,
    pub fields: Map<String, Json>,
}

impl Outcome {
    pub(super) fn good(fields: Map<String, Json>) -> Outcome {
        Outcome { good: true, fields }
    }
}
