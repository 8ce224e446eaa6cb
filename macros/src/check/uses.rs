//! Uses of a schedule's names, collected while its rules are checked.

use crate::errors::Errors;
use crate::model::Axis;
use crate::names;
use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use std::collections::{HashMap, HashSet};

/// Checks a schedule.
pub(super) struct Checker<'a> {
    pub errors: &'a Errors,
    pub uses: HashMap<String, Uses>,
    /// The slots of each scratch tensor.
    pub slots: HashMap<String, Axis>,
    pub unsure: &'a HashSet<String>,
}

/// Places at which a name is first read (waited on, looped over) and first written (signalled, added to).
#[derive(Default)]
pub(super) struct Uses {
    pub read: Option<TokenStream>,
    pub written: Option<TokenStream>,
}

impl Checker<'_> {
    pub(super) fn reads(&mut self, name: &Ident, tokens: impl ToTokens) {
        let uses = self.uses.entry(names::text(name)).or_default();
        uses.read.get_or_insert_with(|| tokens.into_token_stream());
    }

    pub(super) fn writes(&mut self, name: &Ident, tokens: impl ToTokens) {
        let uses = self.uses.entry(names::text(name)).or_default();
        uses.written
            .get_or_insert_with(|| tokens.into_token_stream());
    }
}
