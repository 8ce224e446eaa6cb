//! What comes of a verb.

use serde_json::{Map, Value as Json};

/// Good: proven, and right where it ran.
pub const GOOD: u8 = 0;
/// Rejected by a stage, wrong when it ran, compared with nothing, or not possible here.
pub const REJECTED: u8 = 1;
/// The command line itself has no meaning.
pub const USAGE: u8 = 2;

/// What a verb found: whether all is well, and the fields of its JSON object.
pub(super) struct Outcome {
    pub good: bool,
    pub fields: Map<String, Json>,
}

impl Outcome {
    pub(super) fn good(fields: Map<String, Json>) -> Outcome {
        Outcome { good: true, fields }
    }
}
