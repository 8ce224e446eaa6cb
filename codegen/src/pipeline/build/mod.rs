//! `Checked<Kernel>` → [`Pipeline`]: which warp does what, through which ring, with which fence.
//!
//! What a Hopper pipeline cannot do yet is refused here, with the numbers, before any text is made.

mod cells;
mod comm;
mod epilogue;
mod gemm;
mod item;
mod multiply;
mod nodes;
mod operand;
mod panel;
mod rings;
mod share;
mod stagger;
mod walk;

use super::{Comm, Epilogue, Expr, Map, Node, Pipeline, Place, RingId, Test, UNIT, Warp};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Block, Kernel, OpKind, Role, RoleKind, visit};
use crate::program::{CellIndex, CounterId, Loc};
use crate::sm90::{self, Cta, Level};
use crate::tiling::{Tiling, first_step};
use crate::verify::Checked;
use item::Counters;
use nodes::why;
use std::collections::BTreeSet;
use walk::{Walk, Which};

/// The ring of operands.
const STAGES: RingId = RingId(0);
/// The ring of output panels.
const PANELS: RingId = RingId(1);
/// The ring of sums that CTAs which share a tile's steps send each other. Such a kernel moves no boxes.
const SUMS: RingId = RingId(2);
/// The stages together, where sums and panels lie in them: a tile in between is full when all CTAs that share it are
/// done with its steps, and empty when all its panels were read.
const TILES: RingId = RingId(3);
/// The ring of boxes on their way to a peer.
const BOXES: RingId = RingId(2);
/// The pipeline of `kernel` on its architecture.
///
/// # Errors
/// What the architecture, or this version, cannot do: a tile, type, layout, role or epilogue, each with what it can.
pub fn build(kernel: &Checked<Kernel>) -> Result<Pipeline, Diagnostics> {
    let Some(cta) = sm90::cta(kernel, Level::Runs)? else {
        let at = kernel.roles.first().and_then(|role| first(kernel, role));
        return Err(refuse(at, "it has no dot", "a pipeline feeds tensor cores").into());
    };
    let comm = comm(kernel);
    let counters = Counters::of(kernel);
    let mut builder = Builder {
        kernel,
        cta: &cta,
        comm,
        counters,
        maps: Vec::new(),
        epilogues: Vec::new(),
        scale: Vec::new(),
        found: Vec::new(),
    };
    builder.found.extend(between_others(kernel));
    let gemm = role(kernel, |kind| matches!(kind, RoleKind::Gemm(_)));
    let mover = role(kernel, |kind| matches!(kind, RoleKind::Comm { .. }));
    let mut warps = Vec::new();
    for warp in cta.warps() {
        let place = warp.place;
        let (name, which, before) = match warp.role {
            sm90::Role::Load => ("load", Which::Load, Some(Which::Fetch)),
            sm90::Role::Store => ("store", Which::Store, Some(Which::Send)),
            sm90::Role::Multiply => ("multiply", Which::Multiply, None),
        };
        let mut body = Vec::new();
        if let (Some(mover), Some(which), Some(comm)) = (mover, before, comm) {
            let mut moved = Walk::new(&mut builder, which).role(head(mover));
            if place == (Place::Threads { first: 1 }) {
                let test = Test::Equal(Expr::var("consumer"), 0.into());
                moved = vec![Node::If { test, body: moved }];
            }
            let test = Test::Less(Expr::Block, Expr::symbol("COMM_CTAS", comm.ctas));
            body.push(why(if comm.joins {
                "The first CTAs move data before they take items of the GEMM."
            } else {
                "The first CTAs move data."
            }));
            body.push(Node::If { test, body: moved });
        }
        let mut work = gemm.map_or_else(Vec::new, |gemm| {
            Walk::new(&mut builder, which).role(head(gemm))
        });
        if let Some(comm) = comm.filter(|comm| !comm.joins) {
            let test = Test::AtLeast(Expr::Block, Expr::symbol("COMM_CTAS", comm.ctas));
            work = vec![Node::If { test, body: work }];
        }
        body.append(&mut work);
        warps.push(Warp { name, place, body });
    }
    let tails: Vec<&Block> = [mover, gemm].into_iter().flatten().flat_map(tail).collect();
    let mut end = Walk::new(&mut builder, Which::End).end(&tails);
    if cta.ctas() > 1 {
        end.push(Node::SyncCluster);
    }
    let rings = rings::lay_out(&builder);
    let Builder {
        maps,
        epilogues,
        scale,
        found,
        ..
    } = builder;
    Diagnostics::check(once(found), ())?;
    let lets = lets(kernel, &cta);
    let early = cta.early();
    let pipeline = Pipeline {
        kernel: kernel.clone(),
        cta,
        comm,
        maps,
        rings,
        lets,
        epilogues,
        scale,
        early,
        start: Vec::from_iter(early.then_some(Node::AwaitLaunches)),
        warps,
        end,
    };
    let (needs, has) = (pipeline.shared_bytes(), kernel.variant.arch.shared_memory());
    if needs > has {
        let message = format!("{needs} bytes of shared memory a CTA");
        let at = gemm.and_then(|gemm| first(kernel, gemm));
        return Err(refuse(at, message, format!("an SM has {has}")).into());
    }
    Ok(pipeline)
}

/// What every step of lowering needs.
struct Builder<'a> {
    kernel: &'a Kernel,
    cta: &'a Cta,
    comm: Option<Comm>,
    counters: Counters,
    maps: Vec<Map>,
    epilogues: Vec<Epilogue>,
    scale: Vec<(CounterId, Expr)>,
    found: Vec<Diagnostic>,
}

