//! Tokens to [`Schedule`]: the signature and the statements outside roles. Each submodule reads one family.
//!
//! Reading goes on after a mistake: what could not be read is `None`, and its names are noted as uncertain.
//! [`crate::check`] checks the meaning of what was read.

mod chain;
mod constant;
mod declare;
mod order;
mod outputs;
mod parser;
mod place;
mod rank;
mod role;
mod stmt;
mod value;

use crate::errors::Errors;
use crate::mistakes::Mistake;
use crate::model::{Param, Schedule, Top, Usage};
use crate::names::{self, Kind, Scope};
use chain::{
    Chain, Link, ident, identifiers, in_capitals, plain_name, without_receiver, word_call,
};
use parser::{NOTHING, Parser, Takes};
use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
pub use role::GEMM_OPTIONS;
use std::collections::HashSet;
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Expr, ExprMethodCall, FnArg, GenericArgument, ItemFn, Local, Pat, PathArguments,
    ReturnType, Signature, Stmt as SynStmt, Token, Type,
};

/// Reads a schedule as far as possible.
pub fn schedule(item: &ItemFn, errors: &Errors) -> Schedule {
    let mut parser = Parser {
        errors,
        scope: Scope::new(),
        unsure: HashSet::new(),
        tiled: HashSet::new(),
    };
    parser.signature(&item.sig);
    let mut params = parser.params(&item.sig.inputs);
    let body = parser.tops(&item.block.stmts);
    outputs::mark(&mut params, &body);
    Schedule {
        attrs: item.attrs.clone(),
        vis: item.vis.clone(),
        name: item.sig.ident.clone(),
        params,
        body,
        unsure: parser.unsure,
    }
}

