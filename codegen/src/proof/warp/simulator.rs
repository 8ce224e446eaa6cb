//! The state of a run: what each agent has done and seen, what lies in shared memory, who touched which part of a tensor.

use super::case::Case;
use super::filled::Filled;
use super::held::{Content, Fragment, TileProduct};
use super::lanes::Lanes;
use super::programs::Programs;
use super::seen::{Bits, Knows};
use super::step::{Area, Box4, Step};
use crate::diag::Diagnostic;
use crate::kernel::Buffer;
use crate::map::Map;
use crate::program::TensorId;
use crate::undo::{Fix, undone};
use crate::warp::{Elements, Node, Scope};
use std::cell::RefCell;

/// Nothing, or what goes wrong.
pub(super) type Verdict = Result<(), Box<Diagnostic>>;

/// The step of an access by the caller.
pub(super) const CALLER: (usize, usize) = (0, usize::MAX);

/// Agent: a role of a CTA of a rank in a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Who {
    pub rank: u32,
    pub launch: u32,
    pub block: u32,
    pub warp: usize,
}

pub(super) struct Agent<'a> {
    pub who: Who,
    /// Index among its role's runners.
    pub runner: u32,
    pub steps: &'a [Step<'a>],
    pub at: usize,
    pub knows: Knows,
    /// Stores not yet in a group; then groups in flight, oldest first.
    pub open: Vec<(u32, Option<u32>)>,
    pub groups: Vec<Vec<(u32, Option<u32>)>>,
    /// Number of the groups that have been waited for as read.
    pub read: usize,
    /// Multiplies: what each reads of shared memory, and whose accumulators it has.
    pub open_mma: Vec<(u32, usize)>,
    pub mma: Vec<Vec<(u32, usize)>>,
    /// The signal it holds back.
    pub pending: Option<(u32, u32, u64)>,
    pub cta: usize,
    /// Waits that its warps are past, each of them for itself.
    pub past: Bits,
    /// Ordinary accesses of shared memory of its own.
    pub own: Bits,
    /// Accesses that the lanes of its warp make each for themselves.
    pub lanes: Lanes,
    /// Contents of its registers.
    pub fragment: Fragment,
    pub synced: bool,
    /// True if the launches before are complete as far as it knows.
    pub awaited: bool,
}

/// A barrier of shared memory.
pub(super) struct Barrier {
    pub expected: u32,
    pub arrived: u32,
    pub bytes: i64,
    pub phase: u32,
    /// The waits for the last complete phase, and for the one before the first: number, agent and step.
    pub waits: Vec<(u32, usize, usize)>,
    /// The scope of its waits and arrivals. An order barrier has its CTA's.
    pub scope: Scope,
    /// True if bytes complete on it.
    pub tx: bool,
    /// Accesses that the arrivals of the current phase saw, and those of the last complete one.
    pub gathers: Knows,
    pub gave: Knows,
}

pub(super) struct Cta {
    pub barriers: Vec<Barrier>,
    pub shared: Vec<Touch<Area>>,
    /// Contents of shared memory, area by area.
    pub held: Vec<(Area, Content)>,
    pub ids: u32,
    /// By the first CTA of a cluster: how many waits its agents are past.
    pub waits: u32,
    /// By the first CTA of a cluster: the steps that reach from one of its CTAs into another.
    pub reaches: Vec<(usize, usize)>,
    pub synced: u32,
    pub gathers: Knows,
    pub gave: Knows,
    pub agents: u32,
}

/// An access that later ones may conflict with.
#[derive(Clone, Copy)]
pub(super) struct Touch<W> {
    pub id: u32,
    pub whereabouts: W,
    pub write: bool,
    pub who: Who,
    /// The step, in its agent's list.
    pub step: (usize, usize),
}

/// A signal to a cell.
pub(super) struct Signal {
    /// The launch, rank and role of its sender.
    pub launch: u32,
    pub rank: u32,
    pub role: usize,
    /// Accesses that its sender saw.
    pub saw: Bits,
}

/// Whether what became of products with these operands is what a tensor has stored.
pub(super) type KnownValue = (TensorId, Elements, Vec<Option<[TensorId; 2]>>, bool);

/// A counter cell.
#[derive(Default)]
pub(super) struct Cell {
    pub count: u64,
    pub base: u64,
    pub signals: Vec<Signal>,
    /// The launch of each wait that is over, what it waited for if that was not all, and its number among the accesses of
    /// global memory: who has seen that, comes after the wait.
    pub waits: Vec<(u32, Option<u64>, u32)>,
}

