//! A mistake in the program's text.

use crate::diag::{Diagnostic, Rule};
use crate::program::Loc;

/// A mistake at that statement.
pub(super) fn mistake(at: Loc, message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Rule::Language, at, message)
}
