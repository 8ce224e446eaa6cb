//! The collector of mistakes. What each mistake says is in [`crate::mistakes`].

use crate::mistakes::Mistake;
use quote::ToTokens;
use std::cell::RefCell;

/// The mistakes of one item found so far. It panics if it is dropped unchecked, so that none can be lost.
pub struct Errors(RefCell<Option<Vec<syn::Error>>>);

impl Errors {
    pub fn new() -> Self {
        Errors(RefCell::new(Some(Vec::new())))
    }

    /// Records a mistake under all of `tokens`.
    pub fn at(&self, tokens: impl ToTokens, mistake: Mistake) {
        let (message, hint) = mistake.text();
        self.push(syn::Error::new_spanned(
            tokens,
            format!("{message}\nhelp: {hint}"),
        ));
    }

    fn push(&self, error: syn::Error) {
        if let Some(found) = self.0.borrow_mut().as_mut() {
            found.push(error);
        }
    }

    /// The mistakes together, in the order of the source.
    pub fn check(self) -> syn::Result<()> {
        let mut found = self.0.take().unwrap_or_default();
        if proc_macro::is_available() {
            found.sort_by_key(|error| {
                let start = error.span().unwrap().start();
                (start.line(), start.column())
            });
        }
        found
            .into_iter()
            .reduce(|mut all, next| {
                all.combine(next);
                all
            })
            .map_or(Ok(()), Err)
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        assert!(
            self.0.borrow().is_none() || std::thread::panicking(),
            "mistakes were collected and never checked"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "never checked")]
    fn dropping_unchecked_is_noticed() {
        drop(Errors::new());
    }

    #[test]
    fn all_mistakes_are_reported() {
        let errors = Errors::new();
        errors.at(quote::quote!(a), Mistake::NoRole);
        errors.at(quote::quote!(b), Mistake::NotAFunction);
        let reported = errors.check().unwrap_err();
        assert_eq!(reported.into_iter().count(), 2);
    }
}