impl Builder<'_> {
    /// How the tiles of all loops are computed.
    const fn tiling(&self) -> &Tiling {
        self.cta.tiling()
    }

    /// How many share the steps of a tile.
    fn shares(&self) -> Expr {
        Expr::symbol("SPLIT", self.cta.split())
    }

    /// The rank of a CTA in its cluster: those that load together, `half` by `half`, follow each other, so that a pair of
    /// SMs does; each such group has a share of the steps.
    fn rank(&self, share: Expr, half: Expr) -> Expr {
        match (self.cta.split(), self.cta.beside()) {
            (1, _) => half,
            (_, 1) => share,
            (_, beside) => share * Expr::symbol("CLUSTER", beside) + half,
        }
    }
}

/// Rows or columns of the tiles of a cluster.
fn clustered(name: &str, size: u32, ctas: u32) -> Expr {
    let size = Expr::symbol(name, size);
    if ctas > 1 {
        size * Expr::symbol("CLUSTER", ctas)
    } else {
        size
    }
}

fn refuse(at: Option<Loc>, message: impl Into<String>, hint: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Rule::Resources, at, message).hint(hint)
}

/// Copies of a copy engine between the memory of two other ranks. Their driver may put them into queues of a GPU that is
/// not the rank's, behind copies of other ranks that wait: nothing of ours orders those.
fn between_others(kernel: &Kernel) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let engines = kernel.roles.iter().filter(|role| role.kind.sequential());
    for role in engines {
        visit(&role.body, &mut |op| {
            if let OpKind::Copy { dst, src } = &op.kind
                && dst.home.is_remote()
                && src.home.is_remote()
            {
                let at = Some(kernel.loc(op.id));
                let message = "a #[copy_engine] copies between the memory of two other ranks";
                let hint = "from or to this rank's own memory; `#[comm]` copies between any two";
                found.push(refuse(at, message, hint));
            }
        });
    }
    found
}

/// Each finding once: every warp walks the same statements.
fn once(found: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let mut seen = BTreeSet::new();
    let mut new = |one: &Diagnostic| seen.insert((one.at, one.message.clone()));
    found.into_iter().filter(|one| new(one)).collect()
}

/// Where a role's first statement was written.
fn first(kernel: &Kernel, role: &Role) -> Option<Loc> {
    role.body.iter().find_map(|block| kernel.block_loc(block))
}

fn role(kernel: &Kernel, is: impl Fn(RoleKind) -> bool) -> Option<&Role> {
    kernel.roles.iter().find(|role| is(role.kind))
}

/// What a role does before its join.
fn head(role: &Role) -> &[Block] {
    let join = role.body.iter().position(|block| *block == Block::Join);
    &role.body[..join.unwrap_or(role.body.len())]
}

/// What it does after: by then all CTAs are at their end.
fn tail(role: &Role) -> &[Block] {
    let join = role.body.iter().position(|block| *block == Block::Join);
    &role.body[join.unwrap_or(role.body.len())..]
}

/// The CTAs that move data. They may take items of the GEMM afterwards if nothing they wait for comes from one: an
/// item is dealt to a CTA in advance, and must not be behind a wait for itself.
fn comm(kernel: &Kernel) -> Option<Comm> {
    let mover = role(kernel, |kind| matches!(kind, RoleKind::Comm { .. }))?;
    let RoleKind::Comm { ctas } = mover.kind else {
        return None;
    };
    let mut waited = BTreeSet::new();
    visit(&mover.body, &mut |op| {
        if let OpKind::Wait { cells, .. } = &op.kind {
            waited.insert(cells.counter);
        }
    });
    let mut joins = true;
    for role in kernel
        .roles
        .iter()
        .filter(|role| matches!(role.kind, RoleKind::Gemm(_)))
    {
        visit(&role.body, &mut |op| {
            if let OpKind::Signal { cells, .. } = &op.kind {
                joins &= !waited.contains(&cells.counter);
            }
        });
    }
    Some(Comm { ctas, joins })
}

/// Numbers all warps use.
fn lets(kernel: &Kernel, cta: &Cta) -> Vec<(String, Expr)> {
    use super::Field;
    let tiling = cta.tiling();
    let (tile, [_, w]) = (tiling.tile(), tiling.operands());
    let columns = kernel.partitions[tiling.partition().index()].columns;
    let k = kernel.buffers[w.tensor.index()].columns;
    let tiles_n = Expr::Field(Field::Size(columns)).ceil_div(clustered(
        "TILE_N",
        tile.columns,
        cta.cluster().1,
    ));
    let steps = Expr::Field(Field::Size(k)).ceil_div(Expr::symbol("TILE_K", tile.k));
    let mut lets = vec![("tiles_n".into(), tiles_n)];
    if cta.split() > 1 {
        // Each has its part, and none is without a step: the plan refuses fewer steps than CTAs.
        let shares = || Expr::symbol("SPLIT", cta.split());
        let start = |share: Expr| first_step(Expr::var("all_steps"), share, shares());
        lets.push(("all_steps".into(), steps));
        lets.push(("first_step".into(), start(Expr::var("share"))));
        lets.push((
            "steps".into(),
            start(Expr::var("share") + 1) - Expr::var("first_step"),
        ));
    } else {
        lets.push(("steps".into(), steps));
    }
    lets
}

/// Whether a cell index names one item, and thus one waiter.
fn names_an_item(index: &[CellIndex]) -> bool {
    index
        .iter()
        .any(|index| matches!(index, CellIndex::Item(_)))
}

const _: () = assert!(UNIT > 0);
