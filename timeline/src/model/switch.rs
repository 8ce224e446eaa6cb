//! Predicted gain of NVLink multicast for the statements of a plan, by rates that others published. Nobody measured it here.
//!
//! One store to a multicast address reaches every rank: what leaves a rank once for each of the others would leave it once, and
//! come back to it once. A sum in the switch arrives once: what arrives from each of the others, to be added, would arrive as one. So two kinds of
//! statements gain, those that send the same to all others, and those that send partial sums to whom adds them.

use super::volume::{Crossing, EVERYWHERE, crossings};
use counterflow_codegen::kernel::{Access, Kernel, OpId, visit};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{AtEnd, Home, TensorId};
use counterflow_codegen::region::Rectangle;
use counterflow_codegen::unroll::StepKind;
use std::collections::{BTreeMap, BTreeSet};

const GIB: f64 = (1 << 30) as f64;

/// Bytes a second and direction that NCCL's own model gives its kernels on Hopper (`src/sym_kernels.cc`, its 320 GB are of 2^30
/// bytes): by stores to each rank, and also by a store to every rank alone or a sum in the switch alone. Published, not measured
/// by us.
pub const UNICAST: f64 = 320.0 * GIB;
/// Bytes a second where one kernel sums in the switch and stores the sums to every rank. That source gives it 480
/// GiB, which is more than NVLink 4 carries in a direction, so this is what the link carries.
pub const IN_SWITCH: f64 = 450e9;

/// The published rate of what goes through the switch, where a kernel sums there, stores to every rank, or both.
const fn published_rate(sums: bool, stores: bool) -> f64 {
    if sums && stores { IN_SWITCH } else { UNICAST }
}

/// Bytes a second of a kernel as it is written. A copy engine has no multicast.
pub(super) fn rate(kernel: &Kernel) -> f64 {
    let (mut sums, mut stores) = (false, false);
    for role in kernel.roles.iter().filter(|role| !role.kind.sequential()) {
        visit(&role.body, &mut |op| {
            for (region, access) in op.kind.regions() {
                if region.home == Home::Everywhere {
                    match access {
                        Access::Read => sums = true,
                        Access::Write | Access::Add => stores = true,
                    }
                }
            }
        });
    }
    published_rate(sums, stores)
}

const MIB: f64 = (1 << 20) as f64;

/// All-reduces by themselves on six H100s, published in a thread of vLLM's and not measured by us: bytes, then seconds of the
/// faster of two ways by unicast, and of multicast.
const ALL_REDUCES: [(f64, f64, f64); 4] = [
    (0.5 * MIB, 13e-6, 13e-6),
    (MIB, 17e-6, 16e-6),
    (2.0 * MIB, 26e-6, 21e-6),
    (4.0 * MIB, 37e-6, 31e-6),
];

/// Ways of a statement's bytes through the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// One store to all: the same bytes go to every other rank.
    Everywhere,
    /// Partial sums to the rank that adds them: one sum of every rank's copy.
    Sum,
    /// The statement is written with `everywhere()`.
    Already,
    /// Neither: it moves as much with multicast.
    None,
}

/// Predicted gain of one statement, or of all. [`multicast`] has an example.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Brings {
    /// Bytes that the busiest rank sends and receives by unicast.
    pub unicast: [u64; 2],
    /// Bytes through the switch, where that is possible.
    pub switch: [u64; 2],
    /// Seconds of the busier direction of that rank's link at [`UNICAST`].
    pub before: f64,
    /// Seconds through the switch, at best and if its links are no faster for it: at [`IN_SWITCH`] where the launch
    /// both sums there and stores to every rank, otherwise twice at [`UNICAST`].
    pub after: [f64; 2],
}

/// Predicted gain of multicast in a launch.
#[derive(Clone, PartialEq, Debug)]
pub struct Multicast {
    /// The statements that move bytes between ranks.
    pub statements: Vec<(OpId, Way, Brings)>,
    /// All of them: they share the links.
    pub all: Brings,
    /// If a launch ends with an all-reduce of a size that others measured alone: its bytes, seconds by unicast, and by multicast.
    pub all_reduce: Option<[f64; 3]>,
}

/// Bytes of one rank's memory that a statement moves.
#[derive(Default)]
struct Moves {
    way: Option<Way>,
    /// True where a statement is written so that the switch sums, and so that it stores to every rank.
    written: [bool; 2],
    /// By rank: sent and received, by unicast and through the switch.
    unicast: Vec<[u64; 2]>,
    switch: Vec<[u64; 2]>,
}

