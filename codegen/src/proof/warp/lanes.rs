//! Work of single lanes, in warps whose lanes all access every rank's memory, or store parts of tiles.
//!
//! Another lane knows of them when the warp has met ([`SyncWarp`](crate::warp::Node::SyncWarp)), and signals and arrivals of the
//! first lane tell of no others. What was stored to a multicast address is told where a fence between the memory's two addresses
//! stood before that: who reads it at its own address needs none, then.

/// The accesses of a warp's lanes since they met.
#[derive(Default)]
pub(super) struct Lanes {
    /// Of global memory, at a multicast address, and whether the lanes have fenced it since.
    global: Vec<(u32, bool)>,
    /// Parts of tiles, by ordinary stores at a rank's own address: they need no fence.
    parts: Vec<u32>,
    /// Of shared memory, by ordinary loads and stores, and whether they have fenced it from TMA since.
    shared: Vec<(u32, bool)>,
    /// True if the first lane has waited for a counter since.
    waited: bool,
}

impl Lanes {
    pub fn accessed_global(&mut self, id: u32) {
        self.global.push((id, false));
    }

    pub fn stored_part(&mut self, id: u32) {
        self.parts.push(id);
    }

    pub fn accessed_shared(&mut self, id: u32) {
        self.shared.push((id, false));
    }

    /// The first lane has waited for a counter.
    pub const fn one_waited(&mut self) {
        self.waited = true;
    }

    /// True if each lane has seen what the first one has waited for.
    pub const fn together(&self) -> bool {
        !self.waited
    }

    /// True if something of them is under way that nobody else knows of.
    pub const fn at_work(&self) -> bool {
        !self.global.is_empty() || self.stores_parts()
    }

    /// True if they have stored parts of tiles since.
    pub const fn stores_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    pub fn fence_shared(&mut self) {
        self.shared
            .iter_mut()
            .for_each(|(_, fenced)| *fenced = true);
    }

    pub fn fence_alias(&mut self) {
        self.global
            .iter_mut()
            .for_each(|(_, fenced)| *fenced = true);
    }

    /// All lanes are here. Gives what is known of from now on. What they accessed in every rank's memory and did not fence stays:
    /// nobody else knows of it yet.
    pub fn meet(&mut self) -> Met {
        self.waited = false;
        let global = std::mem::take(&mut self.global);
        let (told, kept) = global
            .into_iter()
            .partition::<Vec<_>, _>(|(_, fenced)| *fenced);
        self.global = kept;
        Met {
            shared: std::mem::take(&mut self.shared),
            everywhere: told.into_iter().map(|(id, _)| id).collect(),
            parts: std::mem::take(&mut self.parts),
        }
    }
}

/// Accesses that a warp's lanes know of from each other.
pub(super) struct Met {
    /// Of shared memory, each with whether it is fenced from TMA.
    pub shared: Vec<(u32, bool)>,
    /// Of every rank's memory at once.
    pub everywhere: Vec<u32>,
    /// Stores of parts of tiles.
    pub parts: Vec<u32>,
}
