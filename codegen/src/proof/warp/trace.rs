//! The words of a verdict: which role of which CTA of which rank did what.

use super::memory::By;
use super::simulator::{CALLER, Simulator, Touch, Who};
use super::step::{Area, Box4, Kind, Step};
use crate::diag::{Diagnostic, Rule};
use crate::warp::{Node, Side, View};

impl Simulator<'_> {
    /// `store of block 1 on rank 2`.
    pub(super) fn who(&self, who: Who) -> String {
        let again = if who.launch > 1 {
            " in the next launch"
        } else {
            ""
        };
        let Some(warp) = self.case.pipeline.warps.get(who.warp) else {
            return format!("the copy engine of rank {}{again}", who.rank);
        };
        let role = warp.name;
        format!("{role} of block {} on rank {}{again}", who.block, who.rank)
    }

    pub(super) fn step_of(&self, (agent, step): (usize, usize)) -> &Step<'_> {
        &self.agents[agent].steps[step]
    }

    fn cell_name(&self, cell: u32) -> String {
        let (counter, within) = self.case.counter_of(cell);
        format!(
            "{}[{within}]",
            self.case.pipeline.kernel.counters[counter.index()].name
        )
    }

    /// `stage 2: x, w`.
    pub(super) fn area_name(&self, step: &Step<'_>, area: &Area) -> String {
        // The ring that the step is about: others may lie in the same place.
        if let Some(ring) = step.node.accesses() {
            let ring = self.case.pipeline.ring(ring);
            let buffer = ring.buffer.iter();
            for (buffer, slot) in buffer.flat_map(|it| (0..ring.all()).map(move |slot| (it, slot)))
            {
                // Those of the step's loop: what others stage lies there, too.
                for index in (0..buffer.parts.len()).map(|it| buffer.part(step.tiling, it)) {
                    let (part, start) = (&buffer.parts[index], buffer.part_at(index, slot));
                    if start <= area.start && area.start < start + part.bytes {
                        return if part.name == ring.name {
                            format!("{} {slot}", ring.slot_name())
                        } else {
                            format!("{} of {} {slot}", part.name, ring.slot_name())
                        };
                    }
                }
            }
        }
        "shared memory".into()
    }

    fn box_name(&self, at: &Box4) -> String {
        let name = &self.case.pipeline.kernel.buffers[at.tensor.index()].name;
        format!(
            "rows {}..{}, columns {}..{} of {name} (chunk or slot {}) on rank {}",
            at.rows.0, at.rows.1, at.columns.0, at.columns.1, at.chunk, at.rank
        )
    }

    fn awaited(&self, node: &Node) -> String {
        let barrier = if let Node::Await { barrier, .. } = node {
            *barrier
        } else if let Node::AwaitTested { ring } = node {
            ring.full()
        } else {
            return "waits at its order barrier".into();
        };
        let ring = self.case.pipeline.ring(barrier.ring);
        match (&ring.buffer, barrier.side) {
            (None, Side::Full) => "waits until all are done with the steps of a tile".into(),
            (None, Side::Empty) => "waits until the subtiles before have been read".into(),
            (Some(_), Side::Full) => format!("waits for a {} to be full", ring.slot_name()),
            (Some(_), Side::Empty) => format!("waits for a {} to be empty", ring.slot_name()),
        }
    }

    fn announced(&self, node: &Node) -> String {
        if *node == Node::ArriveOrder {
            return "arrives at the order barrier".into();
        }
        let Node::Arrive { barrier, .. } = node else {
            return "releases a slot".into();
        };
        let ring = self.case.pipeline.ring(barrier.ring);
        match (&ring.buffer, barrier.side) {
            (None, Side::Full) => "says that its steps are done".into(),
            (None, Side::Empty) => "says that its subtiles have been read".into(),
            (Some(_), Side::Full) => format!("says that a {} is full", ring.slot_name()),
            (Some(_), Side::Empty) => format!("releases a {}", ring.slot_name()),
        }
    }

    fn deed(&self, step: &Step<'_>) -> String {
        let item = step.item.map_or(String::new(), |(row, column)| {
            format!(" for tile ({row}, {column})")
        });
        let what = match &step.kind {
            Kind::Await { .. } => self.awaited(step.node),
            Kind::TestWait { .. } => "tests a stage before its turn".into(),
            Kind::Expect { .. } => "announces a load".into(),
            Kind::Arrive { .. } => self.announced(step.node),
            Kind::Load { area, from, .. } => format!(
                "loads {} into {}",
                self.box_name(from),
                self.area_name(step, area)
            ),
            Kind::Store { area, to } => {
                format!(
                    "stores {} to {}",
                    self.area_name(step, area),
                    self.box_name(to)
                )
            }
            Kind::StoreEverywhere { area, to } => format!(
                "stores {} to {}, on every rank",
                self.area_name(step, area),
                to.first().map_or(String::new(), |to| self.box_name(to))
            ),
            Kind::SumEverywhere { area, from } => format!(
                "sums {}, on every rank, into {}",
                from.first()
                    .map_or(String::new(), |from| self.box_name(from)),
                self.area_name(step, area)
            ),
            Kind::Commit => "closes a group of stores".into(),
            Kind::AwaitRead { .. } => "waits until stores have been read".into(),
            Kind::AwaitStores { .. } => "waits until stores are complete".into(),
            Kind::Mma { areas, .. } => format!(
                "multiplies {}",
                areas.map(|area| self.area_name(step, &area)).join(" by ")
            ),
            Kind::MmaCommit => "closes a group of multiplies".into(),
            Kind::MmaWait { .. } => "waits for multiplies".into(),
            Kind::Fragment(fragment) => self.fragment_deed(step, fragment),
            Kind::HostCopy { from, to } | Kind::CopyScales { from, to } => {
                format!("copies {} to {}", self.box_name(from), self.box_name(to))
            }
            Kind::FenceShared | Kind::FenceGlobal | Kind::FenceAlias => "fences".into(),
            Kind::SyncWarp => "waits for all lanes of its warp".into(),
            Kind::CounterWait { cell, .. } => format!("waits for {}", self.cell_name(*cell)),
            Kind::CounterAdvance { cell } => {
                format!("advances the base of {}", self.cell_name(*cell))
            }
            Kind::CounterAdd { rank, cell, .. } => {
                format!("signals {} on rank {rank}", self.cell_name(*cell))
            }
            Kind::Defer { rank, cell, .. } => format!(
                "remembers to signal {} on rank {rank}",
                self.cell_name(*cell)
            ),
            Kind::Flush => "sends the remembered signal".into(),
            Kind::AwaitLaunches => "awaits earlier launches".into(),
            Kind::Sync { everywhere: false } => "waits for all warps of its CTA".into(),
            Kind::Sync { everywhere: true } => "waits for all warps of its cluster".into(),
            Kind::Last { .. } => "ends".into(),
        };
        format!("{what}{item}")
    }

    fn now(&self, agent: usize) -> String {
        let agent = &self.agents[agent];
        let step = &agent.steps[agent.at.min(agent.steps.len() - 1)];
        format!("{} {}", self.who(agent.who), self.deed(step))
    }
}

