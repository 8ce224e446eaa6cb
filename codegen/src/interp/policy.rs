//! Policies of who goes next, and the numbers that a seed determines.

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
