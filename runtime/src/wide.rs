//! How much a test does.

/// Whether a test does all that it can, as in `.ci/run`, which sets `WIDE`.
pub(crate) fn wide() -> bool {
    std::env::var_os("WIDE").is_some()
}
