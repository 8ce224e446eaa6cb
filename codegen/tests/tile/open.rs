//! The open interpreter: launches that are put on streams while it runs agree with the reference, as the emulator's do.

use crate::fixtures::wide::sampled;
use crate::fixtures::{multicast, small};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::{COUNTER_LINE, Plan};
use counterflow_codegen::program::{AtStart, CounterId, Program, TensorId};
use counterflow_codegen::region::Span;
use counterflow_codegen::shape::{Extent, Shape};
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_emulator::open::{
    AHEAD, Cause, Compare, Fault, GaveUp, Launch, Machine as Gpus, Memory, Place, StreamId, Watch,
    Work,
};
use counterflow_emulator::{self as interp, Input, Outcome, Output, Policy};
use std::borrow::Cow;
use std::sync::Arc;

const SMS: u32 = 132;
const SEED: u64 = 7;

/// Addresses from 0.
#[derive(Debug)]
struct Flat(Vec<u8>);

impl Memory for Flat {
    fn bytes(&self, at: u64, len: u64) -> Result<Cow<'_, [u8]>, Fault> {
        let range = at as usize..(at + len) as usize;
        let bytes = self.0.get(range).map(Cow::Borrowed);
        bytes.ok_or_else(|| Fault("outside".into()))
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        let write = &mut |from: usize, place: &mut [u8]| {
            place.copy_from_slice(&bytes[from..from + place.len()]);
        };
        self.update(at, bytes.len() as u64, write)
    }
    fn update(
        &mut self,
        at: u64,
        len: u64,
        change: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), Fault> {
        let range = at as usize..(at + len) as usize;
        let place = self.0.get_mut(range);
        change(0, place.ok_or_else(|| Fault("outside".into()))?);
        Ok(())
    }
    fn free(&mut self, _: u64) -> Result<(), Fault> {
        Ok(())
    }
}

struct World {
    series: Series,
    plans: Vec<Checked<Plan>>,
    gpus: Gpus<Flat>,
    streams: Vec<StreamId>,
    stride: u64,
    cells: u64,
    first: Vec<u32>,
    /// By launch and tensor: the offset in a slot.
    places: Vec<Vec<u64>>,
    /// What inputs, whole numbers, are divided by.
    divided: f32,
}

fn kernel(program: &Program, world: u32) -> Checked<Kernel> {
    let kernel = lower(program, &Variant::new(world).arch(Arch::Cpu)).expect("a kernel");
    verify::kernel(kernel).expect("a checked kernel")
}

impl World {
    /// Every launch has tensors of its own, but all share scratch and counters.
    fn new(program: &Program, world: u32, rows: &[u32], seed: u64) -> World {
        let kernel = kernel(program, world);
        let most = rows.iter().copied().max().unwrap_or(1);
        let series = verify::series(&kernel, &Shape::new(most, 16, 24), &Machine::h200());
        let series = series.expect("a series");
        let plans: Vec<_> = rows
            .iter()
            .map(|m| series.plan(&Shape::new(*m, 16, 24)).expect("a plan"))
            .collect();
        let (mut at, mut first, mut count) = (256, Vec::new(), 0);
        let cells = at;
        for index in 0..kernel.counters.len() {
            first.push(count);
            count += series.largest().counter_cells(CounterId(index as u16));
        }
        at += u64::from(count) * COUNTER_LINE;
        let mut scratch = vec![None; kernel.buffers.len()];
        let places = plans
            .iter()
            .map(|_| {
                let tensors = kernel.buffers.iter().enumerate();
                let place = |(index, buffer): (usize, &_)| {
                    let id = TensorId(index as u16);
                    let bytes = plans.iter().map(|plan| plan.bytes(&kernel, id)).max();
                    let new = at;
                    at += bytes.unwrap_or(0);
                    let buffer: &counterflow_codegen::kernel::Buffer = buffer;
                    match buffer.is_scratch() {
                        true => *scratch[index].get_or_insert(new),
                        false => new,
                    }
                };
                tensors.map(place).collect()
            })
            .collect();
        let sms = vec![SMS; world as usize];
        let mut gpus = Gpus::new(Flat(vec![0; (at * u64::from(world)) as usize]), &sms, seed);
        let streams = (0..world as usize).map(|gpu| gpus.stream(gpu)).collect();
        World {
            series,
            plans,
            gpus,
            streams,
            stride: at,
            cells,
            first,
            places,
            divided: 1.0,
        }
    }

