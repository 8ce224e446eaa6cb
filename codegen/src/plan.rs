//! The numbers of one launch: geometry, steps, counter targets, grid, shared memory, heap.

mod arrivals;
mod identity;
mod steps;

use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::dtype::Dtype;
use crate::early;
use crate::fit::{Beside, Needs, staged_rows};
use crate::kernel::{Block, GemmKind, Kernel, Op, OpKind, RoleKind, visit_ops};
use crate::model::Machine;
use crate::program::{CounterId, Loc, PartitionId};
use crate::shape::{Geometry, Shape};
use crate::tile::MOST_ACCUMULATORS;
use crate::unroll::{Agent, unroll};
use crate::value::AccId;
use crate::variant::Arch;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

pub use arrivals::Arrivals;
use identity::fnv1a;
pub(crate) use identity::identity;

/// A kernel's numbers for one shape on one machine.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The shape.
    pub shape: Shape,
    /// Dimensions, chunks, items and cells.
    pub geometry: Geometry,
    /// The steps of every agent, rank by rank and role by role: `agents[rank * roles + role]`.
    pub agents: Agents,
    /// How much arrives at every counter cell in one launch.
    pub arrivals: Arc<Arrivals>,
    /// How many CTAs run.
    pub grid: Grid,
    /// Where everything in the symmetric heap lies.
    pub heap: Heap,
    /// Identifies kernel, variant, series and shape: ranks that launch different plans see different hashes.
    pub hash: u64,
    /// Identifies the series that it is of.
    pub(crate) series: u64,
}

/// The steps of every agent, unrolled when first looked at: a launch of a known class of shapes never is.
#[derive(Clone, Debug)]
pub struct Agents {
    kernel: Arc<Kernel>,
    geometry: Geometry,
    unrolled: Arc<OnceLock<Vec<Agent>>>,
}

impl Deref for Agents {
    type Target = [Agent];

    fn deref(&self) -> &[Agent] {
        self.unrolled.get_or_init(|| {
            // Plans are made with their steps, or for a class of shapes whose steps were checked.
            unroll(&self.kernel, &self.geometry).expect("a checked class of shapes has steps")
        })
    }
}

impl<'a> IntoIterator for &'a Agents {
    type Item = &'a Agent;
    type IntoIter = std::slice::Iter<'a, Agent>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// CTAs and shared memory of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Grid {
    /// Persistent GEMM CTAs.
    pub gemm: u32,
    /// Tiles that they compute on a rank.
    pub tiles: u64,
    /// How many of them a CTA, or all CTAs of a cluster together, have at most.
    pub rounds: u64,
    /// CTAs that move data.
    pub comm: u32,
    /// Stages of the operand ring.
    pub stages: u32,
    /// Panels of a tile: what is rounded and stored at a time.
    pub panels: u32,
    /// Whether warpgroups that share a tile end it one after another.
    pub staggered: bool,
    /// Bytes of shared memory a CTA needs.
    pub shared_memory: u32,
}

/// Where buffers and counters lie in the symmetric heap, the same on every rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Heap {
    /// Name, offset and bytes of each, in order.
    pub entries: Vec<(String, u64, u64)>,
    /// Bytes in all.
    pub bytes: u64,
}

impl Plan {
    /// The plan of `kernel` for `shape` on `machine`, of a series of up to [`Shape::most`]: numbers, not yet verified.
    ///
    /// # Errors
    /// What [`Geometry::new`] and [`unroll`] refuse, and a grid or shared memory that does not fit.
    pub fn new(kernel: &Kernel, shape: &Shape, machine: &Machine) -> Result<Plan, Diagnostics> {
        Plan::within(kernel, shape, &shape.most(kernel), machine)
    }

    /// As [`Plan::new`], of a series of up to `most`, which names every dimension ([`Shape::most`]).
    ///
    /// # Errors
    /// As [`Plan::new`], and a dimension above the most.
    pub fn within(
        kernel: &Kernel,
        shape: &Shape,
        most: &Shape,
        machine: &Machine,
    ) -> Result<Plan, Diagnostics> {
        Plan::of(
            &Arc::new(kernel.clone()),
            Geometry::within(kernel, shape, most)?,
            shape,
            machine,
            identity(kernel, most),
            None,
        )
    }