pub(super) fn shared_race(
    simulator: &Simulator<'_>,
    before: Touch<Area>,
    index: usize,
    fence: bool,
) -> Diagnostic {
    let earlier = format!(
        "{} {}",
        simulator.who(before.who),
        simulator.deed(simulator.step_of(before.step))
    );
    race(
        simulator,
        &earlier,
        index,
        fence
            .then_some("`fence_async_shared` after ordinary accesses, before the slot is released"),
    )
}

pub(super) fn global_race(
    simulator: &Simulator<'_>,
    before: Touch<Box4>,
    index: usize,
    fence: Option<By>,
) -> Diagnostic {
    let earlier = earlier(simulator, before);
    let fix = fence.map(|by| match by {
        By::Threads | By::Tma => {
            "`fence_async_global` after the wait on a counter, before TMA touches the data"
        }
        By::Multicast => {
            "`fence_alias` after the wait on a counter, before the memory of all ranks is touched at once"
        }
    });
    race(simulator, &earlier, index, fix)
}

/// Accesses of every rank's memory that nobody was told of.
pub(super) fn lanes_at_work(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    let who = simulator.who(simulator.agents[index].who);
    Diagnostic::new(
        Rule::Race,
        None,
        format!("{who} ends while its lanes access every rank's memory"),
    )
    .note(
        None,
        "no fence between the memory's addresses, or no meeting of the lanes, comes after them",
    )
    .hint("`fence_alias`, then `__syncwarp`, after what all lanes do")
}

