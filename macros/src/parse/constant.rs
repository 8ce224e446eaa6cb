//! Numbers, pairs, and open choices.

use super::{Parser, in_capitals, word_call};
use crate::mistakes::Mistake;
use crate::model::Constant;
use crate::names;
use proc_macro2::Ident;
use std::ops::RangeInclusive;
use syn::punctuated::Punctuated;
use syn::{Expr, Lit, Token, UnOp};

/// Kind of a constant: a number, a pair of rows and columns, or a flag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Number,
    Pair,
    Flag,
}

/// The numbers that a setting may be, as lowering has them.
const SETTINGS: RangeInclusive<u64> = 1..=1 << 16;

/// `slots = world()`
type Named<'a> = (&'a Ident, &'a Expr);

impl Wanted {
    fn example(self, of: &str) -> &'static str {
        match self {
            Wanted::Number => "a number such as `64`",
            Wanted::Pair if of == "cluster" => "a pair such as `(2, 1)`",
            Wanted::Pair => "a pair such as `(128, 256)`",
            Wanted::Flag => "`true` or `false`",
        }
    }
}

impl Parser<'_> {
    /// A number, pair or flag, or `tune` of several.
    pub(super) fn constant(&mut self, expr: &Expr, wanted: Wanted, of: &str) -> Option<Constant> {
        let Some((word, call)) = word_call(expr).filter(|(word, _)| *word == "tune") else {
            self.setting(expr, wanted, of)?;
            return Some(Constant {
                tune: None,
                options: vec![expr.clone()],
            });
        };
        if call.args.is_empty() {
            self.errors.at(expr, Mistake::EmptyTune);
            return None;
        }
        let kinds: Vec<Option<Wanted>> = call.args.iter().map(kind).collect();
        let first = kinds.iter().flatten().next();
        if let Some(odd) = kinds
            .iter()
            .position(|kind| kind.is_some() && kind.as_ref() != first)
        {
            self.errors.at(&call.args[odd], Mistake::MixedTune);
            return None;
        }
        let mut seen = Vec::new();
        let mut legal = true;
        for option in &call.args {
            let text = quote::quote!(#option).to_string();
            if seen.contains(&text) {
                self.errors.at(option, Mistake::TwiceInTune);
                legal = false;
            }
            seen.push(text);
            legal &= self.setting(option, wanted, of).is_some();
        }
        legal.then(|| Constant {
            tune: Some(word.clone()),
            options: call.args.iter().cloned().collect(),
        })
    }

    fn setting(&mut self, expr: &Expr, wanted: Wanted, of: &str) -> Option<()> {
        let found = kind(expr);
        if found == Some(wanted) || (found.is_none() && self.outer_constant(expr)) {
            return self.in_range(expr, of);
        }
        let mistake = Mistake::Constant {
            of: of.into(),
            wanted: wanted.example(of).into(),
        };
        self.errors.at(expr, mistake);
        None
    }

    /// Numbers that no setting can be, each refused where it stands. Of a constant or a calculation, lowering knows more.
    fn in_range(&mut self, expr: &Expr, of: &str) -> Option<()> {
        match expr {
            Expr::Lit(lit) => {
                let Lit::Int(found) = &lit.lit else {
                    return Some(());
                };
                if (found.base10_parse()).is_ok_and(|number| SETTINGS.contains(&number)) {
                    return Some(());
                }
                let mistake = Mistake::OutOfRange {
                    of: of.into(),
                    found: found.base10_digits().into(),
                    least: SETTINGS.start().to_string(),
                    most: SETTINGS.end().to_string(),
                };
                self.errors.at(expr, mistake);
                None
            }
            Expr::Tuple(pair) => {
                let sides = pair.elems.iter().map(|side| self.in_range(side, of));
                sides.fold(Some(()), Option::and)
            }
            Expr::Paren(paren) => self.in_range(&paren.expr, of),
            Expr::Group(group) => self.in_range(&group.expr, of),
            _ => Some(()),
        }
    }

    /// A literal whole number (`negative`: also below zero), or a constant of the surrounding Rust.
    pub(super) fn whole(&mut self, expr: &Expr, negative: bool, of: &str) -> Option<Expr> {
        let number = match expr {
            Expr::Unary(unary) if negative && matches!(unary.op, UnOp::Neg(_)) => &unary.expr,
            other => other,
        };
        if kind(number) == Some(Wanted::Number) || self.outer_constant(number) {
            return Some(expr.clone());
        }
        let wanted = if negative {
            "a whole number such as `1` or `-1`"
        } else {
            "a whole number such as `2`"
        };
        self.errors.at(
            expr,
            Mistake::Whole {
                of: of.into(),
                wanted: wanted.into(),
            },
        );
        None
    }

    /// Splits `y, slots = world()` into unnamed and named arguments. Reports a name that is not in `known`.
    pub(super) fn named<'a>(
        &mut self,
        word: &Ident,
        arguments: &'a Punctuated<Expr, Token![,]>,
        known: &[&str],
    ) -> Option<(Vec<&'a Expr>, Vec<Named<'a>>)> {
        let (mut plain, mut named) = (Vec::new(), Vec::<Named>::new());
        let mut legal = true;
        for argument in arguments {
            let Expr::Assign(assign) = argument else {
                plain.push(argument);
                continue;
            };
            let Some(name) = super::ident(&assign.left) else {
                self.errors.at(
                    &assign.left,
                    Mistake::UnknownArgument {
                        found: "this".into(),
                        of: names::text(word),
                        known: names::offer("", known.iter().copied()),
                    },
                );
                legal = false;
                continue;
            };
            legal &= self.argument_name(word, name, known);
            if named.iter().any(|(earlier, _)| *earlier == name) {
                self.errors.at(
                    name,
                    Mistake::TwiceNamed {
                        name: names::text(name),
                    },
                );
                legal = false;
            }
            named.push((name, &assign.right));
        }
        legal.then_some((plain, named))
    }

    /// True if `word` takes an argument of that name. Reports it if not.
    pub(super) fn argument_name(&mut self, word: &Ident, name: &Ident, known: &[&str]) -> bool {
        let found = names::text(name);
        if known.contains(&found.as_str()) {
            return true;
        }
        let of = names::text(word);
        let known = if known.is_empty() {
            "it takes none".into()
        } else {
            names::offer(&found, known.iter().copied())
        };
        self.errors
            .at(name, Mistake::UnknownArgument { found, of, known });
        false
    }
}

/// The kind of a constant. `None` if only rustc knows.
fn kind(expr: &Expr) -> Option<Wanted> {
    match expr {
        // In an attribute, syn reads `-4` as one literal.
        Expr::Lit(lit) => match &lit.lit {
            Lit::Int(int) if !int.base10_digits().starts_with('-') => Some(Wanted::Number),
            Lit::Bool(_) => Some(Wanted::Flag),
            _ => None,
        },
        Expr::Tuple(tuple) if tuple.elems.len() == 2 && tuple.elems.iter().all(number) => {
            Some(Wanted::Pair)
        }
        Expr::Binary(binary) if number(&binary.left) && number(&binary.right) => {
            Some(Wanted::Number)
        }
        Expr::Paren(paren) => kind(&paren.expr),
        Expr::Group(group) => kind(&group.expr),
        _ => None,
    }
}

fn number(expr: &Expr) -> bool {
    kind(expr) == Some(Wanted::Number) || in_capitals(expr)
}
