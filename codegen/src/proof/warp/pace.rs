//! In which order agents take their steps.
//!
//! What is seen of a missing order does not depend on it, but for two things: what must not be held back while a rank waits
//! for another one, and signals of a launch that come before those of the one before.

use super::case::Case;
use super::execute::Did;
use super::programs::Programs;
use super::simulator::{Agent, Simulator, Verdict};
use super::trace;
use crate::diag::Diagnostic;

/// Steps that are taken first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pace {
    /// Waits on counters as late as possible: only when no agent can do anything else, and one at a time. So whatever must
    /// not be held back while a rank waits for another one, is seen to be held back.
    Late,
    /// Each rank before those after it: the first as far ahead as it can, launches included, and the last far behind.
    Ahead,
}

/// Runs all agents of the case.
///
/// # Errors
/// The first thing that goes wrong.
pub(super) fn run(case: &Case<'_>, programs: &Programs<'_>, pace: Pace) -> Verdict {
    let mut simulator = Simulator::new(case, programs);
    simulator.begin()?;
    match pace {
        Pace::Late => simulator.late()?,
        Pace::Ahead => simulator.ahead()?,
    }
    simulator.covered()?;
    simulator.out_of_turn.map_or(Ok(()), Err)
}

impl Simulator<'_> {
    /// Runs an agent until it waits.
    fn advance(&mut self, agent: usize, counters: bool) -> Result<(bool, Did), Box<Diagnostic>> {
        let mut moved = false;
        while self.agents[agent].at < self.agents[agent].steps.len() {
            match self.step(agent, counters)? {
                Did::Step => moved = true,
                did @ (Did::Blocked | Did::BlockedOnCounter) => return Ok((moved, did)),
            }
        }
        Ok((moved, Did::Step))
    }

    /// To the end, each rank as far as it can before the ones after it do anything.
    pub(super) fn ahead(&mut self) -> Verdict {
        'again: loop {
            for rank in 0..self.case.world {
                let mut moved = false;
                for agent in 0..self.agents.len() {
                    if self.agents[agent].who.rank == rank {
                        moved |= self.advance(agent, true)?.0;
                    }
                }
                if self.next_launches()? || moved {
                    continue 'again;
                }
            }
            return match self.done() {
                true => Ok(()),
                false => Err(Box::new(trace::stuck(self))),
            };
        }
    }

    /// To the end, waiting on counters as late as possible.
    pub(super) fn late(&mut self) -> Verdict {
        let mut queue: Vec<usize> = Vec::new();
        loop {
            let mut moved = false;
            let mut waiting = Vec::new();
            for agent in 0..self.agents.len() {
                let (stepped, did) = self.advance(agent, false)?;
                moved |= stepped;
                if matches!(did, Did::BlockedOnCounter) {
                    waiting.push(agent);
                }
            }
            if self.next_launches()? || moved {
                continue;
            }
            if self.done() {
                return Ok(());
            }
            let pending = |agent: &Agent<'_>| agent.pending.is_some();
            if let Some(held) = self.agents.iter().position(pending) {
                return Err(Box::new(trace::held_back(self, held, &waiting)));
            }
            queue.retain(|agent| waiting.contains(agent));
            for agent in waiting {
                if !queue.contains(&agent) {
                    queue.push(agent);
                }
            }
            let mut passed = None;
            for (place, agent) in queue.iter().enumerate() {
                if matches!(self.step(*agent, true)?, Did::Step) {
                    passed = Some(place);
                    break;
                }
            }
            match passed {
                Some(place) => queue.remove(place),
                None => return Err(Box::new(trace::stuck(self))),
            };
        }
    }
}
