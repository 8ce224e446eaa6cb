//! Each statement becomes one builder call with the span of the user's tokens: the builder's `#[track_caller]` methods
//! then record the user's line, and rustc underlines its errors there.

mod place;
mod value;
mod words;

pub use place::rank;
pub use words::{axis, builder, constant, dtype, private};

use crate::model::{Binding, Stmt, StmtKind, Value};
use crate::names;
use place::{cell_ref, condition, item_order, place, rank_order};
use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use value::Steps;

pub fn stmts(stmts: &[Stmt]) -> TokenStream {
    stmts.iter().map(stmt).collect()
}

fn stmt(stmt: &Stmt) -> TokenStream {
    let (s, at) = (builder(), stmt.at);
    match &stmt.kind {
        StmtKind::ForRanks { var, order, body } => {
            let (name, var) = binding(var, "rank");
            let (order, body) = (rank_order(order), stmts(body));
            quote_spanned!(at=> #s.for_ranks(#name, #order, |#s, #var| { #body });)
        }
        StmtKind::ForItems { var, items, body } => {
            let (name, var) = binding(var, "item");
            let (items, body) = (item_order(items), stmts(body));
            quote_spanned!(at=> #s.for_items(#name, #items, |#s, #var| { #body });)
        }
        StmtKind::If {
            cond,
            then,
            otherwise,
        } => {
            let (cond, then) = (condition(cond, at), stmts(then));
            if otherwise.is_empty() {
                return quote_spanned!(at=> #s.when(#cond, |#s| { #then }););
            }
            let otherwise = stmts(otherwise);
            quote_spanned!(at=> #s.when_else(#cond, |#s| { #then }, |#s| { #otherwise });)
        }
        StmtKind::Wait { cells, at_least } => {
            let cells = cell_ref(cells);
            match at_least {
                None => quote_spanned!(at=> #s.wait(#cells);),
                Some(amount) => quote_spanned!(at=> #s.wait_at_least(#cells, #amount);),
            }
        }
        StmtKind::Signal { cells, amount } => {
            let cells = cell_ref(cells);
            quote_spanned!(at=> #s.signal(#cells, #amount);)
        }
        StmtKind::Copy { dst, src } => {
            let mut steps = Steps::default();
            let src = steps.read(src);
            let dst = place(dst);
            steps.push(quote_spanned!(at=> #s.copy(#dst, #src);));
            steps.done()
        }
        StmtKind::Store { dst, add, value } => {
            let mut steps = Steps::default();
            let value = steps.value(value);
            let dst = place(dst);
            steps.push(if *add {
                quote_spanned!(at=> #s.store_add(#dst, #value);)
            } else {
                quote_spanned!(at=> #s.store(#dst, #value);)
            });
            steps.done()
        }
        StmtKind::Value(name, value) => {
            let mut steps = Steps::default();
            let named = matches!(
                value,
                Value::Dot { .. } | Value::Sum { .. } | Value::Load(_)
            );
            let value = steps.value(value);
            steps.push(quote_spanned!(at=> let #name = #value;));
            if named {
                let text = names::text(name);
                steps.push(quote_spanned!(at=> #s.name(&#name, #text);));
            }
            steps.done()
        }
        StmtKind::Rank(name, value) => {
            let value = rank(value);
            quote_spanned!(at=> let #name = #value;)
        }
        StmtKind::Accumulator(name) => {
            let text = names::text(name);
            quote_spanned!(at=> let #name = #s.accumulator(#text);)
        }
        StmtKind::Accumulate { into, a, b } => {
            let mut steps = Steps::default();
            let (a, b) = (steps.operand_of_dot(a), steps.operand_of_dot(b));
            steps.push(quote_spanned!(at=> #s.accumulate(&#into, #a, #b);));
            steps.done()
        }
    }
}

/// The builder's name for a loop variable, and the closure's.
fn binding(var: &Binding, unnamed: &str) -> (String, TokenStream) {
    match &var.0 {
        Some(name) => (names::text(name), name.to_token_stream()),
        None => (unnamed.to_owned(), quote!(_)),
    }
}
