//! Scheduling policies, and the random numbers of a seed.

/// Rule that chooses the next step among the enabled ones.
///
/// ```
/// use counterflow_emulator::{Options, Policy};
///
/// let late = Options { policy: Some(Policy::StarveRank(1)), ..Options::seed(5) };
/// assert_eq!(Policy::of_seed(4, 2, 2), Policy::Lifo); // what a run takes otherwise
/// # drop(late);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Any.
    Random,
    /// This rank only if nobody else can step.
    StarveRank(u32),
    /// This role (by its index in the kernel) only if no other can step.
    StarveRole(u32),
    /// This rank as far as it can go, launch after launch.
    RunAhead(u32),
    /// Whoever became enabled last.
    Lifo,
    /// Each in turn.
    RoundRobin,
}

impl Policy {
    /// The policy of a seed.
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

/// A seeded stream of numbers (SplitMix64: small, and the same on every machine).
///
/// ```
/// use counterflow_emulator::Numbers;
///
/// let (mut one, mut other) = (Numbers::new(7), Numbers::new(7));
/// assert_eq!(one.draw(), other.draw());
/// assert!(one.below(6) < 6);
/// ```
#[derive(Clone, Debug)]
pub struct Numbers(u64);

/// Distance of two numbers' states.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Numbers {
    /// The stream of that seed.
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The same stream behind its next `count` numbers.
    pub(super) fn behind(&self, count: usize) -> Numbers {
        Numbers(self.0.wrapping_add(STEP.wrapping_mul(count as u64)))
    }

    /// The next number, below `end` (which is not 0).
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// Puts the items of a list in an order that is drawn.
    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}
