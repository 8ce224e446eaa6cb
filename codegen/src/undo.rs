//! Fixes that a test can switch off, so that it can show that without each of them a wrong schedule is accepted.
//!
//! Only the feature `undo` compiles the switches in, and optimised builds refuse it; without it `undone` is `false`
//! and costs nothing.

#[cfg(all(feature = "undo", not(debug_assertions)))]
compile_error!(
    "the feature `undo` switches the verifier's rules off: it is for this crate's own tests"
);

/// A rule of the verifier that closed a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fix {
    /// The warp level keeps every order of the tile level, whichever thread makes the access.
    WarpOrder,
    /// A term counts as often as it was added.
    Multiplicity,
    /// A bias or residual is a term like a product.
    AddedTerms,
    /// A Gathered tensor holds rows of the tensor that it gathers.
    Provenance,
    /// What holds between launches is decided over every shape of the series.
    Dimensions,
    /// Launches of one kernel belong to one checked series.
    Series,
}

#[cfg(feature = "undo")]
thread_local! {
    static UNDONE: std::cell::Cell<Option<Fix>> = const { std::cell::Cell::new(None) };
}

/// Runs `body` on this thread as if `fix` had never been made.
#[cfg(feature = "undo")]
pub fn undoing<T>(fix: Fix, body: impl FnOnce() -> T) -> T {
    let before = UNDONE.replace(Some(fix));
    let result = body();
    UNDONE.set(before);
    result
}

/// Whether `fix` is switched off.
#[cfg(feature = "undo")]
pub(crate) fn undone(fix: Fix) -> bool {
    UNDONE.get() == Some(fix)
}

/// Whether `fix` is switched off: never.
#[cfg(not(feature = "undo"))]
#[allow(dead_code)]
pub(crate) const fn undone(_: Fix) -> bool {
    false
}
