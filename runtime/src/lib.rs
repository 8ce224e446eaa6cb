//! Where checked plans run.
