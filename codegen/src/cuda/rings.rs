//! Rings in the text: their barriers, places in slots, and arrivals.

use super::Text;
use super::words::{ONCE, slots};
use crate::warp::{Expr, Order, Ring, RingId, Side, Slot};

impl Text<'_> {
    pub(super) fn give_back(&mut self, ring: RingId, held: u32) {
        let name = self.pipeline.ring(ring).name;
        let (upper, slots) = (name.to_uppercase(), slots(name));
        self.block(format!("for (; held > {held}; --held)"), |text| {
            text.line(format!(
                "mbarrier_arrive(base + {upper}_EMPTY_AT + oldest * 8);"
            ));
            text.line(format!("if (++oldest == {slots}) oldest = 0;"));
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
    pub(super) fn arrive(&self, ring: RingId, side: Side, slot: Slot) -> (&'static str, String) {
        let barrier = self.barrier(ring, side, slot);
        let ring = self.pipeline.ring(ring);
        let Some(told) = ring.told(side) else {
            let whose = match slot {
                Slot::Current | Slot::Previous => "",
                Slot::NextSet => "  // the other consumer has the place next",
            };
            return ("lane == 0", format!("mbarrier_arrive({barrier});{whose}"));
        };
        let verb = match ring.barrier(side).map(|barrier| barrier.order) {
            Some(Order::Cluster) => "mbarrier_arrive_release_cluster",
            Some(Order::Complete | Order::Cta) | None => "mbarrier_arrive_cluster",
        };
        let arrive = format!("{verb}({barrier}, {});", self.expr(&told.peer));
        let lanes = match (side, told.others) {
            (_, true) => "lane < SPLIT && lane != share",
            (Side::Full, false) => "lane < SPLIT",
            (Side::Empty, false) => "lane < CLUSTER",
        };
        (lanes, arrive)
    }

    /// Initialises a ring's barriers.
    pub(super) fn ring_barriers(&mut self, ring: &Ring) {
        let (name, upper) = (ring.name, ring.name.to_uppercase());
        let full = match &ring.full.told {
            None => arrivals(ring.full.arrivals, 1),
            Some(told) => format!("SPLIT * {}", arrivals(ring.full.arrivals / told.ctas, 1)),
        };
        let empty = ring.empty.as_ref().map(|empty| match &empty.told {
            None => arrivals(empty.arrivals, 1),
            Some(told) if told.others => "(SPLIT - 1) * 4".into(),
            Some(told) => arrivals(empty.arrivals / told.ctas, told.ctas),
        });
        let slot = if ring.is_shared() {
            String::new()
        } else {
            format!(" + {name} * 8")
        };
        let mut all = vec![format!(
            "mbarrier_init(base + {upper}_FULL_AT{slot}, {full});"
        )];
        if let Some(empty) = empty {
            all.push(format!(
                "mbarrier_init(base + {upper}_EMPTY_AT{slot}, {empty});"
            ));
        }
        if ring.is_shared() {
            all.into_iter().for_each(|init| self.line(init));
            return;
        }
        let es = if name.ends_with('x') { "ES" } else { "S" };
        let sets = if ring.sets > 1 { "CONSUMERS * " } else { "" };
        self.line(ONCE);
        self.block(
            format!("for (u32 {name} = 0; {name} < {sets}{upper}{es}; ++{name})"),
            |text| all.into_iter().for_each(|init| text.line(init)),
        );
    }

    pub(super) fn barrier(&self, ring: RingId, side: Side, slot: Slot) -> String {
        let ring = self.pipeline.ring(ring);
        let upper = ring.name.to_uppercase();
        let side = match side {
            Side::Full => "FULL",
            Side::Empty => "EMPTY",
        };
        let slot = match slot {
            Slot::Current => ring.name.into(),
            Slot::Previous => "previous".into(),
            Slot::NextSet => {
                let (name, slots) = (ring.name, slots(ring.name));
                format!("({name} + {slots}) % (CONSUMERS * {slots})")
            }
        };
        if ring.is_shared() {
            format!("base + {upper}_{side}_AT")
        } else {
            format!("base + {upper}_{side}_AT + {slot} * 8")
        }
    }

    pub(super) fn what(&self, ring: RingId, side: Side) -> String {
        let name = self.pipeline.ring(ring).name.to_uppercase();
        match side {
            Side::Full => format!("{name}_FULL"),
            Side::Empty => format!("{name}_EMPTY"),
        }
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
        let (slot, upper) = (ring.name, ring.parts[part].name.to_uppercase());
        let place = if ring.is_handed_over() {
            format!("{slot} % {}", slots(slot))
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

/// So many from each of the CTAs.
fn arrivals(count: u32, ctas: u32) -> String {
    let cluster = if ctas > 1 { "CLUSTER * " } else { "" };
    if count == 8 {
        format!("{cluster}CONSUMERS * 4")
    } else if count == 1 && ctas > 1 {
        "CLUSTER".into()
    } else {
        format!("{cluster}{count}")
    }
}
