//! The simulation's workers: CTAs, spare warps and copy engines, and their store lanes.

use super::cost::Ps;
use super::event::EventKind;
use counterflow_codegen::kernel::{Kernel, OpId, RoleKind};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::warp::BATCH;

/// Subject of the timing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The whole kernel.
    Whole,
    /// The kernel's GEMM alone, without waits and transfers.
    GemmAlone,
}

/// Items of an agent that have been claimed and done.
#[derive(Clone, Default)]
pub(super) struct AgentState {
    pub next: u32,
    /// Batches of that item that have been claimed.
    pub batch: u32,
    pub done: u32,
    /// The phase of the last claimed item, and the first item of that phase.
    pub phase: (u32, u32),
    /// Workers that wait for items of earlier phases.
    pub joining: Vec<u32>,
}

/// The part of an item that a worker does: so many boxes at most.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    /// Number of this one.
    index: u64,
    /// Boxes of the item, all in one batch if it is not divided.
    boxes: u64,
}

impl Batch {
    /// All of an item.
    pub(super) const WHOLE: Batch = Batch { index: 0, boxes: 1 };

    /// Batch of that number of so many boxes, of which there is one at least.
    pub(super) fn new(index: u32, boxes: u64) -> Batch {
        let index = index.into();
        Batch { index, boxes }
    }

    /// Batches of the item.
    pub(super) fn of(self) -> u32 {
        self.boxes.div_ceil(u64::from(BATCH)) as u32
    }

    /// This one's share of that many bytes.
    pub(super) fn share(self, bytes: u64) -> u64 {
        let before = |index: u64| bytes * (index * u64::from(BATCH)).min(self.boxes) / self.boxes;
        before(self.index + 1) - before(self.index)
    }
}

/// One CTA, one CTA's spare warps, or one copy engine.
#[derive(Clone, Copy)]
pub(super) struct Worker {
    pub rank: u16,
    pub lane: u16,
    /// The agent whose items it claims.
    pub agent: u32,
    /// The agent whose items it claims afterwards.
    pub then: Option<u32>,
    pub cursor: u32,
    pub end: u32,
    /// Item of the agent, and the number of items that must be done before it may start.
    pub item: Option<(u32, u32)>,
    /// The part of it that it does.
    pub batch: Batch,
    /// No dot of the item has run yet.
    pub fresh: bool,
    /// Since when it is blocked, and why.
    pub blocked: Option<(Ps, EventKind)>,
    pub done: bool,
    pub store: Store,
    pub fetch: Fetch,
}

/// What a step of a product still reads from memory.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    pub op: OpId,
    pub left: u64,
    pub since: Ps,
    /// When the step ends, were all of it in the cache.
    pub until: Ps,
}

/// The outcome of a step.
pub(super) enum Did {
    /// A step that is done.
    Step,
    /// A step that takes until a later action.
    Started,
    /// A step that cannot start yet.
    Blocked(EventKind),
}

pub(super) fn workers(kernel: &Kernel, plan: &Plan, mode: Mode) -> Vec<Worker> {
    let roles = kernel.roles.len() as u32;
    let gemm = (0..)
        .zip(&kernel.roles)
        .find(|(_, role)| matches!(role.kind, RoleKind::Gemm(_)))
        .map(|(index, _)| index);
    let mut workers = Vec::new();
    for rank in 0..plan.geometry.world {
        let mut lane = 0;
        for (index, role) in (0..roles).zip(&kernel.roles) {
            let own = rank * roles + index;
            let joins = gemm.map(|gemm| rank * roles + gemm);
            let count = lane_count(role.kind, plan);
            let (count, agent, then) = match (role.kind, mode) {
                (RoleKind::Gemm(_), _) => (count, own, None),
                (RoleKind::Comm { .. }, Mode::Whole) => (count, own, joins),
                (RoleKind::Comm { .. }, Mode::GemmAlone) => match joins {
                    Some(gemm) => (count, gemm, None),
                    None => (0, own, None),
                },
                (RoleKind::SpareWarps | RoleKind::CopyEngine, Mode::Whole) => (count, own, None),
                (RoleKind::SpareWarps | RoleKind::CopyEngine, Mode::GemmAlone) => (0, own, None),
            };
            for _ in 0..count {
                workers.push(Worker {
                    rank: rank as u16,
                    lane,
                    agent,
                    then,
                    cursor: 0,
                    end: 0,
                    item: None,
                    batch: Batch::WHOLE,
                    fresh: true,
                    blocked: None,
                    done: false,
                    store: Store::default(),
                    fetch: Fetch {
                        op: OpId(0),
                        left: 0,
                        since: 0,
                        until: 0,
                    },
                });
                lane += 1;
            }
        }
    }
    workers
}

/// A worker's store lane.
#[derive(Clone, Copy, Default)]
pub(super) struct Store {
    /// The agent and the item whose stores it makes.
    pub of: Option<(u32, u32)>,
    pub cursor: u32,
    /// Number of items that the worker has handed over.
    pub limit: u32,
    /// The worker has handed over all of the item.
    pub closed: bool,
    pub busy: bool,
    /// The worker waits for the lane.
    pub awaited: bool,
}

/// Number of lanes of a rank that start in a role.
pub(super) fn lane_count(role: RoleKind, plan: &Plan) -> u32 {
    match role {
        // CTAs that split the K of each tile are one worker. If a cluster has a tile outside, fewer have one.
        RoleKind::Gemm(kind) => {
            let workers = plan.grid.gemm / kind.split;
            let busy = plan.grid.tiles.div_ceil(plan.grid.rounds.max(1));
            if kind.cluster == (1, 1) {
                workers
            } else {
                workers.min(busy as u32)
            }
        }
        RoleKind::Comm { ctas } => ctas,
        RoleKind::SpareWarps => plan.grid.gemm.max(1),
        RoleKind::CopyEngine => 1,
    }
}
