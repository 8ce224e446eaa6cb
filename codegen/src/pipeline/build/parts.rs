//! Loops over parts of K around items: each item multiplies the steps of one part, and sums what others stored.

use super::super::{Expr, Node};
use super::refuse;
use super::walk::{Bound, Walk};
use crate::diag::Diagnostic;
use crate::kernel::{Axis, Block, GemmKind, OpKind, visit};
use crate::program::{Loc, Parts, Pick, Var};

/// How many parts the items of a role have one each of: 1 where they have all of K.
pub(super) fn legal(
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
        let message = format!("{} CTAs that share the steps of one of {parts} parts", kind.split);
        refused(message, "split = 1: K is divided once");
    }
    if in_turn {
        let message = "items of one part of K, with tiles taken in turn".into();
        refused(message, "they have different numbers of steps: tiles that are shared");
    }
    parts
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
    /// A loop over parts of K, if it has anything to do; one part needs no loop.
    pub(super) fn parts(
        &mut self,
        var: Var,
        parts: Parts,
        count: u32,
        body: impl FnOnce(&mut Self) -> Vec<Node>,
    ) -> Vec<Node> {
        let visited = parts.of(count);
        let all = Expr::symbol("PARTS", count);
        if visited.is_empty() {
            return Vec::new();
        }
        let looped = visited.len() > 1;
        let name = self.ident(var);
        let part = match parts {
            _ if looped => Expr::var(&name),
            Parts::All | Parts::BeforeLast => 0.into(),
            Parts::Last => all.clone() - 1,
        };
        let names = self.declared.len();
        self.scope.push((var, Bound::Rank(part.clone())));
        let mut nodes = Vec::new();
        // Whole steps, so that no column of K is in two parts; the plan refuses a part without any.
        let each = Expr::var("all_steps").ceil_div(all.clone());
        let first = self.name(&mut nodes, "first_step", part * each.clone());
        let rest = Expr::var("all_steps") - first;
        let steps = if parts == Parts::BeforeLast {
            each
        } else {
            Expr::Min(Box::new(each), Box::new(rest))
        };
        self.name(&mut nodes, "steps", steps);
        let inner = body(self);
        self.scope.pop();
        self.declared.truncate(names);
        if inner.is_empty() {
            return inner;
        }
        nodes.extend(inner);
        if !looped {
            return nodes;
        }
        let to = match parts {
            Parts::BeforeLast => all - 1,
            Parts::All | Parts::Last => all,
        };
        vec![Node::For {
            var: name,
            from: 0.into(),
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
