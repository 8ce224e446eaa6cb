//! Fixes that a test can switch off on its thread, to show that the fuzz of API calls finds what each of them closed.
//! Outside tests they are always on, and cost nothing.

/// A rule that keeps safe calls sound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fix {
    /// Every launch is compared with the peers'.
    Ledger,
    /// Kernels that share scratch share its credits.
    Credits,
    /// Dropped memory is not given out, or cleared, before the streams' work is done.
    Drops,
    /// Launches of two communicators that do not fit on a GPU take turns.
    Turns,
    /// One call of a rank at a time meets the others.
    Seats,
    /// A thread that wakes others in a meeting holds their lock once: they wait by then, or look again.
    Wake,
}

#[cfg(test)]
thread_local! {
    static UNDONE: std::cell::Cell<Option<Fix>> = const { std::cell::Cell::new(None) };
}

/// Switches a fix off on this thread.
#[cfg(test)]
pub(crate) fn undo(fix: Option<Fix>) {
    UNDONE.set(fix);
}

/// Fix that is switched off on this thread, for threads that it starts.
#[cfg(test)]
pub(crate) fn now() -> Option<Fix> {
    UNDONE.get()
}

/// True if `fix` is switched off.
#[cfg(test)]
pub(crate) fn undone(fix: Fix) -> bool {
    UNDONE.get() == Some(fix)
}

/// True if `fix` is switched off: never.
#[cfg(not(test))]
pub(crate) const fn undone(_: Fix) -> bool {
    false
}
