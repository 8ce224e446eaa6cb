//! Chooses the next step: legal but unusual orders, each reproduced by its seed.

use super::emulator::{Emulator, Turn};
use super::policy::{Numbers, Policy};

/// Chooses steps by a policy.
pub(super) struct Scheduler {
    policy: Policy,
    numbers: Numbers,
    last: Turn,
    /// Reused at every choice.
    preferred: Vec<Turn>,
}

impl Scheduler {
    pub fn new(policy: Policy, seed: u64) -> Scheduler {
        Scheduler {
            policy,
            numbers: Numbers::new(seed),
            last: Turn::MAX,
            preferred: Vec::new(),
        }
    }

    /// One of those that are ready. `None` if none is.
    pub fn choose(&mut self, emulator: &Emulator<'_>) -> Option<Turn> {
        let ready = &emulator.ready;
        let turn = match self.policy {
            Policy::Random => self.any(ready)?,
            Policy::StarveRank(rank) => {
                self.prefer(ready, |turn| emulator.rank_of(turn) != rank as usize)?
            }
            Policy::StarveRole(role) => {
                self.prefer(ready, |turn| emulator.role_of(turn) != Some(role as usize))?
            }
            Policy::RunAhead(rank) => {
                self.prefer(ready, |turn| emulator.rank_of(turn) == rank as usize)?
            }
            Policy::Lifo => *ready.last()?,
            Policy::RoundRobin => {
                let after = ready
                    .iter()
                    .filter(|turn| self.last == Turn::MAX || **turn > self.last);
                *after.min().or_else(|| ready.iter().min())?
            }
        };
        self.last = turn;
        Some(turn)
    }

    fn any(&mut self, from: &[Turn]) -> Option<Turn> {
        if from.is_empty() {
            return None;
        }
        let at = self.numbers.below(from.len() as u64);
        from.get(usize::try_from(at).unwrap_or(0)).copied()
    }

    fn prefer(&mut self, ready: &[Turn], wanted: impl Fn(Turn) -> bool) -> Option<Turn> {
        let mut preferred = std::mem::take(&mut self.preferred);
        preferred.clear();
        preferred.extend(ready.iter().copied().filter(|turn| wanted(*turn)));
        let turn = if preferred.is_empty() {
            self.any(ready)
        } else {
            self.any(&preferred)
        };
        self.preferred = preferred;
        turn
    }
}
