//! What a rule finds.

use crate::diag::{Diagnostic, Rule};
use crate::program::Loc;

/// One finding.
pub(super) fn refuse(
    at: impl Into<Option<Loc>>,
    message: impl Into<String>,
    hint: impl Into<String>,
) -> Diagnostic {
    Diagnostic::new(Rule::Resources, at, message).hint(hint)
}
