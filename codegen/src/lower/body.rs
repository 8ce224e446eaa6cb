//! Places statements: control flow outside items, one unit of work inside each item, every index resolved.

use super::choices::{Choices, same_ctas};
use super::dims::Matched;
use super::mistake::mistake;
use super::placer::{Bound, Comm, Placed, Placer, Use};
use crate::diag::{Diagnostic, Rule};
use crate::kernel::{self, Block, GemmKind, Op, OpId, OpKind, Role, RoleKind, ValueId};
use crate::order::{ByClosure, Cut, RankOrder, RankTable, TileOrder};
use crate::program::{self, Amax, Home, ItemOrder, Loc, Program, Stmt, StmtKind, Var};
use crate::shape::MAX_WORLD;
use crate::value::{AccId, Value};
use std::collections::HashSet;

pub(super) fn place(
    program: &Program,
    (world, comm): (u32, Comm),
    choices: &Choices<'_>,
    matched: &Matched,
    found: &mut Vec<Diagnostic>,
) -> Placed {
    let mut placer = Placer {
        program,
        choices,
        matched,
        world,
        comm,
        found,
        scope: Vec::new(),
        filled: HashSet::new(),
        functions: Vec::new(),
        signalled: vec![None; program.counters.len()],
        waited: vec![None; program.counters.len()],
        kind: RoleKind::SpareWarps,
        placed: Placed {
            roles: Vec::new(),
            values: Vec::new(),
            locs: Vec::new(),
        },
    };
    if program.roles.is_empty() {
        placer.found.push(
            mistake(
                program.at,
                format!("{} has no role, so nothing runs", program.name),
            )
            .hint("put #[gemm], #[comm(ctas = 4)], #[spare_warps] or #[copy_engine] on a loop"),
        );
    }
    for role in &program.roles {
        placer.role(role);
    }
    for (index, set) in program.counters.iter().enumerate() {
        if let (Some(at), None) = (placer.waited[index], placer.signalled[index]) {
            placer.found.push(
                mistake(
                    at,
                    format!("`{}` is waited on, but no statement signals it", set.name),
                )
                .hint(format!(
                    "signal it where its data has been written: `{}.on(rank)[…].add(1)`",
                    set.name
                )),
            );
        }
    }
    placer.placed
}

/// A table that does not say what ranks of this world do.
fn of_another_world(table: &RankTable, world: u32, at: Loc) -> Diagnostic {
    let message = format!(
        "this order by closure was asked for a world of {}, and this kernel is for a world of {world}",
        table.world()
    );
    Diagnostic::new(Rule::Shape, at, message).hint(
        "lower the schedule as it was written: `Program::tabulated` makes tables for one world",
    )
}

/// True if `#[comm]` CTAs may be called that: a plain name, and not what reports call another role or the host.
fn names_a_role(name: &str) -> bool {
    const TAKEN: [&str; 4] = ["gemm", "spare_warps", "copy_engine", "host"];
    let mut letters = name.chars();
    let begins = |letter: char| letter.is_alphabetic() || letter == '_';
    letters.next().is_some_and(begins)
        && letters.all(|letter| letter.is_alphanumeric() || letter == '_')
        && name.chars().any(char::is_alphanumeric)
        && !TAKEN.contains(&name)
}

