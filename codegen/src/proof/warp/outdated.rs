//! A run in which orders are not looked at, but rows are: what each step takes is of its own launch, or of an earlier one.
//!
//! It is for tests that switch [`Fix::WarpOrder`] off: they need a run that goes wrong, whatever the verifier says of it.

use super::Refused;
use super::case::Case;
use super::execute::Did;
use super::launches;
use super::programs::Programs;
use super::simulator::{Simulator, Verdict};
use super::step::{Box4, Kind};
use super::trace;
use crate::diag::{Diagnostic, Diagnostics};
use crate::undo::{Fix, undoing};
use crate::warp::Pipeline;

/// The first rows that a step takes of another rank before that rank's caller has filled them for the launch: those of the
/// launch before. Each rank goes as far as it can before the ones after it do anything.
///
/// # Errors
/// No case to run, or a run that does not come to its end.
pub(crate) fn outdated(pipeline: &Pipeline) -> Result<Option<String>, Refused> {
    let case = Case::new(pipeline, launches::launches(pipeline)?);
    let wrong = |found: Box<_>| Refused::Wrong(Diagnostics::from(*found));
    let programs = Programs::new(&case).map_err(wrong)?;
    undoing(Fix::WarpOrder, || {
        let mut simulator = Simulator::new(&case, &programs);
        let mut found = None;
        simulator.begin().map_err(wrong)?;
        simulator.watched_ahead(&mut found).map_err(wrong)?;
        Ok(found)
    })
}

impl Simulator<'_> {
    fn watched_ahead(&mut self, found: &mut Option<String>) -> Verdict {
        while !self.done() && found.is_none() {
            let mut moved = false;
            for rank in 0..self.case.world {
                for agent in 0..self.agents.len() {
                    if self.agents[agent].who.rank == rank {
                        moved |= self.watched(agent, found)?;
                    }
                }
                moved |= self.next_launches()?;
                if moved {
                    break;
                }
            }
            if !moved {
                return Err(Box::new(trace::stuck(self)));
            }
        }
        Ok(())
    }

    /// Runs an agent until it waits, and looks at what it takes.
    fn watched(
        &mut self,
        index: usize,
        found: &mut Option<String>,
    ) -> Result<bool, Box<Diagnostic>> {
        let start = self.agents[index].at;
        while let Some(step) = self.agents[index].steps.get(self.agents[index].at) {
            let from = if let Kind::Load { from, .. }
            | Kind::HostCopy { from, .. }
            | Kind::CopyScales { from, .. } = &step.kind
            {
                Some(from)
            } else {
                None
            };
            let taken = from.and_then(|from| self.is_outdated(index, from));
            match self.step(index, true)? {
                Did::Step => {
                    if found.is_none() {
                        *found = taken;
                    }
                }
                Did::Blocked | Did::BlockedOnCounter => break,
            }
        }
        Ok(self.agents[index].at > start)
    }

    fn is_outdated(&self, index: usize, from: &Box4) -> Option<String> {
        let who = self.agents[index].who;
        let buffer = &self.case.pipeline.kernel.buffers[from.tensor.index()];
        let behind = self.launch[from.rank as usize] < who.launch;
        let early = who.rank != from.rank && !buffer.is_scratch() && behind;
        early.then(|| {
            let (who, rank) = (self.who(who), from.rank);
            format!(
                "{who} takes rows of {} on rank {rank}, which has not begun that launch",
                buffer.name
            )
        })
    }
}
