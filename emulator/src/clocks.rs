//! Happens-before by clocks over the items of all agents.
//!
//! A clock has three layers, as the order itself has. For a rank: all its launches below some number are done. For each
//! of its roles: in the next launch all phases below some number are done. For that phase: some items are done up to
//! some step. A later layer implies the earlier ones, because whoever learns of an item also learns all that the item
//! knew. So a join of two clocks keeps the later layer, and unites only items of the same phase. Items are kept in
//! shared blocks, so that a join costs only what differs.

use std::rc::Rc;

/// The role number of the host, which prepares a rank's parameters before a launch.
pub(super) const HOST: u16 = u16::MAX;

/// A time: one step of one item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Epoch {
    pub rank: u16,
    /// The role, or [`HOST`].
    pub role: u16,
    pub launch: u32,
    pub phase: u32,
    pub item: u32,
    /// The step's index among all of the agent's.
    pub step: u32,
}

impl Epoch {
    /// The host's work before `launch` of `rank`: before all of that launch and after all earlier ones.
    pub fn host(rank: u16, launch: u32) -> Epoch {
        Epoch {
            rank,
            role: HOST,
            launch,
            phase: 0,
            item: 0,
            step: 0,
        }
    }

    /// True if both are steps of one item, which are in program order.
    pub fn same_item(&self, other: &Epoch) -> bool {
        (self.rank, self.role, self.launch, self.item)
            == (other.rank, other.role, other.launch, other.item)
    }
}

const BLOCK: usize = 32;
type Steps = Rc<[u32; BLOCK]>;

/// Steps of an agent that are known to be done, item by item (the index one past the last of them).
#[derive(Clone, Debug, Default)]
struct Items(Rc<Vec<Option<Steps>>>);

impl Items {
    fn get(&self, item: u32) -> u32 {
        let item = item as usize;
        match self.0.get(item / BLOCK) {
            Some(Some(block)) => block[item % BLOCK],
            Some(None) | None => 0,
        }
    }

    fn raise(&mut self, item: u32, step: u32) {
        if self.get(item) >= step {
            return;
        }
        let item = item as usize;
        let blocks = Rc::make_mut(&mut self.0);
        if blocks.len() <= item / BLOCK {
            blocks.resize(item / BLOCK + 1, None);
        }
        let block = blocks[item / BLOCK].get_or_insert_with(|| Rc::new([0; BLOCK]));
        Rc::make_mut(block)[item % BLOCK] = step;
    }

    fn join(&mut self, other: &Items) {
        if Rc::ptr_eq(&self.0, &other.0) || other.0.is_empty() {
            return;
        }
        if self.0.is_empty() {
            self.0 = other.0.clone();
            return;
        }
        for (index, theirs) in other.0.iter().enumerate() {
            let Some(theirs) = theirs else { continue };
            match self.0.get(index) {
                Some(Some(mine)) if Rc::ptr_eq(mine, theirs) => {}
                Some(Some(mine)) if mine.iter().zip(theirs.iter()).all(|(a, b)| a >= b) => {}
                _ => {
                    let blocks = Rc::make_mut(&mut self.0);
                    if blocks.len() <= index {
                        blocks.resize(index + 1, None);
                    }
                    match &mut blocks[index] {
                        Some(mine) => {
                            for (a, b) in Rc::make_mut(mine).iter_mut().zip(theirs.iter()) {
                                *a = (*a).max(*b);
                            }
                        }
                        empty @ None => *empty = Some(theirs.clone()),
                    }
                }
            }
        }
    }
}

/// Known steps of one role in its rank's current launch.
#[derive(Clone, Debug, Default)]
struct Known {
    /// All lower phases are done.
    phase: u32,
    /// Items of this phase.
    items: Items,
}

/// All that happened before some event.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    roles: usize,
    /// For each rank: all launches below are done.
    done: Vec<u32>,
    /// For each rank's roles: what is known of launch `done[rank]`.
    known: Vec<Known>,
}

impl Clock {
    /// Nothing happened yet.
    pub fn new(world: usize, roles: usize) -> Clock {
        Clock {
            roles,
            done: vec![0; world],
            known: vec![Known::default(); world * roles],
        }
    }

    /// True if that step has happened.
    pub fn covers(&self, at: &Epoch) -> bool {
        let done = self.done[usize::from(at.rank)];
        if at.role == HOST {
            return done >= at.launch;
        }
        if at.launch != done {
            return at.launch < done;
        }
        let known = &self.known[usize::from(at.rank) * self.roles + usize::from(at.role)];
        if at.phase != known.phase {
            return at.phase < known.phase;
        }
        at.step < known.items.get(at.item)
    }

    /// Records that step and all before it in its item. What the item knew must be joined already.
    pub fn learn(&mut self, at: &Epoch) {
        if self.done[usize::from(at.rank)] != at.launch {
            return;
        }
        let known = &mut self.known[usize::from(at.rank) * self.roles + usize::from(at.role)];
        if known.phase > at.phase {
            return;
        }
        if known.phase < at.phase {
            *known = Known {
                phase: at.phase,
                items: Items::default(),
            };
        }
        known.items.raise(at.item, at.step + 1);
    }

    /// Records everything in `other`.
    pub fn join(&mut self, other: &Clock) {
        for rank in 0..self.done.len() {
            if self.done[rank] > other.done[rank] {
                continue;
            }
            let newer = self.done[rank] < other.done[rank];
            self.done[rank] = other.done[rank];
            for at in rank * self.roles..(rank + 1) * self.roles {
                let (mine, theirs) = (&mut self.known[at], &other.known[at]);
                if newer || mine.phase < theirs.phase {
                    mine.clone_from(theirs);
                } else if mine.phase == theirs.phase {
                    mine.items.join(&theirs.items);
                }
            }
        }
    }

    /// All phases of that role below `phase` are done.
    pub fn start_phase(&mut self, rank: u16, role: u16, phase: u32) {
        self.known[usize::from(rank) * self.roles + usize::from(role)] = Known {
            phase,
            items: Items::default(),
        };
    }

    /// All launches of `rank` below `launch` are done.
    pub fn start_launch(&mut self, rank: u16, launch: u32) {
        let rank = usize::from(rank);
        self.done[rank] = launch;
        self.known[rank * self.roles..(rank + 1) * self.roles].fill(Known::default());
    }
}

/// Joins `other` into a shared clock. Copies only if they differ.
pub(super) fn join(into: &mut Rc<Clock>, other: &Rc<Clock>) {
    if !Rc::ptr_eq(into, other) {
        Rc::make_mut(into).join(other);
    }
}