/// Predicts the gain of multicast for each statement of `plan`.
///
/// ```
/// use counterflow_timeline::model::{Brings, Multicast, Way, multicast};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let found: Multicast = multicast(series.kernel(), &plan);
/// let (_, way, brings): (_, Way, Brings) = found.statements[0];
/// assert_eq!(way, Way::None); // each rank sends its rows to all others: here there is one
/// assert_eq!(brings.unicast, brings.switch);
/// println!("{} µs of the links, now {}", found.all.after[0] * 1e6, found.all.before * 1e6);
/// ```
pub fn multicast(kernel: &Kernel, plan: &Plan) -> Multicast {
    let world = plan.geometry.world as usize;
    let mut statements: BTreeMap<OpId, Moves> = BTreeMap::new();
    let alike = alike(kernel, plan);
    for agent in &plan.agents {
        for step in &agent.steps {
            for moved in crossings(kernel, agent, &step.kind) {
                let way = way(kernel, &alike, step.op, moved, &step.kind);
                let moves = statements
                    .entry(step.op)
                    .or_insert_with(|| Moves::none(world));
                moves.way = Some(
                    moves
                        .way
                        .map_or(way, |other| if other == way { way } else { Way::None }),
                );
                moves.add(moved, world);
            }
        }
    }
    let rate = best_rate(statements.values());
    let mut all = Moves::none(world);
    let each = statements.into_iter().map(|(op, moves)| {
        let moves = moves.through_switch(world);
        for (sum, own) in [
            (&mut all.unicast, &moves.unicast),
            (&mut all.switch, &moves.switch),
        ] {
            for (sum, own) in sum.iter_mut().zip(own) {
                *sum = [sum[0] + own[0], sum[1] + own[1]];
            }
        }
        (op, moves.way.unwrap_or(Way::None), moves.brings(rate))
    });
    let statements: Vec<_> = each.collect();
    // They share the links: one after another, each at its rate.
    let all = Brings {
        before: statements.iter().map(|(.., brings)| brings.before).sum(),
        after: [0, 1].map(|at| statements.iter().map(|(.., brings)| brings.after[at]).sum()),
        ..all.brings(rate)
    };
    Multicast {
        statements,
        all,
        all_reduce: all_reduce(kernel, plan),
    }
}

/// At best, if every statement went through the switch that can.
fn best_rate<'a>(statements: impl Iterator<Item = &'a Moves>) -> f64 {
    let (mut sums, mut stores) = (false, false);
    for moves in statements {
        sums |= moves.way == Some(Way::Sum) || moves.written[0];
        stores |= moves.way == Some(Way::Everywhere) || moves.written[1];
    }
    published_rate(sums, stores)
}

/// For each statement, rank, source of a copy and place: to whom the same bytes go.
type Alike = BTreeMap<(OpId, u16, Option<Place>, Place), BTreeSet<u16>>;

/// A rectangle without its rank: tensor, slot, rows and columns.
type Place = [u32; 6];

fn place(of: &Rectangle) -> Place {
    [
        u32::from(of.tensor.0),
        u32::from(of.slot),
        of.rows.start,
        of.rows.end,
        of.columns.start,
        of.columns.end,
    ]
}

fn alike(kernel: &Kernel, plan: &Plan) -> Alike {
    let mut all = Alike::new();
    for agent in &plan.agents {
        for step in &agent.steps {
            for moved in crossings(kernel, agent, &step.kind) {
                if let Some((src, dst)) = written(&step.kind)
                    && moved.src == agent.rank
                {
                    all.entry((step.op, agent.rank, src.map(place), place(dst)))
                        .or_default()
                        .insert(moved.dst);
                }
            }
        }
    }
    all
}

/// Rectangle that a step writes, with the one that a copy reads.
const fn written(step: &StepKind) -> Option<(Option<&Rectangle>, &Rectangle)> {
    match step {
        StepKind::Copy { dst, src } => Some((Some(src), dst)),
        StepKind::Store { dst, .. } => Some((None, dst)),
        StepKind::Wait { .. }
        | StepKind::Signal { .. }
        | StepKind::Dot { .. }
        | StepKind::Reduce { .. }
        | StepKind::OwnTerm { .. }
        | StepKind::Load { .. } => None,
    }
}

fn way(kernel: &Kernel, alike: &Alike, op: OpId, moved: Crossing, step: &StepKind) -> Way {
    if moved.src == EVERYWHERE || moved.dst == EVERYWHERE {
        return Way::Already;
    }
    // The only other rank: one store, or one part of a sum, is all there is.
    if kernel.variant.world == 2 {
        return Way::None;
    }
    let Some((src, dst)) = written(step) else {
        return Way::None;
    };
    let to = alike
        .get(&(op, moved.src, src.map(place), place(dst)))
        .map_or(0, BTreeSet::len);
    if to as u32 == kernel.variant.world - 1 {
        return Way::Everywhere;
    }
    match partial(kernel, dst.tensor) {
        true => Way::Sum,
        false => Way::None,
    }
}

