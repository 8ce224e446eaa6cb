//! Partials that CTAs which split the K of a tile send each other.

use super::super::held::Content;
use super::super::simulator::{Agent, Simulator, Verdict};
use super::super::step::Area;
use super::super::trace;
use crate::warp::Scope;

impl Simulator<'_> {
    /// Asynchronous stores into a CTA of the cluster, which complete on its barrier.
    pub(in crate::proof::warp) fn send_partial(
        &mut self,
        index: usize,
        to: u32,
        area: Area,
        (barrier, part): (usize, u32),
    ) -> Verdict {
        let to = self.at_rank(index, to)?;
        let id = self.touch_shared(index, to, area, true, true)?;
        let sum = self.agents[index].fragment.products[0].clone();
        self.put(to, area, Content::Partial(sum, part));
        self.reaches(index, to, barrier);
        self.bytes(index, to, barrier, -i64::from(area.end - area.start))?;
        let at = &mut self.ctas[to].barriers[barrier];
        match at.scope {
            Scope::Cta => {}
            Scope::Cluster => at.gathers.shared.both(id),
            Scope::Own | Scope::Relaxed => at.gathers.shared.over.add(id),
        }
        self.tells_past(index, to, barrier);
        self.complete(index, to, barrier)
    }

    /// Adds another CTA's part of the product to a subtile.
    pub(in crate::proof::warp) fn added_partial(
        &mut self,
        index: usize,
        area: Area,
        part: u32,
    ) -> Verdict {
        let Agent {
            cta, ref fragment, ..
        } = self.agents[index];
        let product = &fragment.products[0];
        let mut held = self.held(cta, area);
        match (held.next(), held.next()) {
            (Some(Content::Partial(sum, of)), None) if (sum.at, *of) == (product.at, part) => {
                let sum = sum.clone();
                drop(held);
                self.agents[index].fragment.products[0].add(&sum, part);
                Ok(())
            }
            (_, _) => Err(Box::new(trace::wrong(
                self,
                index,
                "no partial of this subtile of its tile lies there",
            ))),
        }
    }
}
