//! What one item does, sorted by the warp that does it.
//!
//! The loading warp goes through an item's waits and loads, the storing warp through its stores and signals. Where an item
//! waits behind a signal of its own, peers may wait for that signal before they send what it waits for. So the item is done
//! in passes: what stands before the wait is stored and signalled for all of the tile before anything behind it is waited
//! for.

use super::builder::refuse;
use super::computed_scales::plane;
use super::leaves::{Around, Leaf};
use super::walk::Walk;
use crate::kernel::{Kernel, Op, OpKind, Purpose, Region};
use crate::program::Var;
use crate::value::AccId;
use crate::warp::Elements;

/// The leaves of a pass over a tile's item by the warp that does them.
#[derive(Default)]
pub(super) struct Pass<'a> {
    /// Waits of the loading warp before the operands.
    pub load_waits: Vec<Leaf<'a>>,
    /// Its waits before the first step of each slab of K.
    pub slab_waits: Vec<Leaf<'a>>,
    /// The products. Only one pass of an item has some.
    pub dots: Vec<Leaf<'a>>,
    /// Sums, each with the waits for the same slots.
    pub sums: Vec<(Vec<Leaf<'a>>, Leaf<'a>)>,
    /// True if these have registers of their own, a subtile at a time, because they are not added to a product.
    pub apart: bool,
    /// This rank's own term of each, if it is added in its turn.
    pub own_terms: Vec<Option<Elements>>,
    /// Stored tiles that the math after the dot reads, each with its waits.
    pub loads: Vec<(Vec<Leaf<'a>>, Leaf<'a>)>,
    /// Vectors and scales that it reads.
    pub vectors: Vec<Leaf<'a>>,
    /// Leaves that a pass before it has read: they are read again, each with a subtile.
    pub again: Vec<Leaf<'a>>,
    /// Waits of the storing warp.
    pub store_waits: Vec<Leaf<'a>>,
    /// Scales that warps which multiply wait for, where they write scales beside what is stored: the loading warp
    /// waits, and they wait for what it loads.
    pub scale_waits: Vec<Leaf<'a>>,
    /// The stores.
    pub stores: Vec<Leaf<'a>>,
    /// Elements of each store; `None` where it is refused.
    pub elements: Vec<Option<Elements>>,
    /// Elements that each store measures, if it does.
    pub amaxes: Vec<Option<Elements>>,
    /// The signals after them.
    pub signals: Vec<Leaf<'a>>,
}

impl Pass<'_> {
    /// True if the loading warp waits before it loads some operands.
    pub fn awaits_operands(&self) -> bool {
        !(self.load_waits.is_empty() && self.slab_waits.is_empty())
    }
}

/// The passes over an item: one at least.
pub(super) fn passes<'a>(walk: &mut Walk<'_, '_>, leaves: &[Leaf<'a>]) -> Vec<Pass<'a>> {
    no_wait_between_signals(walk, leaves);
    let mut passes: Vec<Pass<'a>> = Vec::new();
    let mut from = 0;
    while passes.is_empty() || from < leaves.len() {
        let end = end_of_pass(walk.b.kernel, &leaves[from..]);
        passes.push(sort(walk, &leaves[from..from + end]));
        from += end;
    }
    let multiplied = passes.iter().filter(|pass| !pass.dots.is_empty());
    if let Some(dot) = multiplied.skip(1).find_map(|pass| pass.dots.first()) {
        let at = Some(walk.b.kernel.loc(dot.op.id));
        let message = "a product behind a wait that stands behind a signal of its own item";
        let hint = "all products of an item before its first signal, or a loop for each";
        walk.b.found.push(refuse(at, message, hint));
    }
    read_in_their_pass(walk, &mut passes);
    passes
}

