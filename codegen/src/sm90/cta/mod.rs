//! How a CTA computes a kernel's tiles: who its warps are, what registers and shared memory each has, and the tiling of each
//! loop.
//!
//! What is decided here is decided nowhere else: the plan, the model, the nodes of the warps and the emitter read it.

mod asked;
mod bytes;
mod computed_scales;
pub mod dependent_launch;
mod finding;
mod promoted;
mod registers;
mod results;
mod rules;
mod shared;
mod slabs;
mod smem;
mod subtiles;
mod together;
mod wgmma;

pub(crate) use rules::placed;
pub use smem::{Lifetime, Region, SlotKind};
pub use wgmma::{BLOCK_ROWS, CONSUMERS, Mode, PARTIAL_BOX_ROWS, Wgmma, instruction_k};

use crate::checked::Subject;
use crate::diag::{Diagnostic, Diagnostics};
use crate::dtype::Dtype;
use crate::kernel::{Block, GemmKind, Kernel, OpKind, Role as Loops, RoleKind, visit_ops};
use crate::program::{PartitionId, Var};
use crate::tiling::Tiling;
use crate::variant::Arch;
use asked::{
    Item, TileRequest, distinct, first_store, in_sequence, multiplies,
    takes_tiles_between_products, ways,
};
pub(crate) use asked::{computes, loops, moves_and_sums};
use finding::refuse;
use registers::reallocated;
use results::results;
use rules::Level;
use smem::Division;
use subtiles::Needs;

/// Columns of a staging buffer on its way to a peer: one 128-byte swizzle atom of 16-bit elements.
pub const STAGING_COLUMNS: u32 = 64;
/// Rows of a box of TMA, at most.
pub(super) const MOST_BOX_ROWS: u32 = 256;

/// Work of a warp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Loads operands and stored tiles; on CTAs that move data it fetches first.
    Load,
    /// Stores results; on CTAs that move data it sends first.
    Store,
    /// Copies, waits and signals for a role of its own, beside the others.
    Spare,
    /// Multiplies, and writes results.
    Multiply,
}

/// Warps that run a role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunBy {
    /// One elected thread of a warp of the first warpgroup.
    Thread {
        /// Index of the warp.
        warp: u32,
    },
    /// One elected thread in each of two warps of the first warpgroup: one for each warpgroup that multiplies.
    Threads {
        /// The first warp.
        first: u32,
    },
    /// The warpgroups after the first.
    Groups,
}

/// A role of a CTA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Warp {
    /// Work of the warps.
    pub role: Role,
    /// Warps that run the role.
    pub run_by: RunBy,
    /// Registers that each of its threads has.
    pub registers: u32,
}

/// Computation of a kernel's tiles by a CTA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cta {
    cluster: (u32, u32),
    mode: Mode,
    warps: Vec<Warp>,
    smem: Vec<Region>,
    dependent_launch: bool,
    tilings: Vec<Tiling>,
    bytes: u32,
}

/// Decision about a kernel's tiles, and what is in the way. It is made once and kept with the kernel.
#[derive(Clone, Debug)]
pub struct Decision {
    cta: Option<Cta>,
    /// Reasons that its tiles do not fit the architecture.
    misfits: Vec<Diagnostic>,
    /// Reasons that this version has no pipeline for it.
    missing: Vec<Diagnostic>,
}

/// Decision that the plans and the pipeline of a kernel read: how its tiles are computed.
impl Subject for Kernel {
    type Decided = Decision;
}

impl Decision {
    /// CTA that computes the tiles, or moves what there is to move; `None` where no CTA does either.
    ///
    /// # Errors
    /// What does not fit the architecture, each with its statement: such a kernel has no plan.
    pub fn fits(&self) -> Result<Option<&Cta>, Diagnostics> {
        Diagnostics::check(self.misfits.clone(), self.cta.as_ref())
    }

    /// CTA of a kernel that this version has a pipeline for.
    ///
    /// # Errors
    /// What there is no pipeline for, or what does not fit.
    pub fn runs(&self) -> Result<Option<&Cta>, Diagnostics> {
        Diagnostics::check(self.missing.clone(), ())?;
        self.fits()
    }
}

