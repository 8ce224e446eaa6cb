//! Loops over parts of K around items: each item multiplies the steps of one part, and sums what others stored.

use super::super::{Expr, Node};
use super::refuse;
use super::walk::{Bound, Walk, Which};
use crate::diag::Diagnostic;
use crate::kernel::{Axis, Block, GemmKind, Kernel, Op, OpKind, visit};
use crate::program::{Loc, Parts, Pick, Var};
use crate::rank::RankExpr;

/// How many parts the items of a role have one each of: 1 where they have all of K.
pub(super) fn legal(
    kernel: &Kernel,
    body: &[Block],
    kind: &GemmKind,
    in_turn: bool,
    at: Loc,
    found: &mut Vec<Diagnostic>,
) -> u32 {
    let mut counts = Vec::new();
    loops(body, &mut counts);
    let Some(parts) = counts.first().copied() else {
        return 1;
    };
    let mut refused = |message: String, hint: &str| found.push(refuse(Some(at), message, hint));
    if let Some(other) = counts.iter().find(|count| **count != parts) {
        let message = format!("items of one of {parts} parts of K beside items of one of {other}");
        refused(message, "all loops of #[gemm] divide K alike");
    }
    slots(kernel, body, found);
    let mut refused = |message: String, hint: &str| found.push(refuse(Some(at), message, hint));
    let mut whole = false;
    visit(body, &mut |op| {
        if let OpKind::Dot { a, .. } = &op.kind {
            whole |= !matches!(a.columns, Axis::Split(_));
        }
    });
    if whole {
        let message = format!("items of all of K beside items of one of {parts} parts");
        refused(message, "give each item a part: `dot(x[t][s], w[t][s])`");
    }
    if kind.split > 1 {
        let message = format!(
            "{} CTAs that share the steps of one of {parts} parts",
            kind.split
        );
        refused(message, "split = 1: K is divided once");
    }
    if in_turn {
        let message = "items of one part of K, with tiles taken in turn".into();
        refused(
            message,
            "they have different numbers of steps: tiles that are shared",
        );
    }
    parts
}

/// Refuses what the small case cannot follow: partial tiles in other slots than their part's, sums of other slots.
fn slots(kernel: &Kernel, body: &[Block], found: &mut Vec<Diagnostic>) {
    for block in body {
        match block {
            Block::ForSplits {
                var, parts, body, ..
            } => visit(body, &mut |op| {
                if !keeps(kernel, op, *var, *parts) {
                    let at = Some(kernel.loc(op.id));
                    let message = "a part of K that is stored or added another way";
                    let hint = "`partial[s][t] = dot(…)` before the last part, and all of them added to the last: `+ partial[parts.before_last()][t].sum()`";
                    found.push(refuse(at, message, hint));
                }
            }),
            Block::ForRanks { body, .. } => slots(kernel, body, found),
            Block::If {
                then, otherwise, ..
            } => {
                slots(kernel, then, found);
                slots(kernel, otherwise, found);
            }
            Block::Items { .. } | Block::Once { .. } | Block::Join => {}
        }
    }
}

/// Whether an op keeps to the slots that parts have.
fn keeps(kernel: &Kernel, op: &Op, var: Var, parts: Parts) -> bool {
    match &op.kind {
        OpKind::Store { dst, .. } if kernel.buffers[dst.buffer.index()].is_scratch() => {
            let own = dst.slot == Some(Pick::One(RankExpr::Var(var)));
            own && parts == Parts::BeforeLast && !dst.home.is_remote()
        }
        OpKind::Store { .. } => parts == Parts::Last,
        OpKind::Reduce { from, .. } => parts == Parts::Last && from.slot == Some(Pick::All),
        OpKind::ForRanks { .. }
        | OpKind::ForSplits { .. }
        | OpKind::If { .. }
        | OpKind::Wait { .. }
        | OpKind::Signal { .. }
        | OpKind::Copy { .. }
        | OpKind::Dot { .. }
        | OpKind::Load { .. } => true,
    }
}

/// The numbers of parts of all loops over them.
fn loops(body: &[Block], counts: &mut Vec<u32>) {
    for block in body {
        match block {
            Block::ForSplits { count, body, .. } => {
                counts.push(*count);
                loops(body, counts);
            }
            Block::ForRanks { body, .. } => loops(body, counts),
            Block::If {
                then, otherwise, ..
            } => {
                loops(then, counts);
                loops(otherwise, counts);
            }
            Block::Items { .. } | Block::Once { .. } | Block::Join => {}
        }
    }
}

impl Walk<'_, '_> {
    /// A loop over parts of K, if it has anything to do.
    pub(super) fn parts(
        &mut self,
        var: Var,
        parts: Parts,
        count: u32,
        body: impl FnOnce(&mut Self) -> Vec<Node>,
    ) -> Vec<Node> {
        let all = || Expr::symbol("PARTS", count);
        let name = self.ident(var);
        let part = Expr::var(&name);
        let (from, to) = match parts {
            Parts::All => (0.into(), all()),
            Parts::BeforeLast => (0.into(), all() - 1),
            Parts::Last => (all() - 1, all()),
        };
        let names = self.declared.len();
        self.scope.push((var, Bound::Rank(part.clone())));
        let mut nodes = Vec::new();
        // Whole steps, so that no column of K is in two parts; the plan refuses a part without any.
        let each = Expr::var("all_steps").ceil_div(all());
        let mut first = part * each.clone();
        if self.which == Which::Load {
            first = self.name(&mut nodes, "first_step", first);
        }
        if matches!(self.which, Which::Load | Which::Multiply) {
            let steps = match parts {
                Parts::BeforeLast => each,
                Parts::All | Parts::Last => {
                    Expr::Min(Box::new(each), Box::new(Expr::var("all_steps") - first))
                }
            };
            self.name(&mut nodes, "steps", steps);
        }
        let inner = body(self);
        self.scope.pop();
        self.declared.truncate(names);
        if inner.is_empty() {
            return inner;
        }
        nodes.extend(inner);
        vec![Node::For {
            var: name,
            from,
            to,
            by: 1.into(),
            unrolled: false,
            body: nodes,
        }]
    }

    /// A loop over the slots that a sum takes.
    pub(super) fn each_slot(&self, slots: &Option<Pick>, count: u32, body: Vec<Node>) -> Node {
        let var = "from".to_string();
        match slots {
            Some(Pick::All) => Node::For {
                var,
                from: 0.into(),
                to: count.into(),
                by: 1.into(),
                unrolled: false,
                body,
            },
            Some(Pick::Others | Pick::One(_)) | None => Node::Others { var, body },
        }
    }
}
