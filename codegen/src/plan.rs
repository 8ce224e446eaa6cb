//! The numbers of one launch: geometry, steps, counter targets, grid, shared memory, heap.

mod arrivals;
mod heap;
mod identity;
mod memory;

use crate::checked::{Checked, Subject};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Block, Kernel, OpKind, RoleKind, visit_ops};
use crate::machine::Machine;
use crate::shape::{Geometry, Shape};
use crate::sm90::cta::{self, Cta, Decision, dependent_launch};
use crate::unroll::{Agent, fits, unroll};
use crate::variant::Arch;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

pub use arrivals::Arrivals;
use heap::heap;
pub use heap::{COUNTER_LINE, Heap};
use identity::fnv1a;
pub(crate) use identity::identity;
pub use memory::Bytes;

/// A kernel's numbers for one shape on one machine.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
/// use counterflow_codegen::program::TensorId;
///
/// let (series, plan) = example::proven();
/// println!("{} CTAs multiply, {} move data", plan.grid.gemm, plan.grid.comm);
/// println!("{}", plan.text(series.kernel()));
/// println!("{} steps of rank 1's first role", plan.agent(1, 0).steps.len());
/// let (kernel, x) = (plan.kernel(), TensorId(0));
/// assert_eq!((plan.held_lines(kernel, x), plan.pitch(kernel, x)), (64, 2 * 16));
/// assert_eq!(plan.bytes(kernel, x), 64 * 2 * 16);
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    /// The shape.
    pub shape: Shape,
    /// Dimensions, shards, items and cells.
    pub geometry: Geometry,
    /// The steps of every agent, rank by rank and role by role: `agents[rank * roles + role]`.
    pub agents: Agents,
    /// Sums that arrive at every counter cell in one launch.
    pub arrivals: Arc<Arrivals>,
    /// Number of CTAs.
    pub grid: Grid,
    /// Tiling and shared memory of a CTA. `None` for the emulator alone, or without tiles that are computed.
    pub cta: Option<Cta>,
    /// The layout of the symmetric heap.
    pub heap: Heap,
    /// Identifies kernel, variant, series and shape: ranks that launch different plans see different hashes.
    pub hash: u64,
    /// Identifies its series.
    pub(crate) series: u64,
}

/// The steps of every agent, unrolled on first use. A launch of a known class of shapes never unrolls them.
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
    /// Tiles that these compute on a rank.
    pub tiles: u64,
    /// The most tiles of a CTA, or of all CTAs of a cluster together.
    pub rounds: u64,
    /// CTAs that move data.
    pub comm: u32,
    /// Stages of operands.
    pub stages: u32,
    /// Bytes of shared memory a CTA needs.
    pub shared_memory: u32,
}

impl Subject for Plan {
    type Decided = ();
}

impl Plan {
    /// The plan of `kernel` for `shape` on `machine`, in a series of up to [`Shape::most`]. It is not verified yet.
    ///
    /// ```
    /// use counterflow_codegen::{lower::lower, machine::Machine, plan::Plan, shape::Shape, variant::Variant};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    ///
    /// let kernel = lower(&example::ag_gemm(), &Variant::new(2))?;
    /// let (small, large) = (Shape::new(64, 32, 16), Shape::new(256, 32, 16));
    /// let alone = Plan::new(&kernel, &small, &Machine::h200())?;
    /// // The same launch in a series of larger ones, whose counters lie otherwise.
    /// let among = Plan::within(&kernel, &small, &large.most(&kernel), &Machine::h200())?;
    /// assert_eq!(alone.shape, among.shape);
    /// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
    /// ```
    ///
    /// # Errors
    /// Refusals of [`Geometry::new`] and [`unroll`], and a grid or shared memory that does not fit.
    pub fn new(kernel: &Kernel, shape: &Shape, machine: &Machine) -> Result<Plan, Diagnostics> {
        Plan::within(kernel, shape, &shape.most(kernel), machine)
    }

    /// As [`Plan::new`], in a series of up to `most`, which names every dimension ([`Shape::most`]).
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
            (&Arc::new(kernel.clone()), &cta::decide(kernel)),
            Geometry::within(kernel, shape, most)?,
            shape,
            machine,
            identity(kernel, most),
            None,
        )
    }

    /// The plan of a launch as far as it is known before its steps are: its arrivals are empty. For outlines of timelines.
    ///
    /// ```
    /// use counterflow_codegen::{machine::Machine, plan::Plan, shape::Shape};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    ///
    /// let (series, plan) = example::proven();
    /// let outlined = Plan::outlined(series.kernel(), &plan.shape, &Machine::h200())?;
    /// assert_eq!(outlined.grid, plan.grid);
    /// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
    /// ```
    ///
    /// # Errors
    /// An illegal shape, tiles or a grid that do not fit.
    pub fn outlined(
        kernel: &Checked<Kernel>,
        shape: &Shape,
        machine: &Machine,
    ) -> Result<Plan, Diagnostics> {
        Plan::of(
            (kernel.shared(), kernel.decided()),
            Geometry::new(kernel, shape)?,
            shape,
            machine,
            // Its hash is not used.
            0,
            Some(Arc::new(Arrivals::default())),
        )
    }

    /// As [`Plan::new`], in the series of that identity. If the arrivals of its class of shapes are known, it is not
    /// unrolled.
    pub(crate) fn of(
        (kernel, decided): (&Arc<Kernel>, &Decision),
        geometry: Geometry,
        shape: &Shape,
        machine: &Machine,
        series: u64,
        known: Option<Arc<Arrivals>>,
    ) -> Result<Plan, Diagnostics> {
        let mut found = Vec::new();
        found.extend(cta::placed(kernel, &geometry));
        let cta = decided.fits().unwrap_or_else(|refused| {
            found.extend(refused.iter().cloned());
            None
        });
        let grid = grid(kernel, cta, &geometry, machine, &mut found);
        Diagnostics::check(found, ())?;
        let unrolled = Arc::new(OnceLock::new());
        let arrivals = match known {
            Some(arrivals) => arrivals,
            None => {
                fits(kernel, &geometry, shape)?;
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
            cta: cta.cloned(),
            heap,
            hash,
            series,
        })
    }

    /// Kernel that was planned.
    pub fn kernel(&self) -> &Kernel {
        &self.agents.kernel
    }

    /// The agent of that rank and role.
    pub fn agent(&self, rank: u32, role: usize) -> &Agent {
        let roles = self.agents.len() / self.geometry.world as usize;
        &self.agents[rank as usize * roles + role]
    }
}

