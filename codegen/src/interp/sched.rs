//! Who goes next: legal but weird orders, each reproduced by its seed.

use super::machine::{Machine, Turn};

/// How the next step is chosen among those that can be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Any.
    Random,
    /// This rank only when nobody else can go on.
    StarveRank(u32),
    /// This role (by its index in the kernel) only when no other can go on.
    StarveRole(u32),
    /// This rank as far as it can go, launch after launch.
    RunAhead(u32),
    /// Whoever became able to go on last.
    Lifo,
    /// Each in turn.
    RoundRobin,
}

impl Policy {
    /// The policy that a seed stands for.
    pub fn of_seed(seed: u64, world: u32, roles: u32) -> Policy {
        let mut numbers = Numbers::new(seed ^ 0x5eed);
        let which = u32::try_from(numbers.below(u64::from(world.max(1)))).unwrap_or(0);
        let role = u32::try_from(numbers.below(u64::from(roles.max(1)))).unwrap_or(0);
        match seed % 6 {
            0 => Policy::Random,
            1 => Policy::StarveRank(which),
            2 => Policy::RunAhead(which),
            3 => Policy::StarveRole(role),
            4 => Policy::Lifo,
            _ => Policy::RoundRobin,
        }
    }
}

/// A stream of numbers that a seed determines (SplitMix64: tiny, and the same on every machine).
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// The stream of that seed.
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number, below `end` (which is not 0).
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }
}

/// Chooses turns by a policy.
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

    /// One of those that are ready; `None` if nobody is.
    pub fn choose(&mut self, machine: &Machine<'_>) -> Option<Turn> {
        let ready = &machine.ready;
        let turn = match self.policy {
            Policy::Random => self.any(ready)?,
            Policy::StarveRank(rank) => {
                self.prefer(ready, |turn| machine.rank_of(turn) != rank as usize)?
            }
            Policy::StarveRole(role) => {
                self.prefer(ready, |turn| machine.role_of(turn) != Some(role as usize))?
            }
            Policy::RunAhead(rank) => {
                self.prefer(ready, |turn| machine.rank_of(turn) == rank as usize)?
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