impl Parser<'_> {
    fn signature(&mut self, sig: &Signature) {
        let qualifiers: [(Option<TokenStream>, &str); 3] = [
            (sig.asyncness.map(ToTokens::into_token_stream), "async"),
            (sig.constness.map(ToTokens::into_token_stream), "const"),
            (sig.abi.as_ref().map(ToTokens::to_token_stream), "extern"),
        ];
        for (tokens, word) in qualifiers {
            if let Some(tokens) = tokens {
                self.errors
                    .at(tokens, Mistake::Qualifier { word: word.into() });
            }
        }
        if let syn::Safety::Unsafe(word) = &sig.safety {
            self.errors.at(
                word,
                Mistake::Qualifier {
                    word: "unsafe".into(),
                },
            );
        }
        if !sig.generics.params.is_empty() {
            self.errors.at(&sig.generics, Mistake::Generics);
        }
        if let Some(clause) = &sig.generics.where_clause {
            self.errors.at(clause, Mistake::Generics);
        }
        if let ReturnType::Type(..) = &sig.output {
            self.errors.at(&sig.output, Mistake::ReturnType);
        }
    }

    fn params(&mut self, inputs: &Punctuated<FnArg, Token![,]>) -> Vec<Param> {
        let mut params = Vec::new();
        for input in inputs {
            let typed = match input {
                FnArg::Receiver(receiver) => {
                    self.errors.at(receiver, Mistake::SelfParam);
                    continue;
                }
                FnArg::Typed(typed) => typed,
            };
            let Some(name) = plain_name(&typed.pat) else {
                self.errors.at(&typed.pat, Mistake::ParamPattern);
                self.note_unsure(&typed.pat);
                self.declare_broken(&typed.pat);
                continue;
            };
            let read = self.tensor_type(&typed.ty);
            let kind = read
                .as_ref()
                .map_or(Kind::Broken, |(usage, ..)| Kind::Tensor(*usage));
            self.scope.declare(name, kind, self.errors);
            if let Some((usage, marker, element)) = read {
                params.push(Param {
                    name: name.clone(),
                    usage,
                    marker,
                    element,
                });
            }
        }
        params
    }

    /// `Gathered<bf16>`
    fn tensor_type(&mut self, ty: &Type) -> Option<(Usage, Ident, Type)> {
        let kinds = || Usage::PARAMS.iter().map(|known| known.name);
        let segment = match ty {
            Type::Path(path) if path.qself.is_none() => path.path.segments.last(),
            _ => None,
        };
        let Some(segment) = segment else {
            let known = names::offer("", kinds());
            self.errors.at(ty, Mistake::NotATensor { known });
            return None;
        };
        let found = names::text(&segment.ident);
        let Some(usage) = Usage::PARAMS.iter().find(|known| known.name == found) else {
            let known = names::offer(&found, kinds());
            self.errors
                .at(&segment.ident, Mistake::UnknownKind { found, known });
            return None;
        };
        let element = match &segment.arguments {
            PathArguments::AngleBracketed(arguments) if arguments.args.len() == 1 => {
                match arguments.args.first() {
                    Some(GenericArgument::Type(element)) => Some(element.clone()),
                    _ => None,
                }
            }
            _ => None,
        };
        let Some(element) = element else {
            self.errors.at(ty, Mistake::OneElement { kind: found });
            return None;
        };
        Some((*usage, segment.ident.clone(), element))
    }

    fn tops(&mut self, stmts: &[SynStmt]) -> Vec<Top> {
        let mut tops = Vec::new();
        for stmt in stmts {
            match self.top(stmt) {
                Some(top) => tops.push(top),
                None => self.note_unsure(stmt),
            }
        }
        tops
    }

    fn top(&mut self, stmt: &SynStmt) -> Option<Top> {
        match stmt {
            SynStmt::Item(item) => Some(Top::Rust(item.clone())),
            SynStmt::Local(local) => self.declaration(local),
            SynStmt::Macro(stmt) => {
                self.unsupported(&stmt.mac, "a macro call");
                None
            }
            SynStmt::Expr(expr, _) => self.role(expr).map(Top::Role),
        }
    }

    /// The name that a `let` binds, and its right side. Reports anything that a schedule's `let` may not have.
    fn binding<'a>(&mut self, local: &'a Local) -> Option<(&'a Ident, bool, &'a Expr)> {
        self.no_attributes(&local.attrs);
        let (ident, mutable) = match &local.pat {
            Pat::Ident(pat) if pat.by_ref.is_none() && pat.subpat.is_none() => {
                (&pat.ident, pat.mutability.is_some())
            }
            Pat::Type(typed) => {
                self.errors.at(&typed.ty, Mistake::LetType);
                self.declare_broken(&typed.pat);
                return None;
            }
            other => {
                self.errors.at(other, Mistake::LetPattern);
                self.declare_broken(other);
                return None;
            }
        };
        match &local.init {
            Some(init) => match &init.diverge {
                Some((_, block)) => {
                    self.errors.at(block, Mistake::LetElse);
                    self.declare_broken(&local.pat);
                    None
                }
                None => Some((ident, mutable, &init.expr)),
            },
            None => {
                self.errors.at(local, Mistake::LetNothing);
                self.declare_broken(&local.pat);
                None
            }
        }
    }

    fn declare_broken(&mut self, pat: &Pat) {
        for name in identifiers(pat.to_token_stream()) {
            if self.scope.find(&name).is_none() {
                self.scope.declare(&name, Kind::Broken, self.errors);
            }
        }
    }

    /// Reports every attribute but documentation.
    fn no_attributes(&mut self, attrs: &[Attribute]) {
        for attr in attrs {
            if attr.path().is_ident("doc") {
                continue;
            }
            let mistake = match attr.path().get_ident() {
                Some(word) if role::WORDS.contains(&names::text(word).as_str()) => {
                    Mistake::RolePlace {
                        word: names::text(word),
                    }
                }
                _ => Mistake::Attribute,
            };
            self.errors.at(attr, mistake);
        }
    }

    /// A constant of the surrounding Rust. Names of the schedule come first: a tensor may be called `A`.
    fn outer_constant(&self, expr: &Expr) -> bool {
        in_capitals(expr) && ident(expr).is_none_or(|name| self.scope.find(name).is_none())
    }

    fn unsupported(&mut self, tokens: impl ToTokens, what: &str) {
        self.errors
            .at(tokens, Mistake::Unsupported { what: what.into() });
    }

    fn note_unsure(&mut self, tokens: impl ToTokens) {
        for name in identifiers(tokens.into_token_stream()) {
            self.unsure.insert(names::text(&name));
        }
    }

    /// The meaning of a name. Reports an unknown one; `fits` chooses the kinds to suggest.
    fn look_up(&mut self, name: &Ident, fits: impl Fn(&Kind) -> bool) -> Option<Kind> {
        match self.scope.find(name) {
            Some(Kind::Broken) => None,
            Some(kind) => Some(kind.clone()),
            None => {
                let known = self.scope.offer(name, fits);
                let found = names::text(name);
                self.errors.at(name, Mistake::Undefined { found, known });
                None
            }
        }
    }

    /// The arguments of a call that takes exactly `N`.
    fn arguments<'a, const N: usize>(
        &mut self,
        word: &Ident,
        call: impl ToTokens,
        found: &'a Punctuated<Expr, Token![,]>,
        (wanted, example): Takes,
    ) -> Option<[&'a Expr; N]> {
        let arguments: Vec<&Expr> = found.iter().collect();
        <[&Expr; N]>::try_from(arguments)
            .map_err(|_| {
                self.errors.at(
                    call,
                    Mistake::Arguments {
                        wanted: wanted.into(),
                        example: match example {
                            "" => format!("{word}()"),
                            example => example.into(),
                        },
                        word: names::text(word),
                    },
                );
            })
            .ok()
    }

    /// Like [`Parser::arguments`], of a method that takes no type arguments.
    fn call_arguments<'a, const N: usize>(
        &mut self,
        call: &'a ExprMethodCall,
        wanted: Takes,
    ) -> Option<[&'a Expr; N]> {
        if let Some(turbofish) = &call.turbofish {
            self.errors.at(
                turbofish,
                Mistake::NoTypes {
                    word: names::text(&call.method),
                },
            );
        }
        self.arguments(&call.method, without_receiver(call), &call.args, wanted)
    }

    fn unknown_method(&mut self, method: &Ident, of: &str, known: &[&str]) {
        let found = names::text(method);
        let known = names::offer(&found, known.iter().copied());
        let of = of.to_owned();
        self.errors
            .at(method, Mistake::UnknownMethod { found, of, known });
    }
}