    fn span(&self, launch: usize, rank: u32, (id, slot): (TensorId, u32), rows: Extent) -> Span {
        let kernel = self.series.kernel();
        let columns = kernel.buffers[id.index()].columns;
        Span {
            buffer: id,
            home: rank as u16,
            slot: slot as u16,
            rows,
            columns: Extent {
                start: 0,
                end: self.plans[launch].geometry.size(columns),
            },
        }
    }

    /// The inputs of a launch on a rank, and the launch.
    fn launch(&mut self, launch: usize, rank: u32, limit: u64) {
        let (kernel, plan) = (self.series.kernel().clone(), self.plans[launch].clone());
        let slot = u64::from(rank) * self.stride;
        let mut inputs = interp::integers(SEED);
        for (index, buffer) in kernel.buffers.iter().enumerate() {
            let id = TensorId(index as u16);
            let to = slot + self.places[launch][index];
            if !buffer.is_scratch() {
                let bytes = plan.bytes(&kernel, id);
                let poison = Work::Fill {
                    to,
                    byte: 0xff,
                    bytes,
                };
                self.gpus.submit(self.streams[rank as usize], poison);
            }
            if !buffer.usage.counts_before() {
                continue;
            }
            let rows = match buffer.usage.at_start() {
                AtStart::Shard => plan.geometry.shard(buffer.rows, rank),
                AtStart::Whole | AtStart::Nothing => plan.geometry.held(buffer, rank),
            };
            let span = self.span(launch, rank, (id, 0), rows);
            let mut values = vec![0.0; span.elements() as usize];
            let input = Input {
                launch,
                rank,
                tensor: id,
                name: &buffer.name,
                rows,
                columns: span.columns.end,
            };
            inputs(input, &mut values);
            values.iter_mut().for_each(|value| *value /= self.divided);
            let lines = plan.lines(&kernel, &span);
            let long = (span.columns.len() as usize).max(1);
            for (line, values) in values.chunks(long).enumerate() {
                let mut bytes = vec![0; lines.bytes as usize];
                let width = buffer.dtype.bytes() as usize;
                for (value, place) in values.iter().zip(bytes.chunks_exact_mut(width)) {
                    buffer.dtype.write(*value, place);
                }
                let to = to + lines.offset + line as u64 * lines.pitch;
                let work = Work::Write { to, bytes };
                self.gpus.submit(self.streams[rank as usize], work);
            }
        }
        let places = self.places[launch].iter().map(|at| {
            Some(Place {
                own: slot + at,
                shared: Some(*at),
            })
        });
        let launch = Launch {
            rank,
            places: places.collect(),
            stride: self.stride,
            cells: self.cells,
            first: self.first.clone(),
            scales: vec![1; self.first.len()],
            ctas: plan.grid.gemm + plan.grid.comm,
            watch: Watch {
                id: u64::from(rank),
                kernel: 0,
                abort: 0,
                host: None,
                limit,
            },
            plan,
        };
        let stream = self.streams[rank as usize];
        self.gpus.submit(stream, Work::Kernel(Arc::new(launch)));
    }

    fn outcome(&self) -> Outcome {
        let kernel = self.series.kernel();
        let mut outputs = Vec::new();
        for launch in 0..self.plans.len() {
            for rank in 0..kernel.variant.world {
                for (index, buffer) in kernel.buffers.iter().enumerate() {
                    let tensor = TensorId(index as u16);
                    let plan = &self.plans[launch];
                    let rows = plan.geometry.held(buffer, rank);
                    let start = u64::from(rank) * self.stride + self.places[launch][index];
                    let mut values = Vec::new();
                    for slot in 0..buffer.slots(kernel.variant.world) {
                        let span = self.span(launch, rank, (tensor, slot), rows);
                        let lines = plan.lines(kernel, &span);
                        for line in 0..lines.lines {
                            let at = start + lines.offset + line * lines.pitch;
                            let bytes = self.gpus.memory.bytes(at, lines.bytes).expect("inside");
                            let places = bytes.chunks_exact(buffer.dtype.bytes() as usize);
                            values.extend(places.map(|place| buffer.dtype.read(place)));
                        }
                    }
                    outputs.push(Output {
                        launch,
                        rank,
                        tensor,
                        rows,
                        values,
                    });
                }
            }
        }
        Outcome {
            outputs,
            steps: 0,
            policy: Policy::Random,
        }
    }
}