    /// As [`Plan::new`], of the series of that identity; with the arrivals of its class of shapes if they are known, and
    /// then without unrolling.
    pub(crate) fn of(
        kernel: &Arc<Kernel>,
        geometry: Geometry,
        shape: &Shape,
        machine: &Machine,
        series: u64,
        known: Option<Arc<Arrivals>>,
    ) -> Result<Plan, Diagnostics> {
        let mut found = Vec::new();
        let grid = grid(kernel, &geometry, machine, &mut found);
        Diagnostics::check(found, ())?;
        let unrolled = Arc::new(OnceLock::new());
        let arrivals = match known {
            Some(arrivals) => arrivals,
            None => {
                let agents = unroll(kernel, &geometry)?;
                let arrivals = Arrivals::count(kernel, &geometry, &agents);
                let _ = unrolled.set(agents);
                Arc::new(arrivals)
            }
        };
        let agents = Agents {
            kernel: kernel.clone(),
            geometry: geometry.clone(),
            unrolled,
        };
        let shape = shape.clone().named(kernel);
        let heap = heap(kernel, &geometry, &shape);
        let hash = fnv1a(&format!("{series:x} {shape}"));
        Ok(Plan {
            shape,
            geometry,
            agents,
            arrivals,
            grid,
            heap,
            hash,
            series,
        })
    }

    /// The agent of that rank and role.
    pub fn agent(&self, rank: u32, role: usize) -> &Agent {
        let roles = self.agents.len() / self.geometry.world as usize;
        &self.agents[rank as usize * roles + role]
    }
}

fn grid(
    kernel: &Kernel,
    geometry: &Geometry,
    machine: &Machine,
    found: &mut Vec<Diagnostic>,
) -> Grid {
    let mut grid = Grid::default();
    let mut clusters = 0u64;
    let mut cluster = 1;
    let has_gemm = kernel
        .roles
        .iter()
        .any(|role| matches!(role.kind, RoleKind::Gemm(_)));
    for role in &kernel.roles {
        match role.kind {
            RoleKind::Comm { ctas } => grid.comm = grid.comm.saturating_add(ctas),
            RoleKind::Gemm(kind) => {
                let (rows, columns) = kind.cluster;
                cluster = kind.ctas();
                // CUDA's portable cluster size.
                if cluster > 8 {
                    found.push(
                        Diagnostic::new(
                            Rule::Resources,
                            None,
                            if kind.split > 1 {
                                format!("a cluster of {cluster} CTAs")
                            } else {
                                format!("a cluster of {rows}x{columns} CTAs")
                            },
                        )
                        .hint("a cluster has at most 8 CTAs"),
                    );
                }
                steps::each_shared(kernel, geometry, &role.body, &kind, found);
                // A role without dots still needs a CTA to run on.
                grid.tiles = items(&role.body, geometry, (1, 1), 1, &mut |partition, body| {
                    tile_fits(kernel, partition, body, &kind, &mut grid, found);
                })
                .max(1);
                // A cluster has tiles beside each other, some of them perhaps outside, and all its CTAs for each.
                clusters = items(&role.body, geometry, kind.cluster, 1, &mut |_, _| {}).max(1);
            }
            RoleKind::SpareWarps if kernel.variant.arch != Arch::Cpu && !has_gemm => found.push(
                Diagnostic::new(
                    Rule::Resources,
                    None,
                    "#[spare_warps] without a #[gemm] have no CTA to be warps of",
                )
                .hint("use #[comm(ctas = n)]"),
            ),
            RoleKind::SpareWarps | RoleKind::CopyEngine => {}
        }
    }
    let left = machine.sms.saturating_sub(grid.comm);
    if grid.comm >= machine.sms && kernel.variant.arch != Arch::Cpu {
        found.push(
            Diagnostic::new(
                Rule::Resources,
                None,
                format!(
                    "{} comm CTAs leave no SM of {} for the GEMM",
                    grid.comm, machine.sms
                ),
            )
            .hint(format!(
                "comm CTAs and GEMM CTAs run together: at most {}",
                machine.sms.saturating_sub(1)
            )),
        );
    }
    let most = machine.clusters(cluster, left) * cluster;
    if most == 0 && clusters > 0 && grid.comm < machine.sms && kernel.variant.arch != Arch::Cpu {
        found.push(
            Diagnostic::new(
                Rule::Resources,
                None,
                format!(
                    "{} comm CTAs leave {left} of {} SMs, but a cluster of the GEMM takes {cluster}",
                    grid.comm, machine.sms
                ),
            )
            .hint(format!(
                "comm CTAs and GEMM CTAs run together: at most {}",
                machine.sms.saturating_sub(cluster)
            )),
        );
    }
    grid.gemm = u32::try_from(clusters)
        .unwrap_or(most)
        .saturating_mul(cluster)
        .min(most);
    if grid.gemm > 0 {
        grid.rounds = clusters.div_ceil(u64::from(grid.gemm / cluster));
        // No more than as many rounds need, which then are whole: 128 of 132 SMs for 2048 tiles. It takes as long, and at
        // the power limit 0.6 % less: a round is a block of tiles that read the same rows and columns. Not where CTAs of the
        // next launch would no longer come early, and not where tiles wait for peers: those are dealt loop by loop.
        let whole = clusters.div_ceil(grid.rounds) as u32 * cluster;
        if kernel.counters.is_empty() && early::pays(whole, machine.sms) {
            grid.gemm = whole;
        }
    }
    grid
}