impl<'a> Placer<'a> {
    fn role(&mut self, role: &program::Role) {
        let at = role.at;
        let kind = match role.kind {
            program::RoleKind::Gemm {
                k,
                cluster,
                split,
                stages,
                subtiles,
                ping_pong,
            } => RoleKind::Gemm(GemmKind {
                k: k.map_or(self.whole_row(), |k| {
                    self.choices.one(k, "k", self.choices.at(k, at), self.found)
                }),
                cluster: cluster.map_or((1, 1), |c| {
                    self.choices
                        .pair(c, "cluster", self.choices.at(c, at), self.found)
                }),
                split: split.map_or(1, |s| {
                    self.choices
                        .one(s, "split", self.choices.at(s, at), self.found)
                }),
                stages: stages.map(|s| {
                    self.choices
                        .one(s, "stages", self.choices.at(s, at), self.found)
                }),
                subtiles: subtiles.map(|p| {
                    self.choices
                        .one(p, "subtiles", self.choices.at(p, at), self.found)
                }),
                ping_pong: ping_pong.is_some_and(|p| {
                    self.choices
                        .flag(p, "ping_pong", self.choices.at(p, at), self.found)
                }),
            }),
            program::RoleKind::Comm { ctas } => RoleKind::Comm {
                ctas: self
                    .choices
                    .one(ctas, "ctas", self.choices.at(ctas, at), self.found),
            },
            program::RoleKind::SpareWarps => RoleKind::SpareWarps,
            program::RoleKind::CopyEngine => RoleKind::CopyEngine,
        };
        if matches!(kind, RoleKind::Comm { .. }) && !names_a_role(&role.name) {
            let message = format!("a #[comm] role cannot be called `{}`", role.name);
            let hint = "a plain name that is no other role's word, such as `halo`";
            self.found.push(mistake(at, message).hint(hint));
        }
        self.kind = kind;
        let body = self.blocks(&role.body);
        let whole_row = self.whole_row();
        let apart = self.comm == Comm::Apart && matches!(kind, RoleKind::Comm { .. });
        let mut known = self.placed.roles.iter_mut();
        match known.find(|other| other.name == role.name && !apart) {
            None => self.placed.roles.push(Role {
                name: role.name.clone(),
                at,
                kind,
                body,
            }),
            Some(other) => {
                if let Some(kind) = same_ctas(other.kind, kind, whole_row) {
                    other.kind = kind;
                } else {
                    let message = format!(
                        "this {} loop has other settings than an earlier one",
                        role.words()
                    );
                    let hint = "loops of one role run on the same CTAs: give the settings once, or repeat them unchanged";
                    let hint = match kind {
                        RoleKind::Comm { .. } => format!(
                            "{hint}; a role of its own has a name: `#[comm(name = halo, ctas = 2)]`"
                        ),
                        RoleKind::Gemm(_) | RoleKind::SpareWarps | RoleKind::CopyEngine => {
                            hint.into()
                        }
                    };
                    self.found.push(
                        mistake(at, message)
                            .note(other.at, "the earlier one")
                            .hint(hint),
                    );
                }
                other.body.extend(body);
            }
        }
    }

    /// The K step if a schedule names none: one row of the 128-byte swizzle.
    fn whole_row(&self) -> u32 {
        self.matched
            .buffers
            .first()
            .map_or(64, |buffer| 128 / buffer.dtype.bytes())
    }

    /// Statements outside items. Consecutive leaf statements form one unit of work.
    fn blocks(&mut self, body: &[Stmt]) -> Vec<Block> {
        let mut blocks = Vec::new();
        for stmt in body {
            match &stmt.kind {
                StmtKind::ForRanks { var, order, body } => {
                    let order = self.order(order, stmt.at);
                    self.scope.push((*var, Bound::Rank));
                    let body = self.blocks(body);
                    self.scope.pop();
                    blocks.push(Block::ForRanks { at: stmt.at, var: *var, order, body });
                }
                StmtKind::If { cond, then, otherwise } => {
                    cond.exprs().into_iter().for_each(|expr| self.rank_expr(expr, stmt.at));
                    let (then, otherwise) = (self.blocks(then), self.blocks(otherwise));
                    blocks.push(Block::If { at: stmt.at, cond: cond.clone(), then, otherwise });
                }
                StmtKind::ForItems { var, items, body } => {
                    if let Some(block) = self.items(*var, items, body, stmt.at) {
                        blocks.push(block);
                    }
                }
                StmtKind::Wait { .. } | StmtKind::Signal { .. } => {
                    self.filled.clear();
                    if let StmtKind::Wait { by_slab: true, cells, .. } = &stmt.kind
                        && let Some(cells) = self.cells(cells, stmt.at)
                    {
                        self.slabs(&cells, &[], stmt.at);
                    }
                    if let Some(op) = self.op(stmt) {
                        if let Some(Block::Once { body }) = blocks.last_mut() {
                            body.push(op);
                        } else {
                            blocks.push(Block::Once { body: vec![op] });
                        }
                    }
                }
                StmtKind::Copy { .. }
                | StmtKind::Dot { .. }
                | StmtKind::Sum { .. }
                | StmtKind::Load { .. }
                | StmtKind::Store { .. } => self.found.push(
                    mistake(stmt.at, "data is accessed outside a loop over items")
                        .hint("a CTA works on one item at a time: put this inside `for c in chunks…` or `for t in tiles…`"),
                ),
            }
        }
        blocks
    }

