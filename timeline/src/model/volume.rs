//! The bytes that cross each link, and the least possible bytes.
//!
//! The least is an information bound from the tensors' kinds, for links that carry one copy to one receiver. Every rank
//! must receive the rows of a gathered tensor that it does not own. For a sum over ranks, every rank must send its part
//! of each row that another rank keeps, and the same for an exchange. A sum that every rank keeps costs both.

use counterflow_codegen::diag::{Diagnostic, Rule};
use counterflow_codegen::kernel::{Buffer, Kernel, OpId};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{AtEnd, TensorId};
use counterflow_codegen::region::Owner;
use counterflow_codegen::unroll::{Agent, StepKind};

/// Bytes between ranks in one launch.
///
/// ```
/// use counterflow_timeline::model::Volume;
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let volume = Volume::of(series.kernel(), &plan);
/// assert_eq!(volume.pair(0, 1), 32 * 16 * 2); // rank 0's rows, to rank 1
/// assert_eq!(volume.total(), volume.least_total());
/// println!("{} bytes at least on the busiest link", volume.least_of_a_link());
/// assert!(volume.warnings(series.kernel(), &plan).is_empty());
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Volume {
    /// Number of ranks.
    pub world: u32,
    /// Bytes from rank `s` to rank `d` at `s * world + d`. A multicast counts for each receiver, its sender too, and a sum in the
    /// switch for each copy that it reads, also that of the rank that asks: `s` and `d` are the same there.
    pub pairs: Vec<u64>,
    /// Bytes each rank sends. A multicast counts once; of a sum in the switch every rank sends its copy.
    pub sent: Vec<u64>,
    /// Bytes each rank receives. A sum in the switch counts once.
    pub received: Vec<u64>,
    /// Bytes that each op moves to other ranks, by [`OpId`]: without what a multicast also brings back to its sender.
    pub by_op: Vec<u64>,
    /// Bytes that ops on each buffer move to other ranks, by [`TensorId`]. A copy between two buffers counts for both.
    pub by_buffer: Vec<u64>,
    /// The least bytes that each rank must send for sums over ranks and exchanges.
    pub least_sent: Vec<u64>,
    /// The least bytes that each rank must receive of gathered and reduced tensors.
    pub least_received: Vec<u64>,
}

/// An end of a transfer that is every rank's memory at once.
pub const EVERYWHERE: u16 = u16::MAX;

/// One movement of a step: `bytes` from `src` to `dst`, either of which may be [`EVERYWHERE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crossing {
    /// Rank whose memory is read.
    pub src: u16,
    /// Rank whose memory is written; the reader for a load or a sum.
    pub dst: u16,
    /// Number of bytes.
    pub bytes: u64,
}

/// The end of a transfer that is in some memory.
pub(super) const fn end(owner: Owner) -> u16 {
    match owner {
        Owner::Rank(rank) => rank,
        Owner::Everywhere => EVERYWHERE,
    }
}

/// The bytes that a step of `agent` moves over links. Only a copy engine moves more than once: it reaches every rank in turn.
pub fn crossings<'a>(
    kernel: &'a Kernel,
    agent: &Agent,
    step: &StepKind,
) -> impl Iterator<Item = Crossing> + use<'a> {
    let world = kernel.variant.world as u16;
    let in_turn = kernel.roles[usize::from(agent.role)].kind.sequential();
    let crossing = crossing(kernel, agent.rank, step);
    crossing.into_iter().flat_map(move |all| {
        let turns = if in_turn && all.dst == EVERYWHERE {
            world
        } else {
            1
        };
        let to = (0..turns).map(move |turn| if turns > 1 { turn } else { all.dst });
        to.filter(move |dst| *dst != all.src)
            .map(move |dst| Crossing { dst, ..all })
    })
}

/// The bytes that a step of rank `rank` moves over links, if any, as if all went at once. A world of one rank has no links.
pub(super) fn crossing(kernel: &Kernel, rank: u16, step: &StepKind) -> Option<Crossing> {
    let (src, dst, bytes) = match step {
        StepKind::Copy { dst, src } => (end(src.owner), end(dst.owner), src.bytes(kernel)),
        StepKind::Reduce { from, .. } | StepKind::Load { from, .. } => {
            (end(from.owner), rank, kernel.tile_bytes(from))
        }
        StepKind::Store { dst, .. } => (rank, end(dst.owner), kernel.tile_bytes(dst)),
        StepKind::Wait { .. }
        | StepKind::Signal { .. }
        | StepKind::Dot { .. }
        | StepKind::OwnTerm { .. } => return None,
    };
    (kernel.variant.world > 1 && src != dst && bytes > 0).then_some(Crossing { src, dst, bytes })
}

/// The buffers of a step that moves data, each once.
fn buffers(step: &StepKind) -> impl Iterator<Item = TensorId> {
    let (a, b) = match step {
        StepKind::Copy { dst, src } => (
            Some(dst.tensor),
            (dst.tensor != src.tensor).then_some(src.tensor),
        ),
        StepKind::Reduce { from, .. } | StepKind::Load { from, .. } => (Some(from.tensor), None),
        StepKind::Store { dst, .. } => (Some(dst.tensor), None),
        StepKind::Wait { .. }
        | StepKind::Signal { .. }
        | StepKind::Dot { .. }
        | StepKind::OwnTerm { .. } => (None, None),
    };
    a.into_iter().chain(b)
}

