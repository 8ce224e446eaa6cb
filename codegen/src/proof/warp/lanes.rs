//! Work of single lanes, in warps whose lanes all access every rank's memory.
//!
//! Another lane knows of them when the warp has met ([`SyncWarp`](crate::warp::Node::SyncWarp)), and signals and arrivals of the
//! first lane tell of no others. What was stored to a multicast address is told where a fence between the memory's two addresses
//! stood before that: who reads it at its own address needs none, then.

/// The accesses of a warp's lanes since they met.
#[derive(Default)]
pub(super) struct Lanes {
    /// Of global memory, at a multicast address, and whether the lanes have fenced it since.
    global: Vec<(u32, bool)>,
    /// Of shared memory, by ordinary loads and stores, and whether they have fenced it from TMA since.
    shared: Vec<(u32, bool)>,
    /// True if the first lane has waited for a counter since.
    waited: bool,
}

impl Lanes {
    pub fn accessed_global(&mut self, id: u32) {
        self.global.push((id, false));
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
        !self.global.is_empty()
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

    /// All lanes are here. Gives their accesses of shared memory, each with whether it is fenced, and those accesses of every
    /// rank's memory that are fenced. The others stay: nobody else knows of them yet.
    pub fn meet(&mut self) -> (Vec<(u32, bool)>, Vec<u32>) {
        self.waited = false;
        let global = std::mem::take(&mut self.global);
        let (told, kept) = global
            .into_iter()
            .partition::<Vec<_>, _>(|(_, fenced)| *fenced);
        self.global = kept;
        let told = told.into_iter().map(|(id, _)| id).collect();
        (std::mem::take(&mut self.shared), told)
    }
}