/// Number of an item's leaves before the first wait for data that stands behind a signal.
fn end_of_pass(kernel: &Kernel, leaves: &[Leaf<'_>]) -> usize {
    let first = leaves.iter().position(is_signal).unwrap_or(leaves.len());
    let mut behind = leaves.iter().enumerate().skip(first);
    let wait = behind.find(|(_, leaf)| waits_for_data(kernel, leaf));
    wait.map_or(leaves.len(), |(at, _)| at)
}

/// A loop over ranks that signals and waits goes on to the next signal when its wait is over. Here all of its signals come
/// first.
fn no_wait_between_signals(walk: &mut Walk<'_, '_>, leaves: &[Leaf<'_>]) {
    let kernel = walk.b.kernel;
    let loops = |leaf: &Leaf<'_>| -> Vec<Var> {
        let around = leaf.around.iter();
        let ranks = around.filter_map(|around| match around {
            Around::Ranks(var, ..) => Some(*var),
            Around::If(..) => None,
        });
        ranks.collect()
    };
    let waits = leaves.iter().filter(|leaf| waits_for_data(kernel, leaf));
    for wait in waits {
        let shared = |signal: &&Leaf<'_>| {
            let around = loops(signal);
            is_signal(signal) && loops(wait).iter().any(|var| around.contains(var))
        };
        if leaves.iter().any(|leaf| shared(&leaf)) {
            let at = Some(kernel.loc(wait.op.id));
            let message = "a wait and a signal in one loop over ranks inside an item";
            let hint = "a loop that sends and signals, then one that waits";
            walk.b.found.push(refuse(at, message, hint));
        }
    }
}

fn is_signal(leaf: &Leaf<'_>) -> bool {
    matches!(leaf.op.kind, OpKind::Signal { .. })
}

/// True if it waits for what the schedule signals. Nobody waits for an item before a credit is given.
fn waits_for_data(kernel: &Kernel, leaf: &Leaf<'_>) -> bool {
    matches!(&leaf.op.kind, OpKind::Wait { cells, .. }
        if kernel.counters[cells.counter.index()].purpose == Purpose::Data)
}

fn sort<'a>(walk: &mut Walk<'_, '_>, leaves: &[Leaf<'a>]) -> Pass<'a> {
    let mut pass = Pass::default();
    let mut waiting: Vec<Leaf<'a>> = Vec::new();
    for (index, leaf) in leaves.iter().enumerate() {
        let kernel = walk.b.kernel;
        // Nobody writes a vector during a launch: what a wait is for comes after it.
        let reads = |leaf: &Leaf<'_>| match &leaf.op.kind {
            OpKind::Dot { .. } | OpKind::Reduce { .. } => true,
            OpKind::Load { from, .. } => !is_vector(kernel, from),
            OpKind::ForRanks { .. }
            | OpKind::If { .. }
            | OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. }
            | OpKind::Store { .. } => false,
        };
        let stores = |leaf: &Leaf<'_>| matches!(leaf.op.kind, OpKind::Store { .. });
        // The product's operands are loaded first, and so come after all waits before the product.
        let is_dot = |leaf: &Leaf<'_>| matches!(leaf.op.kind, OpKind::Dot { .. });
        let before_the_dot = leaves[index..].iter().any(is_dot);
        let taken = |waiting: &mut Vec<Leaf<'a>>| match before_the_dot {
            true => Vec::new(),
            false => std::mem::take(waiting),
        };
        let at = walk.b.kernel.loc(leaf.op.id);
        let in_order = matches!(
            leaf.op.kind,
            OpKind::Dot { .. } | OpKind::Reduce { .. } | OpKind::Load { .. }
        );
        if in_order && !leaf.around.is_empty() {
            walk.b.found.push(refuse(
                Some(at),
                "a product, a sum or a load in a loop over ranks inside an item",
                "the loop over ranks outside, the items inside",
            ));
        }
        match &leaf.op.kind {
            OpKind::Wait { .. } if leaf.slab_by_slab => pass.slab_waits.push(leaf.clone()),
            OpKind::Wait { .. } => {
                let rest = &leaves[index + 1..];
                if rest.iter().any(reads) {
                    waiting.push(leaf.clone());
                } else if rest.iter().any(|leaf| stores(leaf) || is_signal(leaf)) {
                    pass.store_waits.push(leaf.clone());
                } else {
                    pass.load_waits.push(leaf.clone());
                }
            }
            OpKind::Dot { .. } => {
                pass.load_waits.append(&mut waiting);
                pass.dots.push(leaf.clone());
            }
            OpKind::Reduce { .. } => pass.sums.push((taken(&mut waiting), leaf.clone())),
            OpKind::Load { from, .. } if is_vector(kernel, from) => {
                pass.vectors.push(leaf.clone());
            }
            OpKind::Load { .. } => pass.loads.push((taken(&mut waiting), leaf.clone())),
            OpKind::Store { .. } => pass.stores.push(leaf.clone()),
            OpKind::Signal { .. } => pass.signals.push(leaf.clone()),
            OpKind::Copy { .. } => walk.b.found.push(refuse(
                Some(at),
                "a copy in a #[gemm] loop",
                "copies in #[comm] or #[copy_engine]",
            )),
            OpKind::ForRanks { .. } | OpKind::If { .. } => {}
        }
    }
    let reads = pass.dots.len() + pass.sums.len() + pass.loads.len() > 0;
    if let (true, true, Some(signal)) = (pass.stores.is_empty(), reads, pass.signals.first()) {
        let at = Some(walk.b.kernel.loc(signal.op.id));
        let message = "a signal of an item that reads tiles and stores none";
        let hint = "signal behind a store: it says that what came before is done";
        walk.b.found.push(refuse(at, message, hint));
    }
    let beside = |leaf: &Leaf<'_>| {
        plane(walk.b.kernel, leaf).is_some_and(|it| walk.b.kernel.buffers[it.index()].is_scratch())
    };
    if pass.stores.iter().any(beside) {
        pass.scale_waits.clone_from(&pass.store_waits);
    }
    // Where nothing is stored, as in a branch that was left out, stored tiles are not read; what they wait for is.
    if pass.stores.is_empty() {
        let sums = match pass.dots.is_empty() {
            false => Vec::new(),
            true => std::mem::take(&mut pass.sums),
        };
        let unread = sums.into_iter().chain(std::mem::take(&mut pass.loads));
        pass.load_waits.extend(unread.flat_map(|(waits, _)| waits));
    }
    pass
}

