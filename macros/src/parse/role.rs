//! Role attributes, and the loops and blocks that have them.

use super::constant::Wanted;
use super::{Parser, ident};
use crate::mistakes::Mistake;
use crate::model::{Constant, Role, RoleKind, Stmt};
use crate::names;
use proc_macro2::Ident;
use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Expr, Meta, MetaNameValue, Token};

/// All roles.
pub(super) const WORDS: [&str; 4] = ["gemm", "comm", "spare_warps", "copy_engine"];

/// Every option of `#[comm(…)]`.
const COMM_OPTIONS: [&str; 2] = ["name", "ctas"];

/// Every option of `#[gemm(…)]`.
pub const GEMM_OPTIONS: [&str; 6] = ["k", "cluster", "split", "stages", "subtiles", "ping_pong"];

/// Options in the brackets of a role's attribute.
#[derive(Default)]
struct Options {
    /// The role's own name, if it is given one.
    name: Option<Ident>,
    settings: Vec<(Ident, Constant)>,
}

impl Parser<'_> {
    /// A statement outside roles must have a role. Without the attribute its body is still read.
    pub(super) fn role(&mut self, expr: &Expr) -> Option<Role> {
        let attrs: Vec<&Attribute> = attributes(expr)
            .iter()
            .filter(|attr| !attr.path().is_ident("doc"))
            .collect();
        let kind = match attrs.as_slice() {
            [] => {
                self.no_role(expr);
                None
            }
            [only] => self.role_kind(only),
            [first, second, ..] => {
                let first = self.role_kind(first);
                if first.is_some() && self.role_kind(second).is_some() {
                    self.errors.at(second, Mistake::TwoRoles);
                }
                None
            }
        };
        let body = match expr {
            Expr::ForLoop(looped) => self.for_loop(looped).map(|kind| {
                vec![Stmt {
                    at: looped.for_token.span(),
                    kind,
                }]
            }),
            Expr::Block(block) => Some(self.stmts(&block.block)),
            _ => {
                let sound = matches!(
                    expr,
                    Expr::If(_) | Expr::Assign(_) | Expr::MethodCall(_) | Expr::Call(_)
                );
                if !sound && !attrs.is_empty() {
                    self.unsupported_expr(expr);
                } else if let [attr, ..] = attrs.as_slice() {
                    let word = attr.path().to_token_stream().to_string();
                    self.errors.at(attr, Mistake::RolePlace { word });
                }
                None
            }
        };
        let (word, kind) = kind?;
        Some(Role {
            word,
            kind,
            body: body?,
        })
    }

    fn no_role(&mut self, expr: &Expr) {
        match expr {
            Expr::ForLoop(looped) => self.errors.at(looped.for_token, Mistake::RoleMissing),
            Expr::Block(_) => self.errors.at(expr, Mistake::RoleMissing),
            Expr::If(branch) => self.errors.at(branch.if_token, Mistake::IfOutsideRole),
            Expr::Assign(_) | Expr::MethodCall(_) | Expr::Binary(_) | Expr::Call(_) => {
                self.errors.at(expr, Mistake::OutsideRole);
            }
            other => self.unsupported_expr(other),
        }
    }

    fn role_kind(&mut self, attr: &Attribute) -> Option<(Ident, RoleKind)> {
        let Some(word) = attr.path().get_ident() else {
            self.errors.at(attr, Mistake::Attribute);
            return None;
        };
        let found = names::text(word);
        if !WORDS.contains(&found.as_str()) {
            let known = names::offer(&found, WORDS.into_iter());
            self.errors.at(word, Mistake::UnknownRole { found, known });
            return None;
        }
        let allowed: &[&str] = match found.as_str() {
            "gemm" => &GEMM_OPTIONS,
            "comm" => &COMM_OPTIONS,
            _ => &[],
        };
        let Options {
            name,
            settings: options,
        } = self.role_options(word, attr, allowed)?;
        let kind = match found.as_str() {
            "gemm" => RoleKind::Gemm { options },
            "comm" => match options.into_iter().next() {
                Some((_, ctas)) => RoleKind::Comm { name, ctas },
                None => {
                    self.errors.at(attr, Mistake::CommWithoutCtas);
                    return None;
                }
            },
            "spare_warps" => RoleKind::SpareWarps,
            _ => RoleKind::CopyEngine,
        };
        Some((word.clone(), kind))
    }

    fn role_options(
        &mut self,
        word: &Ident,
        attr: &Attribute,
        allowed: &[&str],
    ) -> Option<Options> {
        let list = match &attr.meta {
            Meta::Path(_) => return Some(Options::default()),
            Meta::List(list) => list,
            Meta::NameValue(_) => {
                self.errors.at(
                    attr,
                    Mistake::RoleArguments {
                        word: names::text(word),
                    },
                );
                return None;
            }
        };
        let parse = Punctuated::<MetaNameValue, Token![,]>::parse_terminated;
        let Ok(arguments) = list.parse_args_with(parse) else {
            self.errors.at(
                attr,
                Mistake::RoleArguments {
                    word: names::text(word),
                },
            );
            return None;
        };
        let mut options = Vec::<(Ident, Constant)>::new();
        let mut given: Vec<&Ident> = Vec::new();
        let (mut role_name, mut legal) = (None, true);
        for argument in &arguments {
            let Some(name) = argument.path.get_ident() else {
                self.errors.at(&argument.path, Mistake::Attribute);
                legal = false;
                continue;
            };
            if !self.argument_name(word, name, allowed) {
                legal = false;
                continue;
            }
            if given.contains(&name) {
                let name_text = names::text(name);
                self.errors
                    .at(name, Mistake::TwiceNamed { name: name_text });
                legal = false;
            }
            given.push(name);
            if name == "name" {
                role_name = self.role_name(&argument.value);
                legal &= role_name.is_some();
                continue;
            }
            let wanted = match names::text(name).as_str() {
                "cluster" => Wanted::Pair,
                "ping_pong" => Wanted::Flag,
                _ => Wanted::Number,
            };
            match self.constant(&argument.value, wanted, &names::text(name)) {
                Some(constant) => options.push((name.clone(), constant)),
                None => legal = false,
            }
        }
        legal.then_some(Options {
            name: role_name,
            settings: options,
        })
    }

    /// A role's own name: no word of the language and not the host, so that no report is ambiguous.
    fn role_name(&mut self, value: &Expr) -> Option<Ident> {
        let taken = |name: &str| name == "host" || WORDS.contains(&name);
        let name = ident(value).filter(|name| !taken(&names::text(name)));
        if name.is_none() {
            self.errors.at(value, Mistake::RoleName);
        }
        name.cloned()
    }

    /// Attributes inside a role. A nested role has its own message.
    pub(super) fn no_role_inside(&mut self, expr: &Expr) {
        for attr in attributes(expr) {
            if attr.path().is_ident("doc") {
                continue;
            }
            let word = attr.path().get_ident().map(names::text).unwrap_or_default();
            let mistake = if WORDS.contains(&word.as_str()) {
                Mistake::NestedRole { word }
            } else {
                Mistake::Attribute
            };
            self.errors.at(attr, mistake);
        }
    }

    /// Reports an expression that is not a statement of the language, with a word for what it is.
    pub(super) fn unsupported_expr(&mut self, expr: &Expr) {
        let (tokens, what) = match expr {
            Expr::While(looped) => (looped.while_token.to_token_stream(), "`while`"),
            Expr::Loop(looped) => (looped.loop_token.to_token_stream(), "`loop`"),
            Expr::Match(matched) => (matched.match_token.to_token_stream(), "`match`"),
            Expr::Return(returned) => (returned.return_token.to_token_stream(), "`return`"),
            Expr::Break(_) => (expr.to_token_stream(), "`break`"),
            Expr::Continue(_) => (expr.to_token_stream(), "`continue`"),
            Expr::Macro(_) => (expr.to_token_stream(), "a macro call"),
            Expr::Unsafe(block) => (block.unsafe_token.to_token_stream(), "`unsafe`"),
            Expr::Async(block) => (block.async_token.to_token_stream(), "`async`"),
            Expr::Closure(_) => (expr.to_token_stream(), "a closure"),
            Expr::Block(_) => (expr.to_token_stream(), "a block without a role"),
            Expr::Try(_) => (expr.to_token_stream(), "`?`"),
            Expr::Binary(binary) => (binary.op.to_token_stream(), "this operator"),
            other if ident(other).is_some() => (expr.to_token_stream(), "a name on its own"),
            _ => (expr.to_token_stream(), "this"),
        };
        self.unsupported(tokens, what);
    }
}

/// The attributes of a statement: syn keeps them at its leftmost part.
fn attributes(expr: &Expr) -> &[Attribute] {
    match expr {
        Expr::ForLoop(e) => &e.attrs,
        Expr::Block(e) => &e.attrs,
        Expr::If(e) => &e.attrs,
        Expr::While(e) => &e.attrs,
        Expr::Loop(e) => &e.attrs,
        Expr::Match(e) => &e.attrs,
        Expr::Path(e) => &e.attrs,
        Expr::Assign(e) if e.attrs.is_empty() => attributes(&e.left),
        Expr::Assign(e) => &e.attrs,
        Expr::Binary(e) if e.attrs.is_empty() => attributes(&e.left),
        Expr::Binary(e) => &e.attrs,
        Expr::Index(e) if e.attrs.is_empty() => attributes(&e.expr),
        Expr::Index(e) => &e.attrs,
        Expr::MethodCall(e) if e.attrs.is_empty() => attributes(&e.receiver),
        Expr::MethodCall(e) => &e.attrs,
        Expr::Call(e) if e.attrs.is_empty() => attributes(&e.func),
        Expr::Call(e) => &e.attrs,
        _ => &[],
    }
}
