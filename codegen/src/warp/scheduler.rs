//! The tile scheduler: the items of a role's loops that a CTA has, in order. It is one value for a nest of loops, which all
//! warps that run
//! it share. `sm90` makes it; the verifier runs it and the emitter prints it.

use super::{Expr, Field, Values};
use crate::order::TileOrder;
use crate::sm90::cta::RunBy;

/// An index into [`super::Pipeline::schedulers`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SchedulerId(pub u16);

/// One loop over items of a scheduler's nest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoopId {
    /// The scheduler.
    pub scheduler: SchedulerId,
    /// An index into [`Scheduler::loops`].
    pub nth: u16,
}

/// A loop over items, as all warps that run it know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ItemLoop {
    /// Order in which it visits the items of its grid: a loop over the rows and columns of one shard.
    pub order: TileOrder,
    /// Index of its tiling in the CTA.
    pub tiling: usize,
}

/// The tile scheduler of a nest of loops.
///
/// The items of all loops are numbered in the order in which the loops visit them, and given to CTAs by that number. The
/// claim is static: item `i` of a wave is that of CTA `i`, fixed before the launch. A ticket from a counter in memory
/// would be the other claim: a field here, read where `Scheduler::first` and `Scheduler::next` are, and printed by
/// `emitter/src/scheduler`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scheduler {
    /// The role whose loops they are, by its index among the kernel's.
    pub role: usize,
    /// CTAs that take part.
    pub ctas: Ctas,
    /// CTAs that have each item together, if several do: those of a cluster.
    pub cluster: Option<Expr>,
    /// True if consumers take items in ping-pong, each every second one of the CTA's.
    pub ping_pong: bool,
    /// Loops over items. Around them are the loops over ranks.
    pub loops: Vec<ItemLoop>,
}

/// CTAs that take part in a nest of loops. The first ones of a launch may move data: so many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ctas {
    /// All.
    All,
    /// CTAs of a role that moves data.
    Comm {
        /// The first of them.
        first: Expr,
        /// Number of CTAs.
        count: Expr,
    },
    /// All but those that move data.
    Others(Expr),
    /// All, by their spare warps: beside what the CTA does otherwise.
    Spare,
    /// The others at first; those that move data join late, after so many waves as the host says.
    LateComm(Expr),
}

impl Scheduler {
    /// True if the warps at a place take items in ping-pong: those that a CTA has once for each consumer do.
    pub const fn alternates(&self, run_by: RunBy) -> bool {
        match run_by {
            RunBy::Thread { .. } => false,
            RunBy::Threads { .. } | RunBy::Groups => self.ping_pong,
        }
    }

    /// Of the CTAs, or clusters, that take part in the first wave: which one this is, and how many there are.
    pub fn among(&self) -> (Expr, Expr) {
        match (&self.ctas, &self.cluster) {
            (Ctas::All, None) | (Ctas::Spare, _) => (Expr::Block, Expr::Blocks),
            (Ctas::All, Some(ctas)) => (Expr::Block / ctas.clone(), Expr::Blocks / ctas.clone()),
            (Ctas::Comm { first, count }, _) => (Expr::Block - first.clone(), count.clone()),
            (Ctas::Others(comm) | Ctas::LateComm(comm), _) => {
                (Expr::Block - comm.clone(), Expr::Blocks - comm.clone())
            }
        }
    }

    /// The first item of a consumer.
    pub(crate) fn first(&self, consumer: u32, values: &impl Values) -> u32 {
        let (block, _) = values.block();
        let first = match &self.ctas {
            Ctas::All | Ctas::Comm { .. } | Ctas::Others(_) | Ctas::Spare => {
                self.among().0.eval(values)
            }
            // As the prelude's `TileScheduler` begins.
            Ctas::LateComm(comm) => match (self.alone(values), comm.eval(values)) {
                (1.., comm) if block >= comm => block - comm,
                (alone, _) => alone + block,
            },
        };
        if self.ping_pong && consumer > 0 {
            self.after(first, values)
        } else {
            first
        }
    }

    /// The next item of the warps at a place.
    pub(crate) fn next(&self, index: u32, run_by: RunBy, values: &impl Values) -> u32 {
        let next = self.after(index, values);
        if self.alternates(run_by) {
            self.after(next, values)
        } else {
            next
        }
    }

    /// The next item of the CTA.
    fn after(&self, index: u32, values: &impl Values) -> u32 {
        let (block, blocks) = values.block();
        let next = index + self.among().1.eval(values);
        match &self.ctas {
            Ctas::All | Ctas::Comm { .. } | Ctas::Others(_) | Ctas::Spare => next,
            // As its `next`.
            Ctas::LateComm(_) => match self.alone(values) {
                alone if index >= alone => index + blocks,
                alone if next < alone => next,
                alone => alone + block,
            },
        }
    }

    /// Items that the others do before the CTAs that move data join them.
    fn alone(&self, values: &impl Values) -> u32 {
        values.field(Field::LateJoin) * self.among().1.eval(values)
    }
}
