//! Reduction of a proof: the conditions under which one column of tiles stands for all.
//!
//! Tiles of one row mostly do the same: in a gather they wait for the same chunks, read the same rows and write
//! their own columns; in a reduce-scatter each passes its own column on. Only their number grows with N. Call a
//! counter *columned* if its last axis is over tiles. Suppose that all tiles divide one dimension alike, and that a
//! loop over tiles signals only columned counters, at its own tile. Then the kernel with a single column does what the
//! full kernel does in each column and in everything without columns:
//!
//! - race, coverage, reuse, attribution: two accesses, or a signal and a wait, meet only within one column or where
//!   there are no columns. What orders them in the narrow kernel orders them in that column of the full one. An order
//!   in the full kernel, through any columns, is also an order in the narrow one, with the columns dropped.
//! - coverage counts terms that name ranks and tensors, not columns. So a block of the narrow kernel holds the same sum
//!   as that block in every column of the full one.
//! - progress, if tiles signal nothing: a tile's waits end once they ended for another tile of its row, and rows are
//!   first met in the same order, so repeated tiles never block.
//! - progress, if they signal and every loop over tiles goes row by row: in no tile does a wait follow a signal.
//!   Suppose the narrow kernel finishes and the full one is stuck in a cycle of waits. Take the times that their steps
//!   have in the narrow run. Where `a` waits for a signal of `b`, the signal is earlier than the wait. `b` is stuck in
//!   an earlier row, hence earlier; or earlier in the same tile; or in the same row at an earlier column, at a wait,
//!   which precedes the signal in that tile. So times fall all along the cycle, a contradiction. (A wait for what
//!   roles signal before anything else, such as a parameter's credit, is never part of a cycle and may come late.)
//! - progress, if they signal and go in another order, but are *staged*: tiles wait only for tiles of earlier loops of
//!   the same role, and for signals that this role never makes, except at its start. Then the other roles run as in the
//!   narrow kernel, and no tile waits for one of the same loop or of a later one, in whatever order a loop visits them.
//!   (Otherwise the order matters: if a column's first row must be done before its last one can start, no second column
//!   may come between them.)
//! - arrivals: every column's cell gets the same signals.
//!
//! Scales that tiles make of their own columns are of whole blocks ([`super::computed_scales`]), and no two columns of tiles share one.
//!
//! A loop that selects some tiles by their place does not do the same in every column.

use crate::kernel::{Block, Cells, DimId, Kernel, Op, OpKind, visit, visit_ops};
use crate::order::TileOrder;
use crate::program::{CellIndex, CounterDim, CounterId, PartitionId};

/// The dimension that tiles divide into columns, and the columns of one tile, if one column is enough.
pub(crate) fn repeated(kernel: &Kernel) -> Option<(DimId, u32)> {
    let all = || (0..kernel.partitions.len() as u16).map(PartitionId);
    let mut found = all().filter_map(|id| divided(kernel, id));
    let first = found.next()?;
    let alike = found.all(|other| other == first);
    // Chunks that hold all of these columns would meet every tile, and so would their shards.
    let whole = all().any(|id| {
        let partition = &kernel.partitions[id.index()];
        partition.rows == first.0
            || (partition.column_block.is_none() && partition.columns == first.0)
    });
    let sharded = kernel.dims[usize::from(first.0.0)].sharded;
    let counted = kernel.counters.iter().all(|counter| {
        let inner = counter.dims.len().saturating_sub(1);
        !counter.dims[..inner]
            .iter()
            .any(|dim| is_columned(kernel, dim))
    });
    let mut tiles = Tiles {
        kernel,
        columns: first.0,
        signals: false,
        row_major: true,
        sound: true,
    };
    for role in &kernel.roles {
        tiles.blocks(&role.body);
    }
    let progress = !tiles.signals || tiles.row_major || staged(kernel);
    (alike && !whole && !sharded && counted && tiles.sound && progress).then_some(first)
}

/// True if a counter has a cell for every column.
pub(crate) fn is_columned_counter(kernel: &Kernel, counter: CounterId) -> bool {
    kernel.counters[counter.index()]
        .dims
        .last()
        .is_some_and(|dim| is_columned(kernel, dim))
}

fn is_columned(kernel: &Kernel, dim: &CounterDim) -> bool {
    match dim {
        CounterDim::Items(id) => divided(kernel, *id).is_some(),
        CounterDim::World | CounterDim::Count(_) => false,
    }
}

fn divided(kernel: &Kernel, id: PartitionId) -> Option<(DimId, u32)> {
    let partition = &kernel.partitions[id.index()];
    partition
        .column_block
        .map(|block| (partition.columns, block))
}

