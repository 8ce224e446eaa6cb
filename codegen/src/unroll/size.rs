//! The size of a plan, before anything is unrolled.

use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Block, Kernel, Op, OpKind};
use crate::program::{CellIndex, Home, Pick};
use crate::shape::{Geometry, Shape};

/// The most steps of a plan, over all ranks. They are held in memory while they are checked: more take gigabytes.
pub const MOST_STEPS: u64 = 1 << 25;

/// The steps of a plan over all ranks, at most.
///
/// ```
/// use counterflow_codegen::unroll::{MOST_STEPS, most_steps};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let steps: usize = plan.agents.iter().map(|agent| agent.steps.len()).sum();
/// let most = most_steps(series.kernel(), &plan.geometry);
/// assert!(steps as u64 <= most && most < MOST_STEPS);
/// ```
pub fn most_steps(kernel: &Kernel, geometry: &Geometry) -> u64 {
    let each = kernel.roles.iter().map(|role| blocks(&role.body, geometry));
    let rank = each.fold(0, u64::saturating_add);
    rank.saturating_mul(u64::from(geometry.world))
}

/// Rejects a shape whose plan has more steps than [`MOST_STEPS`].
pub(crate) fn fits(kernel: &Kernel, geometry: &Geometry, shape: &Shape) -> Result<(), Diagnostics> {
    let steps = most_steps(kernel, geometry);
    if steps <= MOST_STEPS {
        return Ok(());
    }
    let message = format!(
        "{} at {shape} in a world of {} is up to {steps} steps",
        kernel.name, geometry.world
    );
    let hint = format!(
        "at most {MOST_STEPS} are checked at once: use larger tiles and chunks, or a smaller shape or world"
    );
    let found = Diagnostic::new(Rule::Shape, None, message).hint(hint);
    Err(Diagnostics::from(found))
}

fn blocks(body: &[Block], geometry: &Geometry) -> u64 {
    let each = |block: &Block| match block {
        Block::ForRanks { body, .. } => {
            u64::from(geometry.world).saturating_mul(blocks(body, geometry))
        }
        Block::If {
            then, otherwise, ..
        } => blocks(then, geometry).max(blocks(otherwise, geometry)),
        Block::Items {
            partition,
            shard,
            body,
            ..
        } => {
            let shards = u64::from(geometry.partition_shards(*partition));
            let items = match shard {
                None => geometry.cells(*partition),
                Some(_) => geometry.cells(*partition) / shards.max(1),
            };
            items.saturating_mul(ops(body, geometry))
        }
        Block::Once { body } => ops(body, geometry),
        Block::Join => 0,
    };
    body.iter().map(each).fold(0, u64::saturating_add)
}

fn ops(body: &[Op], geometry: &Geometry) -> u64 {
    let world = u64::from(geometry.world);
    let slabs = body.iter().filter_map(|op| op.kind.slabs());
    let slabs = slabs.map(|of| u64::from(geometry.grid(of, None).1));
    let slabs = slabs.max().unwrap_or(1).max(1);
    let each = |op: &Op| match &op.kind {
        OpKind::ForRanks { body, .. } => world.saturating_mul(ops(body, geometry)),
        OpKind::If {
            then, otherwise, ..
        } => ops(then, geometry).max(ops(otherwise, geometry)),
        OpKind::Wait { cells, .. } | OpKind::Signal { cells, .. } => cells
            .index
            .iter()
            .map(|index| match index {
                CellIndex::Rank(pick) => picked(pick, world),
                // Tiles overlap at most two chunks of equal rows, and a few otherwise; those across shards a few of each.
                CellIndex::Along(..) if geometry.is_across() => world.saturating_mul(4),
                CellIndex::Along(..) => 4,
                CellIndex::Item(_) => 1,
            })
            .chain([homes(&cells.home, world)])
            .chain(op.kind.slabs().map(|_| slabs))
            .fold(1, u64::saturating_mul),
        OpKind::Reduce { from, .. } => from.slot.as_ref().map_or(1, |pick| picked(pick, world)),
        OpKind::Dot { .. } => slabs,
        OpKind::Copy { .. } | OpKind::Load { .. } | OpKind::Store { .. } => 1,
    };
    body.iter().map(each).fold(0, u64::saturating_add)
}

fn picked(pick: &Pick, world: u64) -> u64 {
    match pick {
        Pick::One(_) => 1,
        Pick::Others | Pick::All => world,
    }
}

fn homes(home: &Home, world: u64) -> u64 {
    match home {
        Home::Me | Home::On(_) => 1,
        Home::Everywhere => world,
    }
}
