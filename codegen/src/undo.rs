//! Fixes that a test can switch off, to show that a wrong schedule is accepted without each of them.
//!
//! The tests' package turns the feature `undo` on, and builds without debug assertions have no switches all the same.
//! Elsewhere `undone` is `false` and costs nothing.

/// A rule that closed a hole in the verifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fix {
    /// The warp level keeps every order of the tile level, whichever threads make the accesses.
    WarpOrder,
    /// The warp level stores nowhere that the tile level does not.
    WarpPlaces,
    /// A term counts as often as it was added.
    Multiplicity,
    /// A bias or residual is a term like a product.
    AddedTerms,
    /// A Gathered tensor holds its own rows, not those of another tensor; a slot of an AllToAll one what its rank sends,
    /// rows of a gathered output what their rank computes.
    Provenance,
    /// Checks of what holds between launches, over every shape of the series.
    Dimensions,
    /// Launches of one kernel belong to one checked series.
    Series,
}

#[cfg(all(feature = "undo", debug_assertions))]
thread_local! {
    static UNDONE: std::cell::Cell<Option<Fix>> = const { std::cell::Cell::new(None) };
}

/// Runs `body` on this thread without `fix`.
#[cfg(all(feature = "undo", debug_assertions))]
pub fn undoing<T>(fix: Fix, body: impl FnOnce() -> T) -> T {
    let before = UNDONE.replace(Some(fix));
    let result = body();
    UNDONE.set(before);
    result
}

/// True if `fix` is switched off.
#[cfg(all(feature = "undo", debug_assertions))]
pub(crate) fn undone(fix: Fix) -> bool {
    UNDONE.get() == Some(fix)
}

/// True if `fix` is switched off: never.
#[cfg(not(all(feature = "undo", debug_assertions)))]
#[allow(dead_code)]
pub(crate) const fn undone(_: Fix) -> bool {
    false
}
