//! Names in the written code: types, constants and axes.

use crate::model::{Axis, Constant};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};

/// Names that user code cannot see: the builder and temporaries.
pub fn builder() -> Ident {
    Ident::new("__s", Span::mixed_site())
}

/// An item of the facade's hidden module, with the span of `at`.
pub fn private(at: Span, name: &str) -> TokenStream {
    let name = Ident::new(name, at);
    quote_spanned!(at=> ::counterflow::__private::#name)
}

/// The user's word, for an item of the same name in the facade.
pub(super) fn word(word: &Ident) -> TokenStream {
    quote_spanned!(word.span()=> ::counterflow::__private::#word)
}

/// The element type of a Rust type. rustc reports an unknown one, at the type.
pub fn dtype(element: &syn::Type) -> TokenStream {
    let at = syn::spanned::Spanned::span(element);
    let bound = private(at, "Element");
    quote_spanned!(at=> <#element as #bound>::DTYPE)
}

/// A constant, or the choices left open.
pub fn constant(constant: &Constant) -> TokenStream {
    let options = &constant.options;
    match &constant.tune {
        None => quote!(#(#options)*),
        Some(tune) => {
            let tune = word(tune);
            quote!(#tune([#(#options),*]))
        }
    }
}

/// An axis of counters.
pub fn axis(axis: &Axis) -> TokenStream {
    match axis {
        Axis::World(name) => {
            let world = word(name);
            quote!(#world())
        }
        Axis::Peers(name) => {
            let world = word(name);
            quote!(#world() - 1)
        }
        Axis::Items(partition) => partition.to_token_stream(),
        Axis::Count(count) => count.to_token_stream(),
    }
}