/// A lane may not have seen what its warp's first lane waited for.
pub(super) fn lanes_apart(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    Diagnostic::new(Rule::Race, None, simulator.now(index))
        .note(
            None,
            "the first lane of its warp has waited for a counter, and the others have not met it since",
        )
        .hint("`__syncwarp` between the wait and what all lanes do")
}

/// What was done before, and by whom.
fn earlier(simulator: &Simulator<'_>, before: Touch<Box4>) -> String {
    if before.step == CALLER {
        let what = simulator.box_name(&before.whereabouts);
        return format!("the caller fills or takes {what} between launches");
    }
    let deed = simulator.deed(simulator.step_of(before.step));
    format!("{} {deed}", simulator.who(before.who))
}

fn race(simulator: &Simulator<'_>, earlier: &str, index: usize, fence: Option<&str>) -> Diagnostic {
    let found =
        Diagnostic::new(Rule::Race, None, simulator.now(index)).note(None, earlier.to_string());
    if let Some(fix) = fence {
        found
            .note(
                None,
                "a barrier or a counter orders them, but no proxy fence",
            )
            .hint(fix)
    } else {
        found
            .note(None, "nothing orders these two")
            .hint("wait for a signal that the first one is complete")
    }
}

pub(super) fn twice(
    simulator: &Simulator<'_>,
    before: Touch<Box4>,
    index: usize,
    at: &Box4,
) -> Diagnostic {
    let _ = at;
    let earlier = format!(
        "{} {}",
        simulator.who(before.who),
        simulator.deed(simulator.step_of(before.step))
    );
    Diagnostic::new(Rule::Coverage, None, simulator.now(index))
        .note(None, earlier)
        .note(
            None,
            "both write some of the same elements: a box reaches beyond its item",
        )
        .hint("a map whose rows end where the chunk ends")
}

pub(super) fn spills(simulator: &Simulator<'_>, index: usize, at: &Box4, end: u32) -> Diagnostic {
    let side = match at.view {
        View::ColumnChunks => "columns",
        View::Flat
        | View::Chunks
        | View::SharedChunks
        | View::SharedSlots
        | View::SharedSlotChunks
        | View::SharedChunk => "rows",
    };
    let chunk = match at.view {
        View::Flat
        | View::Chunks
        | View::ColumnChunks
        | View::SharedChunks
        | View::SharedSlotChunks => at.chunk,
        View::SharedSlots | View::SharedChunk => at.rank,
    };
    Diagnostic::new(Rule::Bounds, None, simulator.now(index))
        .note(
            None,
            format!(
                "chunk {chunk} ends after {end} {side}, and the map does not clip the box there"
            ),
        )
        .hint("a map of its own for the partial chunk")
}

pub(super) fn before_the_wait(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    Diagnostic::new(Rule::Race, None, simulator.now(index))
        .note(
            None,
            "this is a dependent launch, and nothing says that earlier launches are complete",
        )
        .hint("await earlier launches before every access to global memory")
}

pub(super) fn leaves_before_the_launches(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    let who = simulator.who(simulator.agents[index].who);
    Diagnostic::new(
        Rule::Race,
        None,
        format!("{who} ends while earlier launches may still run"),
    )
    .note(
        None,
        "the next launch waits for this one only, and would start although earlier ones still run",
    )
    .hint("every warp awaits earlier launches")
}

pub(super) fn dependent_launch() -> Diagnostic {
    Diagnostic::new(
        Rule::Progress,
        None,
        "a kernel that communicates starts before the previous launch has ended",
    )
    .hint("only kernels without counters, copies and CTAs that move data are dependent launches")
}

pub(super) fn leaves_early(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    let who = simulator.who(simulator.agents[index].who);
    Diagnostic::new(
        Rule::Race,
        None,
        format!("{who} ends while its stores may still read shared memory"),
    )
    .hint("wait for all groups of stores before the end")
}