    fn items(&mut self, var: Var, items: &program::Items, body: &[Stmt], at: Loc) -> Option<Block> {
        let Some(partition) = self.matched.partitions.get(items.partition.index()) else {
            self.found.push(mistake(
                at,
                "the loop visits a partition of another schedule",
            ));
            return None;
        };
        let sharded = partition
            .sharded_side(|dim| self.matched.is_sharded(dim))
            .is_some();
        if let Some(shard) = &items.shard {
            self.rank_expr(shard, at);
            if !sharded {
                self.found.push(
                    mistake(
                        at,
                        format!(
                            "`{}` has no shards: its rows belong to one rank",
                            partition.name
                        ),
                    )
                    .hint(format!(
                        "visit all of it: `for t in {}.grouped()`. Ranks divide the rows of some tensors, and columns only where those are \
                            the rows of a `Gathered` weight",
                        partition.name
                    )),
                );
            }
        }
        let order = match items.order {
            ItemOrder::Tile(order) => order,
            ItemOrder::Grouped(group) => {
                let at = self.choices.at(group, at);
                TileOrder::Grouped(self.choices.one(group, "the group", at, self.found))
            }
        };
        let cuts = items.selection.cuts();
        for n in cuts.iter().filter_map(Cut::number) {
            self.rank_expr(n, at);
        }
        let steps = cuts.iter().filter(|cut| matches!(cut, Cut::StepBy(_)));
        if steps.count() > 1 {
            self.found.push(
                mistake(at, "`step_by` twice in one selection").hint(
                    "keep one, the product of both: `.step_by(6)` for `.step_by(2).step_by(3)`",
                ),
            );
        }
        self.scope.push((var, Bound::Item(items.partition)));
        self.filled.clear();
        let body = self.ops(body);
        self.scope.pop();
        Some(Block::Items {
            at,
            var,
            partition: items.partition,
            shard: items.shard.clone(),
            order,
            selection: items.selection.clone(),
            body,
        })
    }

    fn ops(&mut self, body: &[Stmt]) -> Vec<Op> {
        let mut ops = Vec::with_capacity(body.len());
        for (index, stmt) in body.iter().enumerate() {
            let Some(mut op) = self.op(stmt) else {
                continue;
            };
            if let (StmtKind::Wait { by_slab: true, .. }, OpKind::Wait { cells, slabs, .. }) =
                (&stmt.kind, &mut op.kind)
            {
                *slabs = self.slabs(cells, &body[index + 1..], stmt.at);
                if let Some(of) = *slabs {
                    self.one_width(&ops, of, stmt.at);
                }
            }
            if !self.waited_by_slab(&ops, &op) {
                ops.push(op);
            }
        }
        ops
    }

    fn op(&mut self, stmt: &Stmt) -> Option<Op> {
        let at = stmt.at;
        let kind = match &stmt.kind {
            StmtKind::ForItems { .. } => {
                self.found
                    .push(mistake(at, "a loop over items is inside another one").hint(
                    "one item is one unit of work; loop over ranks inside it, or split the loops",
                ));
                return None;
            }
            StmtKind::ForRanks { var, order, body } => {
                let order = self.order(order, at);
                self.scope.push((*var, Bound::Rank));
                let body = self.ops(body);
                self.scope.pop();
                OpKind::ForRanks {
                    var: *var,
                    order,
                    body,
                }
            }
            StmtKind::If {
                cond,
                then,
                otherwise,
            } => {
                cond.exprs()
                    .into_iter()
                    .for_each(|expr| self.rank_expr(expr, at));
                OpKind::If {
                    cond: cond.clone(),
                    then: self.ops(then),
                    otherwise: self.ops(otherwise),
                }
            }
            StmtKind::Wait {
                cells, at_least, ..
            } => {
                if cells.home != Home::Me {
                    self.found.push(
                        mistake(at, "a wait names another rank's counter")
                            .hint("counters live in the waiter's memory: signal `.on(rank)`, wait on your own"),
                    );
                }
                let cells = self.cells(cells, at)?;
                self.waited[cells.counter.index()].get_or_insert(at);
                OpKind::Wait {
                    cells,
                    at_least: *at_least,
                    slabs: None,
                }
            }
            StmtKind::Signal { cells, amount } => {
                let cells = self.cells(cells, at)?;
                if *amount == 0 || *amount > u32::from(u16::MAX) {
                    self.found.push(
                        mistake(at, format!("a signal adds {amount}"))
                            .hint("a signal adds 1 to 65535"),
                    );
                }
                self.signalled[cells.counter.index()].get_or_insert(at);
                OpKind::Signal {
                    cells,
                    amount: *amount,
                }
            }
            StmtKind::Copy { dst, src } => {
                let (to, from) = (
                    self.region(dst, at, Use::Copy)?,
                    self.region(src, at, Use::CopyFrom)?,
                );
                if src.home == Home::Everywhere {
                    self.found.push(
                        mistake(at, "a copy reads from every rank at once")
                            .hint("name one rank: `x.on(rank)[c]`"),
                    );
                }
                for (place, region) in [(dst, &to), (src, &from)] {
                    self.one_slot(place, region, at);
                }
                self.same_bytes(&to, &from, at);
                OpKind::Copy { dst: to, src: from }
            }
            StmtKind::Dot { acc, a, b } => {
                if !matches!(self.kind, RoleKind::Gemm(_)) {
                    self.found.push(
                        mistake(at, format!("a dot is in a #[{}] loop", self.kind.word()))
                            .hint("only #[gemm] loops have tensor cores"),
                    );
                }
                self.fill(*acc, at);
                OpKind::Dot {
                    acc: *acc,
                    a: self.operand(a, true, at)?,
                    b: self.operand(b, false, at)?,
                }
            }
            StmtKind::Sum { acc, from, own } => {
                self.not_copy_engine("a sum", at);
                self.fill(*acc, at);
                OpKind::Reduce {
                    acc: *acc,
                    from: self.region(from, at, Use::Read)?,
                    own: own.as_ref().map(|own| self.value(own, at)),
                }
            }
            StmtKind::Load { acc, from } => {
                self.not_copy_engine("a load", at);
                self.fill(*acc, at);
                let region = self.region(from, at, Use::Read)?;
                self.one_slot(from, &region, at);
                if region.home == Home::Everywhere {
                    self.found.push(
                        mistake(at, "a load reads every rank's copy at once")
                            .hint("their sum, `z.everywhere()[t].sum()`, or one rank's"),
                    );
                }
                OpKind::Load {
                    acc: *acc,
                    from: region,
                }
            }
            StmtKind::Store {
                dst,
                mode,
                value,
                amax,
            } => {
                self.not_copy_engine("a store", at);
                let region = self.region(dst, at, Use::of(*mode))?;
                self.one_slot(dst, &region, at);
                let value = self.value(value, at);
                let amax = amax.as_ref().map(|Amax { of, to }| kernel::Amax {
                    of: self.value(of, at),
                    to: *to,
                });
                OpKind::Store {
                    dst: region,
                    mode: *mode,
                    value,
                    amax,
                }
            }
        };
        let id = OpId(u16::try_from(self.placed.locs.len()).unwrap_or(u16::MAX));
        self.placed.locs.push(at);
        Some(Op { id, kind })
    }

