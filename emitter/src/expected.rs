//! Numbers of instructions of each kind that a kernel's machine code must have, worked out from the variant's tile and the
//! schedule's statements, not from the text. Loops say whether they are unrolled, so the counts are exact.

use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::{Block, Op, OpKind, Region, RoleKind, visit, visit_ops};
use counterflow_codegen::program::{Home, PartitionId, StoreMode, Var};
use counterflow_codegen::sm90::cta::{dependent_launch, instruction_k};
use counterflow_codegen::tiling::{Major, Tile, Tiling};
use counterflow_codegen::warp::{FragmentOp, Node, Pipeline, Whose};

/// (SASS mnemonic, how many).
pub fn instructions(pipeline: &Pipeline) -> Vec<(&'static str, u32)> {
    let parts = parts(pipeline);
    let stands = if branches(pipeline) || parts > 0 {
        Stands::in_warps(pipeline)
    } else {
        Stands::by_statements(pipeline)
    };
    let mut everywhere = everywhere(pipeline);
    if parts > 0 {
        everywhere.push(("STG.E.128", parts));
    }
    // The next launch is let come once. Those before are awaited by all warps at once, or by each where it has to.
    let lets_come = u32::from(dependent_launch::lets_the_next_come(&pipeline.kernel));
    let mut awaited = 0;
    pipeline.visit(|node| awaited += u32::from(matches!(node, Node::AwaitLaunches)));
    if !pipeline.cta.computes() {
        // No thread has tiles, nor registers for any.
        let boxes = [
            ("UTMALDG", stands.loads),
            ("UTMASTG", stands.writes),
            ("PREEXIT", lets_come),
            ("ACQBULK", awaited),
        ];
        let none = ["HGMMA", "UTMAREDG", "STSM", "LDSM", "USETMAXREG"].map(|kind| (kind, 0));
        return boxes.into_iter().chain(none).chain(everywhere).collect();
    }
    let multiply = match pipeline.dtype().is_fp8() {
        true => "QGMMA",
        false => "HGMMA",
    };
    let Stands {
        multiplies,
        loads,
        writes,
        adds,
        stored,
        read,
    } = stands;
    let mut wanted = vec![
        (multiply, multiplies),
        ("UTMALDG", loads),
        ("UTMASTG", writes),
        ("UTMAREDG", adds),
        ("STSM", stored),
        ("LDSM", read),
        // One gives registers, the others take them.
        ("USETMAXREG", 2),
        ("PREEXIT", lets_come),
        ("ACQBULK", awaited),
        // Where a partial is released, which is not in the way of the tile; neither at the start nor at the end. Where partials
        // lie in the stages, nobody releases them.
        (
            "MEMBAR.ALL.GPU",
            u32::from(pipeline.cta.split() > 1 && !pipeline.cta.aliased()),
        ),
    ];
    if pipeline.cta.split() > 1 {
        // Four accumulators each, of all that a thread has of a tile; each subtile's sends stand once, whoever's it is.
        let (m, n) = sides(pipeline, pipeline.tile());
        let parts = pipeline.tiling().promotion().map_or(1, |it| it.parts);
        let times = parts * pipeline.tiling().steps_unrolled();
        let accumulators = multiplies / multiplies_of(pipeline, 0) / times * m * n / 128;
        wanted.push(("STAS", accumulators / 4));
    }
    wanted.extend(everywhere);
    wanted
}

/// Stores of parts of tiles: a lane's 16 bytes stand once.
fn parts(pipeline: &Pipeline) -> u32 {
    let mut stores = 0;
    pipeline.visit(|node| stores += u32::from(node.is_part()));
    stores
}

/// Accesses of every rank's memory at once, with the signals and fences of such a kernel. Of a warp's 16 bytes a lane, so many stand one after another; a store is an ordinary
/// one in machine code, since its address says where it goes.
fn everywhere(pipeline: &Pipeline) -> Vec<(&'static str, u32)> {
    // As multicast.cuh has them.
    const STORES: u32 = 4;
    const SUMS: u32 = 2;
    let mut wanted: Vec<(&'static str, u32)> = Vec::new();
    let (mut signals, mut fences) = (0, 0);
    pipeline.visit(|node| {
        signals += u32::from(matches!(node, Node::CounterAdd { .. } | Node::Flush { .. }));
        // A signal everywhere has its own fence behind it.
        let everywhere =
            matches!(node, Node::CounterAdd { whose, .. } if *whose == Whose::Everywhere);
        fences += u32::from(everywhere || matches!(node, Node::FenceAlias));
        if !node.is_everywhere() {
            return;
        }
        let dtype_of = |map| pipeline.kernel.buffers[pipeline.map(map).tensor.index()].dtype;
        let (map, kind, unrolled) = if let Node::Store { map, mode, .. } = node {
            let kind = match (mode, dtype_of(*map)) {
                (StoreMode::Write, _) => "STG.E.128",
                (StoreMode::Add, Dtype::Bf16) => "REDG.E.ADD.BF16x8",
                (StoreMode::Add, Dtype::F16) => "REDG.E.ADD.F16x8",
                (StoreMode::Add, Dtype::F32 | Dtype::E4M3 | Dtype::E5M2) => "REDG.E.ADD.F32x4",
            };
            (*map, kind, STORES)
        } else if let Node::Load { map, .. } = node {
            (*map, "LDGMC", SUMS)
        } else {
            return;
        };
        let bytes = dtype_of(map).bytes();
        let map = pipeline.map(map);
        let times = (map.box_rows * map.box_columns * bytes / 512).min(unrolled);
        match wanted.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += times,
            None => wanted.push((kind, times)),
        }
    });
    if pipeline.kernel.needs_multicast() {
        // Signals to one rank and to all are one instruction. A fence between two addresses puts predicates away, then has a
        // barrier, and takes them back: nothing else of a kernel does.
        wanted.extend([("REDG.E.ADD.64", signals), ("UR2UP", fences)]);
    }
    wanted
}