impl Volume {
    /// The bytes of one launch of `plan`.
    pub fn of(kernel: &Kernel, plan: &Plan) -> Volume {
        let world = plan.geometry.world;
        let ranks = world as usize;
        let mut volume = Volume {
            world,
            pairs: vec![0; ranks * ranks],
            sent: vec![0; ranks],
            received: vec![0; ranks],
            by_op: vec![0; kernel.locs.len()],
            by_buffer: vec![0; kernel.buffers.len()],
            least_sent: vec![0; ranks],
            least_received: vec![0; ranks],
        };
        for agent in &plan.agents {
            for step in &agent.steps {
                for crossing in crossings(kernel, agent, &step.kind) {
                    let before = volume.by_op[usize::from(step.op.0)];
                    volume.add(step.op, crossing);
                    let moved = volume.by_op[usize::from(step.op.0)] - before;
                    for buffer in buffers(&step.kind) {
                        volume.by_buffer[buffer.index()] += moved;
                    }
                }
            }
        }
        volume.least(kernel, plan);
        volume
    }

    /// The least bytes that cross a rank's links in one launch, in both directions. Nothing is unrolled.
    ///
    /// ```
    /// use counterflow_timeline::model::Volume;
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
    ///
    /// let (series, plan) = example::proven();
    /// assert_eq!(Volume::least_of(series.kernel(), &plan, 0), 32 * 16 * 2); // rank 1's rows
    /// ```
    pub fn least_of(kernel: &Kernel, plan: &Plan, rank: u32) -> u64 {
        let ranks = plan.geometry.world as usize;
        let mut volume = Volume {
            world: plan.geometry.world,
            least_sent: vec![0; ranks],
            least_received: vec![0; ranks],
            ..Volume::default()
        };
        volume.least(kernel, plan);
        volume.least_sent[rank as usize] + volume.least_received[rank as usize]
    }

    /// Bytes from one rank to another.
    pub fn pair(&self, src: u32, dst: u32) -> u64 {
        self.pairs[(src * self.world + dst) as usize]
    }

    /// Bytes received over all ranks.
    pub fn total(&self) -> u64 {
        self.received.iter().sum()
    }

    /// The least bytes received over all ranks. Bytes sent for sums are also received.
    pub fn least_total(&self) -> u64 {
        self.least_sent.iter().chain(&self.least_received).sum()
    }

    /// The least bytes that must cross the busiest direction of any rank's link.
    pub fn least_of_a_link(&self) -> u64 {
        let most = |bytes: &[u64]| bytes.iter().copied().max().unwrap_or(0);
        let average = self.least_total() / u64::from(self.world.max(1));
        most(&self.least_sent)
            .max(most(&self.least_received))
            .max(average)
    }

    /// Least bytes of a link where the switch may send one copy to every rank and add up every rank's. There the
    /// average over all ranks is no least: what several ranks send to be added may arrive as one.
    pub(super) fn least_of_a_link_by_switch(&self) -> u64 {
        let all = self.least_sent.iter().chain(&self.least_received);
        all.copied().max().unwrap_or(0)
    }

    fn add(&mut self, op: OpId, Crossing { src, dst, bytes }: Crossing) {
        let all = 0..self.world as u16;
        let links: Vec<(u16, u16)> = match (src, dst) {
            (_, EVERYWHERE) => all.map(|dst| (src, dst)).collect(),
            (EVERYWHERE, _) => all.map(|src| (src, dst)).collect(),
            _ => vec![(src, dst)],
        };
        let own = |rank: u16| dst == EVERYWHERE && rank == src;
        let (mut left, mut received) = (None, None);
        for (src, dst) in links {
            self.pairs[usize::from(src) * self.world as usize + usize::from(dst)] += bytes;
            // A multicast leaves its sender once, and a sum in the switch arrives once.
            if left.replace(src) != Some(src) {
                self.sent[usize::from(src)] += bytes;
            }
            if received.replace(dst) != Some(dst) {
                self.received[usize::from(dst)] += bytes;
                self.by_op[usize::from(op.0)] += if own(dst) { 0 } else { bytes };
            }
        }
    }