/// Launches of several shapes, enqueued at once: ranks are skewed as far as the counters allow.
#[test]
fn launches_of_every_schedule_agree_with_the_reference_in_every_order() {
    let rows = [9, 17, 4, 17];
    let mut compared = std::collections::BTreeSet::new();
    for (name, program) in small::ALL {
        let program = program();
        for world in 1..4 {
            for seed in sampled(0..6, 3) {
                let mut ranks = World::new(&program, world, &rows, seed);
                let copied = ranks.series.kernel().roles.iter();
                if copied.clone().any(|role| role.kind.sequential()) {
                    continue;
                }
                for launch in 0..rows.len() {
                    for rank in 0..world {
                        ranks.launch(launch, rank, u64::MAX);
                    }
                }
                ranks.gpus.run(0, u64::MAX);
                assert_eq!(ranks.gpus.fault(), None, "{name}");
                assert_eq!(ranks.gpus.blocked(), [], "{name}, {world} ranks");
                let outcome = ranks.outcome();
                for (launch, plan) in ranks.plans.iter().enumerate() {
                    let inputs = interp::integers(SEED);
                    let expected = interp::reference(ranks.series.kernel(), plan, launch, inputs);
                    // `gated` computes what is no whole number.
                    let Some(expected) = expected.ok().filter(|_| name != "gated") else {
                        continue;
                    };
                    compared.insert(name);
                    if let Err(off) = interp::compare_exactly(&outcome, &expected) {
                        panic!("{name}, {world} ranks, seed {seed}: {off}");
                    }
                }
            }
        }
    }
    let all = small::ALL.iter().map(|(name, _)| *name);
    // The host makes the copies of `pull`: the run time's tests have it.
    let all = all.filter(|name| !["gated", "pull"].contains(name));
    assert_eq!(compared, all.collect());
}

/// Sums in the switch have the bits that a seed says, and with another one others: whoever runs it relies on no order. The sum goes
/// from its owner to all, so ranks have the same.
#[test]
fn the_switch_adds_in_an_order_that_a_seed_draws() {
    let sizes = multicast::Sizes {
        sums: Dtype::F32,
        ..multicast::SMALL
    };
    let bits = |seed| {
        let mut ranks = World::new(&multicast::all_reduce(sizes), 8, &[9], seed);
        // No sum of thirds is exact.
        ranks.divided = 3.0;
        (0..8).for_each(|rank| ranks.launch(0, rank, u64::MAX));
        ranks.gpus.run(0, u64::MAX);
        assert_eq!((ranks.gpus.fault(), ranks.gpus.blocked()), (None, vec![]));
        let kernel = ranks.series.kernel().clone();
        let outputs = ranks.outcome().outputs.into_iter();
        let sums = outputs.filter(|output| kernel.buffers[output.tensor.index()].name == "y");
        let mut sums = sums.map(|output| output.values.into_iter().map(f32::to_bits));
        let first: Vec<u32> = sums.next().expect("rank 0's").collect();
        assert!(sums.all(|other| other.eq(first.iter().copied())));
        first
    };
    assert_eq!(bits(1), bits(1));
    let all: std::collections::BTreeSet<_> = (0..6).map(bits).collect();
    assert!(all.len() > 1, "one order for every seed");
}

/// A rank whose peer does not launch waits for it, says for what, and gives up after its limit. Then it drains.
#[test]
fn a_wait_for_a_rank_that_does_not_come_gives_up_after_its_limit() {
    let mut ranks = World::new(&small::ag_gemm(), 2, &[9], 1);
    ranks.launch(0, 0, 1000);
    ranks.gpus.run(5, u64::MAX);
    let blocked = ranks.gpus.blocked();
    assert!(
        blocked.iter().any(|wait| wait.role == "gemm"),
        "{blocked:?}"
    );
    assert!(
        blocked.iter().all(|wait| wait.seen < wait.wanted),
        "{blocked:?}"
    );
    assert_eq!(ranks.gpus.deadline(), Some(1005));
    let end = ranks.gpus.now(ranks.streams[0]);
    assert!(!ranks.gpus.is_past(end));
    ranks.gpus.run(1005, u64::MAX);
    assert!(ranks.gpus.is_past(end));
    let told = ranks.gpus.told();
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].cause, told[0].rank, told[0].time),
        (Cause::Limit, 0, 1005)
    );
    // Its peer finds the flag, and ends at once.
    ranks.launch(0, 1, 1000);
    ranks.gpus.run(1006, u64::MAX);
    assert!(ranks.gpus.is_past(ranks.gpus.now(ranks.streams[1])));
    assert!(
        ranks
            .gpus
            .told()
            .iter()
            .all(|told| told.cause == Cause::Peer)
    );
}

