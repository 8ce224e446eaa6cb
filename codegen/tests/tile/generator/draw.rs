//! Decisions read off a string of bytes.

use counterflow_codegen::builder::*;

pub struct Draw<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Draw<'a> {
    pub fn new(bytes: &'a [u8]) -> Draw<'a> {
        Draw { bytes, at: 0 }
    }

    fn byte(&mut self) -> usize {
        self.at += 1;
        self.bytes.get(self.at - 1).copied().map_or(0, usize::from)
    }

    pub fn of(&mut self, count: usize) -> usize {
        self.byte() % count
    }

    /// Whether something is to be wrong here: about one time in fourteen.
    pub fn wrong(&mut self) -> bool {
        self.byte() > 237
    }

    /// `right`, or now and then one of the others.
    pub fn mostly<T: Clone>(&mut self, right: T, others: &[T]) -> T {
        if self.wrong() {
            others[self.of(others.len())].clone()
        } else {
            right
        }
    }

    pub fn order(&mut self, right: Ranks) -> Ranks {
        let others = [
            ranks(),
            ranks().from_me(),
            ranks().after_me(),
            ranks().before_me(),
            ring(1),
            ring(2),
            ranks().after_me().but_last(1),
            ranks().after_me().but_last(world() / 2),
            ring(1).but_last(me()),
            ranks().by(|me, step, _| me ^ step),
            ranks().by(|me, step, world| (me * 2 + step) % world),
        ];
        self.mostly(right, &others)
    }

    /// All ranks, in an order that is a rule or a table.
    pub fn everyone(&mut self) -> Ranks {
        let right = [
            ranks().from_me(),
            ranks().by(|me, step, world| (me + world - step) % world),
            ranks().by(|me, step, world| (me * (world - 1) + step) % world),
        ];
        let right = right[self.of(3)].clone();
        self.order(right)
    }

    pub fn rank(&mut self, right: RankExpr, peer: &RankExpr) -> RankExpr {
        let next = (me() + 1) % world();
        let before = (me() - 1) % world();
        let right = self.far(right, peer);
        self.mostly(
            right,
            &[
                me(),
                peer.clone(),
                next,
                before,
                me() ^ 1,
                RankExpr::from(0),
            ],
        )
    }

    /// A rank that is `rank` in worlds of up to eight. In larger ones it may be as many ranks further as `peer` is.
    fn far(&mut self, rank: RankExpr, peer: &RankExpr) -> RankExpr {
        match self.of(6) {
            1 => (rank + (peer - me()) * (world() / 9)) % world(),
            2 => (rank + (world() / 9) * world()) % world(),
            _ => rank,
        }
    }

    /// All of some items, in one loop or in several that select some each.
    pub fn some(&mut self, all: ItemsRef) -> Vec<ItemsRef> {
        let (one, two) = (all.clone(), all.clone());
        match self.of(8) {
            1 => vec![one.first_half(), two.second_half()],
            2 => vec![one.skip(1).step_by(2), two.step_by(2)],
            3 => vec![one.take(me()), two.skip(me())],
            4 if self.wrong() => vec![one.skip(1)],
            5 if self.wrong() => vec![one.take(2), two.skip(1)],
            _ => vec![all],
        }
    }

    /// Puts a hand-off under a condition: one whose branches are alike, or now and then one that leaves ranks out.
    pub fn perhaps(
        &mut self,
        s: &mut ScheduleBuilder,
        peer: &RankExpr,
        parts: impl Fn(&mut ScheduleBuilder),
    ) {
        let even = Cond::compare(Comparison::Eq, me() % 2, 0);
        match self.of(6) {
            1 => s.when_else(even, |s| parts(s), |s| parts(s)),
            2 => s.when(Cond::compare(Comparison::Ne, peer, me()), |s| parts(s)),
            3 if self.wrong() => s.when(even, |s| parts(s)),
            _ => parts(s),
        }
    }
}

/// The statements of one hand-off, perhaps in a wrong order, perhaps without one of them.
pub fn shuffled<T>(draw: &mut Draw<'_>, mut parts: Vec<T>) -> Vec<T> {
    if draw.wrong() && parts.len() > 1 {
        let (a, b) = (draw.of(parts.len()), draw.of(parts.len()));
        parts.swap(a, b);
    }
    if draw.wrong() {
        let gone = draw.of(parts.len());
        parts.remove(gone);
    }
    parts
}

/// Statements of a hand-off.
pub type Part<'a> = Box<dyn Fn(&mut ScheduleBuilder) + 'a>;