/// True if loops over tiles wait only for tiles of earlier loops of their role, and for nothing else that their role
/// signals after its start. Nobody waits in this launch for what is granted for the next.
fn staged(kernel: &Kernel) -> bool {
    let counters = (0..kernel.counters.len()).map(|index| CounterId(index as u16));
    let tiled: Vec<bool> = kernel
        .roles
        .iter()
        .map(|role| has_tiles(kernel, &role.body))
        .collect();
    counters
        .filter(|counter| kernel.counters[counter.index()].purpose.lag() == 0)
        .all(|counter| {
            let (mut signals, mut waits) = (Vec::new(), Vec::new());
            for (role, body) in kernel.roles.iter().map(|role| &role.body).enumerate() {
                for (at, block) in body.iter().enumerate() {
                    visit(std::slice::from_ref(block), &mut |op| {
                        let is = |cells: &Cells| cells.counter == counter;
                        if matches!(&op.kind, OpKind::Signal { cells, .. } if is(cells)) {
                            signals.push((role, at));
                        }
                        if matches!(&op.kind, OpKind::Wait { cells, .. } if is(cells)) {
                            waits.push((role, at));
                        }
                    });
                }
            }
            if is_columned_counter(kernel, counter) {
                let after = |wait: &(usize, usize)| {
                    let before = |signal: &(usize, usize)| signal.0 == wait.0 && signal.1 < wait.1;
                    signals.iter().all(before)
                };
                waits.iter().all(after)
            } else {
                signals.iter().all(|(role, _)| !tiled[*role]) || is_given(kernel, counter)
            }
        })
}

/// True if a role has loops over tiles that divide columns.
fn has_tiles(kernel: &Kernel, body: &[Block]) -> bool {
    body.iter().any(|block| match block {
        Block::ForRanks { body, .. } => has_tiles(kernel, body),
        Block::If {
            then, otherwise, ..
        } => has_tiles(kernel, then) || has_tiles(kernel, otherwise),
        Block::Items { partition, .. } => divided(kernel, *partition).is_some(),
        Block::Once { .. } | Block::Join => false,
    })
}

/// Accesses of loops over tiles.
struct Tiles<'a> {
    kernel: &'a Kernel,
    columns: DimId,
    signals: bool,
    row_major: bool,
    /// True if the items signal only their own columned cells, after all waits, and sum only over other dimensions.
    sound: bool,
}

impl Tiles<'_> {
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
                Block::Items {
                    partition,
                    order,
                    selection,
                    body,
                    ..
                } => {
                    if divided(self.kernel, *partition).is_some() {
                        self.sound &= selection.is_all();
                        self.row_major &= *order == TileOrder::RowMajor;
                        self.tile(body);
                    }
                }
                Block::Once { .. } | Block::Join => {}
            }
        }
    }

    fn tile(&mut self, body: &[Op]) {
        visit_ops(body, &mut |op| {
            if let OpKind::Signal { cells, .. } = &op.kind {
                self.signals = true;
                let own = matches!(cells.index.last(), Some(CellIndex::Item(_)));
                self.sound &= own && is_columned_counter(self.kernel, cells.counter);
            }
            if let OpKind::Dot { a, .. } = &op.kind {
                self.sound &= self.kernel.buffers[a.buffer.index()].columns != self.columns;
            }
        });
        let given = |cells: &Cells| is_given(self.kernel, cells.counter);
        self.sound &= waits_first(body, &given, &mut false);
    }
}

/// True if a role makes every signal of a counter before anything can block it.
fn is_given(kernel: &Kernel, counter: CounterId) -> bool {
    let of_counter =
        |op: &Op| matches!(&op.kind, OpKind::Signal { cells, .. } if cells.counter == counter);
    kernel.roles.iter().all(|role| {
        let (head, rest) = match role.body.split_first() {
            Some((Block::Once { body }, rest)) => (body.as_slice(), rest),
            Some((
                Block::ForRanks { .. } | Block::If { .. } | Block::Items { .. } | Block::Join,
                _,
            ))
            | None => (&[][..], role.body.as_slice()),
        };
        let (mut blocks, mut later) = (false, false);
        visit_ops(head, &mut |op| {
            blocks |= matches!(op.kind, OpKind::Wait { .. })
        });
        visit(if blocks { &role.body } else { rest }, &mut |op| {
            later |= of_counter(op)
        });
        !later
    })
}

/// True if no wait comes after a signal, except for what is `given`.
fn waits_first(body: &[Op], given: &impl Fn(&Cells) -> bool, signalled: &mut bool) -> bool {
    body.iter().all(|op| match &op.kind {
        OpKind::ForRanks { body, .. } => {
            // The second round's waits come after the first one's signals.
            waits_first(body, given, signalled) && waits_first(body, given, signalled)
        }
        OpKind::If {
            then, otherwise, ..
        } => waits_first(then, given, signalled) && waits_first(otherwise, given, signalled),
        OpKind::Wait { cells, .. } => !*signalled || given(cells),
        OpKind::Signal { .. } => {
            *signalled = true;
            true
        }
        OpKind::Copy { .. }
        | OpKind::Dot { .. }
        | OpKind::Reduce { .. }
        | OpKind::Load { .. }
        | OpKind::Store { .. } => true,
    })
}
