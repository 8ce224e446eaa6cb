//! counterflow.
