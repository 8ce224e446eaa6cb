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
mod walk;

use super::{
    CONSUMERS, Comm, Epilogue, Expr, Map, Node, PANEL_COLUMNS, Part, Pipeline, Place, Ring, RingId,
    Test, Tile, UNIT, Warp,
};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Block, Kernel, OpKind, Region, Role, RoleKind, visit};
use crate::program::{CellIndex, CounterId, Loc, TensorId};
use crate::variant::Arch;
use crate::verify::Checked;
use epilogue::is_vector;
use item::Counters;
use std::collections::BTreeSet;
use walk::{Walk, Which};

/// The ring of operands.
const STAGES: RingId = RingId(0);
/// The ring of output panels.
const PANELS: RingId = RingId(1);
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
        return Err(Diagnostics::check(found, ()).err().unwrap_or_else(|| {
            refuse(None, "it has no dot", "a pipeline feeds tensor cores").into()
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
    let gemm = role(kernel, |kind| matches!(kind, RoleKind::Gemm { .. }));
    let mover = role(kernel, |kind| matches!(kind, RoleKind::Comm { .. }));
    let mut warps = Vec::new();
    for (name, which, before, place) in [
        (
            "load",
            Which::Load,
            Some(Which::Fetch),
            Place::Thread { warp: 0 },
        ),
        (
            "store",
            Which::Store,
            Some(Which::Send),
            Place::Thread { warp: 1 },
        ),
        ("multiply", Which::Multiply, None, Place::Groups),
    ] {
        let mut body = Vec::new();
        if let (Some(mover), Some(which), Some(comm)) = (mover, before, comm) {
            let moved = Walk::new(&mut builder, which).role(head(mover));
            let test = Test::Less(Expr::Block, Expr::symbol("COMM_CTAS", comm.ctas));
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
    let end = Walk::new(&mut builder, Which::End).end(&tails);
    let rings = rings(&product, comm.is_some(), kernel);
    let Builder {
        maps,
        epilogues,
        scale,
        found,
        ..
    } = builder;
    Diagnostics::check(found, ())?;
    let tile = product.tile;
    let lets = lets(kernel, &product);
    let plain = kernel.counters.is_empty();
    let pipeline = Pipeline {
        kernel: kernel.clone(),
        dtype: product.dtype,
        tile,
        panel_columns: product.panel_columns,
        comm,
        // What the loading warpgroup gives up, the multiplying ones share: at most 504 in all. A fused kernel's loading
        // thread needs more for the schedule's arithmetic, most of all where it moves data itself; a sum over ranks
        // needs more in the multiplying ones. Measured: other splits spill.
        registers: match (plain, comm.is_some()) {
            (true, _) => (40, 232),
            (false, true) => (72, 216),
            (false, false) => (56, 224),
        },
        maps,
        rings,
        lets,
        epilogues,
        scale,
        warps,
        end,
    };
    let (needs, has) = (pipeline.shared_bytes(), kernel.variant.arch.shared_memory());
    if needs > has {
        let message = format!("{needs} bytes of shared memory a CTA");
        return Err(refuse(None, message, format!("an SM has {has}")).into());
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
    panel_columns: u32,
    stages: u32,
    partition: crate::program::PartitionId,
}

fn refuse(at: Option<Loc>, message: impl Into<String>, hint: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Rule::Resources, at, message).hint(hint)
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
            None,
            message,
            "#[gemm], #[comm] and #[copy_engine] have pipelines",
        ));
    }
    let gemm = role(kernel, |kind| matches!(kind, RoleKind::Gemm { .. }))?;
    let RoleKind::Gemm { k, cluster, stages } = gemm.kind else {
        return None;
    };
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
    if rows != 64 * CONSUMERS || ![128, 192, 256].contains(&columns) {
        let hint = format!("{} rows by 128, 192 or 256 columns", 64 * CONSUMERS);
        found.push(refuse(Some(at), format!("tiles of {rows}x{columns}"), hint));
    }
    if k != 64 {
        found.push(refuse(
            Some(at),
            format!("a K step of {k}"),
            "64: one 128-byte swizzle atom",
        ));
    }
    if cluster != (1, 1) {
        let message = format!("a cluster of {}x{}", cluster.0, cluster.1);
        found.push(refuse(Some(at), message, "1x1"));
    }
    let tile = Tile { rows, columns, k };
    // Barriers come last and take less than a kilobyte.
    let room = kernel
        .variant
        .arch
        .shared_memory()
        .saturating_sub(rows * columns * 2 + 1024);
    let [x_rows, w_rows] = kernel.variant.layout.rows_contiguous();
    let stage = operand::bytes(rows, k, x_rows) + operand::bytes(columns, k, w_rows);
    let most = room / stage.max(1);
    let stages = stages.unwrap_or(most.min(8));
    if stages < 2 || stages > most {
        let message = format!(
            "{stages} stages of {stage} bytes beside a result of {} bytes",
            rows * columns * 2
        );
        found.push(refuse(
            Some(at),
            message,
            format!("at least 2 and at most {most} stages"),
        ));
    }
    Some(Product {
        x: a.buffer,
        w: b.buffer,
        dtype,
        tile,
        panel_columns: panel_columns(kernel, &gemm.body),
        stages,
        partition,
    })
}

/// Columns of a panel: 128 bytes of the widest type that tiles are stored in or read from beside the product.
fn panel_columns(kernel: &Kernel, body: &[Block]) -> u32 {
    let mut widest = 2;
    visit(body, &mut |op| {
        let panel = match &op.kind {
            OpKind::Store { dst, .. } => Some(dst),
            OpKind::Load { from, .. } => Some(from).filter(|from| !is_vector(kernel, from)),
            OpKind::Reduce { from, .. } => Some(from),
            OpKind::ForRanks { .. }
            | OpKind::ForSplits { .. }
            | OpKind::If { .. }
            | OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. }
            | OpKind::Dot { .. } => None,
        };
        let bytes = panel.map(|region| kernel.buffers[region.buffer.index()].dtype.bytes());
        widest = widest.max(bytes.unwrap_or(0));
    });
    PANEL_COLUMNS * 2 / widest
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
        .filter(|role| matches!(role.kind, RoleKind::Gemm { .. }))
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
    vec![
        (
            "tiles_n".into(),
            n.ceil_div(Expr::symbol("TILE_N", product.tile.columns)),
        ),
        (
            "steps".into(),
            Expr::Field(Field::Size(k)).ceil_div(Expr::symbol("TILE_K", product.tile.k)),
        ),
    ]
}