/// Decides how a CTA computes a kernel's tiles.
pub fn decide(kernel: &Kernel) -> Decision {
    let (mut misfits, mut missing) = (Vec::new(), rules::unknown(kernel));
    let gemm = kernel.roles.iter().find_map(|role| match role.kind {
        RoleKind::Gemm(kind) => Some((role, kind)),
        RoleKind::Comm { .. } | RoleKind::SpareWarps | RoleKind::CopyEngine => None,
    });
    let has_products = gemm.as_ref().is_some_and(|(role, _)| {
        let mut loops = loops(&role.body).into_iter();
        loops.any(|each| multiplies(kernel, each.body))
    });
    let asked = match gemm {
        Some(gemm) if has_products => all_asked(kernel, gemm, &mut misfits),
        Some(gemm) => of_stores(kernel, gemm, &mut misfits),
        // What such CTAs compute then decides.
        None => (kernel.roles.iter())
            .filter(|role| computes(role))
            .flat_map(|role| of_stores(kernel, (role, GemmKind::NONE), &mut misfits))
            .collect(),
    };
    let beside = match gemm {
        Some(gemm) if has_products => of_stores(kernel, gemm, &mut missing),
        Some(_) | None => Vec::new(),
    };
    let mut summing = Vec::new();
    for role in kernel.roles.iter().filter(|role| computes(role)) {
        missing.extend(rules::of_role(kernel, role));
        if let Some((_, kind)) = gemm {
            summing.extend(of_stores(kernel, (role, kind), &mut missing));
        }
    }
    let mut multiplied = |asked| rules::find(asked, Level::Multiplies, &mut missing);
    let all = asked.iter().filter(|asked| multiplied(asked)).count();
    let mut running = 0;
    for one in &asked {
        let mut found = Vec::new();
        running += usize::from(rules::find(one, Level::Runs, &mut found));
        // What the loops have in common is said of the first.
        found.retain(|new| missing.iter().all(|known| known.message != new.message));
        missing.extend(found);
    }
    let has_pipeline = !asked.is_empty() && running == asked.len() && all == asked.len();
    missing.extend(together::of_loops(&asked));
    if let (true, Some((role, _))) = (alternates(&asked), gemm) {
        missing.extend(together::before_products(
            &beside,
            &in_sequence(&role.body),
            |body| multiplies(kernel, body),
        ));
    }
    let mut divided: Vec<(TileRequest<'_>, Needs, Division)> = Vec::new();
    let needs: Vec<Needs> = asked.iter().map(|one| one.needs_with(&asked)).collect();
    for (asked, needs) in asked.into_iter().zip(needs) {
        if !rules::find(&asked, Level::Fits, &mut misfits) {
            continue;
        }
        let room =
            kernel.variant.arch.shared_memory() - spare_boxes(kernel).map_or(0, |it| it.0 * it.1);
        match needs.divide(&asked.kind, room) {
            Ok(division) => divided.push((asked, needs, division)),
            Err((message, hint)) => misfits.push(refuse(asked.at, message, hint)),
        }
    }
    if let (true, Some((first, needs_first, _))) = (has_pipeline, divided.first()) {
        let same = divided.iter().filter(|(_, needs, _)| needs == needs_first);
        for (asked, _, division) in same {
            missing.extend(rules::of_items(asked, &asked.tiling(division.subtile)));
        }
        let tilings = divided.iter().map(|(of, _, it)| of.tiling(it.subtile));
        let tilings: Vec<Tiling> = tilings.collect();
        let found = summing.iter().map(|asked| rules::of_sums(asked, &tilings));
        missing.extend(found.flatten());
        let found = beside.into_iter().flat_map(|asked| {
            let chunks = &kernel.partitions[asked.partition.index()];
            let alike = tilings.iter().position(|it| chunks.is_tile(it.tile()));
            let (of, tiling) =
                alike.map_or((first, &tilings[0]), |at| (&divided[at].0, &tilings[at]));
            // The warps that multiply in that loop compute its tiles.
            let wgmma = of.wgmma;
            rules::of_stores(&TileRequest { wgmma, ..asked }, tiling)
        });
        missing.extend(found);
    }
    // Tiles of nothing multiplied have a plan, whatever they are: only their warps are made as those that feed tensor cores.
    if !has_products {
        missing.append(&mut misfits);
    }
    Decision {
        cta: of_loops(kernel, &divided).or_else(|| of_copies(kernel)),
        misfits,
        missing,
    }
}

/// True if warpgroups have tiles of their own, by turns.
fn alternates(asked: &[TileRequest<'_>]) -> bool {
    asked.iter().any(|one| one.wgmma.mode == Mode::PingPong)
}

/// Subjects of the rules: each loop that multiplies.
fn all_asked<'a>(
    kernel: &'a Kernel,
    (role, kind): (&Loops, GemmKind),
    misfits: &mut Vec<Diagnostic>,
) -> Vec<TileRequest<'a>> {
    let results = results(kernel);
    let mut all: Vec<TileRequest<'_>> = Vec::new();
    for each in loops(&role.body) {
        let (partition, body) = (each.partition, each.body);
        let ways = ways(kernel, body);
        let mut products: Vec<_> = ways.iter().map(|way| distinct(way)).collect();
        products.sort_by_key(Vec::len);
        let (Some(products), Some(first)) = (products.pop(), ways.iter().flatten().next()) else {
            continue;
        };
        let ([x, _], at) = (first.tensors, first.at);
        let tile = &kernel.partitions[partition.index()];
        let (Some(rows), Some(columns)) = (tile.row_block, tile.column_block) else {
            let message = format!("a dot runs over `{}`, whose items are not tiles", tile.name);
            let hint = "divide the output with `.tiles((rows, columns))`";
            misfits.push(refuse(at, message, hint));
            continue;
        };
        if kernel.variant.arch == Arch::Cpu {
            continue;
        }
        all.push(TileRequest {
            kernel,
            kind,
            at,
            items: each.items,
            partition,
            selects: each.selects,
            wgmma: Wgmma::new(&kind, (rows, columns), products.len() as u32),
            dtype: kernel.buffers[x.index()].dtype,
            ways,
            products,
            item: Item::of(kernel, body),
            results,
            places: 0,
        });
    }
    all
}

