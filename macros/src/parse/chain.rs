//! Forms of expressions that all families of statements use.

use crate::names;
use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Expr, ExprIndex, ExprMethodCall, ExprPath, Pat};

/// A method chain, split at its root: `x` and `.on(peer)`, `[c]`.
pub struct Chain<'a> {
    pub root: &'a Expr,
    pub links: Vec<Link<'a>>,
}

#[derive(Clone, Copy)]
pub enum Link<'a> {
    Index(&'a ExprIndex),
    Call(&'a ExprMethodCall),
}

impl<'a> Chain<'a> {
    pub fn of(expr: &'a Expr) -> Self {
        let mut links = Vec::new();
        let mut root = expr;
        loop {
            match root {
                Expr::Index(index) => {
                    links.push(Link::Index(index));
                    root = &index.expr;
                }
                Expr::MethodCall(call) => {
                    links.push(Link::Call(call));
                    root = &call.receiver;
                }
                Expr::Group(group) => root = &group.expr,
                _ => break,
            }
        }
        links.reverse();
        Chain { root, links }
    }
}

/// `chunks(128)` of `x.chunks(128)`: the receiver may span lines, and is not the mistake.
pub fn without_receiver(call: &ExprMethodCall) -> TokenStream {
    let mut tokens = call.method.to_token_stream();
    call.paren_token
        .surround(&mut tokens, |inside| call.args.to_tokens(inside));
    tokens
}

/// The identifier that is all of the expression.
pub fn ident(expr: &Expr) -> Option<&Ident> {
    match expr {
        Expr::Path(ExprPath {
            qself: None, path, ..
        }) => path.get_ident(),
        Expr::Group(group) => ident(&group.expr),
        _ => None,
    }
}

/// The name of a call such as `ranks()`, and the call.
pub fn word_call(expr: &Expr) -> Option<(&Ident, &syn::ExprCall)> {
    match expr {
        Expr::Call(call) => match &*call.func {
            Expr::Path(ExprPath {
                qself: None, path, ..
            }) if path.segments.len() == 1 => {
                path.segments.first().map(|segment| (&segment.ident, call))
            }
            _ => None,
        },
        Expr::Group(group) => word_call(&group.expr),
        _ => None,
    }
}

/// `x`, and neither `mut x` nor `_`.
pub fn plain_name(pat: &Pat) -> Option<&Ident> {
    match pat {
        Pat::Ident(pat)
            if pat.by_ref.is_none() && pat.subpat.is_none() && pat.mutability.is_none() =>
        {
            Some(&pat.ident)
        }
        _ => None,
    }
}

/// True if this looks like a constant of the surrounding Rust: in capitals, or a path.
pub fn in_capitals(expr: &Expr) -> bool {
    match expr {
        Expr::Path(path) => match path.path.get_ident() {
            Some(name) => {
                let name = names::text(name);
                name.chars().any(char::is_uppercase) && !name.chars().any(char::is_lowercase)
            }
            None => true,
        },
        _ => false,
    }
}

pub fn identifiers(tokens: TokenStream) -> Vec<Ident> {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Ident(ident) => vec![ident],
            TokenTree::Group(group) => identifiers(group.stream()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => Vec::new(),
        })
        .collect()
}