/// Elements of a tile that a warpgroup has on the instruction's M side, and those on its N side.
fn sides(pipeline: &Pipeline, tile: Tile) -> (u32, u32) {
    // Rows are on the M side where they are whole blocks of 64, and columns otherwise.
    let (m, n) = if tile.rows.is_multiple_of(64) {
        (tile.rows, tile.columns)
    } else {
        (tile.columns, tile.rows)
    };
    // Two warpgroups share a tile, or each has one of its own.
    let ping_pong = (pipeline.kernel.roles.iter())
        .any(|role| matches!(role.kind, RoleKind::Gemm(gemm) if gemm.ping_pong || m <= 64));
    (if ping_pong { m } else { m / 2 }, n)
}

/// Matrix instructions that multiply a warpgroup's share of a loop's tiles in a step: 64 on the M side at a time.
fn multiplies_of(pipeline: &Pipeline, tiling: usize) -> u32 {
    let tile = pipeline.tiling_of(tiling).tile();
    let (m, _) = sides(pipeline, tile);
    m / 64 * (tile.k / instruction_k(pipeline.dtype()))
}

/// Matrix instructions that write or read a warp's share of a tile.
fn moved(pipeline: &Pipeline, tiling: usize) -> u32 {
    let tiling = pipeline.tiling_of(tiling);
    let (m, n) = sides(pipeline, tiling.tile());
    // stmatrix.x4 writes, and ldmatrix.x4 reads, 16 by 16 elements of a warp, of which four have the M side. A subtile of
    // rows may end with half of that.
    let each = if tiling.tile().rows.is_multiple_of(64) {
        n
    } else {
        tiling.subtile().rows
    };
    m / 64 * (n / each) * each.div_ceil(16)
}

/// Number of times that the purpose of each kind of instruction stands in a kernel.
struct Stands {
    /// Matrix instructions that multiply.
    multiplies: u32,
    loads: u32,
    writes: u32,
    adds: u32,
    /// Matrix instructions that write and read subtiles of 16 bits.
    stored: u32,
    read: u32,
}

impl Stands {
    /// Counts every statement once.
    fn by_statements(pipeline: &Pipeline) -> Stands {
        let (mut multiplied, mut operands) = (0, 0);
        let (mut writes, mut adds, mut sums, mut copies) = (0, 0, 0, 0);
        // Stored tiles beside a product; subtiles of 16 bits are written and read by matrix instructions, f32 has others.
        let (mut tiles, mut stored, mut read) = (0, 0, 0);
        let halves = |region: &Region| {
            u32::from(pipeline.kernel.buffers[region.buffer.index()].dtype.bytes() == 2)
        };
        let by_tma = |region: &Region| u32::from(region.home != Home::Everywhere);
        for role in &pipeline.kernel.roles {
            visit(&role.body, &mut |op| match &op.kind {
                // All lanes of a warp do what is everywhere, without TMA.
                OpKind::Reduce { from, .. } => sums += by_tma(from),
                OpKind::Store { dst, mode, .. } => match mode {
                    StoreMode::Write => writes += by_tma(dst),
                    StoreMode::Add => adds += by_tma(dst),
                },
                OpKind::Load { from, .. } => {
                    let buffer = &pipeline.kernel.buffers[from.buffer.index()];
                    tiles += u32::from(!buffer.usage.is_repeated());
                }
                // The host copies for a role without CTAs, and ordinary loads and stores copy scales of rows.
                OpKind::Copy { src, dst } => {
                    let usage = pipeline.kernel.buffers[src.buffer.index()].usage;
                    let scales = usage.is_scale() && usage.blocks().is_none();
                    let copied = u32::from(!role.kind.sequential() && !scales);
                    copies += copied;
                    writes += copied * by_tma(dst);
                }
                OpKind::Dot { .. }
                | OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::ForRanks { .. }
                | OpKind::If { .. } => {}
            });
        }
        // What an item stores in several places is written to subtiles once, unless it differs in value or type.
        for role in &pipeline.kernel.roles {
            items(&role.body, &mut |var, partition, body| {
                let (mut subtiles, mut multiplies) = (Vec::new(), false);
                let tiling = pipeline.cta.tiling_of(&pipeline.kernel, var, partition);
                visit_ops(body, &mut |op| {
                    multiplies |= matches!(op.kind, OpKind::Dot { .. });
                    if let OpKind::Reduce { from, .. } | OpKind::Load { from, .. } = &op.kind
                        && !pipeline.kernel.buffers[from.buffer.index()]
                            .usage
                            .is_repeated()
                    {
                        read += halves(from) * moved(pipeline, tiling);
                    }
                    if let OpKind::Store { dst, value, .. } = &op.kind {
                        let dtype = pipeline.kernel.buffers[dst.buffer.index()].dtype;
                        let value = &pipeline.kernel.values[usize::from(value.0)];
                        if !subtiles.contains(&(dtype, value)) {
                            subtiles.push((dtype, value));
                            stored += halves(dst) * moved(pipeline, tiling);
                        }
                    }
                });
                if multiplies {
                    // One instruction may compute several of an item's products.
                    let of = pipeline.tiling_of(tiling);
                    let parts = of.promotion().map_or(1, |it| it.parts);
                    let multiplies = of.multiplies().len() as u32 * parts * of.steps_unrolled();
                    multiplied += multiplies * multiplies_of(pipeline, tiling);
                    operands += of_operands(of);
                }
            });
        }
        Stands {
            multiplies: multiplied,
            // The operands of a step, a subtile of another rank's sum or of a stored tile, a box.
            loads: operands + sums + tiles + copies + ahead(pipeline),
            writes,
            adds,
            stored,
            read,
        }
    }