pub(super) struct Simulator<'a> {
    pub case: &'a Case<'a>,
    pub programs: &'a Programs<'a>,
    pub agents: Vec<Agent<'a>>,
    pub ctas: Vec<Cta>,
    pub cells: Vec<Cell>,
    /// Accesses of global memory, by tensor and rank.
    pub global: Vec<Vec<Touch<Box4>>>,
    pub global_ids: u32,
    /// By rank: its launch, CTAs that came to the end, and what launches ended saw.
    pub launch: Vec<u32>,
    pub came: Vec<u32>,
    pub ended: Vec<Knows>,
    /// By launch and rank: what a launch had seen when it ended.
    pub ends: Vec<Vec<Bits>>,
    pub finishing: Vec<Knows>,
    /// Boxes that each amax has been made of: by its tensor, rank and launch, and by the warpgroup if several share
    /// subtiles.
    pub amaxes: Map<(TensorId, u32, u32, u32), Vec<Box4>>,
    /// Tensors whose accesses are looked at.
    pub watched: Vec<bool>,
    /// Numbers of all accumulators, by point.
    pub filled: Vec<Filled>,
    /// What was found of values that are stored: every tile asks the same.
    pub known_values: RefCell<Vec<KnownValue>>,
    /// The first step that does not keep the order of its item's statements. What goes wrong in the case itself says more,
    /// and is told first.
    pub out_of_turn: Option<Box<Diagnostic>>,
}

impl<'a> Agent<'a> {
    /// State of a CTA whose items have so many products.
    pub fn new(
        who: Who,
        steps: &'a [Step<'a>],
        knows: &Knows,
        (cta, products): (usize, usize),
    ) -> Self {
        Agent {
            who,
            runner: 0,
            steps,
            at: 0,
            knows: knows.clone(),
            open: Vec::new(),
            groups: Vec::new(),
            read: 0,
            open_mma: Vec::new(),
            mma: Vec::new(),
            pending: None,
            cta,
            past: Bits::default(),
            own: Bits::default(),
            lanes: Lanes::default(),
            fragment: Fragment {
                products: vec![TileProduct::default(); products],
                ..Fragment::default()
            },
            synced: false,
            awaited: true,
        }
    }

    /// All lanes of its warp are here: the warp knows what each has done.
    pub fn meet_lanes(&mut self) {
        let met = self.lanes.meet();
        for (id, fenced) in met.shared {
            self.accessed(id);
            if fenced {
                self.knows.shared.proxy.add(id);
            }
        }
        for id in met.everywhere {
            self.knows.global.plain.add(id);
            self.knows.global.alias.add(id);
        }
        met.parts
            .into_iter()
            .for_each(|id| self.knows.global.plain.add(id));
    }

    /// Notes an ordinary access of shared memory.
    pub fn accessed(&mut self, id: u32) {
        self.knows.shared.plain.add(id);
        self.own.add(id);
    }
}

impl Barrier {
    /// One whose phases end with so many arrivals, and with bytes (`tx`).
    pub fn new(expected: u32, scope: Scope, tx: bool) -> Self {
        Barrier {
            expected,
            arrived: 0,
            bytes: 0,
            phase: 0,
            waits: Vec::new(),
            scope,
            tx,
            gathers: Knows::default(),
            gave: Knows::default(),
        }
    }
}

impl Cta {
    pub fn new(barriers: Vec<Barrier>) -> Self {
        Cta {
            barriers,
            shared: Vec::new(),
            held: Vec::new(),
            ids: 0,
            waits: 0,
            reaches: Vec::new(),
            synced: 0,
            gathers: Knows::default(),
            gave: Knows::default(),
            agents: 0,
        }
    }
}

impl<'a> Simulator<'a> {
    /// Before anything was done.
    pub fn new(case: &'a Case<'a>, programs: &'a Programs<'a>) -> Self {
        // Scratch is always looked at: what no store writes must not be read. So are outputs, and what other ranks reach.
        let reached = |buffer: &Buffer| buffer.usage.placement.symmetric && !undone(Fix::WarpOrder);
        let buffers = case.pipeline.kernel.buffers.iter();
        let mut watched: Vec<bool> = buffers
            .map(|buffer| buffer.is_scratch() || buffer.usage.is_output() || reached(buffer))
            .collect();
        case.pipeline.visit(|node| {
            if let Node::Store { map, .. } = node {
                watched[case.pipeline.map(*map).tensor.index()] = true;
            }
        });
        let world = case.world as usize;
        Simulator {
            case,
            programs,
            agents: Vec::new(),
            ctas: Vec::new(),
            cells: (0..case.world * case.cells)
                .map(|_| Cell::default())
                .collect(),
            global: (0..watched.len() * world).map(|_| Vec::new()).collect(),
            global_ids: 0,
            launch: vec![0; world],
            came: vec![0; world],
            ended: vec![Knows::default(); world],
            ends: vec![vec![Bits::default(); world]; case.last() as usize + 1],
            finishing: vec![Knows::default(); world],
            amaxes: Map::default(),
            watched,
            filled: Filled::at_all(&case.pipeline.kernel),
            known_values: RefCell::default(),
            out_of_turn: None,
        }
    }

    /// True if an agent is what the host enqueued.
    pub fn is_host(&self, index: usize) -> bool {
        self.agents[index].who.warp == self.case.pipeline.warps.len()
    }
}
