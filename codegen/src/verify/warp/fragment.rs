//! What a thread does with its fragment of a tile: its numbers worked out, what it means, and how it is told.

use super::flatten::Flattener;
use super::machine::{Machine, Verdict};
use super::step::{FragmentStep, Kind, Step};
use crate::warp::{FragmentOp, Node, Slot};

impl<'a> Flattener<'a> {
    /// An operation with its numbers.
    pub(super) fn fragment(&mut self, node: &'a Node, op: &FragmentOp) {
        let step = match op {
            FragmentOp::ReadPanel {
                ring,
                acc,
                slot_part,
                index,
                dtype,
                ..
            } => {
                let (area, panel) = self.panel(*ring, *slot_part, index, *dtype);
                let acc = *acc;
                FragmentStep::ReadPanel { area, panel, acc }
            }
            FragmentOp::ReadVector {
                acc,
                tensor,
                column,
                ..
            } => {
                let (acc, tensor, column) = (*acc, *tensor, self.value(column));
                FragmentStep::ReadVector {
                    acc,
                    tensor,
                    column,
                }
            }
            FragmentOp::Apply { epilogue, part } => {
                let (epilogue, part) = (*epilogue, self.value(part));
                FragmentStep::Apply { epilogue, part }
            }
            FragmentOp::WritePanel {
                ring,
                part,
                epilogue,
                dtype,
            } => {
                let (area, _) = self.panel(*ring, 0, &0.into(), *dtype);
                FragmentStep::WritePanel {
                    area,
                    part: self.panel_number(part),
                    epilogue: *epilogue,
                }
            }
            FragmentOp::AddPanel {
                ring,
                slot_part,
                index,
                part,
                dtype,
            } => {
                let (area, panel) = self.panel(*ring, *slot_part, index, *dtype);
                let part = self.value(part);
                FragmentStep::AddPanel { area, panel, part }
            }
            FragmentOp::SendSum {
                ring,
                to,
                index,
                part,
            } => {
                let slot = self.slot(*ring, Slot::Current);
                FragmentStep::SendSum {
                    cta: self.value(to),
                    area: self.sum(*ring, slot, index),
                    barrier: self.barrier(ring.full(), slot),
                    part: self.value(part),
                }
            }
            FragmentOp::AddSum { ring, index, part } => {
                let slot = self.slot(*ring, Slot::Current);
                let (area, part) = (self.sum(*ring, slot, index), self.value(part));
                FragmentStep::AddSum { area, part }
            }
        };
        self.push(node, Kind::Fragment(step));
    }
}

impl Machine<'_> {
    /// Does it.
    pub(super) fn fragment(&mut self, index: usize, step: FragmentStep) -> Verdict {
        let cta = self.agents[index].cta;
        match step {
            FragmentStep::WritePanel {
                area,
                part,
                epilogue,
            } => {
                let id = self.touch_shared(index, cta, area, true, false)?;
                self.agents[index].knows.shared.plain.add(id);
                self.written_panel(index, area, part, epilogue)?;
            }
            FragmentStep::AddPanel { area, panel, part } => {
                let id = self.touch_shared(index, cta, area, false, false)?;
                self.agents[index].knows.shared.plain.add(id);
                self.added(index, panel, part)?;
            }
            FragmentStep::ReadPanel { area, panel, acc } => {
                let id = self.touch_shared(index, cta, area, false, false)?;
                self.agents[index].knows.shared.plain.add(id);
                self.read_panel(index, panel, acc)?;
            }
            FragmentStep::ReadVector {
                acc,
                tensor,
                column,
            } => self.read_vector(index, acc, tensor, column)?,
            FragmentStep::Apply { epilogue, part } => self.applied(index, epilogue, part)?,
            FragmentStep::SendSum {
                cta: to,
                area,
                barrier,
                part,
            } => self.send_sum(index, to, area, (barrier, part))?,
            FragmentStep::AddSum { area, part } => {
                let id = self.touch_shared(index, cta, area, false, false)?;
                self.agents[index].knows.shared.plain.add(id);
                self.added_sum(index, area, part)?;
            }
        }
        Ok(())
    }

    /// Tells it.
    pub(super) fn fragment_deed(&self, step: &Step<'_>, fragment: &FragmentStep) -> String {
        match fragment {
            FragmentStep::WritePanel { area, .. } => {
                format!("writes {}", self.area_name(step, area))
            }
            FragmentStep::AddPanel { area, .. } => format!("reads {}", self.area_name(step, area)),
            FragmentStep::SendSum {
                cta, area, part, ..
            } => format!(
                "sends panel {part} of its part to {} of CTA {cta} of its cluster",
                self.area_name(step, area)
            ),
            FragmentStep::AddSum { area, part } => {
                format!("adds {} to panel {part}", self.area_name(step, area))
            }
            FragmentStep::ReadPanel { area, .. } => format!("reads {}", self.area_name(step, area)),
            FragmentStep::ReadVector { tensor, column, .. } => format!(
                "reads {} from column {column} on",
                self.case.pipeline.kernel.buffers[tensor.index()].name
            ),
            FragmentStep::Apply { epilogue, part } => format!(
                "applies {} to panel {part}",
                self.case.pipeline.epilogues[*epilogue].name
            ),
        }
    }
}
