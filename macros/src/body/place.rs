//! Orders, ranks, places and cells.

use super::words::{constant, private, word};
use crate::model::{
    Cells, Cond, Home, Index, IndexKind, Items, Order, OrderArgument, Pick, Place, Rank,
};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::BinOp;

pub fn rank_order(order: &Order) -> TokenStream {
    let root = word(&order.root);
    let step = &order.step;
    let calls = order.calls.iter().map(|call| {
        let method = &call.method;
        let argument = match &call.argument {
            OrderArgument::Nothing => TokenStream::new(),
            OrderArgument::Function(function) => function.to_token_stream(),
            OrderArgument::Ranks(ranks) => rank(ranks),
        };
        quote_spanned!(method.span()=> .#method(#argument))
    });
    quote!(#root(#step) #(#calls)*)
}

pub fn item_order(items: &Items) -> TokenStream {
    let partition = &items.partition;
    let shard = match &items.shard {
        Some((of, shard)) => {
            let shard = rank(shard);
            quote_spanned!(of.span()=> .#of(#shard))
        }
        None => quote!(.all()),
    };
    let order = items.order.as_ref().map(|(method, group)| {
        let at = method.span();
        let group = match group {
            Some(group) => constant(group),
            None if *method == "grouped" => {
                let tune = private(at, "tune");
                quote_spanned!(at=> #tune([8, 4, 16]))
            }
            None => TokenStream::new(),
        };
        quote_spanned!(at=> .#method(#group))
    });
    let cuts = items.cuts.iter().map(|(method, number)| {
        let number = number.as_ref().map(rank);
        quote_spanned!(method.span()=> .#method(#number))
    });
    quote!(#partition #shard #order #(#cuts)*)
}

/// A rank expression, always as the builder's type.
pub fn rank(rank: &Rank) -> TokenStream {
    match rank {
        Rank::Me(name) | Rank::World(name) => {
            let name = word(name);
            quote!(#name())
        }
        Rank::Number(number) => {
            let at = syn::spanned::Spanned::span(number);
            let ty = private(at, "RankExpr");
            quote_spanned!(at=> #ty::from(#number))
        }
        Rank::Var(name) => quote_spanned!(name.span()=> #name.clone()),
        Rank::Binary(a, op, b) => {
            let (a, b) = (rank_operand(a), rank_operand(b));
            quote!(#a #op #b)
        }
    }
}

fn rank_operand(operand: &Rank) -> TokenStream {
    let tokens = rank(operand);
    match operand {
        Rank::Binary(..) => quote!((#tokens)),
        Rank::Me(_) | Rank::World(_) | Rank::Number(_) | Rank::Var(_) => tokens,
    }
}

pub fn condition(cond: &Cond, at: Span) -> TokenStream {
    match cond {
        Cond::Compare(a, op, b) => {
            let (a, b) = (rank(a), rank(b));
            let variant = match op {
                BinOp::Ne(_) => "Ne",
                BinOp::Lt(_) => "Lt",
                BinOp::Le(_) => "Le",
                BinOp::Gt(_) => "Gt",
                BinOp::Ge(_) => "Ge",
                _ => "Eq",
            };
            let variant = Ident::new(variant, at);
            let (ty, comparison) = (private(at, "Cond"), private(at, "Comparison"));
            quote_spanned!(at=> #ty::compare(#comparison::#variant, #a, #b))
        }
        Cond::Both(a, b) => {
            let (a, b) = (condition(a, at), condition(b, at));
            quote_spanned!(at=> #a.and(#b))
        }
        Cond::Either(a, b) => {
            let (a, b) = (condition(a, at), condition(b, at));
            quote_spanned!(at=> #a.or(#b))
        }
        Cond::Not(a) => {
            let a = condition(a, at);
            quote_spanned!(at=> #a.negate())
        }
    }
}

fn home(home: &Home) -> TokenStream {
    match home {
        Home::Me => TokenStream::new(),
        Home::On(word, to) => {
            let to = rank(to);
            quote_spanned!(word.span()=> .#word(#to))
        }
        Home::Everywhere(word) => quote_spanned!(word.span()=> .#word()),
    }
}

pub fn place(place: &Place) -> TokenStream {
    let (tensor, home) = (&place.tensor, home(&place.home));
    let planes = (place.planes.iter()).map(|word| quote_spanned!(word.span()=> .#word()));
    let indices = place.indices.iter().map(index);
    quote!(#tensor #home #(#planes)* #(.at(#indices))*)
}

pub fn cell_ref(cells: &Cells) -> TokenStream {
    let (counter, home) = (&cells.counter, home(&cells.home));
    let indices = cells.indices.iter().map(index);
    quote!(#counter #home #(.at(#indices))*)
}

pub fn index(index: &Index) -> TokenStream {
    match &index.kind {
        IndexKind::Rank(Pick::One(one)) => rank(one),
        IndexKind::Rank(Pick::Several(name)) => {
            let several = word(name);
            quote!(#several())
        }
        IndexKind::Item { var, .. } => var.to_token_stream(),
        IndexKind::Along { var, side } => quote!(#var.#side()),
    }
}
