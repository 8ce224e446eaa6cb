//! Amaxes: that each is made of what the schedule measures, of every element once.

use super::simulator::{Simulator, Verdict};
use super::step::Box4;
use super::trace;
use crate::diag::{Diagnostic, Rule};
use crate::program::{TensorId, TensorKind};
use crate::sm90::cta::Mode;
use crate::warp::{CONSUMERS, Elements, View};

impl Simulator<'_> {
    /// An amax becomes as large as the elements of a subtile in those rows and columns.
    pub(super) fn measured(
        &mut self,
        index: usize,
        tensor: TensorId,
        (part, elements): (u32, Elements),
        (rows, columns): ((u32, u32), (u32, u32)),
    ) -> Verdict {
        self.is_there(index, elements, part)?;
        let (who, fragment) = (self.agents[index].who, &self.agents[index].fragment);
        let wrong = |what: &str| Err(Box::new(trace::wrong(self, index, what)));
        if !self.is_what_is_measured(tensor, fragment, elements) {
            return wrong("the schedule measures another value");
        }
        let kind = self.case.pipeline.kernel.buffers[tensor.index()].kind;
        let TensorKind::Amax { of } = kind else {
            return wrong("it is no amax");
        };
        if rows.0 >= rows.1 || columns.0 >= columns.1 {
            return Ok(());
        }
        let there = Box4 {
            plan: self.case.plan_of(who.launch),
            tensor: of,
            rank: who.rank,
            chunk: 0,
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
        let elements = u64::from(rows.1 - rows.0) * u64::from(columns.1 - columns.0);
        let measured = self.measured.entry((tensor, who.rank, who.launch));
        *measured.or_default() += elements;
        Ok(())
    }

    /// A rank's amax was made of all of its output. Groups that share a tile each measure their part of each subtile.
    pub(super) fn measured_all(
        &self,
        (tensor, of): (TensorId, TensorId),
        (rank, launch): (u32, u32),
    ) -> Verdict {
        let buffers = &self.case.pipeline.kernel.buffers;
        let geometry = self.case.geometry(self.case.plan_of(launch));
        let rows = u64::from(geometry.held(&buffers[of.index()], rank).len());
        let all = rows * u64::from(geometry.size(buffers[of.index()].columns));
        let cta = &self.case.pipeline.cta;
        let groups = match cta.mode() {
            Mode::Cooperative if !cta.staggered() => u64::from(CONSUMERS),
            Mode::Cooperative | Mode::PingPong => 1,
        };
        let measured = self.measured.get(&(tensor, rank, launch)).copied();
        let measured = measured.unwrap_or_default();
        if measured == all * groups {
            return Ok(());
        }
        let [amax, of] = [tensor, of].map(|tensor| &buffers[tensor.index()].name);
        let message = format!(
            "{amax} on rank {rank} is of {} of {all} elements of {of}",
            measured / groups
        );
        Err(Box::new(Diagnostic::new(Rule::Coverage, None, message)))
    }
}
