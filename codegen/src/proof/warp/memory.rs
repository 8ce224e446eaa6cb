//! Accesses of shared and global memory: each must come after all it conflicts with.

use super::case::common;
use super::seen::{Bits, By, Seen};
use super::simulator::{CALLER, Simulator, Touch, Verdict, Who};
use super::step::{Area, Box4};
use super::trace;
use crate::diag::Diagnostic;
use crate::program::{TensorId, Usage};
use crate::proof::tile::Accessor;
use crate::undo::{Fix, undone};
use crate::warp::View;

impl Simulator<'_> {
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
            let by = if proxy { &seen.proxy } else { &seen.plain };
            by.has(id) || write && seen.over.has(id)
        };
        let seen = &agent.knows.shared;
        let before = self.ctas[cta].shared.iter().find(|touch| {
            touch.whereabouts.overlaps(area) && (touch.write || write) && !ordered(seen, touch.id)
        });
        if let Some(before) = before.copied() {
            let fence = seen.plain.has(before.id);
            return Err(Box::new(trace::shared_race(self, before, index, fence)));
        }
        let id = self.next_id(index);
        let cta = &mut self.ctas[cta];
        // What this access comes after need not be looked at again, if every later one must come after this one.
        if write {
            cta.shared.retain(|touch| {
                touch.whereabouts.start < area.start || area.end < touch.whereabouts.end
            });
        }
        cta.shared.push(Touch {
            id,
            whereabouts: area,
            write,
            who,
            step,
        });
        Ok(id)
    }

    /// The accesses so far of a rank's part of a tensor.
    pub(super) fn touches(&self, tensor: usize, rank: u32) -> &[Touch<Box4>] {
        &self.global[tensor * self.case.world as usize + rank as usize]
    }

    fn touched(&mut self, touch: Touch<Box4>) {
        let (at, world) = (&touch.whereabouts, self.case.world as usize);
        self.global[at.tensor.index() * world + at.rank as usize].push(touch);
    }

    pub(super) fn touch_global(
        &mut self,
        index: usize,
        at: Box4,
        (write, by): (bool, By),
    ) -> Result<Option<u32>, Box<Diagnostic>> {
        if !self.watched[at.tensor.index()]
            || at.rows.0 >= at.rows.1
            || at.columns.0 >= at.columns.1
        {
            return Ok(None);
        }
        let agent = &self.agents[index];
        let seen = &agent.knows.global;
        let usage = self.case.pipeline.kernel.buffers[at.tensor.index()].usage;
        let scratch = usage.is_scratch();
        let (add, conflicts) = (self.adds((index, agent.at)), |touch: &&Touch<Box4>| {
            (touch.write || write) && touch.whereabouts.overlaps(&at)
        });
        let mut came_before = 0;
        for before in self
            .touches(at.tensor.index(), at.rank)
            .iter()
            .filter(conflicts)
        {
            // Adds commute, but for their roundings: one launch's come after the last one's, and no element has two.
            let in_any_order = !usage.is_added_to();
            if add && before.write && self.adds(before.step) && in_any_order {
                continue;
            }
            if !by.known(seen).has(before.id) {
                let fence = seen.plain.has(before.id).then_some(by);
                return Err(Box::new(trace::global_race(self, *before, index, fence)));
            }
            let same_launch = before.who.launch == agent.who.launch;
            if before.write
                && write
                && same_launch
                && !scratch
                && !(add && in_any_order)
                && before.who.rank == agent.who.rank
                && before.step != CALLER
            {
                return Err(Box::new(trace::twice(self, *before, index, &at)));
            }
            // No wait joins with signals of a later launch: what is ordered is of this launch, or an earlier one.
            if same_launch && before.step != CALLER {
                let other = &before.whereabouts;
                came_before += common(at.all, other.all) * common(at.columns, other.columns);
            }
        }
        self.as_the_tile_level(index, &at, write, came_before)?;
        if self.out_of_turn.is_none() {
            self.out_of_turn = self.before_its_waits(index, &at, (write, by));
        }
        let id = self.next_global();
        let (who, step) = (self.agents[index].who, (index, self.agents[index].at));
        self.touched(Touch {
            id,
            whereabouts: at,
            write,
            who,
            step,
        });
        Ok(Some(id))
    }

    /// An ordinary load or store. What its thread does later comes after it, but for TMA's accesses without a fence.
    pub(super) fn touch_ordinarily(&mut self, index: usize, at: Box4, write: bool) -> Verdict {
        if let Some(id) = self.touch_global(index, at, (write, By::Threads))? {
            self.agents[index].knows.global.plain.add(id);
        }
        Ok(())
    }

    /// Numbers of a scale are read, if others write them in a launch.
    pub(super) fn read_scales(&mut self, index: usize, shared: Option<Box4>) -> Verdict {
        match shared {
            Some(at) => self.touch_ordinarily(index, at, false),
            None => Ok(()),
        }
    }

    /// Checks that the tile level makes this access, and that what came before it in its launch is what the tile
    /// level puts there. All of it is ordered with the access, so its amount says whether something is missing, or on
    /// the wrong side.
    fn as_the_tile_level(&self, index: usize, at: &Box4, write: bool, came: u64) -> Verdict {
        let accessor = self.accessor(index, at, write);
        // Where nobody reads what is written, no order says that it is in the wrong place.
        let elsewhere = write && !self.case.accesses(&accessor, at);
        if elsewhere && !undone(Fix::WarpPlaces) {
            let what = match self.case.others_access(&accessor, at) {
                true => "another role or rank of the schedule writes there, not this one",
                false => "the schedule writes nothing there",
            };
            return Err(Box::new(trace::wrong(self, index, what)));
        }
        let (least, most) = self.case.before(&accessor, at);
        if (least..=most).contains(&came) || undone(Fix::WarpOrder) {
            return Ok(());
        }
        Err(Box::new(trace::out_of_order(
            self,
            index,
            came,
            (least, most),
        )))
    }

    fn accessor(&self, index: usize, at: &Box4, write: bool) -> Accessor {
        let agent = &self.agents[index];
        Accessor {
            rank: agent.who.rank,
            role: agent.steps[agent.at].role,
            write,
            tensor: at.tensor,
            home: at.rank,
            slot: self.case.slot(at),
        }
    }

    /// A wait that stands before an access in its item and that the access does not come after. Which signals the wait joins
    /// with may depend on arithmetic over ranks, and so on the world. That it stands before the access does not.
    fn before_its_waits(
        &self,
        index: usize,
        at: &Box4,
        (write, by): (bool, By),
    ) -> Option<Box<Diagnostic>> {
        // One rank is the kernel's own world, in which a sum over all others reads nothing behind its waits.
        if undone(Fix::WarpOrder) || self.case.world == 1 {
            return None;
        }
        let agent = &self.agents[index];
        let (rank, launch) = (agent.who.rank, agent.who.launch);
        let seen = &agent.knows.global;
        let accessor = self.accessor(index, at, write);
        let mut waits = self.case.waits(&accessor, at);
        waits.find_map(|wait| {
            let waited = |known: &Bits| self.has_waited(rank, launch, wait, |id| known.has(id));
            let there = waited(&seen.plain);
            (!there || !waited(by.known(seen))).then(|| {
                let cell = self.wait_name(wait);
                Box::new(trace::before_its_wait(self, index, &cell, there))
            })
        })
    }

    pub(super) fn next_global(&mut self) -> u32 {
        self.global_ids += 1;
        self.global_ids - 1
    }

    /// Before, between and after launches the caller fills and takes what it passes: all of this rank's tensors that
    /// others reach, or that it may find half written. Of what it does after a launch, `sees` then knows.
    ///
    /// # Errors
    /// Somebody's access that is not complete by then.
    pub(super) fn caller(&mut self, rank: u32, launch: u32, sees: &mut Seen) -> Verdict {
        let pipeline = self.case.pipeline;
        // Before the first launch, and after one, it is where that launch has it.
        let of = self.case.plan_of(launch.max(1));
        let geometry = self.case.geometry(of);
        let scales = pipeline.kernel.buffers.iter().zip(0..);
        let by_loads = |usage: Usage| usage.is_scale() && usage.blocks().is_none();
        let scales =
            scales.filter(|(buffer, _)| by_loads(buffer.usage) && buffer.usage.is_gathered());
        let mut filled: Vec<Box4> = scales
            .map(|(buffer, id)| {
                let rows = (0, geometry.size(buffer.rows));
                self.case.scales(of, (TensorId(id), rank), rows)
            })
            .collect();
        for map in &pipeline.maps {
            let buffer = &pipeline.kernel.buffers[map.tensor.index()];
            if buffer.is_scratch() || !self.watched[map.tensor.index()] {
                continue;
            }
            let shards = match map.view {
                View::SharedShards => self.case.world,
                // Nobody else can reach what is this rank's alone.
                View::Flat | View::Shards | View::ColumnShards => 0,
                View::SharedSlots => buffer.slots(self.case.world),
                View::SharedSlotShards | View::SharedShard | View::SharedRows => 1,
            };
            for shard in 0..shards {
                let plane = self.case.plane(of, map.tensor, (map.view, shard), rank);
                filled.push(self.case.located(Box4 {
                    plan: of,
                    tensor: map.tensor,
                    rank,
                    shard,
                    rows: (0, plane.rows),
                    columns: (0, plane.columns),
                    origin: (0, 0),
                    spills: None,
                    view: map.view,
                    lines: (0, 0),
                    all: (0, 0),
                }));
            }
        }
        for whereabouts in filled {
            let write = !undone(Fix::WarpOrder);
            let tensor = whereabouts.tensor.index();
            let open = self.touches(tensor, rank).iter().find(|touch| {
                write && touch.whereabouts.overlaps(&whereabouts) && !sees.plain.has(touch.id)
            });
            if let Some(open) = open {
                return Err(Box::new(trace::unfinished(self, open, rank)));
            }
            let id = self.next_global();
            sees.both(id);
            self.touched(Touch {
                id,
                whereabouts,
                write,
                who: Who {
                    rank,
                    launch,
                    block: 0,
                    warp: 0,
                },
                step: CALLER,
            });
        }
        Ok(())
    }
}
