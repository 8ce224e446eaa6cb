//! Statements inside roles.

use super::declare::DIVIDERS;
use super::order::Iterable;
use super::{Chain, Link, NOTHING, Parser, ident, without_receiver, word_call};
use crate::mistakes::Mistake;
use crate::model::{Binding, Stmt, StmtKind};
use crate::names::{self, Kind};
use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{
    BinOp, Block, Expr, ExprAssign, ExprBinary, ExprForLoop, ExprIf, ExprMethodCall, Local, Pat,
    Stmt as SynStmt,
};

impl Parser<'_> {
    /// A block's statements, in a scope of their own.
    pub(super) fn stmts(&mut self, block: &Block) -> Vec<Stmt> {
        if block.stmts.is_empty() {
            let tokens = block.to_token_stream();
            self.errors.at(tokens, Mistake::EmptyBody);
        }
        self.scope.enter();
        let mut stmts = Vec::new();
        for stmt in &block.stmts {
            match self.stmt(stmt) {
                Some((at, kind)) => stmts.push(Stmt { at, kind }),
                None => self.note_unsure(stmt),
            }
        }
        self.scope.leave();
        stmts
    }

    fn stmt(&mut self, stmt: &SynStmt) -> Option<(Span, StmtKind)> {
        let at = stmt.span();
        let kind = match stmt {
            SynStmt::Local(local) => self.local(local),
            SynStmt::Item(item) => {
                self.unsupported(item, "an item inside a role");
                None
            }
            SynStmt::Macro(stmt) => {
                self.unsupported(&stmt.mac, "a macro call");
                None
            }
            SynStmt::Expr(expr, _) => {
                self.no_role_inside(expr);
                self.statement(expr)
            }
        }?;
        Some((at, kind))
    }

    fn statement(&mut self, expr: &Expr) -> Option<StmtKind> {
        match expr {
            Expr::ForLoop(looped) => self.for_loop(looped),
            Expr::If(branch) => self.branch(branch),
            Expr::Assign(assign) => self.assign(assign),
            Expr::Binary(binary) if matches!(binary.op, BinOp::AddAssign(_)) => {
                self.add_assign(binary)
            }
            Expr::Binary(binary)
                if matches!(
                    binary.op,
                    BinOp::SubAssign(_) | BinOp::MulAssign(_) | BinOp::DivAssign(_)
                ) =>
            {
                self.errors.at(binary.op, Mistake::StoreOperator);
                None
            }
            Expr::MethodCall(call) => self.effect(expr, call),
            Expr::Group(group) => self.statement(&group.expr),
            Expr::Call(_) | Expr::Index(_) | Expr::Lit(_) | Expr::Paren(_) => {
                self.errors.at(expr, Mistake::NoEffect);
                None
            }
            other => {
                self.unsupported_expr(other);
                None
            }
        }
    }

    pub(super) fn for_loop(&mut self, looped: &ExprForLoop) -> Option<StmtKind> {
        if let Some(label) = &looped.label {
            self.unsupported(label, "a label");
        }
        let iterable = self.iterable(&looped.expr);
        self.scope.enter();
        let kind = match &iterable {
            None => Kind::Broken,
            Some(Iterable::Ranks(_)) => Kind::Rank,
            Some(Iterable::Items(items)) => Kind::Item {
                partition: items.partition.clone(),
            },
        };
        let var = match &*looped.pat {
            Pat::Wild(_) => Some(Binding(None)),
            Pat::Ident(pat) if pat.by_ref.is_none() && pat.subpat.is_none() => {
                if pat.mutability.is_some() {
                    self.errors.at(pat, Mistake::NeedlessMut);
                }
                self.scope.declare(&pat.ident, kind, self.errors);
                Some(Binding(Some(pat.ident.clone())))
            }
            other => {
                self.errors.at(other, Mistake::LoopPattern);
                self.declare_broken(other);
                None
            }
        };
        let body = self.stmts(&looped.body);
        self.scope.leave();
        let var = var?;
        Some(match iterable? {
            Iterable::Ranks(order) => StmtKind::ForRanks { var, order, body },
            Iterable::Items(items) => StmtKind::ForItems { var, items, body },
        })
    }

    fn branch(&mut self, branch: &ExprIf) -> Option<StmtKind> {
        let cond = self.cond(&branch.cond);
        let then = self.stmts(&branch.then_branch);
        let otherwise = match branch.else_branch.as_ref().map(|(_, branch)| &**branch) {
            None => Some(Vec::new()),
            Some(Expr::Block(block)) => Some(self.stmts(&block.block)),
            Some(Expr::If(next)) => self.branch(next).map(|kind| {
                vec![Stmt {
                    at: next.if_token.span(),
                    kind,
                }]
            }),
            Some(other) => {
                self.unsupported_expr(other);
                None
            }
        };
        Some(StmtKind::If {
            cond: cond?,
            then,
            otherwise: otherwise?,
        })
    }

    fn local(&mut self, local: &Local) -> Option<StmtKind> {
        let (name, mutable, init) = self.binding(local)?;
        if let Some((word, call)) = word_call(init).filter(|(word, _)| *word == "zero") {
            let arguments = self.arguments(word, call, &call.args, NOTHING);
            let kind = Kind::Accumulator { mutable };
            self.scope.declare(name, kind, self.errors);
            let [] = arguments?;
            return Some(StmtKind::Accumulator(name.clone()));
        }
        if mutable {
            self.errors.at(&local.pat, Mistake::NeedlessMut);
        }
        let (kind, stmt) = if self.is_rank(init) {
            let rank = self.rank(init);
            (
                Kind::Rank,
                rank.map(|rank| StmtKind::Rank(name.clone(), rank)),
            )
        } else if self.is_declaration(init) {
            self.errors.at(init, Mistake::DeclarationInRole);
            (Kind::Broken, None)
        } else {
            let value = self.value(init);
            (
                Kind::Value,
                value.map(|value| StmtKind::Value(name.clone(), value)),
            )
        };
        let kind = stmt.as_ref().map_or(Kind::Broken, |_| kind);
        self.scope.declare(name, kind, self.errors);
        stmt
    }

    fn is_declaration(&self, init: &Expr) -> bool {
        match word_call(init) {
            Some((word, _)) => *word == "counters" || *word == "symmetric",
            None => match init {
                Expr::MethodCall(call) => DIVIDERS.contains(&names::text(&call.method).as_str()),
                _ => false,
            },
        }
    }

    fn assign(&mut self, assign: &ExprAssign) -> Option<StmtKind> {
        let dst = self.destination(&assign.left);
        if self.is_bare_place(&assign.right) {
            let src = self.read_all(&assign.right);
            return Some(StmtKind::Copy {
                dst: dst?,
                src: src?,
            });
        }
        let value = self.value(&assign.right);
        Some(StmtKind::Store {
            dst: dst?,
            add: false,
            value: value?,
        })
    }

    fn add_assign(&mut self, binary: &ExprBinary) -> Option<StmtKind> {
        if let Some(into) = ident(&binary.left) {
            let fits = |kind: &Kind| matches!(kind, Kind::Accumulator { .. });
            match self.look_up(into, fits)? {
                Kind::Accumulator { mutable } => {
                    if !mutable {
                        let name = names::text(into);
                        self.errors.at(into, Mistake::AccumulatorNotMut { name });
                    }
                    return self.accumulate(into, &binary.right);
                }
                // A tensor without an index is reported as a place.
                Kind::Tensor(_) => {}
                _ => {
                    let name = names::text(into);
                    self.errors.at(into, Mistake::NoAccumulator { name });
                    return None;
                }
            }
        }
        let dst = self.destination(&binary.left);
        let value = self.value(&binary.right);
        Some(StmtKind::Store {
            dst: dst?,
            add: true,
            value: value?,
        })
    }

    fn accumulate(&mut self, into: &Ident, right: &Expr) -> Option<StmtKind> {
        let Some((word, call)) = word_call(right).filter(|(word, _)| *word == "dot") else {
            let name = names::text(into);
            self.errors.at(right, Mistake::AccumulateDots { name });
            return None;
        };
        let [a, b] = self.arguments(word, call, &call.args, ("two places", "dot(x[t], w[t])"))?;
        let (a, b) = (self.read_all(a), self.read_all(b));
        Some(StmtKind::Accumulate {
            into: into.clone(),
            a: a?,
            b: b?,
        })
    }

    /// `c[i].wait()`, `c[i].wait_at_least(2)` or `c.on(rank)[i].add(1)`.
    fn effect(&mut self, expr: &Expr, last: &ExprMethodCall) -> Option<StmtKind> {
        const EFFECTS: [&str; 3] = ["add", "wait", "wait_at_least"];
        let chain = Chain::of(expr);
        let fits = |kind: &Kind| matches!(kind, Kind::Counters(_));
        let method = names::text(&last.method);
        let root = match ident(chain.root) {
            Some(root) => root,
            None => {
                self.errors.at(expr, Mistake::NoEffect);
                return None;
            }
        };
        match self.look_up(root, fits)? {
            Kind::Counters(_) => {}
            other if EFFECTS.contains(&method.as_str()) => {
                let (name, what) = (names::text(root), other.what().into());
                let known = self.scope.offer(root, fits);
                self.errors
                    .at(root, Mistake::NotACounter { name, what, known });
                return None;
            }
            _ => {
                self.errors.at(expr, Mistake::NoEffect);
                return None;
            }
        }
        let (cells, rest) = self.cells(root, &chain.links);
        let Some(Link::Call(call)) = rest.first().copied() else {
            self.errors.at(expr, Mistake::NoEffect);
            return None;
        };
        if call.method == "on" || call.method == "everywhere" {
            return None;
        }
        if let Some(Link::Call(next)) = rest.get(1) {
            let after = names::text(&call.method);
            self.errors
                .at(without_receiver(next), Mistake::AfterEffect { after });
            return None;
        }
        match names::text(&call.method).as_str() {
            "wait" => {
                if call.args.len() == 1 {
                    self.errors
                        .at(without_receiver(call), Mistake::WaitWithAmount);
                    return None;
                }
                let [] = self.call_arguments(call, NOTHING)?;
                Some(StmtKind::Wait {
                    cells: cells?,
                    at_least: None,
                })
            }
            "wait_at_least" => {
                let [amount] = self.call_arguments(call, ("a number", ".wait_at_least(2)"))?;
                let amount = self.whole(amount, false, "an amount")?;
                Some(StmtKind::Wait {
                    cells: cells?,
                    at_least: Some(amount),
                })
            }
            "add" => {
                let [amount] = self.call_arguments(call, ("an amount", ".add(1)"))?;
                let amount = self.whole(amount, false, "an amount")?;
                Some(StmtKind::Signal {
                    cells: cells?,
                    amount,
                })
            }
            _ => {
                self.unknown_method(&call.method, "a counter", &EFFECTS);
                None
            }
        }
    }
}
