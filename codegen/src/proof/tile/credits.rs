//! The part of guarantee 4 that does not depend on the shape: every remote access waits for a credit, and every rank
//! grants every credit in every launch.
//!
//! This is why sizes may change from launch to launch. The rule of [`super::reuse`] compares a launch with the next one
//! of the *same* shape; a credit is per buffer and pair of ranks, not per row. [`super::launches`] checks every access
//! against it.

use crate::diag::{Diagnostic, Rule};
use crate::kernel::{Access, Block, Kernel, Op, OpKind, Purpose, Region, visit};
use crate::order::RankOrder;
use crate::program::{CellIndex, CounterId, Home, Pick, TensorId};
use crate::rank::RankExpr;
use std::collections::BTreeSet;

/// Finds remote accesses that no credit guards, and credits that some rank may not grant.
pub(super) fn check(kernel: &Kernel) -> Vec<Diagnostic> {
    let mut walk = Walk {
        kernel,
        pulled: pulled(kernel),
        found: Vec::new(),
    };
    for role in &kernel.roles {
        walk.blocks(&role.body);
    }
    let mut found = walk.found;
    for (index, counter) in kernel.counters.iter().enumerate() {
        let granted = kernel
            .roles
            .iter()
            .any(|role| grants(&role.body, CounterId(index as u16)));
        if counter.purpose.is_credit() && !granted {
            found.push(
                Diagnostic::new(Rule::Reuse, counter.at, format!("the credit {} is not granted by every rank in every launch", counter.name))
                    .hint("grant it outside loops and conditions, so that every launch does, whatever its shape"),
            );
        }
    }
    found
}

/// Scratch that other ranks read in its writer's memory: who writes it waits for all ranks' credits, not only for the
/// owner's.
pub fn pulled(kernel: &Kernel) -> BTreeSet<TensorId> {
    let mut pulled = BTreeSet::new();
    for role in &kernel.roles {
        visit(&role.body, &mut |op| {
            if let OpKind::Copy { src: from, .. }
            | OpKind::Reduce { from, .. }
            | OpKind::Load { from, .. } = &op.kind
                && from.home.is_remote()
                && kernel.buffers[from.buffer.index()].is_scratch()
            {
                pulled.insert(from.buffer);
            }
        });
    }
    pulled
}

/// True if a role grants the credit to every other rank, unconditionally.
fn grants(body: &[Block], credit: CounterId) -> bool {
    const ALL_OTHERS: RankOrder = RankOrder::FromMe {
        start: 1,
        stride: 1,
        skipped: 1,
        but_last: Vec::new(),
    };
    let signals =
        |op: &Op| matches!(&op.kind, OpKind::Signal { cells, .. } if cells.counter == credit);
    let to_all = |op: &Op| matches!(&op.kind, OpKind::ForRanks { order, body, .. } if *order == ALL_OTHERS && body.iter().any(signals));
    body.iter()
        .any(|block| matches!(block, Block::Once { body } if body.iter().any(to_all)))
}

/// Walks items with the credits each has waited for.
struct Walk<'a> {
    kernel: &'a Kernel,
    /// Scratch that other ranks read in its writer's memory: its writer waits for all of them.
    pulled: BTreeSet<TensorId>,
    found: Vec<Diagnostic>,
}

impl Walk<'_> {
    fn blocks(&mut self, body: &[Block]) {
        for block in body {
            match block {
                Block::ForRanks { body, .. } => self.blocks(body),
                Block::If {
                    then, otherwise, ..
                } => {
                    self.blocks(then);
                    self.blocks(otherwise);
                }
                Block::Items { body, .. } | Block::Once { body } => self.ops(body, &mut Vec::new()),
                Block::Join => {}
            }
        }
    }

    /// `held` are the credits waited for so far on this path.
    fn ops(&mut self, body: &[Op], held: &mut Vec<(TensorId, Pick)>) {
        for op in body {
            match &op.kind {
                OpKind::Wait { cells, .. } => {
                    let purpose = self.kernel.counters[cells.counter.index()].purpose;
                    if let (
                        Purpose::Ready(buffer) | Purpose::Free(buffer),
                        [CellIndex::Rank(pick)],
                    ) = (purpose, cells.index.as_slice())
                    {
                        held.push((buffer, pick.clone()));
                    }
                }
                OpKind::ForRanks { body, .. } => self.ops(body, &mut held.clone()),
                OpKind::If {
                    then, otherwise, ..
                } => {
                    self.ops(then, &mut held.clone());
                    self.ops(otherwise, &mut held.clone());
                }
                OpKind::Copy { .. }
                | OpKind::Store { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Dot { .. }
                | OpKind::Signal { .. } => {
                    for (region, access) in op.kind.regions() {
                        self.guarded(op, region, access != Access::Read, held);
                    }
                }
            }
        }
    }

    fn guarded(&mut self, op: &Op, region: &Region, writes: bool, held: &[(TensorId, Pick)]) {
        let buffer = &self.kernel.buffers[region.buffer.index()];
        // A remote read of scratch reads data of this launch: its own signal and wait order it.
        if !writes && buffer.is_scratch() {
            return;
        }
        let whom = match &region.home {
            _ if writes && self.pulled.contains(&region.buffer) => Pick::Others,
            Home::Me | Home::On(RankExpr::Me) => return,
            Home::On(rank) => Pick::One(rank.clone()),
            Home::Everywhere => Pick::Others,
        };
        let lent = self.kernel.lent_with(region.buffer);
        let fits =
            |(of, pick): &(TensorId, Pick)| *of == lent && (*pick == whom || *pick == Pick::Others);
        if !held.iter().any(fits) {
            let (name, at) = (&buffer.name, self.kernel.loc(op.id));
            let message = match (writes, region.home.is_remote()) {
                (true, true) => {
                    format!("{name} is written on another rank without that rank's credit")
                }
                (true, false) => {
                    format!("{name} is written here without the credits of the ranks that read it")
                }
                (false, _) => format!("{name} is read on another rank without that rank's credit"),
            };
            self.found.push(
                Diagnostic::new(Rule::Reuse, at, message)
                    .note(
                        None,
                        "a faster rank would access memory for a launch that its owner has not begun, \
                         or while its owner still reads it",
                    )
                    .hint("wait for the owner's credit first, in the same item"),
            );
        }
    }
}