/// How many items with a dot a role has on one rank, or clusters of so many rows and columns of them, full chunks
/// assumed; calls `f` with each loop's partition and body. Items that only wait or move data need no CTA of their own.
fn items(
    body: &[Block],
    geometry: &Geometry,
    cluster: (u32, u32),
    times: u64,
    f: &mut impl FnMut(PartitionId, &[Op]),
) -> u64 {
    let count = body.iter().map(|block| match block {
        Block::ForRanks { order, body, .. } => items(
            body,
            geometry,
            cluster,
            times * u64::from(order.steps(geometry.world)),
            f,
        ),
        Block::If {
            then, otherwise, ..
        } => {
            let then = items(then, geometry, cluster, times, f);
            then.max(items(otherwise, geometry, cluster, times, f))
        }
        Block::Items {
            partition,
            chunk,
            body,
            ..
        } => {
            f(*partition, body);
            let mut multiplies = false;
            visit_ops(body, &mut |op| {
                multiplies |= matches!(op.kind, OpKind::Dot { .. })
            });
            let (rows, columns) = geometry.grid(*partition, None);
            let rows = rows.div_ceil(cluster.0.max(1));
            let columns = columns.div_ceil(cluster.1.max(1));
            let of_a_chunk = times.saturating_mul(u64::from(rows) * u64::from(columns));
            match chunk {
                _ if !multiplies => 0,
                None => of_a_chunk.saturating_mul(u64::from(geometry.partition_chunks(*partition))),
                Some(_) => of_a_chunk,
            }
        }
        Block::Once { .. } | Block::Join => 0,
    });
    count.fold(0, u64::saturating_add)
}

/// Whether the tiles of one loop fit the architecture: the ring and the result in shared memory, accumulators in
/// registers, shapes that wgmma has.
fn tile_fits(
    kernel: &Kernel,
    partition: PartitionId,
    body: &[Op],
    kind: &GemmKind,
    grid: &mut Grid,
    found: &mut Vec<Diagnostic>,
) {
    let Some((dtype, at)) = first_dot(kernel, body) else {
        return;
    };
    let tile = &kernel.partitions[partition.index()];
    let (Some(rows), Some(columns)) = (tile.row_block, tile.column_block) else {
        found.push(
            Diagnostic::new(
                Rule::Resources,
                at,
                format!("a dot runs over `{}`, whose items are not tiles", tile.name),
            )
            .hint("divide the output with `.tiles((rows, columns))`"),
        );
        return;
    };
    if kernel.variant.arch == Arch::Cpu {
        return;
    }
    let mut refuse = |message: String, hint: &str| {
        found.push(Diagnostic::new(Rule::Resources, at, message).hint(hint));
    };
    let tile = kind.tile((rows, columns));
    let in_turn = kind.in_turn(tile);
    if let Some(hint) = tile.refused(in_turn) {
        refuse(format!("tiles of {rows}x{columns}"), hint);
        return;
    }
    let k = kind.k;
    let step = k * dtype.bytes();
    if step == 0 || !step.is_multiple_of(128) {
        refuse(
            format!("a K step of {k} {dtype} is {step} bytes"),
            "it is a multiple of the 128-byte swizzle: 64 bf16 or f16, 32 f32",
        );
        return;
    }
    let threads = if in_turn { 128 } else { 256 };
    let accumulators =
        u64::from(accumulators(body)) * u64::from(rows) * u64::from(columns) / threads;
    // 232 registers a consumer thread, of which some 40 hold addresses and descriptors.
    if accumulators > u64::from(MOST_ACCUMULATORS) {
        refuse(
            format!("{accumulators} accumulator registers a thread"),
            &format!("at most {MOST_ACCUMULATORS}: use smaller tiles or fewer products an item"),
        );
    }
    let [a_rows, b_rows] = kernel.variant.layout.rows_contiguous();
    let mut beside = Beside::default();
    visit_ops(body, &mut |op| beside.count(kernel, op));
    let needs = Needs {
        tile,
        staged: (staged_rows(rows, a_rows), staged_rows(columns, b_rows)),
        element: dtype.bytes(),
        result: result_bytes(kernel, body),
        in_turn,
        split: kind.split,
        beside,
        alone: kind.ctas() == 1 && kernel.counters.is_empty(),
    };
    match needs.divide(kind, kernel.variant.arch.shared_memory()) {
        Ok(fit) => {
            grid.stages = if grid.stages == 0 {
                fit.stages
            } else {
                grid.stages.min(fit.stages)
            };
            grid.panels = grid.panels.max(tile.panels(fit.panel));
            grid.staggered |= fit.staggered;
            grid.shared_memory = grid.shared_memory.max(fit.bytes);
        }
        Err((message, hint)) => refuse(message, &hint),
    }
}

