//! Rank expressions, and the conditions of an `if`.

use super::{NOTHING, Parser, word_call};
use crate::mistakes::Mistake;
use crate::model::{Cond, Rank};
use crate::names::{self, Kind};
use syn::{BinOp, Expr, Lit, UnOp};

impl Parser<'_> {
    /// True if an expression computes a rank, by its leftmost operand or an operator that only ranks have.
    pub(super) fn is_rank(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Lit(lit) => matches!(lit.lit, Lit::Int(_)),
            Expr::Call(_) => {
                word_call(expr).is_some_and(|(word, _)| *word == "me" || *word == "world")
            }
            Expr::Path(_) => super::ident(expr)
                .is_some_and(|name| matches!(self.scope.find(name), Some(Kind::Rank))),
            Expr::Binary(binary) => {
                matches!(binary.op, BinOp::Rem(_) | BinOp::BitXor(_)) || self.is_rank(&binary.left)
            }
            Expr::MethodCall(call) => self.is_rank(&call.receiver),
            Expr::Paren(paren) => self.is_rank(&paren.expr),
            Expr::Group(group) => self.is_rank(&group.expr),
            Expr::Unary(unary) => matches!(unary.op, UnOp::Neg(_)) && self.is_rank(&unary.expr),
            _ => false,
        }
    }

    /// `(me() + 1) % world()`
    pub(super) fn rank(&mut self, expr: &Expr) -> Option<Rank> {
        match expr {
            Expr::Paren(paren) => self.rank(&paren.expr),
            Expr::Group(group) => self.rank(&group.expr),
            Expr::Lit(lit) if matches!(lit.lit, Lit::Int(_)) => Some(Rank::Number(expr.clone())),
            Expr::Unary(unary)
                if matches!(unary.op, UnOp::Neg(_))
                    && matches!(&*unary.expr, Expr::Lit(lit) if matches!(lit.lit, Lit::Int(_))) =>
            {
                Some(Rank::Number(expr.clone()))
            }
            Expr::Binary(binary) => {
                let legal = matches!(
                    binary.op,
                    BinOp::Add(_)
                        | BinOp::Sub(_)
                        | BinOp::Mul(_)
                        | BinOp::Div(_)
                        | BinOp::Rem(_)
                        | BinOp::BitXor(_)
                );
                if !legal {
                    self.errors.at(binary.op, Mistake::RankOperator);
                }
                let (a, b) = (self.rank(&binary.left), self.rank(&binary.right));
                legal.then_some(())?;
                Some(Rank::Binary(Box::new(a?), binary.op, Box::new(b?)))
            }
            Expr::Call(_) => self.rank_word(expr),
            Expr::Path(_) => {
                if self.outer_constant(expr) {
                    return Some(Rank::Number(expr.clone()));
                }
                let name = super::ident(expr)?;
                match self.look_up(name, |kind| matches!(kind, Kind::Rank))? {
                    Kind::Rank => Some(Rank::Var(name.clone())),
                    other => {
                        let (name_text, what) = (names::text(name), other.what().into());
                        let mistake = Mistake::RankNeeded {
                            name: name_text,
                            what,
                        };
                        self.errors.at(name, mistake);
                        None
                    }
                }
            }
            _ => {
                self.errors.at(expr, Mistake::NotARank);
                None
            }
        }
    }

    fn rank_word(&mut self, expr: &Expr) -> Option<Rank> {
        let Some((word, call)) = word_call(expr) else {
            self.errors.at(expr, Mistake::NotARank);
            return None;
        };
        match names::text(word).as_str() {
            "me" => {
                let [] = self.arguments(word, call, &call.args, NOTHING)?;
                Some(Rank::Me(word.clone()))
            }
            "world" => {
                let [] = self.arguments(word, call, &call.args, NOTHING)?;
                Some(Rank::World(word.clone()))
            }
            found @ ("others" | "everyone" | "ranks" | "ring") => {
                let found = found.to_owned();
                self.errors.at(expr, Mistake::OneRankNeeded { found });
                None
            }
            "dot" | "zero" => {
                self.errors.at(expr, Mistake::NotARank);
                None
            }
            found => {
                let known = names::offer(found, ["me", "world"].into_iter());
                let found = found.to_owned();
                self.errors.at(word, Mistake::UnknownRank { found, known });
                None
            }
        }
    }

    /// A comparison of ranks, or several joined.
    pub(super) fn cond(&mut self, expr: &Expr) -> Option<Cond> {
        match expr {
            Expr::Paren(paren) => self.cond(&paren.expr),
            Expr::Group(group) => self.cond(&group.expr),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => {
                self.cond(&unary.expr).map(|cond| Cond::Not(Box::new(cond)))
            }
            Expr::Binary(binary) => match binary.op {
                BinOp::And(_) | BinOp::Or(_) => {
                    let (a, b) = (self.cond(&binary.left), self.cond(&binary.right));
                    let (a, b) = (Box::new(a?), Box::new(b?));
                    Some(match binary.op {
                        BinOp::And(_) => Cond::Both(a, b),
                        _ => Cond::Either(a, b),
                    })
                }
                BinOp::Eq(_)
                | BinOp::Ne(_)
                | BinOp::Lt(_)
                | BinOp::Le(_)
                | BinOp::Gt(_)
                | BinOp::Ge(_) => {
                    if !self.is_rank(&binary.left) && !self.is_rank(&binary.right) {
                        self.errors.at(expr, Mistake::NotACondition);
                        return None;
                    }
                    let (a, b) = (self.rank(&binary.left), self.rank(&binary.right));
                    Some(Cond::Compare(a?, binary.op, b?))
                }
                _ => {
                    self.errors.at(expr, Mistake::NotACondition);
                    None
                }
            },
            _ => {
                self.errors.at(expr, Mistake::NotACondition);
                None
            }
        }
    }
}