/// Subjects of the rules: each loop that stores and multiplies nothing.
fn of_stores<'a>(
    kernel: &'a Kernel,
    (role, kind): (&Loops, GemmKind),
    misfits: &mut Vec<Diagnostic>,
) -> Vec<TileRequest<'a>> {
    let (results, mut all) = (results(kernel), Vec::new());
    let mut element = None;
    for each in loops(&role.body) {
        let (partition, body) = (each.partition, each.body);
        let Some((at, halves)) = first_store(kernel, body).filter(|_| !multiplies(kernel, body))
        else {
            continue;
        };
        let tile = &kernel.partitions[partition.index()];
        let (Some(rows), Some(columns)) = (tile.row_block, tile.column_block) else {
            let message = format!("a store of `{}`, whose items are not tiles", tile.name);
            let hint = "divide the output with `.tiles((rows, columns))`";
            misfits.push(refuse(at, message, hint));
            continue;
        };
        if kernel.variant.arch == Arch::Cpu {
            continue;
        }
        element = element.or(halves);
        all.push(TileRequest {
            kernel,
            kind,
            at,
            items: each.items,
            partition,
            selects: each.selects,
            wgmma: Wgmma::new(&kind, (rows, columns), 0),
            dtype: Dtype::Bf16,
            ways: Vec::new(),
            products: Vec::new(),
            item: Item::of(kernel, body),
            results,
            places: 0,
        });
    }
    // All loops pass through the same stages: a subtile of each stored tile that an item of any of them reads.
    let places = all.iter().map(|asked| asked.item.inputs.len()).max();
    for asked in &mut all {
        asked.dtype = element.unwrap_or(asked.dtype);
        asked.places = places.unwrap_or(0).max(1) as u32;
    }
    all
}

