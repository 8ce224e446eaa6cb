//! Rings in the text: their barriers, places in slots, and arrivals.

use super::Text;
use super::words::ONCE;
use crate::warp::{Barrier, BarrierId, Expr, Order, Ring, RingId, Side, Slot};

impl Text<'_> {
    pub(super) fn give_back(&mut self, ring: RingId, held: u32) {
        let empty = self.at(ring.empty());
        let count = self.pipeline.ring(ring).count;
        self.block(format!("for (; held > {held}; --held)"), |text| {
            text.line(format!("mbarrier_arrive(base + {empty} + oldest * 8);"));
            text.line(format!("if (++oldest == {count}) oldest = 0;"));
        });
    }

    /// Sends or adds a panel's accumulators.
    pub(super) fn sum(
        &mut self,
        verb: &str,
        ring: RingId,
        (index, part): (&Expr, &Expr),
        to: &str,
    ) {
        let part = self.factor(part);
        let ring = self.pipeline.ring(ring);
        let (slot, upper) = (ring.name, ring.name.to_uppercase());
        let place = format!(
            "base + {upper}_AT + {slot} * {upper}_BYTES + {} * {upper}_PANEL_BYTES",
            self.factor(index)
        );
        let (each, block, at) = if self.pipeline.cta.blocks() == 1 {
            ("", "", String::new())
        } else {
            self.line("#pragma unroll");
            (
                "for (u32 block = 0; block < BLOCKS; ++block) ",
                "[block]",
                format!(" + block * ({upper}_PANEL_BYTES / BLOCKS)"),
            )
        };
        let panel = self.panel_n();
        self.line(format!("{each}{verb}<{panel}, {upper}_THREADS>(acc{block} + {part} * {panel} / 2, {place}{at}, {to}threadIdx.x % 128);"));
    }

    /// Which lanes arrive, and how: a lane for each CTA of a cluster.
    pub(super) fn arrive(&self, id: BarrierId, slot: Slot) -> (&'static str, String) {
        let at = self.barrier(id, slot);
        let barrier = self.pipeline.barrier(id);
        let Some(told) = &barrier.told else {
            let whose = match slot {
                Slot::Current | Slot::Previous => "",
                Slot::NextSet => "  // the other consumer has the place next",
            };
            return ("lane == 0", format!("mbarrier_arrive({at});{whose}"));
        };
        let verb = match barrier.order {
            Order::Cluster => "mbarrier_arrive_release_cluster",
            Order::Complete | Order::Cta => "mbarrier_arrive_cluster",
        };
        let arrive = format!("{verb}({at}, {});", self.expr(&told.peer));
        let lanes = match (id.side, told.others) {
            (_, true) => "lane < SPLIT && lane != share",
            (Side::Full, false) => "lane < SPLIT",
            (Side::Empty, false) => "lane < CLUSTER",
        };
        (lanes, arrive)
    }

    /// Initialises a ring's barriers.
    pub(super) fn ring_barriers(&mut self, ring: &Ring) {
        let name = ring.name;
        let slot = if ring.buffer.is_some() {
            format!(" + {name} * 8")
        } else {
            String::new()
        };
        let init = |(side, barrier): (Side, &Barrier)| {
            let (at, arrivals) = (at(barrier), arrivals(side, barrier));
            format!("mbarrier_init(base + {at}{slot}, {arrivals});")
        };
        let all: Vec<String> = ring.barriers().map(init).collect();
        if ring.buffer.is_none() {
            all.into_iter().for_each(|init| self.line(init));
            return;
        }
        let sets = if ring.sets > 1 { "CONSUMERS * " } else { "" };
        self.line(ONCE);
        self.block(
            format!(
                "for (u32 {name} = 0; {name} < {sets}{}; ++{name})",
                ring.count
            ),
            |text| all.into_iter().for_each(|init| text.line(init)),
        );
    }

    /// A slot's barrier.
    pub(super) fn barrier(&self, id: BarrierId, slot: Slot) -> String {
        let (at, ring) = (self.at(id), self.pipeline.ring(id.ring));
        let (name, slots) = (ring.name, ring.count);
        let slot = match slot {
            Slot::Current => name.into(),
            Slot::Previous => "previous".into(),
            Slot::NextSet => format!("({name} + {slots}) % (CONSUMERS * {slots})"),
        };
        if ring.buffer.is_some() {
            format!("base + {at} + {slot} * 8")
        } else {
            format!("base + {at}")
        }
    }

    /// Where the mbarriers of a barrier start.
    fn at(&self, id: BarrierId) -> String {
        at(self.pipeline.barrier(id))
    }

    /// How far a slice of a panel lies behind its first.
    pub(super) fn slice(&self, slice: &Expr) -> String {
        if *slice == Expr::Const(0) {
            String::new()
        } else {
            format!(" + {} * SLICE_BYTES", self.factor(slice))
        }
    }

    /// The address of a box in a part of the current slot: an operand's block, or a panel.
    pub(super) fn shared(&self, ring: RingId, part: usize, index: &Expr, block: bool) -> String {
        let ring = self.pipeline.ring(ring);
        let (slot, upper) = (ring.name, ring.parts()[part].name.to_uppercase());
        let place = if ring.is_handed_over() {
            format!("{slot} % {}", ring.count)
        } else {
            slot.into()
        };
        let mut text = format!("base + {upper}_AT + {place} * {upper}_BYTES");
        if *index != Expr::Const(0) {
            let bytes = if block { "BLOCK_BYTES" } else { "PANEL_BYTES" };
            text.push_str(&format!(" + {} * {bytes}", self.factor(index)));
        }
        text
    }
}

/// The constant that says where the mbarriers of a barrier start.
pub(super) fn at(barrier: &Barrier) -> String {
    format!("{}_AT", barrier.name.to_uppercase())
}

/// Arrivals that end a phase.
fn arrivals(side: Side, barrier: &Barrier) -> String {
    match (&barrier.told, side) {
        (None, _) => of_each(barrier.arrivals, 1),
        (Some(told), _) if told.others => "(SPLIT - 1) * 4".into(),
        (Some(told), Side::Full) => format!("SPLIT * {}", of_each(barrier.arrivals / told.ctas, 1)),
        (Some(told), Side::Empty) => of_each(barrier.arrivals / told.ctas, told.ctas),
    }
}

/// So many from each of the CTAs.
fn of_each(count: u32, ctas: u32) -> String {
    let cluster = if ctas > 1 { "CLUSTER * " } else { "" };
    if count == 8 {
        format!("{cluster}CONSUMERS * 4")
    } else if count == 1 && ctas > 1 {
        "CLUSTER".into()
    } else {
        format!("{cluster}{count}")
    }
}
