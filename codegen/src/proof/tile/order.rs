//! Number of accesses that precede each access of one launch at the tile level. The warp level must agree.
//!
//! Any two accesses of a checked plan to the same memory, one of them a write, are ordered. So the plan alone decides how
//! many accesses precede another one in each element, whoever makes them and however they are divided. The warps do what
//! the plan says only if each of their accesses finds that many.
//!
//! Such a number holds in one world: which signal precedes which access may be the result of arithmetic over ranks. So each
//! access also has the waits that stand before it in its item, and each cell what stands before its signals. Warps that keep
//! both keep the order of the statements, whatever ranks and slots the statements compute.

use super::facts::{At, Facts, in_program_order};
use super::happens::Happens;
use crate::kernel::{Kernel, Purpose};
use crate::map::Map;
use crate::plan::Plan;
use crate::program::{CounterId, TensorId};
use crate::region::Access;
use crate::shape::Extent;
use crate::unroll::StepKind;
use std::collections::BTreeMap;

/// Accessor of memory, and its access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Accessor {
    /// The rank that does it.
    pub rank: u32,
    /// The index of its role.
    pub role: usize,
    /// True if it writes, or adds.
    pub write: bool,
    /// The tensor.
    pub tensor: TensorId,
    /// Rank that holds the memory.
    pub home: u32,
    /// Slot of the tensor.
    pub slot: u32,
}

/// A rectangle of elements that every access covers whole or not at all.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    /// Rows among all rows.
    pub rows: Extent,
    /// Columns of the rectangle.
    pub columns: Extent,
    /// Number of conflicting accesses that precede the accessor's. If it makes several: before its first and before
    /// its last.
    pub accesses: (u32, u32),
    /// Waits that stand before the access in its item. If the accessor makes several: those before all of them.
    pub waits: Vec<Wait>,
}

/// A wait for a cell of the waiter's rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Wait {
    /// The counter.
    pub counter: CounterId,
    /// The cell.
    pub cell: u32,
    /// Number that it waits for; `None`: all that arrives in a launch.
    pub at_least: Option<u32>,
}

/// Accesses that stand before signals of one cell in the items that signal: whoever waits for all signals builds on
/// them.
#[derive(Clone, Default, Debug)]
pub(crate) struct Announced {
    /// Accesses, each of these rows and columns.
    pub accesses: Vec<(Accessor, [Extent; 2])>,
    /// Waits, each with the rank that waited.
    pub waits: Vec<(u32, Wait)>,
}

/// Order that the warps of one launch must keep to.
pub(crate) struct Order {
    /// Accesses that precede each access, row by row.
    pub before: Map<Accessor, Vec<Before>>,
    /// Accesses that precede the signals of each cell of each rank.
    pub announced: Map<(u32, CounterId, u32), Announced>,
    /// Signals that must precede the end of a rank's wait for a part of what arrives.
    pub parts: Map<(u32, Wait), Vec<Part>>,
}

/// The first signals that a role of a rank sends to a cell in a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The rank.
    pub rank: u32,
    /// The index of its role.
    pub role: usize,
    /// Number of signals.
    pub signals: usize,
}

impl Order {
    /// The order of accesses in a plan without races.
    pub fn of(kernel: &Kernel, plan: &Plan) -> Order {
        let facts = Facts::new(kernel, plan);
        Order {
            before: before(&facts),
            announced: announced(&facts),
            parts: parts(&facts),
        }
    }
}

fn announced(facts: &Facts<'_>) -> Map<(u32, CounterId, u32), Announced> {
    let mut all: Map<(u32, CounterId, u32), Announced> = Map::default();
    facts.each_step(|at, kind| {
        let StepKind::Signal {
            counter,
            home,
            cell,
            ..
        } = kind
        else {
            return;
        };
        let here = all.entry((home.into(), counter, cell)).or_default();
        let rank = facts.rank(at.agent);
        for before in facts.in_item_before(at) {
            here.waits
                .extend(wait(facts.step(before)).map(|wait| (rank, wait)));
            facts.boxes(before, facts.step(before), |span, access| {
                facts.each_block(&span, |block| {
                    let area = facts.area_of(&span);
                    let (rows, columns) = facts.rectangle(area, block);
                    let accessor = Accessor {
                        rank,
                        role: facts.role(at.agent),
                        write: access != Access::Read,
                        tensor: span.buffer,
                        home: span.home.into(),
                        slot: span.slot.into(),
                    };
                    here.accesses.push((accessor, [rows, columns]));
                });
            });
        }
    });
    all
}