/// Moves reads into the passes that use them: a store, or an own term of a sum, reads its stored tiles a subtile at a
/// time. Vectors are read again in each pass that uses them.
fn read_in_their_pass(walk: &mut Walk<'_, '_>, passes: &mut [Pass<'_>]) {
    let kernel = walk.b.kernel;
    for at in 1..passes.len() {
        let (before, rest) = passes.split_at_mut(at);
        let pass = &mut rest[0];
        let stores = pass.stores.iter();
        let mut used: Vec<AccId> = Vec::new();
        for leaf in stores {
            if let OpKind::Store { value, .. } = leaf.op.kind {
                used.extend(kernel.values[usize::from(value.0)].accs());
            }
        }
        for (_, leaf) in &pass.sums {
            if let OpKind::Reduce { own: Some(own), .. } = leaf.op.kind {
                used.extend(kernel.values[usize::from(own.0)].accs());
            }
        }
        let uses = |leaf: &Leaf<'_>| acc(leaf.op).is_some_and(|acc| used.contains(&acc));
        for earlier in before.iter().rev() {
            for leaf in earlier.vectors.iter().filter(|leaf| uses(leaf)) {
                let mut own = pass.vectors.iter().chain(&pass.again);
                if own.any(|it| acc(it.op) == acc(leaf.op)) {
                    continue;
                }
                // A pass that stores nothing has read nothing.
                match earlier.stores.is_empty() {
                    true => pass.vectors.push(leaf.clone()),
                    false => pass.again.push(leaf.clone()),
                }
            }
            let tiles = earlier.sums.iter().chain(&earlier.loads);
            for (_, leaf) in tiles.filter(|(_, leaf)| uses(leaf)) {
                let at = Some(kernel.loc(leaf.op.id));
                let message =
                    "a stored tile that is read before a signal and used behind a wait after it";
                let hint = "read it again where it is used: its subtiles are not kept meanwhile";
                walk.b.found.push(refuse(at, message, hint));
            }
        }
    }
}

/// The accumulator that an op fills.
fn acc(op: &Op) -> Option<AccId> {
    op.kind.filled()
}

/// True if a load is of a vector along the columns, or of a scale.
fn is_vector(kernel: &Kernel, region: &Region) -> bool {
    kernel.buffers[region.buffer.index()].usage.is_repeated()
}