    fn least(&mut self, kernel: &Kernel, plan: &Plan) {
        if self.world < 2 {
            return;
        }
        for buffer in &kernel.buffers {
            let columns = u64::from(plan.geometry.size(buffer.columns));
            let row = columns * u64::from(buffer.dtype.bytes());
            // Partial sums of FP8 have a scale for each block of columns.
            let added = buffer.usage.is_sum();
            let partial = kernel.quantised_reduction().filter(|_| added);
            let sent = partial.map(|rule| {
                let block = rule.block();
                let scales =
                    columns.div_ceil(block.columns.into()) * u64::from(block.element.bytes());
                columns * u64::from(rule.to.dtype().bytes()) + scales
            });
            for rank in 0..self.world {
                let own = u64::from(plan.geometry.owned(buffer.rows, rank).len());
                let others = u64::from(plan.geometry.size(buffer.rows)) - own;
                let (sum, gather) = match buffer.usage.at_end {
                    AtEnd::Gathered | AtEnd::Computed => (false, true),
                    // What a rank sends is its own, row by row, summed or not.
                    AtEnd::Sum { everywhere } => (true, everywhere),
                    AtEnd::Sent => (true, false),
                    AtEnd::Nothing | AtEnd::Own | AtEnd::Accumulated => (false, false),
                };
                if sum {
                    self.least_sent[rank as usize] += others * sent.unwrap_or(row);
                }
                if gather {
                    self.least_received[rank as usize] += others * row;
                }
            }
        }
    }

    /// A warning with the statements that move more than necessary, and why. None if there are none.
    pub fn warnings(&self, kernel: &Kernel, plan: &Plan) -> Vec<Diagnostic> {
        let (total, least) = (self.by_op.iter().sum(), self.least_total());
        if total <= least {
            return Vec::new();
        }
        let mut message = format!("{} cross links in a launch", size(total));
        if least == 0 {
            message.push_str(", where no tensor needs any");
        } else {
            let times = total as f64 / least as f64;
            message.push_str(&format!(", {times:.2} times the least, {}", size(least)));
        }
        let mut moved: Vec<(OpId, u64)> = (0..).map(OpId).zip(self.by_op.iter().copied()).collect();
        moved.retain(|(_, bytes)| *bytes > 0);
        moved.sort_by_key(|(op, bytes)| (u64::MAX - bytes, *op));
        let texts = kernel.op_texts();
        let at = moved.first().map(|(op, _)| kernel.loc(*op));
        let mut warning = Diagnostic::new(Rule::Volume, at, message);
        for (op, bytes) in moved {
            let text = &texts[usize::from(op.0)];
            let note = format!("`{text}` moves {}", size(bytes));
            warning = warning.note(kernel.loc(op), note);
        }
        for reason in self.reasons(kernel, plan) {
            warning = warning.note(None, reason);
        }
        vec![warning]
    }

    /// Reason that each buffer's bytes are more than the least.
    fn reasons(&self, kernel: &Kernel, plan: &Plan) -> Vec<String> {
        let mut reasons = Vec::new();
        let sums = |buffer: &&Buffer| buffer.usage.is_sum();
        let sum = kernel
            .buffers
            .iter()
            .filter(sums)
            .min_by_key(|buffer| buffer.dtype.bytes());
        let moved = kernel.buffers.iter().zip(&self.by_buffer);
        for (index, (buffer, moved)) in moved.enumerate() {
            let (name, dtype) = (&buffer.name, buffer.dtype);
            // Once from each rank to the owner of each row, or from its owner to each rank, with scales where it has some.
            let scales = kernel.computed_scale_of(TensorId(index as u16));
            let scales = scales.map_or(0, |plane| whole(&kernel.buffers[plane.index()], plan));
            let once = (whole(buffer, plan) + scales) * (u64::from(self.world) - 1);
            if let (true, Some(sum), true) = (buffer.is_scratch(), sum, *moved > 0) {
                if dtype.bytes() > sum.dtype.bytes() {
                    reasons.push(format!(
                        "{name} is {dtype}, wider than {}, which is {}",
                        sum.name, sum.dtype
                    ));
                }
                if *moved > once {
                    reasons.push(format!(
                        "{name} receives rows that their owner alone needs to receive"
                    ));
                }
            }
            match buffer.usage.at_end {
                AtEnd::Gathered | AtEnd::Computed if *moved > once => reasons.push(format!(
                    "rows of {name} arrive more than once at a rank, or where they already are"
                )),
                AtEnd::Sum { everywhere: false } | AtEnd::Sent if *moved > once => {
                    reasons.push(format!("rows of {name} are sent more than once by a rank"));
                }
                AtEnd::Sum { everywhere: true } if *moved > 2 * once => reasons.push(format!(
                    "rows of {name} are sent more than once to be summed and once to be kept"
                )),
                AtEnd::Gathered
                | AtEnd::Computed
                | AtEnd::Sum { .. }
                | AtEnd::Sent
                | AtEnd::Nothing
                | AtEnd::Own
                | AtEnd::Accumulated => {}
            }
        }
        reasons
    }
}

/// Bytes of one copy of all rows of a buffer.
fn whole(buffer: &Buffer, plan: &Plan) -> u64 {
    u64::from(plan.geometry.size(buffer.rows))
        * u64::from(plan.geometry.size(buffer.columns))
        * u64::from(buffer.dtype.bytes())
}

/// A number of bytes with its unit.
pub(super) fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        _ if bytes < 1e4 => format!("{bytes} B"),
        _ if bytes < 1e7 => format!("{:.1} kB", bytes / 1e3),
        _ if bytes < 1e10 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.1} GB", bytes / 1e9),
    }
}
