//! When one column of tiles decides for all.
//!
//! In a gather, tiles of one row wait for the same pieces, read the same rows, and write columns of their own; only
//! their number grows with N. If no signal stands in a loop over tiles, no counter has a cell a tile, and all tiles
//! divide one dimension alike, the steps of two tiles of a row differ in nothing but the columns they write:
//!
//! - progress: a tile's waits are over once they were over for another tile of its row, and rows are first met in the
//!   same order whatever the number of columns, so repeated tiles never block;
//! - race, coverage, reuse: two accesses meet only within one column, or in what has no such columns; either way the
//!   same two accesses meet where there is one column;
//! - arrivals: only signals count, and they stand outside.
//!
//! So such a kernel is checked with a single column, which takes time in rows and pieces instead of tiles.

use crate::kernel::{Block, DimId, Kernel, Op, OpKind, visit_ops};
use crate::program::{CounterDim, PartitionId};

/// The dimension that tiles divide into columns, and the columns of one tile, if one column decides for all.
pub(super) fn repeated(kernel: &Kernel) -> Option<(DimId, u32)> {
    let divided = |id: PartitionId| {
        let partition = &kernel.partitions[id.index()];
        partition
            .column_block
            .map(|block| (partition.columns, block))
    };
    let all = 0..kernel.partitions.len() as u16;
    let mut found = all.clone().filter_map(|id| divided(PartitionId(id)));
    let first = found.next()?;
    let alike = found.all(|other| other == first);
    // Pieces that take these columns whole would meet every tile's.
    let whole = all.clone().any(|id| {
        let partition = &kernel.partitions[usize::from(id)];
        partition.column_block.is_none() && partition.columns == first.0
    });
    // A dimension that is also somebody's rows would shrink there too, unless they are only an operand's.
    let rows = kernel.dims[usize::from(first.0.0)].chunked
        || kernel
            .partitions
            .iter()
            .any(|partition| partition.rows == first.0);
    let counted = kernel
        .counters
        .iter()
        .flat_map(|counter| &counter.dims)
        .any(|dim| match dim {
            CounterDim::Items(id) => divided(*id).is_some(),
            CounterDim::World | CounterDim::Count(_) => false,
        });
    let mut signals = false;
    // Nor may they be the K of another product.
    let mut summed = false;
    for role in &kernel.roles {
        items(&role.body, &mut |partition, body| {
            let tiles = divided(partition).is_some();
            visit_ops(body, &mut |op| {
                signals |= tiles && matches!(op.kind, OpKind::Signal { .. });
                if let OpKind::Dot { a, .. } = &op.kind {
                    summed |= kernel.buffers[a.buffer.index()].columns == first.0;
                }
            });
        });
    }
    (alike && !whole && !rows && !counted && !signals && !summed).then_some(first)
}

fn items(body: &[Block], f: &mut impl FnMut(PartitionId, &[Op])) {
    for block in body {
        match block {
            Block::ForRanks { body, .. } => items(body, f),
            Block::If {
                then, otherwise, ..
            } => {
                items(then, f);
                items(otherwise, f);
            }
            Block::Items {
                partition, body, ..
            } => f(*partition, body),
            Block::Once { .. } | Block::Join => {}
        }
    }
}
