//! The parser and its state.

use crate::errors::Errors;
use crate::names::Scope;
use std::collections::HashSet;

/// Arguments of a call, and an example of it.
pub(super) type Takes = (&'static str, &'static str);

pub(super) const NOTHING: Takes = ("nothing", "");

pub(super) struct Parser<'e> {
    pub errors: &'e Errors,
    pub scope: Scope,
    pub unsure: HashSet<String>,
    /// The partitions into tiles.
    pub tiled: HashSet<String>,
}
