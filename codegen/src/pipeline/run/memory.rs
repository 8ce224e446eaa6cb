//! Accesses of shared and global memory: each must come after all it conflicts with.

use super::case::WORLD;
use super::execute::{Machine, Touch, Who};
use super::seen::Seen;
use super::step::{Area, Box4};
use super::story;
use crate::diag::Diagnostic;
use crate::pipeline::View;
use crate::program::TensorKind;

impl Machine<'_> {
    pub(super) fn touch_shared(
        &mut self,
        index: usize,
        cta: usize,
        area: Area,
        write: bool,
        proxy: bool,
    ) -> Result<u32, Box<Diagnostic>> {
        let agent = &self.agents[index];
        let (step, who) = ((index, agent.at), agent.who);
        let ordered = |seen: &Seen, id: u32| {
            if proxy {
                seen.proxy.has(id)
            } else {
                seen.plain.has(id)
            }
        };
        let seen = &agent.knows.shared;
        let before = self.ctas[cta].shared.iter().find(|touch| {
            touch.whereabouts.overlaps(area) && (touch.write || write) && !ordered(seen, touch.id)
        });
        if let Some(before) = before.copied() {
            let fence = seen.plain.has(before.id);
            return Err(Box::new(story::shared_race(self, before, index, fence)));
        }
        let id = self.next_id(index);
        let cta = &mut self.ctas[cta];
        // What this access comes after need not be looked at again, if every later one must come after this one.
        cta.shared.retain(|touch| {
            !(write && area.start <= touch.whereabouts.start && touch.whereabouts.end <= area.end)
        });
        cta.shared.push(Touch {
            id,
            whereabouts: area,
            write,
            who,
            step,
        });
        Ok(id)
    }

    pub(super) fn touch_global(
        &mut self,
        index: usize,
        at: Box4,
        write: bool,
    ) -> Result<Option<u32>, Box<Diagnostic>> {
        if !self.written[at.tensor.index()]
            || at.rows.0 >= at.rows.1
            || at.columns.0 >= at.columns.1
        {
            return Ok(None);
        }
        let agent = &self.agents[index];
        let seen = &agent.knows.global;
        let kind = self.case.pipeline.kernel.buffers[at.tensor.index()].kind;
        let scratch = matches!(kind, TensorKind::Scratch { .. });
        let (add, conflicts) = (self.adds((index, agent.at)), |touch: &&Touch<Box4>| {
            (touch.write || write) && touch.whereabouts.overlaps(&at)
        });
        for before in self.global.iter().filter(conflicts) {
            // Adds commute, but for their roundings: one launch's come after the last one's, and no element has two.
            let in_any_order = kind != TensorKind::Accumulated;
            if add && before.write && self.adds(before.step) && in_any_order {
                continue;
            }
            if !seen.proxy.has(before.id) {
                let fence = seen.plain.has(before.id);
                return Err(Box::new(story::global_race(
                    self, *before, index, &at, fence,
                )));
            }
            let same_launch = before.who.launch == agent.who.launch;
            if before.write
                && write
                && same_launch
                && !scratch
                && !(add && in_any_order)
                && before.who.rank == agent.who.rank
            {
                return Err(Box::new(story::twice(self, *before, index, &at)));
            }
        }
        let there = |touch: &Touch<Box4>| {
            let w = &touch.whereabouts;
            touch.write
                && touch.who.launch == agent.who.launch
                && w.overlaps(&at)
                && w.rows.0 <= at.rows.0
                && w.columns.0 <= at.columns.0
        };
        if scratch && !write && !self.global.iter().any(there) {
            return Err(Box::new(story::wrong(
                self,
                index,
                "nothing was written there in this launch",
            )));
        }
        let id = self.global_ids;
        self.global_ids += 1;
        let (who, step) = (agent.who, (index, agent.at));
        self.global.push(Touch {
            id,
            whereabouts: at,
            write,
            who,
            step,
        });
        Ok(Some(id))
    }

    /// Between two launches the caller may read (and fill) every tensor it passes.
    pub(super) fn caller_reads(&mut self, rank: u32, launch: u32, sees: &mut Seen) {
        let pipeline = self.case.pipeline;
        for map in &pipeline.maps {
            let buffer = &pipeline.kernel.buffers[map.tensor.index()];
            if buffer.is_scratch() || !self.written[map.tensor.index()] {
                continue;
            }
            let chunks = match map.view {
                View::SharedChunks => WORLD,
                // Nobody else can write what is this rank's alone.
                View::Flat | View::Chunks => 0,
                View::SharedSlots | View::SharedChunk => 1,
            };
            for chunk in 0..chunks {
                let (rows, allowed) = self.case.rows(map.tensor, map.view, chunk, rank);
                let whereabouts = Box4 {
                    tensor: map.tensor,
                    rank,
                    chunk,
                    rows: (0, rows),
                    columns: (0, self.case.plan.geometry.size(buffer.columns)),
                    origin: (0, 0),
                    allowed,
                    view: map.view,
                };
                let id = self.global_ids;
                self.global_ids += 1;
                sees.both(id);
                self.global.push(Touch {
                    id,
                    whereabouts,
                    write: false,
                    who: Who {
                        rank,
                        launch,
                        block: 0,
                        warp: 0,
                    },
                    step: CALLER,
                });
            }
        }
    }
}

/// The step of an access by the caller.
pub(super) const CALLER: (usize, usize) = (0, usize::MAX);
