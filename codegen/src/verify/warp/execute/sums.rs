//! Sums that CTAs which share the steps of a tile send each other.

use super::super::held::Content;
use super::super::machine::{Agent, Machine, Verdict};
use super::super::step::Area;
use super::super::story;

impl Machine<'_> {
    /// Asynchronous stores into a CTA of the cluster, which complete on its barrier.
    pub(in crate::verify::warp) fn send_sum(
        &mut self,
        index: usize,
        to: u32,
        area: Area,
        (barrier, part): (usize, u32),
    ) -> Verdict {
        let to = self.at_rank(index, to)?;
        let id = self.touch_shared(index, to, area, true, true)?;
        let sum = self.agents[index].product.clone();
        self.put(to, area, Content::Sum(sum, part));
        self.reaches(index, to, barrier);
        self.bytes(index, to, barrier, -i64::from(area.end - area.start))?;
        let at = &mut self.ctas[to].barriers[barrier];
        if at.hands_over {
            at.gathers.shared.both(id);
        }
        self.tells_past(index, to, barrier);
        self.complete(index, to, barrier)
    }

    /// What another CTA has of the product is added to a panel of it.
    pub(in crate::verify::warp) fn added_sum(
        &mut self,
        index: usize,
        area: Area,
        part: u32,
    ) -> Verdict {
        let Agent {
            cta, ref product, ..
        } = self.agents[index];
        let mut held = self.held(cta, area);
        match (held.next(), held.next()) {
            (Some(Content::Sum(sum, of)), None) if (sum.at, *of) == (product.at, part) => {
                let sum = sum.clone();
                drop(held);
                self.agents[index].product.add(&sum, part);
                Ok(())
            }
            (_, _) => Err(Box::new(story::wrong(
                self,
                index,
                "no sum of this panel of its tile lies there",
            ))),
        }
    }
}
