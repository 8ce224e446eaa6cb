//! Order of events: the accesses that an agent has seen complete, and those of them that TMA and wgmma may build on.
//!
//! A relaxed barrier says less: that accesses are over. Who knows that may overwrite what they touched, and may not read
//! what they wrote. Who acquires from him may: what was over before a release comes before what follows its acquire.

/// A set of access numbers.
#[derive(Clone, Default, Debug)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub fn add(&mut self, id: u32) {
        let word = id as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (id % 64);
    }

    pub fn has(&self, id: u32) -> bool {
        self.0
            .get(id as usize / 64)
            .is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Empties it, and keeps its room.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn join(&mut self, other: &Bits) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }

    /// Joins with what is in `other` and not in `without`.
    fn join_without(&mut self, other: &Bits, without: &Bits) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let without = without.0.iter().chain(std::iter::repeat(&0));
        for ((word, more), less) in self.0.iter_mut().zip(&other.0).zip(without) {
            *word |= more & !less;
        }
    }
}

/// Accesses of one kind of memory that are complete as far as an agent knows: for its ordinary accesses, and for the
/// async proxy.
#[derive(Clone, Default, Debug)]
pub(super) struct Seen {
    pub plain: Bits,
    pub proxy: Bits,
    /// Accesses that those by a multicast address may build on: a fence between the addresses came after them.
    pub alias: Bits,
    /// Accesses that are over, by a relaxed barrier: what comes next may overwrite what they touched, in either
    /// proxy.
    pub over: Bits,
}

/// Way in which global memory is accessed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// Ordinary loads and stores, at a rank's own address.
    Threads,
    /// TMA, or a copy engine.
    Tma,
    /// `multimem` instructions, at the address that all ranks' memory has in common.
    Multicast,
}

impl By {
    /// Accesses that such an access may build on, of those that an agent has seen.
    pub const fn known(self, seen: &Seen) -> &Bits {
        match self {
            By::Threads => &seen.plain,
            By::Tma => &seen.proxy,
            By::Multicast => &seen.alias,
        }
    }
}

impl Seen {
    /// Completed by the async proxy itself: nothing stands between it and either proxy.
    pub fn both(&mut self, id: u32) {
        self.plain.add(id);
        self.proxy.add(id);
    }

    pub fn join(&mut self, other: &Seen) {
        self.plain.join(&other.plain);
        self.proxy.join(&other.proxy);
        self.alias.join(&other.alias);
        self.over.join(&other.over);
    }

    /// Joins with what an agent that releases has seen.
    fn join_released(&mut self, other: &Seen) {
        for (known, more) in [
            (&mut self.plain, &other.plain),
            (&mut self.proxy, &other.proxy),
        ] {
            known.join(more);
            known.join(&other.over);
        }
        self.alias.join(&other.alias);
    }

    /// Joins with what an agent that arrives without a release has seen: what the async proxy completed, and what the agent
    /// itself acquired, is over. Its own ordinary accesses may still be under way.
    fn join_over(&mut self, other: &Seen, own: &Bits) {
        self.over.join_without(&other.proxy, own);
        self.over.join(&other.over);
    }

    /// Empties it, and keeps its room.
    pub fn clear(&mut self) {
        self.plain.clear();
        self.proxy.clear();
        self.alias.clear();
        self.over.clear();
    }

    /// A proxy fence.
    pub fn fence(&mut self) {
        let Seen { plain, proxy, .. } = self;
        proxy.join(plain);
    }

    /// A fence between the addresses that one memory has.
    pub fn fence_alias(&mut self) {
        let Seen { plain, alias, .. } = self;
        alias.join(plain);
    }
}

/// Both kinds of memory, and how far barriers are.
#[derive(Clone, Default, Debug)]
pub(super) struct Knows {
    /// By barrier of the agent's CTA: how many of its phases are over, at least.
    phases: Vec<u32>,
    /// Shared memory of the agent's CTA.
    pub shared: Seen,
    /// Global memory of all ranks.
    pub global: Seen,
    /// Stores and arrivals of CTAs of the cluster in each other's shared memory that are no longer under way. It
    /// needs no acquire, only that the barrier on which they complete was waited for.
    pub landed: Bits,
    /// Of the waits of the cluster's agents: those that all warps of the agent are past. It needs no acquire, either.
    pub past: Bits,
}

impl Knows {
    /// Joins with what waits for a barrier acquire.
    pub fn join(&mut self, other: &Knows) {
        self.shared.join(&other.shared);
        self.global.join(&other.global);
        self.join_times(other);
    }

    /// Joins with what an agent that releases knows.
    pub fn join_released(&mut self, other: &Knows) {
        self.shared.join_released(&other.shared);
        self.global.join_released(&other.global);
        self.join_times(other);
    }

    fn join_times(&mut self, other: &Knows) {
        self.landed.join(&other.landed);
        self.past.join(&other.past);
        if self.phases.len() < other.phases.len() {
            self.phases.resize(other.phases.len(), 0);
        }
        for (phases, more) in self.phases.iter_mut().zip(&other.phases) {
            *phases = *more.max(phases);
        }
    }

    /// Joins with what an agent that arrives without a release knows.
    pub fn join_over(&mut self, other: &Knows, own: &Bits) {
        self.shared.join_over(&other.shared, own);
        self.landed.join(&other.landed);
        self.past.join(&other.past);
    }

    /// Empties it, and keeps its room.
    pub fn clear(&mut self) {
        self.phases.clear();
        self.shared.clear();
        self.global.clear();
        self.landed.clear();
        self.past.clear();
    }

    /// So many phases of a barrier are over.
    pub fn over(&mut self, barrier: usize, phases: u32) {
        if self.phases.len() <= barrier {
            self.phases.resize(barrier + 1, 0);
        }
        self.phases[barrier] = self.phases[barrier].max(phases);
    }

    /// Number of phases of a barrier that are over as far as it knows.
    pub fn phases(&self, barrier: usize) -> u32 {
        self.phases.get(barrier).copied().unwrap_or(0)
    }
}