    /// Counts where branches have some of their nodes in common, as each warp does of its own.
    fn in_warps(pipeline: &Pipeline) -> Stands {
        let mut stands = Stands {
            multiplies: 0,
            loads: 0,
            writes: 0,
            adds: 0,
            stored: 0,
            read: 0,
        };
        let halves = |dtype: Dtype| u32::from(dtype.bytes() == 2);
        pipeline.visit(|node| {
            if node.by_lanes() {
                return;
            }
            if let Node::Load { partial_boxes, .. } = node {
                stands.loads += 1 + u32::from(partial_boxes.is_some());
            }
            if let Node::Store { mode, .. } = node {
                match mode {
                    StoreMode::Write => stands.writes += 1,
                    StoreMode::Add => stands.adds += 1,
                }
            }
            let Node::Items { of, body, .. } = node else {
                return;
            };
            let tiling = pipeline.item_loop(*of).tiling;
            let moved = || moved(pipeline, tiling);
            let mut fragment = |node: &Node| {
                if matches!(node, Node::Mma { .. }) {
                    // A step's pieces are as many instructions as its blocks, for each part of the N side.
                    let promotion = pipeline.tiling_of(tiling).promotion();
                    let blocks = promotion.map_or(1, |it| it.blocks / it.together);
                    let times = pipeline.tiling_of(tiling).steps_unrolled();
                    stands.multiplies += multiplies_of(pipeline, tiling) / blocks * times;
                }
                if let Node::Fragment(FragmentOp::WriteSubtile { dtype, .. }) = node {
                    stands.stored += halves(*dtype) * moved();
                }
                if let Node::Fragment(FragmentOp::ReadSubtile { dtype, .. }) = node {
                    stands.read += halves(*dtype) * moved();
                }
            };
            body.iter().for_each(|node| node.visit(&mut fragment));
        });
        stands
    }
}

/// Loads that stand a second time, ahead of those of the steps.
fn ahead(pipeline: &Pipeline) -> u32 {
    let mut loads = 0;
    pipeline.visit(|node| {
        if let Node::Ahead { .. } = node {
            node.visit(&mut |node| {
                if let Node::Load { partial_boxes, .. } = node {
                    loads += 1 + u32::from(partial_boxes.is_some());
                }
            });
        }
    });
    loads
}

/// True if a schedule asks about ranks.
fn branches(pipeline: &Pipeline) -> bool {
    fn any(body: &[Block]) -> bool {
        body.iter().any(|block| match block {
            Block::ForRanks { body, .. } => any(body),
            Block::If { .. } => true,
            Block::Items { body, .. } | Block::Once { body } => {
                let mut found = false;
                visit_ops(body, &mut |op| {
                    found |= matches!(op.kind, OpKind::If { .. })
                });
                found
            }
            Block::Join => false,
        })
    }
    pipeline.kernel.roles.iter().any(|role| any(&role.body))
}

/// Loads of a step: each operand's box, and a partial box of it if it has several.
fn of_operands(tiling: &Tiling) -> u32 {
    let each = tiling.operands().iter();
    let boxes =
        each.map(|operand| 1 + u32::from(operand.major == Major::K && operand.boxes.partial));
    boxes.sum::<u32>() + tiling.scales().len() as u32
}

/// Calls `f` with each loop over items of a role, and what an item does.
fn items(body: &[Block], f: &mut impl FnMut(Var, PartitionId, &[Op])) {
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
                var,
                partition,
                body,
                ..
            } => f(*var, *partition, body),
            Block::Once { .. } | Block::Join => {}
        }
    }
}