/// The CTA that computes the tiles of all those loops.
fn of_loops(kernel: &Kernel, divided: &[(TileRequest<'_>, Needs, Division)]) -> Option<Cta> {
    // Where loops have tiles of several sizes, stages are those of the one that has the fewest.
    let fewest = divided.iter().min_by_key(|(.., division)| division.stages);
    let (asked, needs, division) = fewest?;
    let each = divided.iter().map(|(asked, ..)| asked.wgmma.accumulators());
    let (comm, accumulators) = (staging(kernel), each.max().unwrap_or(0));
    let plain = kernel.counters.is_empty();
    let spare_boxes = spare_boxes(kernel);
    let moves = comm.is_some() || spare_boxes.is_some() || takes_tiles_between_products(kernel);
    let (first, others) = reallocated(plain, moves, accumulators);
    let own = asked.wgmma.mode == Mode::PingPong || division.lifetime == Lifetime::Staggered;
    let store = if own {
        RunBy::Threads { first: 1 }
    } else {
        RunBy::Thread { warp: 1 }
    };
    let warp = |role, run_by, registers| Warp {
        role,
        run_by,
        registers,
    };
    let mut roles = kernel.roles.iter();
    let spare = roles.any(|role| role.kind == RoleKind::SpareWarps);
    let mut warps = vec![
        warp(Role::Load, RunBy::Thread { warp: 0 }, first),
        warp(Role::Store, store, first),
    ];
    warps.extend(spare.then(|| warp(Role::Spare, RunBy::Thread { warp: 3 }, first)));
    warps.push(warp(Role::Multiply, RunBy::Groups, others));
    let tilings = divided.iter();
    let bytes = divided.iter().map(|(.., division)| division.bytes);
    let beside = spare_boxes.map_or(0, |(bytes, slots)| bytes * slots);
    Some(Cta {
        cluster: asked.kind.cluster,
        mode: asked.wgmma.mode,
        warps,
        smem: needs.regions(division, comm, spare_boxes),
        dependent_launch: dependent_launch::possible(kernel),
        tilings: tilings
            .map(|(asked, _, division)| asked.tiling(division.subtile))
            .collect(),
        bytes: bytes.max().unwrap_or(0) + beside,
    })
}

/// The CTA of a kernel whose `#[comm]` roles only move data: nobody multiplies, and all shared memory is for boxes.
fn of_copies(kernel: &Kernel) -> Option<Cta> {
    let gemm = |role: &Loops| matches!(role.kind, RoleKind::Gemm(_));
    if kernel.variant.arch == Arch::Cpu || kernel.roles.iter().any(gemm) {
        return None;
    }
    let staging = smem::staging_alone(staging(kernel)?, kernel.variant.arch.shared_memory());
    let (first, _) = reallocated(false, true, 0);
    let warp = |role, warp| Warp {
        role,
        run_by: RunBy::Thread { warp },
        registers: first,
    };
    Some(Cta {
        cluster: (1, 1),
        mode: Mode::Cooperative,
        warps: vec![warp(Role::Load, 0), warp(Role::Store, 1)],
        bytes: staging.end() + smem::BARRIERS,
        smem: vec![staging],
        dependent_launch: dependent_launch::possible(kernel),
        tilings: Vec::new(),
    })
}

/// Rows of a box of a role that moves data: those of its chunks, up to what a TMA box may have.
pub(crate) fn staging_rows(kernel: &Kernel, role: &Loops) -> u32 {
    fn first(kernel: &Kernel, body: &[Block]) -> Option<u32> {
        body.iter().find_map(|block| match block {
            Block::ForRanks { body, .. } => first(kernel, body),
            Block::If {
                then, otherwise, ..
            } => first(kernel, then).or_else(|| first(kernel, otherwise)),
            Block::Items { partition, .. } => kernel.partitions[partition.index()].row_block,
            Block::Once { .. } | Block::Join => None,
        })
    }
    first(kernel, &role.body).unwrap_or(64).min(MOST_BOX_ROWS)
}

/// Rows of a box that spare warps copy, if they do: those of the chunks, up to what a TMA box may have.
pub(crate) fn spare_rows(kernel: &Kernel) -> Option<u32> {
    let spare = |role: &&Loops| role.kind == RoleKind::SpareWarps;
    let role = kernel.roles.iter().find(spare)?;
    let mut copying = loops(&role.body).into_iter().filter(|each| {
        let mut copies = false;
        visit_ops(each.body, &mut |op| {
            copies |= matches!(op.kind, OpKind::Copy { .. })
        });
        copies
    });
    let chunks = &kernel.partitions[copying.next()?.partition.index()];
    Some(chunks.row_block.unwrap_or(MOST_BOX_ROWS).min(MOST_BOX_ROWS))
}

/// Bytes of such a box, and how many a CTA has room for: one leaves while the next comes, unless they are large.
fn spare_boxes(kernel: &Kernel) -> Option<(u32, u32)> {
    let rows = spare_rows(kernel)?;
    let bytes = rows * STAGING_COLUMNS * 2;
    Some((bytes, if rows <= MOST_BOX_ROWS / 2 { 2 } else { 1 }))
}

/// Bytes of a staging buffer of CTAs that copy, if there are any: those of the largest box.
fn staging(kernel: &Kernel) -> Option<u32> {
    let roles = kernel.roles.iter();
    let moves = |role: &&Loops| !moves_and_sums(&role.body).0.is_empty();
    let comm = roles.filter(|role| matches!(role.kind, RoleKind::Comm { .. }) && moves(role));
    let rows = comm.map(|role| staging_rows(kernel, role)).max();
    rows.map(|rows| rows * STAGING_COLUMNS * 2)
}

impl Cta {
    /// CTAs of a cluster along rows and columns of tiles: one, or two that load an operand together.
    pub const fn cluster(&self) -> (u32, u32) {
        self.cluster
    }

    /// The multicast group: CTAs of a cluster that have tiles beside each other, and load together.
    pub const fn multicast_group(&self) -> u32 {
        self.cluster.0 * self.cluster.1
    }

    /// CTAs of a cluster: those that load together, as often as they share steps.
    pub const fn ctas(&self) -> u32 {
        self.multicast_group() * self.split()
    }

    /// CTAs of a cluster that share the K steps of each tile; 1: none.
    pub const fn split(&self) -> u32 {
        match self.tilings.as_slice().first() {
            Some(tiling) => tiling.split(),
            None => 1,
        }
    }

    /// Warpgroups that multiply a tile.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The roles, as the text has them one after another.
    pub fn warps(&self) -> &[Warp] {
        &self.warps
    }

    /// Registers of a thread of a role; 0: no warp has it.
    pub fn registers(&self, role: Role) -> u32 {
        let mut warps = self.warps.iter();
        let warp = warps.find(|warp| warp.role == role);
        warp.map_or(0, |warp| warp.registers)
    }

    /// The region of slots of that kind.
    pub fn region(&self, of: SlotKind) -> Option<&Region> {
        self.smem.iter().find(|region| region.of == of)
    }

    /// Stages of operands.
    pub fn stages(&self) -> u32 {
        self.region(SlotKind::Stage)
            .map_or(0, |stages| stages.slots)
    }

    /// Lifetime of the places of subtiles of results, if there are any.
    fn subtiles(&self) -> Option<Lifetime> {
        self.region(SlotKind::Subtile)
            .map(|subtiles| subtiles.lifetime)
    }

    /// True if the warpgroups that share a tile stagger its epilogues.
    pub fn staggered(&self) -> bool {
        self.subtiles() == Some(Lifetime::Staggered)
    }

    /// True if partials and subtiles lie where the stages are (aliased shared memory).
    pub fn aliased(&self) -> bool {
        self.subtiles() == Some(Lifetime::Epilogue)
    }

    /// True if warpgroups that multiply have an order barrier, and subtiles of their own: of tiles of their own (ping-pong), or
    /// of their halves (staggered epilogues).
    pub fn ordered(&self) -> bool {
        self.region(SlotKind::Subtile)
            .is_some_and(|subtiles| subtiles.sets > 1)
    }

    /// True if it computes tiles: otherwise it only moves data, and has no warps but those that do.
    pub const fn computes(&self) -> bool {
        !self.tilings.is_empty()
    }

    /// True if launches may come before the one before them on the stream has ended (programmatic dependent launch).
    pub const fn dependent_launch(&self) -> bool {
        self.dependent_launch
    }

    /// Bytes of shared memory that a plan counts with, barriers included.
    pub const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// The tiling of its first loop: the tiles of the others have the same sides on the instruction, and subtiles as wide.
    pub const fn tiling(&self) -> &Tiling {
        self.tilings.as_slice().first().expect("a tile is computed")
    }

    /// The tiling of each loop that multiplies, or that stores if none does.
    pub fn tilings(&self) -> &[Tiling] {
        &self.tilings
    }

    /// Index of the tiling of a loop over items of a partition, by the loop's variable. Where nothing is multiplied,
    /// the first whose tiles have the shape of those items.
    pub fn tiling_of(&self, kernel: &Kernel, items: Var, partition: PartitionId) -> usize {
        let of_loop = |tiling: &Tiling| tiling.items() == items;
        let alike = |tiling: &Tiling| kernel.partitions[partition.index()].is_tile(tiling.tile());
        let mut tilings = self.tilings.iter();
        let known = tilings.position(of_loop);
        known
            .or_else(|| self.tilings.iter().position(alike))
            .unwrap_or(0)
    }

    /// Blocks of 64 of the M side of a loop's tiles that a warpgroup multiplies.
    pub fn blocks(&self, tiling: &Tiling) -> u32 {
        let tile = tiling.tile();
        tiling.sides(tile.rows, tile.columns).0 / BLOCK_ROWS / self.mode.warpgroups()
    }
}
