//! Rules that a run switches off.

use std::sync::OnceLock;

/// A rule that keeps a protocol right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fix {
    /// One call of a rank at a time meets the others.
    Seats,
    /// Who wakes others holds their lock once: they wait by then, or look again.
    Wake,
    /// A launch and a rank that leaves see each other.
    Fence,
}

static UNDONE: OnceLock<Option<Fix>> = OnceLock::new();

/// Switches a rule off.
pub(crate) fn undo(fix: Option<Fix>) {
    UNDONE.set(fix).expect("once");
}

/// Whether `fix` is switched off.
pub(crate) fn undone(fix: Fix) -> bool {
    UNDONE.get() == Some(&Some(fix))
}