pub(super) fn leaves_its_cluster(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    let who = simulator.who(simulator.agents[index].who);
    Diagnostic::new(
        Rule::Race,
        None,
        format!("{who} ends while another CTA of its cluster may still write its shared memory"),
    )
    .hint("wait for the whole cluster at the end")
}

pub(super) fn under_way(
    simulator: &Simulator<'_>,
    index: usize,
    step: (usize, usize),
) -> Diagnostic {
    let [who, other] = [index, step.0].map(|agent| simulator.who(simulator.agents[agent].who));
    Diagnostic::new(
        Rule::Race,
        None,
        format!("{who} ends while its cluster's shared memory may still change"),
    )
    .note(None, format!("{other} {}", simulator.deed(simulator.step_of(step))))
    .note(
        None,
        "nobody waits until this has landed in the other CTA: the cluster barrier at the end does not complete it",
    )
    .hint("wait for the barrier it completes on, or leave it out if nobody needs it")
}

pub(super) fn held_back(simulator: &Simulator<'_>, index: usize, waiting: &[usize]) -> Diagnostic {
    let agent = &simulator.agents[index];
    let (rank, cell, _) = agent.pending.unwrap_or_default();
    let message = format!(
        "{} holds back a signal of {} on rank {rank}",
        simulator.who(agent.who),
        simulator.cell_name(cell)
    );
    let mut found = Diagnostic::new(Rule::Progress, None, message).note(None, simulator.now(index));
    let here = waiting.iter().find(|other| {
        simulator.agents[**other].who.rank == agent.who.rank
            && simulator.agents[**other].who.block == agent.who.block
    });
    if let Some(other) = here.filter(|other| **other != index) {
        found = found.note(None, simulator.now(*other));
    }
    found
        .note(None, "what it waits for may itself wait for that signal")
        .hint(
            "complete the stores and flush the signal before a wait that another rank must answer",
        )
}

pub(super) fn no_bytes(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    Diagnostic::new(Rule::Progress, None, simulator.now(index))
        .note(
            None,
            "no bytes complete on this barrier: a phase of it ends with arrivals alone",
        )
        .hint("name the barrier that counts bytes, or declare that this one does")
}

pub(super) fn a_phase_behind(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    Diagnostic::new(Rule::Race, None, simulator.now(index))
        .note(
            None,
            "nothing says that the previous phase is complete, and an earlier one has the same parity",
        )
        .hint("a parity names a phase only within one pass over the ring's slots: wait at the order barrier first")
}

/// A wait that the phase after the one it is for may not be behind, as nothing in what ends that phase comes after it.
pub(super) fn overtaken(
    simulator: &Simulator<'_>,
    late: usize,
    step: usize,
    by: usize,
) -> Diagnostic {
    let who = simulator.who(simulator.agents[late].who);
    let deed = simulator.deed(simulator.step_of((late, step)));
    Diagnostic::new(Rule::Progress, None, format!("{who} {deed}"))
        .note(None, simulator.now(by))
        .note(
            None,
            "the barrier may complete its next phase before all waiting warps have observed this one: its parity is then ambiguous",
        )
        .hint("let every waiting warp arrive after its wait, not only one of them")
}

/// A wait for a phase that was over before, with the next one.
pub(super) fn too_late(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    Diagnostic::new(Rule::Progress, None, simulator.now(index))
        .note(
            None,
            "the next phase is complete, too: the parity says that the awaited one is not",
        )
        .hint("wait for its own phase, and before anyone can end the next one")
}

pub(super) fn stuck(simulator: &Simulator<'_>) -> Diagnostic {
    let blocked: Vec<usize> = (0..simulator.agents.len())
        .filter(|agent| simulator.agents[*agent].at < simulator.agents[*agent].steps.len())
        .collect();
    let first = blocked.first().copied().unwrap_or(0);
    let mut found = Diagnostic::new(
        Rule::Progress,
        None,
        format!("{}, for ever", simulator.now(first)),
    );
    for agent in blocked.iter().take(5) {
        let at = &simulator.agents[*agent];
        let mut text = simulator.now(*agent);
        if let Kind::CounterWait {
            cell,
            lag,
            at_least,
        } = at.steps[at.at].kind
        {
            let (seen, wanted) = simulator.counter(*agent, cell, lag, at_least);
            text.push_str(&format!(": saw {seen}, wants {wanted}"));
        }
        found = found.note(None, text);
    }
    found
}

