//! An agent's actions in words, with the statements of the schedule that ask for them.

use super::simulator::{Simulator, Who};
use super::step::{Area, Box4, Kind, Step};
use crate::program::Loc;
use crate::warp::{Node, Side};

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

    /// Place at which the schedule asks for a step: its statement, or its role.
    pub(super) fn place(&self, step: &Step<'_>) -> Loc {
        let role = &self.case.pipeline.kernel.roles[step.role];
        step.at.unwrap_or(role.at)
    }

    /// Place at which the schedule asks for what an agent does now.
    pub(super) fn here(&self, agent: usize) -> Loc {
        let agent = &self.agents[agent];
        self.place(&agent.steps[agent.at.min(agent.steps.len() - 1)])
    }

    /// Place at which the schedule first writes a tensor.
    pub(super) fn writes(&self, tensor: usize) -> Loc {
        let steps = self.agents.iter().flat_map(|agent| agent.steps);
        let mut writes = steps.filter(|step| {
            matches!(&step.kind, Kind::Store { to, .. } | Kind::StorePart { to, .. } | Kind::HostCopy { to, .. } if to.tensor.index() == tensor)
        });
        let role = &self.case.pipeline.kernel.roles[self.case.roles.gemm];
        writes.next().map_or(role.at, |step| self.place(step))
    }

    pub(super) fn step_of(&self, (agent, step): (usize, usize)) -> &Step<'_> {
        &self.agents[agent].steps[step]
    }

    pub(super) fn cell_name(&self, cell: u32) -> String {
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
                        return if part.name == ring.of.name() {
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

    pub(super) fn box_name(&self, at: &Box4) -> String {
        let name = &self.case.pipeline.kernel.buffers[at.tensor.index()].name;
        format!(
            "rows {}..{}, columns {}..{} of {name} (shard or slot {}) on rank {}",
            at.rows.0, at.rows.1, at.columns.0, at.columns.1, at.shard, at.rank
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

    pub(super) fn deed(&self, step: &Step<'_>) -> String {
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
            Kind::Store { area, to } | Kind::StorePart { area, to } => {
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

    pub(super) fn now(&self, agent: usize) -> String {
        let agent = &self.agents[agent];
        let step = &agent.steps[agent.at.min(agent.steps.len() - 1)];
        format!("{} {}", self.who(agent.who), self.deed(step))
    }
}
