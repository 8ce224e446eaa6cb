//! Orders by closure. A closure may read what changes, so it is asked once for a world, and what it said is kept.

use std::fmt;
use std::sync::Arc;

/// An order written by the user: `(me, step, world) -> rank`, for each step below `world`.
pub type OrderFn = fn(u32, u32, u32) -> u32;

/// An order by closure, step by step.
pub trait ByStep {
    /// The rank at step `step` of rank `me`.
    fn at(&self, me: u32, step: u32, world: u32) -> u32;
}

/// Ranks that a closure said: the rank at each step of each rank of a world.
#[derive(Clone, PartialEq, Eq)]
pub struct RankTable {
    world: u32,
    /// Rank by rank, step by step.
    ranks: Arc<[u32]>,
}

impl RankTable {
    /// Asks a closure, once for each step of each rank.
    pub fn of(order: OrderFn, world: u32) -> RankTable {
        let each = (0..world).flat_map(|me| (0..world).map(move |step| order(me, step, world)));
        RankTable {
            world,
            ranks: each.collect(),
        }
    }

    /// The world that it is for.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// The ranks of all steps, rank by rank.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// Order in a smaller world: the ranks of that world, in the order in which they are visited. None if a rank
    /// would not visit as many as there are.
    pub(crate) fn within(&self, world: u32) -> Option<RankTable> {
        if world == self.world {
            return Some(self.clone());
        }
        let mut ranks = Vec::with_capacity((world * world) as usize);
        for me in 0..world {
            let row = (me * self.world) as usize;
            let row = self.ranks.get(row..row + self.world as usize)?;
            ranks.extend(row.iter().filter(|rank| **rank < world));
            if ranks.len() != ((me + 1) * world) as usize {
                return None;
            }
        }
        Some(RankTable {
            world,
            ranks: ranks.into(),
        })
    }
}

impl ByStep for RankTable {
    fn at(&self, me: u32, step: u32, world: u32) -> u32 {
        let at = (me * self.world + step) as usize;
        // No world has such a rank: it is refused like a closure that gives one.
        let known = (world == self.world).then(|| self.ranks.get(at)).flatten();
        known.copied().unwrap_or(u32::MAX)
    }
}

impl fmt::Debug for RankTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table of {}: {:?}", self.world, self.ranks)
    }
}

/// An order by closure in a program.
#[derive(Clone)]
pub enum ByClosure {
    /// As it was written.
    Closure(OrderFn),
    /// As it was when the program's world became known.
    Table(RankTable),
}

impl ByClosure {
    /// Ranks of the order in a world. A closure is asked now.
    pub(crate) fn table(&self, world: u32) -> RankTable {
        match self {
            ByClosure::Closure(order) => RankTable::of(*order, world),
            ByClosure::Table(table) => table.clone(),
        }
    }
}

impl ByStep for ByClosure {
    fn at(&self, me: u32, step: u32, world: u32) -> u32 {
        match self {
            ByClosure::Closure(order) => order(me, step, world),
            ByClosure::Table(table) => table.at(me, step, world),
        }
    }
}

impl PartialEq for ByClosure {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (ByClosure::Closure(a), ByClosure::Closure(b)) => std::ptr::fn_addr_eq(*a, *b),
            (ByClosure::Table(a), ByClosure::Table(b)) => a == b,
            (ByClosure::Closure(_) | ByClosure::Table(_), _) => false,
        }
    }
}

impl fmt::Debug for ByClosure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ByClosure::Closure(_) => f.write_str("closure"),
            ByClosure::Table(table) => table.fmt(f),
        }
    }
}