/// An access outside memory kills the machine, and says so.
#[test]
fn a_refused_access_empties_the_streams() {
    let mut ranks = World::new(&small::ag_gemm(), 2, &[9], 1);
    let far = Work::Fill {
        to: 1 << 40,
        byte: 0,
        bytes: 1,
    };
    ranks.gpus.submit(ranks.streams[0], far);
    ranks.launch(0, 0, u64::MAX);
    ranks.gpus.run(0, u64::MAX);
    assert_eq!(ranks.gpus.fault(), Some(&Fault("outside".into())));
    assert!(ranks.gpus.is_past(ranks.gpus.now(ranks.streams[0])));
}

/// What two ranks are told that compare these launches, the first rank all of its before the other one begins.
fn compared(launches: [&[(u64, Option<u64>)]; 2]) -> Option<GaveUp> {
    const STRIDE: u64 = 1 << 14;
    let mut gpus = Gpus::new(Flat(vec![0; 2 * STRIDE as usize]), &[SMS; 2], 1);
    for (rank, launches) in (0..).zip(launches) {
        let stream = gpus.stream(rank as usize);
        for (tag, launched) in launches {
            let compare = Compare {
                rank,
                world: 2,
                boards: 256,
                stride: STRIDE,
                far: 64 + 8 * u64::from(rank),
                tag: *tag,
                launched: *launched,
                watch: Watch {
                    id: rank.into(),
                    kernel: 0,
                    abort: 0,
                    host: None,
                    limit: u64::MAX,
                },
            };
            gpus.submit(stream, Work::Compare(compare));
        }
        gpus.run(0, u64::MAX);
    }
    assert_eq!(gpus.fault(), None);
    gpus.told().into_iter().next()
}

#[test]
fn replays_that_differ_are_told_however_far_a_rank_is_ahead() {
    let replays = |other: Option<usize>, count: u64| -> Vec<_> {
        let tag = |at: u64| 77 + u64::from(other == Some(at as usize));
        (0..count).map(|at| (tag(at), None)).collect()
    };
    for count in [AHEAD, 3 * AHEAD + 5, 40 * AHEAD] {
        let same = replays(None, count);
        assert_eq!(compared([&same, &same]), None, "{count}");
        for at in [0, count / 2, count - 1] {
            let told = compared([&same, &replays(Some(at as usize), count)]);
            let told = told.unwrap_or_else(|| panic!("launch {at} of {count} differs"));
            assert_eq!(
                (told.cause, told.rank),
                (Cause::Differs, 1),
                "{at} of {count}"
            );
            // Which one it was is known as long as it is among the latest.
            let latest = at + AHEAD >= count;
            assert_eq!(told.role, u32::from(!latest), "{at} of {count}");
            if latest {
                assert_eq!((u64::from(told.cell), told.seen, told.wanted), (at, 77, 78));
            }
        }
    }
}

/// Of launches that hosts make, their ledger compares what they are. Ranks may begin to compare at any of them.
#[test]
fn launches_of_hosts_are_compared_by_their_places_among_the_replays() {
    let host = |at: u64| (5, Some(at));
    let replay = (9, None);
    let early = [host(0), host(1), host(2), replay, host(3), replay];
    assert_eq!(compared([&early, &early]), None);
    let swapped = [host(0), host(1), host(2), host(3), replay, replay];
    let told = compared([&early, &swapped]).expect("another order");
    assert_eq!((told.cause, told.cell, told.role), (Cause::Differs, 3, 0));
    // One replays what the other one's host launches.
    let replayed = [host(0), host(1), host(2), replay, (9, Some(3)), replay];
    let told = compared([&early, &replayed]).expect("they differ");
    assert_eq!((told.cell, told.role), (4, 0));
}