fn grid(
    kernel: &Kernel,
    cta: Option<&Cta>,
    geometry: &Geometry,
    machine: &Machine,
    found: &mut Vec<Diagnostic>,
) -> Grid {
    let mut grid = Grid {
        stages: cta.map_or(0, Cta::stages),
        shared_memory: cta.map_or(0, Cta::bytes),
        ..Grid::default()
    };
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
                cluster = kind.ctas();
                // A role that computes nothing still needs a CTA to run on.
                grid.tiles = items(&role.body, geometry, (1, 1), 1).max(1);
                // A cluster has adjacent tiles, perhaps some outside, and all its CTAs for each.
                clusters = items(&role.body, geometry, kind.cluster, 1).max(1);
            }
            RoleKind::SpareWarps if kernel.variant.arch != Arch::Cpu && !has_gemm => found.push(
                Diagnostic::new(
                    Rule::Resources,
                    role.at,
                    "#[spare_warps] without a #[gemm] have no CTA to be warps of",
                )
                .hint("use #[comm(ctas = n)]"),
            ),
            RoleKind::SpareWarps | RoleKind::CopyEngine => {}
        }
    }
    let left = machine.sms.saturating_sub(grid.comm);
    // Where something is multiplied, an SM is left for that.
    let most_comm = machine.sms.saturating_sub(u32::from(has_gemm));
    // The role with which they become too many.
    let mut so_far = 0u32;
    let too_many = kernel.roles.iter().find(|role| {
        if let RoleKind::Comm { ctas } = role.kind {
            so_far = so_far.saturating_add(ctas);
        }
        so_far > most_comm
    });
    if let (Some(role), true) = (too_many, kernel.variant.arch != Arch::Cpu) {
        let (comm, sms) = (grid.comm, machine.sms);
        let (message, together) = match has_gemm {
            true => (
                format!("{comm} comm CTAs leave no SM of {sms} for the GEMM"),
                "comm CTAs and GEMM CTAs",
            ),
            false => (format!("{comm} comm CTAs on {sms} SMs"), "all CTAs"),
        };
        let hint = format!("{together} run together: at most {most_comm}");
        found.push(Diagnostic::new(Rule::Resources, role.at, message).hint(hint));
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
        // Use no more CTAs than the number of rounds needs, so that rounds are whole: 128 of 132 SMs for 2048 tiles. It
        // takes as long, and 0.6 % less at the power limit, because a round is a block of tiles that read the same rows
        // and columns. Not if CTAs of the next launch could then no longer start early, and not if tiles wait for
        // peers: those are scheduled loop by loop.
        let whole = clusters.div_ceil(grid.rounds) as u32 * cluster;
        if kernel.counters.is_empty() && dependent_launch::pays(whole, machine.sms) {
            grid.gemm = whole;
        }
    }
    grid
}

/// The number of a role's items that compute on one rank, or of clusters of them, assuming full shards. Items that only
/// wait or move data need no CTA of their own.
fn items(body: &[Block], geometry: &Geometry, cluster: (u32, u32), times: u64) -> u64 {
    let count = body.iter().map(|block| match block {
        Block::ForRanks { order, body, .. } => items(
            body,
            geometry,
            cluster,
            times * u64::from(order.most_steps(geometry.world)),
        ),
        Block::If {
            then, otherwise, ..
        } => {
            let then = items(then, geometry, cluster, times);
            then.max(items(otherwise, geometry, cluster, times))
        }
        Block::Items {
            partition,
            shard,
            selection,
            body,
            ..
        } => {
            let mut computes = false;
            visit_ops(body, &mut |op| {
                computes |= matches!(op.kind, OpKind::Dot { .. } | OpKind::Store { .. })
            });
            let (rows, columns) = geometry.grid(*partition, None);
            let rows = rows.div_ceil(cluster.0.max(1));
            let columns = columns.div_ceil(cluster.1.max(1));
            let all = rows.saturating_mul(columns);
            let (_, some) = selection.least_and_most(all, geometry.world);
            let of_a_shard = times.saturating_mul(u64::from(some));
            match shard {
                _ if !computes => 0,
                None => of_a_shard.saturating_mul(u64::from(geometry.partition_shards(*partition))),
                Some(_) => of_a_shard,
            }
        }
        Block::Once { .. } | Block::Join => 0,
    });
    count.fold(0, u64::saturating_add)
}