/// The rings, laid out one after another; boxes on their way lie where the others will be, before those are used.
fn rings(product: &Product, comm: bool, kernel: &Kernel) -> Vec<Ring> {
    let tile = product.tile;
    let name = |id: TensorId| kernel.buffers[id.index()].name.clone();
    let [x_rows, w_rows] = kernel.variant.layout.rows_contiguous();
    let warps = CONSUMERS * 4;
    let stages = Ring {
        name: "stage",
        slots: product.stages,
        parts: vec![
            Part {
                name: name(product.x),
                bytes: operand::bytes(tile.rows, tile.k, x_rows),
            },
            Part {
                name: name(product.w),
                bytes: operand::bytes(tile.columns, tile.k, w_rows),
            },
        ],
        at: 0,
        full: 1,
        empty: warps,
    };
    let panels = Ring {
        name: "panel",
        // Of 16-bit elements a whole tile.
        slots: tile.columns / PANEL_COLUMNS,
        parts: vec![Part {
            name: "panel".into(),
            bytes: tile.rows * PANEL_COLUMNS * 2,
        }],
        at: stages.slots * stages.slot_bytes(),
        full: warps,
        empty: 1,
    };
    let room = panels.at + panels.slots * panels.slot_bytes();
    let mut rings = vec![stages, panels];
    if comm {
        let bytes = comm::box_rows(kernel) * PANEL_COLUMNS * 2;
        rings.push(Ring {
            name: "box",
            slots: (room / bytes).min(12),
            parts: vec![Part {
                name: "box".into(),
                bytes,
            }],
            at: 0,
            full: 1,
            empty: 1,
        });
    }
    rings
}

/// Whether a cell index names one item, and thus one waiter.
fn names_an_item(index: &[CellIndex]) -> bool {
    index
        .iter()
        .any(|index| matches!(index, CellIndex::Item(_)))
}

const _: () = assert!(UNIT > 0);
