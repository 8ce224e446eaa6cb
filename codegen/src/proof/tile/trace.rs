//! The words of a trace: which role of which rank did what, and where.

use super::facts::{At, Facts};
use crate::program::{CounterId, Loc};
use crate::region::{Owner, Rectangle};
use crate::shape::Extent;
use crate::unroll::StepKind;

impl Facts<'_> {
    /// `comm of rank 2`.
    pub fn who(&self, agent: u32) -> String {
        format!(
            "{} of rank {}",
            self.kernel.roles[self.role(agent)].name,
            self.rank(agent)
        )
    }

    /// Place of a step's statement.
    pub fn loc(&self, at: At) -> Loc {
        self.kernel
            .loc(self.plan.agents[at.agent as usize].steps[at.step as usize].op)
    }

    /// `arrived[3]`, with the index along every axis.
    pub fn cell_name(&self, counter: CounterId, cell: u32) -> String {
        self.plan.geometry.cell_name(self.kernel, counter, cell)
    }

    /// `rows 0..128 of x`, with columns unless they are all.
    pub fn rectangle_name(&self, buffer: u16, slot: u16, rows: Extent, columns: Extent) -> String {
        let tensor = &self.kernel.buffers[usize::from(buffer)];
        let slots = tensor.slots(self.plan.geometry.world);
        let slot = if slots > 1 {
            format!("[{slot}]")
        } else {
            String::new()
        };
        let all = self.plan.geometry.size(tensor.columns);
        let columns = if columns.len() == all {
            String::new()
        } else {
            format!(", columns {}..{}", columns.start, columns.end)
        };
        format!(
            "rows {}..{}{columns} of {}{slot}",
            rows.start, rows.end, tensor.name
        )
    }

    fn place_name(&self, of: &Rectangle, me: u32) -> String {
        let name = self.rectangle_name(of.tensor.0, of.slot, of.rows, of.columns);
        match of.owner {
            Owner::Everywhere => format!("{name} everywhere"),
            Owner::Rank(home) if u32::from(home) == me => name,
            Owner::Rank(home) => format!("{name} on rank {home}"),
        }
    }

    /// `comm of rank 2 writes rows 0..128 of x on rank 1`.
    pub fn deed(&self, at: At) -> String {
        let me = self.rank(at.agent);
        let what = match self.step(at) {
            StepKind::Wait { counter, cell, .. } => {
                format!("waits for {}", self.cell_name(counter, cell))
            }
            StepKind::Signal {
                counter,
                home,
                cell,
                amount,
            } => {
                format!(
                    "adds {amount} to {} on rank {home}",
                    self.cell_name(counter, cell)
                )
            }
            StepKind::Copy { dst, src } => {
                format!(
                    "copies {} to {}",
                    self.place_name(&src, me),
                    self.place_name(&dst, me)
                )
            }
            StepKind::Dot { a, b, .. } => {
                format!(
                    "multiplies {} by {}",
                    self.place_name(&a, me),
                    self.place_name(&b, me)
                )
            }
            StepKind::Reduce { from, .. } => format!("sums {}", self.place_name(&from, me)),
            StepKind::OwnTerm { of, .. } => {
                format!("adds its own term to those of {}", self.place_name(&of, me))
            }
            StepKind::Load { from, .. } => format!("reads {}", self.place_name(&from, me)),
            StepKind::Store {
                dst,
                mode: crate::program::StoreMode::Write,
                ..
            } => {
                format!("writes {}", self.place_name(&dst, me))
            }
            StepKind::Store {
                dst,
                mode: crate::program::StoreMode::Add,
                ..
            } => {
                format!("adds to {}", self.place_name(&dst, me))
            }
        };
        format!("{} {what}", self.who(at.agent))
    }
}