/// Accumulators that multiplies under way still write.
pub(super) fn accumulating(simulator: &Simulator<'_>, index: usize, product: usize) -> Diagnostic {
    let agent = &simulator.agents[index];
    let tiling = agent.steps[agent.at].tiling;
    let name = simulator.case.pipeline.accumulators(tiling, product);
    Diagnostic::new(Rule::Race, None, simulator.now(index))
        .note(None, format!("multiplies into `{name}` are under way"))
        .hint("`wgmma_wait` for all groups of an item before its accumulators are named")
}

pub(super) fn wrong(simulator: &Simulator<'_>, index: usize, what: &str) -> Diagnostic {
    Diagnostic::new(Rule::Coverage, None, simulator.now(index)).note(None, what)
}

pub(super) fn uncovered(
    simulator: &Simulator<'_>,
    tensor: usize,
    rank: u32,
    (written, added): (u64, u64),
    wanted: (u64, u64),
) -> Diagnostic {
    let name = &simulator.case.pipeline.kernel.buffers[tensor].name;
    let what = format!("elements of {name} on rank {rank}");
    let message = if let (0, all) = wanted {
        format!("{added} of {all} {what} are added to, {written} are overwritten")
    } else {
        let (did, all) = (written + added, wanted.0 + wanted.1);
        format!("{did} of {all} {what} are written")
    };
    Diagnostic::new(Rule::Coverage, None, message)
}

/// An access of a rank's memory that its launch does not wait for.
pub(super) fn unfinished(simulator: &Simulator<'_>, touch: &Touch<Box4>, rank: u32) -> Diagnostic {
    let deed = format!(
        "{} {}",
        simulator.who(touch.who),
        simulator.deed(simulator.step_of(touch.step))
    );
    let (open, hint) = if touch.write {
        (
            "the writes there are complete",
            "signal when the stores are complete, and wait for that signal before the end",
        )
    } else {
        (
            "the reads there are complete",
            "signal when the reads are complete, and wait for that signal before the end",
        )
    };
    let message = format!("a launch ends on rank {rank} before {open}");
    Diagnostic::new(Rule::Reuse, None, message)
        .note(None, deed)
        .hint(hint)
}

/// An access with more, or less, before it than at the tile level.
pub(super) fn out_of_order(
    simulator: &Simulator<'_>,
    index: usize,
    came: u64,
    (least, most): (u64, u64),
) -> Diagnostic {
    let which = match came < least {
        true => "not everything that the schedule orders before it came before it",
        false => "something that the schedule orders after it came before it",
    };
    let should = match least == most {
        true => least.to_string(),
        false => format!("{least} to {most}"),
    };
    Diagnostic::new(Rule::Race, None, simulator.now(index))
        .note(None, which)
        .note(
            None,
            format!("conflicting accesses of {came} elements came before it in its launch, where {should} should"),
        )
        .hint("wait for everything that the schedule waits for, in this thread or in one that it waits for")
}

/// With `fence`, the wait is there and only a proxy fence lacks.
pub(super) fn before_its_wait(
    simulator: &Simulator<'_>,
    index: usize,
    cell: &str,
    fence: bool,
) -> Diagnostic {
    let (what, hint) = match fence {
        true => (
            format!("it comes after the wait for {cell}, but there is no proxy fence between them"),
            "`fence_async_global` after the wait on a counter, before TMA touches the data",
        ),
        false => (
            format!("the schedule waits for {cell} before this, in the same item"),
            "wait in the order of the statements, in this thread or in one that it waits for",
        ),
    };
    Diagnostic::new(Rule::Race, None, simulator.now(index))
        .note(None, what)
        .hint(hint)
}

pub(super) fn announced_early(simulator: &Simulator<'_>, index: usize, what: &str) -> Diagnostic {
    Diagnostic::new(Rule::Race, None, simulator.now(index))
        .note(
            None,
            format!("it does not come after {what}, which stands before the signal in its item"),
        )
        .hint("signal in the order of the statements: after everything before it is complete")
}
