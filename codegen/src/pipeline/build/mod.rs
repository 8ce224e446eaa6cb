//! `Checked<Kernel>` → [`Pipeline`]: which warp does what, through which ring, with which fence.
//!
//! What a Hopper pipeline cannot do yet is refused here, with the numbers, before any text is made.

mod cells;
mod comm;
mod epilogue;
mod gemm;
mod item;
mod multiply;
mod operand;
mod panel;
mod rings;
mod share;
mod stagger;
mod walk;

use super::{
    Comm, Epilogue, Expr, MANY_ACCUMULATORS, Map, Node, Pipeline, Place, RingId, Test, Tile, UNIT,
    Warp,
};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::early;
use crate::fit::{self, Beside, Fit, Needs};
use crate::kernel::{Block, Kernel, OpKind, Region, Role, RoleKind, visit};
use crate::program::{CellIndex, CounterId, Loc, TensorId};
use crate::tile::{ATOM_ROWS, MOST_ACCUMULATORS};
use crate::variant::Arch;
use crate::verify::Checked;
use epilogue::is_vector;
use item::{Counters, why};
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
    let mut found = Vec::new();
    let product = product(kernel, &mut found);
    let Some(product) = product.filter(|_| found.is_empty()) else {
        let at = kernel.roles.first().and_then(|role| first(kernel, role));
        return Err(Diagnostics::check(once(found), ())
            .err()
            .unwrap_or_else(|| {
                refuse(at, "it has no dot", "a pipeline feeds tensor cores").into()
            }));
    };
    let comm = comm(kernel);
    let counters = Counters::of(kernel);
    let mut builder = Builder {
        kernel,
        product: &product,
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
    let store = if product.in_turn || product.fit.staggered {
        Place::Threads { first: 1 }
    } else {
        Place::Thread { warp: 1 }
    };
    for (name, which, before, place) in [
        (
            "load",
            Which::Load,
            Some(Which::Fetch),
            Place::Thread { warp: 0 },
        ),
        ("store", Which::Store, Some(Which::Send), store),
        ("multiply", Which::Multiply, None, Place::Groups),
    ] {
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
    if product.ctas() > 1 {
        end.push(Node::SyncCluster);
    }
    let rings = rings::lay_out(&product, comm.is_some(), kernel);
    let Builder {
        maps,
        epilogues,
        scale,
        found,
        ..
    } = builder;
    Diagnostics::check(once(found), ())?;
    let tile = product.tile;
    let lets = lets(kernel, &product);
    let plain = kernel.counters.is_empty();
    let early = early::possible(kernel);
    let pipeline = Pipeline {
        kernel: kernel.clone(),
        dtype: product.dtype,
        tile,
        in_turn: product.in_turn,
        staggered: product.fit.staggered,
        panel: product.fit.panel,
        cluster: product.cluster,
        split: product.split,
        comm,
        // What the loading warpgroup gives up, the multiplying ones share: at most 504 in all. A fused kernel's loading
        // thread needs more for the schedule's arithmetic, most of all where it moves data itself; a sum over ranks
        // needs more in the multiplying ones. Measured: other splits spill.
        registers: match (plain, comm.is_some()) {
            (true, _) if product.accumulators() > MANY_ACCUMULATORS => (24, 240),
            (true, _) => (40, 232),
            (false, true) => (72, 216),
            (false, false) => (56, 224),
        },
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
    product: &'a Product,
    comm: Option<Comm>,
    counters: Counters,
    maps: Vec<Map>,
    epilogues: Vec<Epilogue>,
    scale: Vec<(CounterId, Expr)>,
    found: Vec<Diagnostic>,
}

/// The one product all items compute.
struct Product {
    x: TensorId,
    w: TensorId,
    dtype: crate::dtype::Dtype,
    tile: Tile,
    in_turn: bool,
    cluster: (u32, u32),
    split: u32,
    fit: Fit,
    /// Bytes of the widest element that panels hold.
    widest: u32,
    /// Bytes of what the other CTAs that share a tile's steps send.
    sum_bytes: u32,
    /// Whether that and panels lie where the stages are.
    over_stages: bool,
    partition: crate::program::PartitionId,
}

impl Product {
    /// CTAs of a cluster.
    const fn ctas(&self) -> u32 {
        self.beside() * self.split
    }

    /// Of those, the ones that have tiles beside each other.
    const fn beside(&self) -> u32 {
        self.cluster.0 * self.cluster.1
    }

    /// Accumulators of a thread.
    const fn accumulators(&self) -> u32 {
        self.tile.accumulators(self.in_turn)
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

    /// How many share the steps of a tile.
    fn shares(&self) -> Expr {
        Expr::symbol("SPLIT", self.split)
    }

    /// The rank of a CTA in its cluster: those that load together, `half` by `half`, follow each other, so that a pair of
    /// SMs does; each such group has a share of the steps.
    fn rank(&self, share: Expr, half: Expr) -> Expr {
        match (self.split, self.beside()) {
            (1, _) => half,
            (_, 1) => share,
            (_, beside) => share * Expr::symbol("CLUSTER", beside) + half,
        }
    }

    /// Panels of a tile.
    const fn panels(&self) -> u32 {
        self.tile.panels(self.fit.panel)
    }

    /// Bytes of an output panel.
    const fn panel_bytes(&self) -> u32 {
        self.fit.panel.elements() * self.widest
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

/// The product of the GEMM role, if it is one that the tensor cores' pipeline has.
fn product(kernel: &Kernel, found: &mut Vec<Diagnostic>) -> Option<Product> {
    if kernel.variant.arch != Arch::Sm90 {
        let message = format!("no pipeline for {}", kernel.variant.arch.name());
        found.push(refuse(None, message, "pipelines are for sm90"));
    }
    if let Some(spare) = role(kernel, |kind| kind == RoleKind::SpareWarps) {
        let message = format!("a #[{}] loop", spare.kind.name());
        found.push(refuse(
            first(kernel, spare),
            message,
            "#[gemm], #[comm] and #[copy_engine] have pipelines",
        ));
    }
    let gemm = role(kernel, |kind| matches!(kind, RoleKind::Gemm(_)))?;
    let RoleKind::Gemm(kind) = gemm.kind else {
        return None;
    };
    let (k, cluster, split) = (kind.k, kind.cluster, kind.split);
    let mut dots: Vec<(Region, Region, Loc)> = Vec::new();
    visit(&gemm.body, &mut |op| {
        if let OpKind::Dot { a, b, .. } = &op.kind {
            dots.push((a.clone(), b.clone(), kernel.loc(op.id)));
        }
    });
    let (a, b, at) = dots.first()?.clone();
    if let Some((.., at)) = dots
        .iter()
        .find(|(c, d, _)| (c.buffer, d.buffer) != (a.buffer, b.buffer))
    {
        found.push(refuse(
            Some(*at),
            "a second product",
            "all items of a pipeline multiply the same two tensors",
        ));
    }
    let dtype = kernel.buffers[a.buffer.index()].dtype;
    let Some((partition, rows, columns)) = tiles(kernel, &gemm.body) else {
        found.push(refuse(
            Some(at),
            "a dot over items that are not tiles",
            "divide the output with `.tiles((rows, columns))`",
        ));
        return None;
    };
    if dtype.bytes() != 2 {
        found.push(refuse(
            Some(at),
            format!("a product of {dtype}"),
            "bf16 or f16",
        ));
    }
    let tile = kind.tile((rows, columns));
    let in_turn = kind.in_turn(tile);
    let widest = widest(kernel, &gemm.body);
    let mut beside = Beside::default();
    visit(&gemm.body, &mut |op| beside.count(kernel, op));
    let alone = kind.ctas() == 1 && kernel.counters.is_empty();
    let company = if alone && beside.stores_products() && widest == 2 {
        Company::Plain
    } else if cluster == (1, 1) && (split == 1 || !tile.swapped()) {
        Company::Little
    } else {
        Company::Much
    };
    if let Some(hint) = room(tile, in_turn, company) {
        found.push(refuse(Some(at), format!("tiles of {rows}x{columns}"), hint));
        return None;
    }
    if k != 64 {
        found.push(refuse(
            Some(at),
            format!("a K step of {k}"),
            "64: one 128-byte swizzle atom",
        ));
    }
    let ctas = cluster.0.saturating_mul(cluster.1);
    if ctas > 2 {
        let message = format!("a cluster of {}x{}", cluster.0, cluster.1);
        found.push(refuse(Some(at), message, "1x1, 2x1 or 1x2"));
    } else if ctas == 2 && !kernel.counters.is_empty() {
        // A cluster's tiles count as one, and the last may lie outside: no cell of a counter is for it.
        let message = format!(
            "a cluster of {}x{} in a kernel that signals",
            cluster.0, cluster.1
        );
        found.push(refuse(
            Some(at),
            message,
            "1x1: clusters are for GEMMs alone",
        ));
    }
    let [x_rows, w_rows] = kernel.variant.layout.rows_contiguous();
    if cluster.1 == 2 && !x_rows && !rows.is_multiple_of(2 * ATOM_ROWS) {
        found.push(refuse(
            Some(at),
            format!("a cluster that shares the rows of tiles of {rows}"),
            "a multiple of 16 rows: its CTAs load whole swizzle atoms",
        ));
    }
    share::legal(kernel, &kind, at, found);
    let needs = Needs {
        tile,
        staged: (
            fit::staged_rows(rows, x_rows),
            fit::staged_rows(columns, w_rows),
        ),
        element: 2,
        result: widest,
        in_turn,
        split,
        beside,
        alone,
    };
    let fit = match needs.divide(&kind, kernel.variant.arch.shared_memory()) {
        Ok(fit) => fit,
        Err((message, hint)) => {
            found.push(refuse(Some(at), message, hint));
            return None;
        }
    };
    Some(Product {
        x: a.buffer,
        w: b.buffer,
        dtype,
        tile,
        in_turn,
        cluster,
        split,
        fit,
        widest,
        sum_bytes: needs.sums(),
        over_stages: needs.over_stages(),
        partition,
    })
}

/// What keeps a tile from having a pipeline: a hint at those that have.
fn room(tile: Tile, in_turn: bool, company: Company) -> Option<&'static str> {
    if tile.swapped() {
        let hint = "rows that are no multiple of 64, by 64 columns in turn or 128 shared up to 248 rows; \
            by 128 in turn up to 160, 256 shared up to 160 (176 by CTAs alone, 200 of their plain products), 192 and 256 \
            in turn up to 104 and 80";
        return (tile.refused(in_turn))
            .or_else(|| (!has_registers(tile, in_turn, company)).then_some(hint));
    }
    let (rows, how): (&[u32], _) = if in_turn {
        (
            &[64, 128],
            "64 or 128 rows in turn by a multiple of 16 columns: at most 256, of 128 rows 160",
        )
    } else {
        (
            &[128, 256],
            "128 or 256 shared rows by a multiple of 16 columns: at most 256, of 256 rows 160 (176 without clusters, \
            192 of plain products by CTAs alone)",
        )
    };
    let known = rows.contains(&tile.rows)
        && tile.refused(in_turn).is_none()
        && has_registers(tile, in_turn, company);
    (!known).then_some(how)
}

/// What a thread needs registers for beside a tile's accumulators.
#[derive(Clone, Copy)]
enum Company {
    /// A product that is stored as it is, by a CTA alone.
    Plain,
    /// Signals, math, or sums.
    Little,
    /// Other CTAs that load: 256x176 and 176x256 spill in clusters. The latter spills with sums, too.
    Much,
}

/// Whether accumulators leave a thread registers for the rest: in turn there is one more ring to keep track of.
const fn has_registers(tile: Tile, in_turn: bool, company: Company) -> bool {
    let most = match (tile.blocks(in_turn), in_turn, company) {
        (0 | 1, ..) => 128,
        (_, false, Company::Plain) => MOST_ACCUMULATORS,
        (_, false, Company::Little) => 176,
        (_, false, Company::Much) | (_, true, _) => 160,
    };
    tile.accumulators(in_turn) <= most
}

/// Bytes of the widest type that tiles are stored in, or read from beside the product.
fn widest(kernel: &Kernel, body: &[Block]) -> u32 {
    let mut widest = 2;
    visit(body, &mut |op| {
        let panel = match &op.kind {
            OpKind::Store { dst, .. } => Some(dst),
            OpKind::Load { from, .. } => Some(from).filter(|from| !is_vector(kernel, from)),
            OpKind::Reduce { from, .. } => Some(from),
            OpKind::ForRanks { .. }
            | OpKind::If { .. }
            | OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. }
            | OpKind::Dot { .. } => None,
        };
        let bytes = panel.map(|region| kernel.buffers[region.buffer.index()].dtype.bytes());
        widest = widest.max(bytes.unwrap_or(0));
    });
    widest
}

/// The partition that dots run over.
fn tiles(kernel: &Kernel, body: &[Block]) -> Option<(crate::program::PartitionId, u32, u32)> {
    body.iter().find_map(|block| match block {
        Block::ForRanks { body, .. } => tiles(kernel, body),
        Block::If {
            then, otherwise, ..
        } => tiles(kernel, then).or_else(|| tiles(kernel, otherwise)),
        Block::Items { partition, .. } => {
            let tile = &kernel.partitions[partition.index()];
            Some((*partition, tile.row_block?, tile.column_block?))
        }
        Block::Once { .. } | Block::Join => None,
    })
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
fn lets(kernel: &Kernel, product: &Product) -> Vec<(String, Expr)> {
    use super::Field;
    let tile = &kernel.partitions[product.partition.index()];
    let k = kernel.buffers[product.w.index()].columns;
    let n = Expr::Field(Field::Size(tile.columns));
    let tiles_n = n.ceil_div(Product::clustered(
        "TILE_N",
        product.tile.columns,
        product.cluster.1,
    ));
    let steps = Expr::Field(Field::Size(k)).ceil_div(Expr::symbol("TILE_K", product.tile.k));
    let mut lets = vec![("tiles_n".into(), tiles_n)];
    if product.split > 1 {
        // Each has its part, and none is without a step: the plan refuses fewer steps than CTAs.
        let start = |share: Expr| Expr::var("all_steps") * share / product.shares();
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
