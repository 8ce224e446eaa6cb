//! Turns a [`Schedule`] into the function that builds its program.

use crate::body::{axis, builder, constant, dtype, private, rank, stmts};
use crate::model::{Declaration, Param, Role, RoleKind, Schedule, Shape, Size, Top};
use crate::names;
use crate::parse::GEMM_OPTIONS;
use proc_macro2::{Ident, TokenStream};
use quote::{quote, quote_spanned};
use syn::ItemFn;

/// `fn name() -> Program { … }`
pub fn schedule(schedule: &Schedule) -> TokenStream {
    let Schedule {
        attrs, vis, name, ..
    } = schedule;
    let (s, at, text) = (builder(), name.span(), names::text(name));
    let ty = private(at, "ScheduleBuilder");
    let new = quote_spanned!(at=> #ty::new(#text));
    let params = schedule.params.iter().map(param);
    let body = schedule.body.iter().map(top);
    quote! {
        #(#attrs)*
        #vis fn #name() -> ::counterflow::Program {
            let mut #s = #new;
            #(#params)*
            #(#body)*
            #s.finish()
        }
    }
}

/// A stub for a schedule that could not be read: its callers still compile, so no second error follows.
pub fn stub(item: &ItemFn) -> TokenStream {
    let (vis, name) = (&item.vis, &item.sig.ident);
    let attrs = &item.attrs;
    quote! {
        #(#attrs)*
        #vis fn #name() -> ::counterflow::Program {
            ::core::unreachable!()
        }
    }
}

fn param(param: &Param) -> TokenStream {
    let Param {
        name,
        usage,
        marker,
        element,
    } = param;
    let (s, text, at) = (builder(), names::text(name), name.span());
    let method = Ident::new(usage.builder, at);
    // By the marker type, so that editors know what the user's word means.
    let dtype =
        quote_spanned!(marker.span()=> ::counterflow::prelude::#marker::<#element>::dtype());
    quote_spanned!(at=> let #name = #s.#method(#text, #dtype);)
}

fn top(top: &Top) -> TokenStream {
    let s = builder();
    match top {
        Top::Rust(item) => quote!(#item),
        Top::Rank(name, value) => {
            let value = rank(value);
            quote_spanned!(name.span()=> let #name = #value;)
        }
        Top::Declare(name, declaration) => {
            let text = names::text(name);
            let call = match declaration {
                Declaration::Partition {
                    tensor,
                    shape,
                    method,
                    size,
                } => {
                    let builder_method = match (shape, size) {
                        (Shape::Chunks, _) => "chunks",
                        (Shape::Panels, _) => "panels",
                        (Shape::TilesAcross, _) => "tiles_across",
                        (Shape::Tiles, Size::Constant(_)) => "tiles",
                        (Shape::Tiles, Size::Of(_)) => "tiles_like",
                    };
                    let size = match size {
                        Size::Constant(size) => constant(size),
                        Size::Of(partition) => quote!(#partition),
                    };
                    let at = method.span();
                    let builder_method = Ident::new(builder_method, at);
                    quote_spanned!(at=> #s.#builder_method(#text, #tensor, #size))
                }
                Declaration::Counters { word, axes } => {
                    let at = word.span();
                    let ty = private(at, "Axis");
                    let axes = axes.iter().map(axis);
                    quote_spanned!(at=> #s.counters(#text, [#(#ty::from(#axes)),*]))
                }
                Declaration::Symmetric {
                    word,
                    element,
                    like: None,
                } => {
                    let dtype = dtype(element);
                    quote_spanned!(word.span()=> #s.scratch(#text, #dtype))
                }
                Declaration::Symmetric {
                    word,
                    element,
                    like: Some(like),
                } => {
                    let (dtype, slots) = (dtype(element), axis(&like.slots));
                    let (tensor, extent) = (&like.tensor, like.extent.iter());
                    quote_spanned!(word.span()=>
                        #s.symmetric(#text, #dtype, #tensor #(.#extent())*, #slots)
                    )
                }
            };
            quote_spanned!(name.span()=> let #name = #call;)
        }
        Top::Role(role) => role_call(role),
    }
}

fn role_call(role: &Role) -> TokenStream {
    let (s, at) = (builder(), role.word.span());
    let word = &role.word;
    let body = stmts(&role.body);
    match &role.kind {
        RoleKind::Gemm { options } => {
            let ty = private(at, "GemmOptions");
            let fields = options.iter().map(|(name, value)| {
                let tune = private(name.span(), "Tune");
                let value = match (&value.tune, constant(value)) {
                    (Some(_), tuned) => tuned,
                    (None, fixed) => quote_spanned!(name.span()=> #tune::from(#fixed)),
                };
                quote_spanned!(name.span()=> #name: ::core::option::Option::Some(#value))
            });
            // If all are given, clippy would report the useless `..`.
            let rest = (options.len() < GEMM_OPTIONS.len())
                .then(|| quote_spanned!(at=> ..::core::default::Default::default()));
            quote_spanned!(at=> #s.#word(#ty { #(#fields,)* #rest }, |#s| { #body });)
        }
        RoleKind::Comm { name: None, ctas } => {
            let ctas = constant(ctas);
            quote_spanned!(at=> #s.#word(#ctas, |#s| { #body });)
        }
        RoleKind::Comm {
            name: Some(name),
            ctas,
        } => {
            let (name, ctas) = (names::text(name), constant(ctas));
            quote_spanned!(at=> #s.comm_named(#name, #ctas, |#s| { #body });)
        }
        RoleKind::SpareWarps | RoleKind::CopyEngine => {
            quote_spanned!(at=> #s.#word(|#s| { #body });)
        }
    }
}
