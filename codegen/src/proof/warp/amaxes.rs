//! Amaxes and computed scales of an output: each is taken of the elements that the schedule says, and of every element once.

use super::simulator::{Simulator, Verdict};
use super::step::Box4;
use super::trace;
use crate::diag::{Diagnostic, Rule};
use crate::program::TensorId;
use crate::sm90::cta::Mode;
use crate::warp::{CONSUMERS, Elements, View};

impl Simulator<'_> {
    /// An amax becomes as large as the elements of a subtile in those rows and columns.
    pub(super) fn amax(
        &mut self,
        index: usize,
        tensor: TensorId,
        (part, elements): (u32, Elements),
        (rows, columns): ((u32, u32), (u32, u32)),
    ) -> Verdict {
        self.is_there(index, elements, part)?;
        let fragment = &self.agents[index].fragment;
        let wrong = |what: &str| Err(Box::new(trace::wrong(self, index, what)));
        if !self.is_what_the_amax_is_of(tensor, fragment, elements) {
            return wrong("the schedule measures another value");
        }
        let buffer = &self.case.pipeline.kernel.buffers[tensor.index()];
        let Some(of) = buffer.usage.amax_of() else {
            return wrong("it is no amax");
        };
        self.taken(index, (tensor, of), (part, elements), (rows, columns))
    }

    /// An amax, or scales, are of those elements of an output.
    pub(super) fn taken(
        &mut self,
        index: usize,
        (tensor, of): (TensorId, TensorId),
        (part, elements): (u32, Elements),
        (rows, columns): ((u32, u32), (u32, u32)),
    ) -> Verdict {
        let (who, fragment) = (self.agents[index].who, &self.agents[index].fragment);
        let wrong = |what: &str| Err(Box::new(trace::wrong(self, index, what)));
        if rows.0 >= rows.1 || columns.0 >= columns.1 {
            return Ok(());
        }
        let there = Box4 {
            plan: self.case.plan_of(who.launch),
            tensor: of,
            rank: who.rank,
            shard: 0,
            rows,
            columns,
            origin: (rows.0, columns.0),
            spills: None,
            view: View::Flat,
            lines: rows,
            all: rows,
        };
        let of = (fragment, elements);
        if let Some(what) = self.elsewhere(index, of, (part, 0), (rows.0, &there)) {
            return wrong(what);
        }
        let share = match self.sharing() {
            1 => 0,
            _ => self.agents[index].runner,
        };
        let key = (tensor, who.rank, who.launch, share);
        let mut known = self.amaxes.get(&key).into_iter().flatten();
        if known.any(|known| known.overlaps(&there)) {
            return wrong("some of its elements have been measured");
        }
        self.amaxes.entry(key).or_default().push(there);
        Ok(())
    }

    /// Number of warpgroups that share each subtile: each measures its part of it.
    pub(super) fn sharing(&self) -> u32 {
        let cta = &self.case.pipeline.cta;
        match cta.mode() {
            Mode::Cooperative if !cta.staggered() => CONSUMERS,
            Mode::Cooperative | Mode::PingPong => 1,
        }
    }

    /// A rank's amax, or its scales, were made of all of its output: by all groups that share subtiles.
    pub(super) fn amax_of_all(
        &self,
        (tensor, of): (TensorId, TensorId),
        (rank, launch): (u32, u32),
    ) -> Verdict {
        let buffers = &self.case.pipeline.kernel.buffers;
        let geometry = self.case.geometry(self.case.plan_of(launch));
        let rows = u64::from(geometry.held(&buffers[of.index()], rank).len());
        let all = rows * u64::from(geometry.size(buffers[of.index()].columns));
        let length = |side: (u32, u32)| u64::from(side.1 - side.0);
        for share in 0..self.sharing() {
            let boxes = self.amaxes.get(&(tensor, rank, launch, share));
            let boxes = boxes.into_iter().flatten();
            let areas = boxes.map(|at| length(at.rows) * length(at.columns));
            let measured: u64 = areas.sum();
            if measured != all {
                let at = self.writes(of.index());
                let [amax, of] = [tensor, of].map(|tensor| &buffers[tensor.index()].name);
                let message =
                    format!("{amax} on rank {rank} is of {measured} of {all} elements of {of}");
                return Err(Box::new(Diagnostic::new(Rule::Coverage, at, message)));
            }
        }
        Ok(())
    }
}