fn first_dot(kernel: &Kernel, body: &[Op]) -> Option<(Dtype, Loc)> {
    let mut first = None;
    visit_ops(body, &mut |op| {
        if let OpKind::Dot { a, .. } = &op.kind {
            first.get_or_insert((kernel.buffers[a.buffer.index()].dtype, kernel.loc(op.id)));
        }
    });
    first
}

/// Bytes of the widest element the items store: a tile leaves through shared memory in its destination's type.
fn result_bytes(kernel: &Kernel, body: &[Op]) -> u32 {
    let mut most = 2;
    visit_ops(body, &mut |op| {
        if let OpKind::Store { dst, .. } = &op.kind {
            most = most.max(kernel.buffers[dst.buffer.index()].dtype.bytes());
        }
    });
    most
}

/// Ways through an item's branches that are told apart; beyond that, they count as one that takes all branches.
const MOST_WAYS: usize = 64;

/// Accumulators that dots fill: those live in registers at once. Sums and loads stream through, and of two branches an
/// item takes one.
fn accumulators(body: &[Op]) -> u32 {
    /// What each way through the branches has filled.
    type Ways = BTreeSet<BTreeSet<AccId>>;
    fn go(body: &[Op], ways: Ways) -> Ways {
        body.iter().fold(ways, |ways, op| match &op.kind {
            OpKind::Dot { acc, .. } => {
                let fill = |way: BTreeSet<AccId>| way.into_iter().chain([*acc]).collect();
                ways.into_iter().map(fill).collect()
            }
            OpKind::ForRanks { body, .. } => go(body, ways),
            OpKind::If {
                then, otherwise, ..
            } => {
                let mut both = go(then, ways.clone());
                both.extend(go(otherwise, ways));
                if both.len() > MOST_WAYS {
                    both = Ways::from([both.into_iter().flatten().collect()]);
                }
                both
            }
            OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. }
            | OpKind::Reduce { .. }
            | OpKind::Load { .. }
            | OpKind::Store { .. } => ways,
        })
    }
    let ways = go(body, Ways::from([BTreeSet::new()]));
    let most = ways.iter().map(BTreeSet::len).max();
    most.unwrap_or(0) as u32
}

/// Bytes of a counter cell: its count and its base, on a line of their own that peers write while others are polled.
pub const COUNTER_LINE: u64 = 128;

/// Counters, then symmetric buffers, one after another, sized for the largest launch of the series: nothing moves
/// while m changes. Every entry starts on a 1024-byte boundary: TMA's swizzle atom, and a multiple of a counter's line.
fn heap(kernel: &Kernel, geometry: &Geometry, shape: &Shape) -> Heap {
    let mut heap = Heap::default();
    let mut add = |name: &str, sizes: &[u64]| {
        let bytes = sizes
            .iter()
            .fold(1u64, |bytes, size| bytes.saturating_mul(*size));
        heap.entries.push((name.into(), heap.bytes, bytes));
        let room = bytes.checked_next_multiple_of(1024).unwrap_or(bytes);
        heap.bytes = heap.bytes.saturating_add(room);
    };
    for (index, counter) in kernel.counters.iter().enumerate() {
        let cells = geometry.counter_cells(CounterId(index as u16));
        add(&counter.name, &[u64::from(cells), COUNTER_LINE]);
    }
    for buffer in kernel
        .buffers
        .iter()
        .filter(|buffer| buffer.kind.symmetric())
    {
        let chunks = if buffer.chunk_only() {
            1
        } else {
            geometry.chunks(buffer.rows)
        };
        let (rows, columns) = (
            geometry.most_chunk_rows(buffer.rows),
            geometry.most(buffer.columns),
        );
        // Where rows are contiguous, every chunk is a matrix of its own.
        let (lines, contiguous) = if buffer.rows_contiguous {
            (columns, rows)
        } else {
            (rows, columns)
        };
        let contiguous = shape.ld.get(&buffer.name).copied().unwrap_or(contiguous);
        let slots = buffer.slots(geometry.world);
        let sizes = [slots, chunks, lines, contiguous, buffer.dtype.bytes()];
        add(&buffer.name, &sizes.map(u64::from));
    }
    heap
}
