//! Rings in the text: their barriers, places in slots, and arrivals.

use super::Text;
use counterflow_codegen::warp::{
    Barrier, BarrierId, Expr, Node, Part, Ring, RingId, Scope, Side, Slot,
};

impl Text<'_> {
    /// The objects of all roles: buffers, and the barriers of slots.
    pub(super) fn ring_objects(&mut self) {
        let rings = &self.pipeline.rings;
        for ring in rings {
            for (index, part) in ring.parts().iter().enumerate() {
                let (name, upper) = (smem(&part.name), part.name.to_uppercase());
                let bytes = self.array_bytes(ring, index);
                self.line(format!(
                    "const Buffer<{upper}_AT, {bytes}> {name} = {{base}};"
                ));
            }
        }
        for (_, barrier) in rings.iter().flat_map(|ring| ring.barriers()) {
            let (scope, name, at) = (scope(barrier.scope), barrier.name, at(barrier));
            let upper = name.to_uppercase();
            self.line(format!(
                "const Barriers<{at}, {upper}, {scope}> {name} = {{base}};"
            ));
        }
    }

    /// Bytes from a part of a slot to that of the next slot: its own, and of those in the same array.
    pub(super) fn array_bytes(&self, ring: &Ring, part: usize) -> String {
        let array = ring
            .buffer
            .as_ref()
            .map_or(part..part + 1, |it| it.together(part));
        let bytes = |part: &Part| format!("{}_BYTES", part.name.to_uppercase());
        let (parts, stride) = (&ring.parts()[array], ring.parts()[part].stride);
        let all: Vec<String> = parts.iter().map(bytes).collect();
        if parts.iter().map(|part| part.bytes).sum::<u32>() != stride {
            stride.to_string()
        } else if all.len() == 1 {
            all.concat()
        } else {
            format!("({})", all.join(" + "))
        }
    }

    /// Nodes that run ahead in a ring. The role then returns to its place in the ring.
    pub(super) fn run_ahead(&mut self, ring: RingId, body: &[Node]) {
        let name = self.pipeline.ring(ring).of.name();
        self.line(format!("const auto {name}_before = {name};"));
        let outer = self.ahead.replace(ring);
        self.list(body);
        self.ahead = outer;
        self.line(format!("{name} = {name}_before;"));
    }

    /// Variable for a role's place in a ring.
    pub(super) fn state(&self, ring: RingId, name: &str) -> String {
        let ring = self.pipeline.ring(ring);
        let set = if ring.sets > 1 { "(consumer)" } else { "" };
        let slots = if ring.buffer.is_some() {
            ring.of.count().into()
        } else {
            ring.slots.to_string()
        };
        format!("PipelineState<{slots}> {name}{set};")
    }

    pub(super) fn release(&mut self, ring: RingId, held: &Expr) {
        let held = self.expr(held);
        let empty = self.pipeline.barrier(ring.empty()).name;
        self.line(format!(
            "for (; held > {held}; --held, oldest.advance()) {empty}[oldest.index].arrive();"
        ));
    }

    /// Sends or adds a subtile's accumulators.
    pub(super) fn partial(
        &mut self,
        verb: &str,
        ring: RingId,
        (index, part): (&Expr, &Expr),
        to: &str,
    ) {
        let part = self.factor(part);
        let ring = self.pipeline.ring(ring);
        let (slot, upper) = (ring.of.name(), ring.of.name().to_uppercase());
        let place = format!(
            "{}[{slot}.index] + {} * {upper}_SUBTILE_BYTES",
            smem(slot),
            self.factor(index)
        );
        let (each, block, at) = match self.blocks() {
            None => (String::new(), "", String::new()),
            Some(blocks) => {
                self.line("#pragma unroll");
                (
                    format!("for (u32 block = 0; block < {blocks}; ++block) "),
                    "[block]",
                    format!(" + block * ({upper}_SUBTILE_BYTES / {blocks})"),
                )
            }
        };
        let subtile = self.subtile_n();
        self.line(format!("{each}{verb}<{subtile}, {upper}_THREADS>(acc{block} + {part} * {subtile} / 2, {place}{at}, {to}threadIdx.x % 128);"));
    }

    /// Lanes that arrive, and their call: a lane for each CTA of a cluster.
    pub(super) fn arrive(&self, id: BarrierId, slot: Slot) -> (&'static str, String) {
        let (slots, barrier) = (self.barrier(id, slot), self.pipeline.barrier(id));
        let Some(multicast) = &barrier.multicast else {
            let whose = match slot {
                Slot::Current | Slot::Previous => "",
                Slot::NextSet => "  // the other consumer has the place next",
            };
            return ("lane == 0", format!("{slots}.arrive();{whose}"));
        };
        let lanes = match (id.side, multicast.others) {
            (_, true) => "lane < SPLIT && lane != split_rank",
            (Side::Full, false) => "lane < SPLIT",
            (Side::Empty, false) => "lane < CLUSTER",
        };
        (lanes, format!("{slots}.arrive_on(lane);"))
    }

    /// Initialises a ring's barriers.
    pub(super) fn ring_barriers(&mut self, ring: &Ring) {
        let slots = match (&ring.buffer, ring.sets) {
            (None, _) => ring.all().to_string(),
            (Some(_), 1) => ring.of.count().into(),
            (Some(_), _) => format!("CONSUMERS * {}", ring.of.count()),
        };
        let empty = ring.empty.as_ref().map_or(String::new(), |empty| {
            format!(", {}, {}", empty.name, arrivals(Side::Empty, empty))
        });
        let full = arrivals(Side::Full, &ring.full);
        self.line(format!("{}.init({slots}, {full}{empty});", ring.full.name));
    }

    /// A slot's barrier.
    pub(super) fn barrier(&self, id: BarrierId, slot: Slot) -> String {
        let (barrier, ring) = (self.pipeline.barrier(id), self.pipeline.ring(id.ring));
        let name = ring.of.name();
        let slot = match slot {
            // The only one: a role that just arrives there keeps no state.
            Slot::Current if ring.buffer.is_none() => "0".into(),
            Slot::Current => format!("{name}.index"),
            Slot::Previous => "previous".into(),
            Slot::NextSet => format!("{name}.of_other()"),
        };
        format!("{}[{slot}]", barrier.name)
    }

    /// Distance of a slice of a subtile from its first.
    pub(super) fn slice(&self, slice: &Expr) -> String {
        if *slice == Expr::Const(0) {
            String::new()
        } else {
            format!(" + {} * SLICE_BYTES", self.factor(slice))
        }
    }

    /// The address of a box in a part of the current slot: an operand's block, or a subtile.
    pub(super) fn shared(&self, ring: RingId, part: usize, index: &Expr, block: bool) -> String {
        let ring = self.pipeline.ring(ring);
        let (slot, part) = (ring.of.name(), &ring.part(self.tiling, part).name);
        let place = if ring.is_staggered() {
            format!("{slot}.place()")
        } else {
            format!("{slot}.index")
        };
        let mut text = format!("{}[{place}]", smem(part));
        if *index != Expr::Const(0) {
            let bytes = match block {
                true => "BLOCK_BYTES".into(),
                false => self.subtile_bytes(),
            };
            text.push_str(&format!(" + {} * {bytes}", self.factor(index)));
        }
        text
    }
}

/// The constant that says where the mbarriers of a barrier start.
pub(super) fn at(barrier: &Barrier) -> String {
    format!("{}_AT", barrier.name.to_uppercase())
}

/// The buffer of a part.
pub(super) fn smem(part: &str) -> String {
    format!("smem_{part}")
}

/// A barrier's scope, as the prelude says it.
const fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Relaxed => "Scope::Relaxed",
        Scope::Cta => "Scope::Cta",
        Scope::Own => "Scope::Own",
        Scope::Cluster => "Scope::Cluster",
    }
}

/// Arrivals that end a phase.
fn arrivals(side: Side, barrier: &Barrier) -> String {
    match (&barrier.multicast, side) {
        (None, _) => of_each(barrier.arrivals, 1),
        (Some(multicast), _) if multicast.others => "(SPLIT - 1) * 4".into(),
        (Some(multicast), Side::Full) => {
            format!("SPLIT * {}", of_each(barrier.arrivals / multicast.ctas, 1))
        }
        (Some(multicast), Side::Empty) => {
            of_each(barrier.arrivals / multicast.ctas, multicast.ctas)
        }
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