/// True if it is scratch of a kernel that sums over ranks: its parts are added by whom they are sent to.
fn partial(kernel: &Kernel, buffer: TensorId) -> bool {
    let sums = kernel
        .buffers
        .iter()
        .any(|buffer| matches!(buffer.usage.at_end, AtEnd::Sum { .. }));
    sums && kernel.buffers[buffer.index()].is_scratch()
}

impl Moves {
    fn none(world: usize) -> Moves {
        Moves {
            unicast: vec![[0; 2]; world],
            switch: vec![[0; 2]; world],
            ..Moves::default()
        }
    }

    fn add(&mut self, Crossing { src, dst, bytes }: Crossing, world: usize) {
        self.written[0] |= src == EVERYWHERE;
        self.written[1] |= dst == EVERYWHERE;
        let others = |but: u16| (0..world as u16).filter(move |rank| *rank != but);
        match (src, dst) {
            (src, EVERYWHERE) => {
                // By unicast it would leave once for each.
                self.unicast[usize::from(src)][0] += bytes * (world as u64 - 1);
                self.switch[usize::from(src)][0] += bytes;
                others(src).for_each(|dst| self.unicast[usize::from(dst)][1] += bytes);
                // The switch writes every rank's copy, also that of the rank which stores.
                self.switch
                    .iter_mut()
                    .for_each(|[_, received]| *received += bytes);
            }
            (EVERYWHERE, dst) => {
                self.unicast[usize::from(dst)][1] += bytes * (world as u64 - 1);
                self.switch[usize::from(dst)][1] += bytes;
                others(dst).for_each(|src| self.unicast[usize::from(src)][0] += bytes);
                // The switch adds every rank's copy, also that of the rank which asks.
                self.switch.iter_mut().for_each(|[sent, _]| *sent += bytes);
            }
            (src, dst) => {
                self.unicast[usize::from(src)][0] += bytes;
                self.unicast[usize::from(dst)][1] += bytes;
            }
        }
    }

    /// Adds the bytes that the switch would carry: a store comes back to its sender once, and a sum also reads its
    /// reader's copy.
    fn through_switch(mut self, world: usize) -> Moves {
        let others = (world as u64 - 1).max(1);
        let each = self.unicast.iter().map(|[sent, received]| match self.way {
            Some(Way::Everywhere) => [sent / others, received + sent / others],
            Some(Way::Sum) => [sent + received / others, received / others],
            Some(Way::Already | Way::None) | None => [*sent, *received],
        });
        if self.way != Some(Way::Already) {
            self.switch = each.collect();
        }
        self
    }

    /// Of the busiest rank, through the switch at `best`.
    fn brings(&self, best: f64) -> Brings {
        let most = |of: &[[u64; 2]]| {
            of.iter()
                .copied()
                .max_by_key(|[sent, received]| *sent.max(received))
                .unwrap_or([0; 2])
        };
        let (unicast, switch) = (most(&self.unicast), most(&self.switch));
        let seconds = |[sent, received]: [u64; 2], rate: f64| sent.max(received) as f64 / rate;
        let before = seconds(unicast, UNICAST);
        Brings {
            unicast,
            switch,
            before,
            after: match self.way {
                Some(Way::None) | None => [before; 2],
                Some(Way::Everywhere | Way::Sum | Way::Already) => {
                    [best, UNICAST].map(|rate| seconds(switch, rate))
                }
            },
        }
    }
}

/// Figures of others for an all-reduce as large as what every rank keeps of a sum over ranks.
fn all_reduce(kernel: &Kernel, plan: &Plan) -> Option<[f64; 3]> {
    let summed = kernel
        .buffers
        .iter()
        .filter(|buffer| buffer.usage.at_end == (AtEnd::Sum { everywhere: true }));
    let bytes = summed.map(|buffer| {
        let elements = u64::from(plan.geometry.size(buffer.rows))
            * u64::from(plan.geometry.size(buffer.columns));
        elements * u64::from(buffer.dtype.bytes())
    });
    published(bytes.sum::<u64>() as f64)
}

/// Between two sizes that were published, in proportion; nothing beyond them.
fn published(bytes: f64) -> Option<[f64; 3]> {
    let pairs = ALL_REDUCES.iter().zip(&ALL_REDUCES[1..]);
    let mut around = pairs.filter(|(below, above)| below.0 <= bytes && bytes <= above.0);
    let (below, above) = around.next()?;
    let part = (bytes - below.0) / (above.0 - below.0);
    let between = |low: f64, high: f64| low + part * (high - low);
    Some([bytes, between(below.1, above.1), between(below.2, above.2)])
}