/// The signals that waits for less than all join with, of roles that send theirs one after another.
fn parts(facts: &Facts<'_>) -> Map<(u32, Wait), Vec<Part>> {
    let mut all = Map::default();
    facts.each_step(|at, kind| {
        let Some(wait) = wait(kind).filter(|wait| wait.at_least.is_some()) else {
            return;
        };
        let rank = facts.rank(at.agent);
        let arrivals = &facts.plan.arrivals;
        let signals = facts.signals(arrivals.index(rank as u16, wait.counter, wait.cell));
        let mut agents: BTreeMap<u32, usize> = BTreeMap::new();
        for signal in facts.joined(at) {
            *agents.entry(signal.agent).or_default() += 1;
        }
        agents.retain(|agent, _| {
            let own = || signals.iter().filter(|it| it.at.agent == *agent);
            let one_by_one =
                |a: At, b: At| in_program_order(facts, a, b) || in_program_order(facts, b, a);
            own().all(|a| own().all(|b| one_by_one(a.at, b.at)))
        });
        let part = |(agent, signals)| Part {
            rank: facts.rank(agent),
            role: facts.role(agent),
            signals,
        };
        all.insert((rank, wait), agents.into_iter().map(part).collect());
    });
    all
}

fn wait(step: StepKind) -> Option<Wait> {
    let StepKind::Wait {
        counter,
        cell,
        at_least,
    } = step
    else {
        return None;
    };
    Some(Wait {
        counter,
        cell,
        at_least,
    })
}

/// The waits that stand before an access in its item. A credit for what a copy writes may be waited for after the copy reads.
fn waits_before(
    facts: &Facts<'_>,
    at: At,
    access: Access,
    (tensor, home): (TensorId, u32),
) -> Vec<Wait> {
    let guards = |wait: &Wait| match facts.kernel.counters[wait.counter.index()].purpose {
        Purpose::Data => true,
        Purpose::Ready(lent) if access == Access::Read => {
            lent == facts.kernel.lent_with(tensor) && wait.cell == home
        }
        Purpose::Ready(_) | Purpose::Returned(_) | Purpose::Free(_) => access != Access::Read,
    };
    let before = facts.in_item_before(at);
    let waits = before.filter_map(|before| wait(facts.step(before)));
    waits.filter(guards).collect()
}

fn before(facts: &Facts<'_>) -> Map<Accessor, Vec<Before>> {
    let mut happens = Happens::new(facts);
    let mut all: Map<Accessor, Vec<Before>> = Map::default();
    for area in facts.areas() {
        for block in facts.blocks_of(area) {
            let touches = facts.touches(block);
            let (rows, columns) = facts.rectangle(area, block);
            let mut here: Map<Accessor, ((u32, u32), Vec<Wait>)> = Map::default();
            for touch in touches {
                let conflicts = touches
                    .iter()
                    .filter(|other| other.at != touch.at && other.access.conflicts(touch.access));
                let is_before = |other: At| u32::from(happens.before(other, touch.at));
                let count: u32 = conflicts.map(|other| other.at).map(is_before).sum();
                let accessor = Accessor {
                    rank: facts.rank(touch.at.agent),
                    role: facts.role(touch.at.agent),
                    write: touch.access != Access::Read,
                    tensor: TensorId(area.buffer),
                    home: area.home.into(),
                    slot: area.slot.into(),
                };
                let of = (accessor.tensor, accessor.home);
                let waits = waits_before(facts, touch.at, touch.access, of);
                let known = here.entry(accessor);
                let ((least, most), common) =
                    known.or_insert_with(|| ((count, count), waits.clone()));
                (*least, *most) = (count.min(*least), count.max(*most));
                common.retain(|wait| waits.contains(wait));
            }
            for (accessor, (accesses, waits)) in here {
                all.entry(accessor).or_default().push(Before {
                    rows,
                    columns,
                    accesses,
                    waits,
                });
            }
        }
    }
    all
}
