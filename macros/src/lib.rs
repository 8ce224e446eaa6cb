//! `#[schedule]` and `#[epilogue]`: Rust tokens to Rust tokens.
//!
//! This crate knows only syntax: no shape, no world size, no machine. It reads a function of the schedule language,
//! reports all of its mistakes together, each at its token with a hint, and writes one builder call for each
//! statement. rustc checks types; the verifier checks legality.
//!
//! Deliberately absent: any dependency on the rest of counterflow, and any decision that could differ between two
//! machines or two calls.
#![forbid(unsafe_code)]

mod body;
mod check;
mod epilogue;
mod errors;
mod expand;
mod launcher;
mod mistakes;
mod model;
mod names;
mod parse;

use errors::Errors;
use mistakes::Mistake;
use proc_macro2::TokenStream;
use syn::ItemFn;

#[doc = include_str!("../docs/schedule.md")]
#[proc_macro_attribute]
pub fn schedule(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand_function(
        arguments.into(),
        item.into(),
        Mistake::NotAFunction,
        |item| {
            let errors = Errors::new();
            let schedule = parse::schedule(item, &errors);
            check::schedule(&schedule, &errors);
            match errors.check() {
                Ok(()) => {
                    let mut tokens = expand::schedule(&schedule);
                    tokens.extend(launcher::launcher(&schedule));
                    tokens
                }
                Err(error) => {
                    let mut tokens = error.to_compile_error();
                    tokens.extend(expand::stub(item));
                    tokens
                }
            }
        },
    )
    .into()
}

#[doc = include_str!("../docs/epilogue.md")]
#[proc_macro_attribute]
pub fn epilogue(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand_function(
        arguments.into(),
        item.into(),
        Mistake::EpilogueItem,
        epilogue::expand,
    )
    .into()
}

/// Passes a function to `expand`. Keeps anything else unchanged, beside the report.
fn expand_function(
    arguments: TokenStream,
    item: TokenStream,
    no_function: Mistake,
    expand: impl FnOnce(&ItemFn) -> TokenStream,
) -> TokenStream {
    let errors = Errors::new();
    if !arguments.is_empty() {
        errors.at(&arguments, Mistake::AttributeArguments);
    }
    let mut tokens = match syn::parse2::<ItemFn>(item.clone()) {
        Ok(function) => expand(&function),
        Err(_) => {
            errors.at(&item, no_function);
            item
        }
    };
    if let Err(error) = errors.check() {
        tokens.extend(error.to_compile_error());
    }
    tokens
}