    /// An order, with the table of one by closure. A stride or start beyond a world's size adds nothing, and would overflow
    /// when it is multiplied.
    fn order(&mut self, order: &RankOrder<ByClosure>, at: Loc) -> RankOrder {
        for n in order.but_lasts() {
            self.rank_expr(n, at);
        }
        if let RankOrder::FromMe { start, stride, .. } = order
            && start.unsigned_abs().max(stride.unsigned_abs()) > MAX_WORLD
        {
            self.found.push(
                mistake(
                    at,
                    format!("an order has a stride of {} ranks", stride.unsigned_abs()),
                )
                .hint(format!("a world has at most {MAX_WORLD} ranks")),
            );
        }
        let world = self.world;
        let order = order.map(|by| by.table(world));
        if let RankOrder::Table(table) = &order
            && table.world() != world
        {
            self.found.push(of_another_world(table, world, at));
        }
        order
    }

    fn not_copy_engine(&mut self, what: &str, at: Loc) {
        if self.kind == RoleKind::CopyEngine {
            self.found.push(
                mistake(at, format!("{what} is in a #[copy_engine] loop")).hint(
                    "copy engines copy, signal and wait; compute in #[gemm] or #[spare_warps]",
                ),
            );
        }
    }

    fn fill(&mut self, acc: AccId, at: Loc) {
        if usize::from(acc.0) >= self.program.accs.len() {
            self.found
                .push(mistake(at, "the accumulator belongs to another schedule"));
        }
        self.filled.insert(acc);
    }

    fn value(&mut self, value: &Value, at: Loc) -> ValueId {
        value.visit(&mut |part| match part {
            Value::Acc(acc) if !self.filled.contains(acc) => {
                let name = self
                    .program
                    .accs
                    .get(usize::from(acc.0))
                    .and_then(|acc| acc.name.clone());
                let name = name.unwrap_or_else(|| "a value".into());
                self.found.push(
                    mistake(
                        at,
                        format!("{name} is stored, but nothing was added to it in this item"),
                    )
                    .hint("dots, sums and loads belong to the item that contains them"),
                );
            }
            Value::Arg(_) => self.found.push(mistake(
                at,
                "an argument is used outside an #[epilogue] function",
            )),
            Value::Call(function, values) if values.len() != function.params.len() => {
                self.found.push(mistake(
                    at,
                    format!(
                        "{} takes {} arguments, not {}",
                        function.name,
                        function.params.len(),
                        values.len()
                    ),
                ))
            }
            Value::Acc(_)
            | Value::Const(_)
            | Value::Unary(..)
            | Value::Binary(..)
            | Value::Select(..)
            | Value::Cast(..)
            | Value::Call(..) => {}
        });
        self.functions(value, at);
        let id = ValueId(u16::try_from(self.placed.values.len()).unwrap_or(u16::MAX));
        self.placed.values.push(value.clone());
        id
    }
}
