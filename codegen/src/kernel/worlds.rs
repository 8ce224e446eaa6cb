//! A kernel in another world than the one that it was lowered for: for the small cases that warps are tried in.

use super::{Block, Kernel, Op, OpKind};
use crate::diag::{Diagnostic, Rule};
use crate::order::RankOrder;
use crate::program::{Loc, Var};
use crate::variant::Variant;

impl Kernel {
    /// The kernel in that world. Its orders by closure visit the ranks of a smaller world as before, without the others.
    ///
    /// # Errors
    /// An order by closure that says nothing of so many ranks.
    pub(crate) fn in_world(&self, world: u32) -> Result<Kernel, Diagnostic> {
        let mut kernel = self.clone();
        kernel.variant = Variant {
            world,
            ..kernel.variant
        };
        for role in &mut kernel.roles {
            blocks_in(world, &mut role.body).map_err(|var| self.no_order(var, world))?;
        }
        Ok(kernel)
    }

    fn no_order(&self, var: Var, world: u32) -> Diagnostic {
        let message = format!(
            "the order of `{}`, by closure, is one of {} ranks and leaves none of {world}",
            self.vars[var.index()],
            self.variant.world
        );
        let mut roles = self.roles.iter().flat_map(|role| &role.body);
        let at = roles.find_map(|block| found_at(block, var));
        Diagnostic::new(Rule::Resources, at, message).hint("let each rank visit every rank once")
    }
}

/// The loop that has no order there.
fn blocks_in(world: u32, blocks: &mut [Block]) -> Result<(), Var> {
    blocks.iter_mut().try_for_each(|block| match block {
        Block::ForRanks {
            var, order, body, ..
        } => {
            order_in(world, *var, order)?;
            blocks_in(world, body)
        }
        Block::If {
            then, otherwise, ..
        } => {
            blocks_in(world, then)?;
            blocks_in(world, otherwise)
        }
        Block::Items { body, .. } | Block::Once { body } => ops_in(world, body),
        Block::Join => Ok(()),
    })
}

fn ops_in(world: u32, ops: &mut [Op]) -> Result<(), Var> {
    ops.iter_mut().try_for_each(|op| match &mut op.kind {
        OpKind::ForRanks { var, order, body } => {
            order_in(world, *var, order)?;
            ops_in(world, body)
        }
        OpKind::If {
            then, otherwise, ..
        } => {
            ops_in(world, then)?;
            ops_in(world, otherwise)
        }
        OpKind::Wait { .. }
        | OpKind::Signal { .. }
        | OpKind::Copy { .. }
        | OpKind::Dot { .. }
        | OpKind::Reduce { .. }
        | OpKind::Load { .. }
        | OpKind::Store { .. } => Ok(()),
    })
}

fn order_in(world: u32, var: Var, order: &mut RankOrder) -> Result<(), Var> {
    if let RankOrder::Table(table) = order {
        *table = table.within(world).ok_or(var)?;
    }
    Ok(())
}

/// Place of the loop, or of the first statement of the item that it is in.
fn found_at(block: &Block, wanted: Var) -> Option<Loc> {
    match block {
        Block::ForRanks { at, var, body, .. } => match *var == wanted {
            true => Some(at),
            false => body.iter().find_map(|block| found_at(block, wanted)),
        },
        Block::If {
            then, otherwise, ..
        } => then
            .iter()
            .chain(otherwise)
            .find_map(|block| found_at(block, wanted)),
        Block::Items { at, body, .. } => within(body, wanted).then_some(at),
        Block::Once { .. } | Block::Join => None,
    }
}

fn within(ops: &[Op], wanted: Var) -> bool {
    let mut found = false;
    super::visit_ops(ops, &mut |op| {
        found |= matches!(&op.kind, OpKind::ForRanks { var, .. } if *var == wanted);
    });
    found
}
