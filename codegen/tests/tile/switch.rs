//! What multicast would bring, by published rates: of schedules whose statements can go through the switch, and of others. And the
//! timeline of what is written so: each byte once on the links that it crosses, at those rates.

use crate::fixtures::features as schedules;
use crate::fixtures::{library, multicast as everywhere, small};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_timeline::model::volume::EVERYWHERE;
use counterflow_timeline::model::{
    EventKind, Multicast, Timeline, Volume, Way, multicast, predict,
};

const WORLD: u32 = 4;

fn found(program: &Program, shape: &Shape) -> Multicast {
    in_world(program, WORLD, shape)
}

fn in_world(program: &Program, world: u32, shape: &Shape) -> Multicast {
    let kernel = lower(
        program,
        &Variant::new(world).arch(Arch::Cpu).dtype(Dtype::Bf16),
    )
    .unwrap_or_else(|found| panic!("{found}"));
    let plan = Plan::new(&kernel, shape, &Machine::h200());
    multicast(&kernel, &plan.unwrap_or_else(|found| panic!("{found}")))
}

fn gains_nothing(program: &Program, world: u32, shape: &Shape) {
    let found = in_world(program, world, shape);
    let told = format!("{} in a world of {world}", program.name);
    assert!(!found.statements.is_empty(), "{told}");
    for (_, way, brings) in &found.statements {
        assert_eq!(*way, Way::None, "{told}");
        let same = (brings.after, brings.switch);
        assert_eq!(([brings.before; 2], brings.unicast), same, "{told}");
    }
    assert_eq!([found.all.before; 2], found.all.after, "{told}");
}

fn near(value: f64, expected: f64) {
    assert!(
        (value / expected - 1.0).abs() < 1e-12,
        "{value}, not {expected}"
    );
}

fn ways(found: &Multicast) -> Vec<Way> {
    found.statements.iter().map(|(_, way, _)| *way).collect()
}

#[test]
fn a_gather_leaves_a_rank_once_and_also_comes_back_to_it() {
    let shard = 256 * 256 * 2;
    let shape = Shape::new(1024, 512, 256);
    let pushed = found(&schedules::push_all_gather(), &shape);
    assert_eq!(ways(&pushed), [Way::Everywhere]);
    let (.., brings) = pushed.statements[0];
    assert_eq!(
        (brings.unicast, brings.switch),
        ([3 * shard; 2], [shard, 4 * shard]),
        "a sender receives its own multicast"
    );
    // 384 and 512 KiB at 320 GiB/s. A store alone is not faster in the switch, so it may lose 4/3.
    near(brings.before, 1.1444091796875e-6);
    for after in brings.after {
        near(after, 1.52587890625e-6);
    }
    assert_eq!(pushed.all, brings);
    // The same schedule as its author would write it.
    let written = found(&small::multicast(), &shape);
    assert_eq!(ways(&written), [Way::Already]);
    assert_eq!(written.all, brings);
}

#[test]
fn a_sum_arrives_once_and_leaves_every_rank() {
    let part = 256 * 512 * 2;
    let summed = found(&schedules::slots_sum(), &Shape::new(1024, 512, 256));
    assert_eq!(ways(&summed), [Way::Sum]);
    let (.., brings) = summed.statements[0];
    assert_eq!(
        (brings.unicast, brings.switch),
        ([3 * part; 2], [4 * part, part])
    );
    // A sum alone: 768 and 1024 KiB at 320 GiB/s.
    near(brings.before, 2.288818359375e-6);
    for after in brings.after {
        near(after, 3.0517578125e-6);
    }
    assert_eq!(summed.all_reduce, None, "the rows of one rank");
    // Two shots: the sums, and then the rows that each rank has.
    let both = found(&schedules::two_shot(), &Shape::new(1024, 512, 256));
    assert_eq!(ways(&both), [Way::Sum, Way::Everywhere]);
    assert_eq!(both.all.unicast, [6 * part; 2]);
    assert_eq!(
        both.all.switch,
        [5 * part; 2],
        "(1 + 1/4) of all rows, with this rank's own"
    );
    // Both ways in one launch, each 1 MiB of the busier direction: at what NVLink carries, 450 GB/s, or at 320 GiB/s.
    near(both.all.before, 4.57763671875e-6);
    near(both.all.after[0], 2.0 * 1048576.0 / 450e9);
    near(both.all.after[1], 6.103515625e-6);
    let each = both.statements.iter().map(|(.., brings)| brings.after[1]);
    assert_eq!(both.all.after[1], each.sum::<f64>());
    // The switch adds every rank's copy, where a program is written so.
    let written = found(&small::gemm_ar_switch(), &Shape::new(1024, 512, 256));
    assert!(ways(&written).iter().all(|way| *way == Way::Already));
    assert_eq!(written.all.switch, both.all.switch);
}

#[test]
fn what_goes_to_one_rank_or_is_pulled_gains_nothing() {
    let shape = Shape::new(1024, 512, 256);
    let wide = Shape::new(6144, 512, 256);
    for world in [2, 3, 4, 8] {
        for program in [
            schedules::pull(),
            schedules::ring_all_gather(),
            library::all_to_all(&library::real()),
        ] {
            gains_nothing(&program, world, &wide);
        }
    }
    // The only other rank is no audience, and no part of a sum is saved.
    for program in [
        schedules::push_all_gather(),
        schedules::slots_sum(),
        schedules::two_shot(),
    ] {
        gains_nothing(&program, 2, &shape);
    }
    assert!(found(&schedules::gemm(), &shape).statements.is_empty());
}

#[test]
fn an_all_reduce_of_a_size_that_others_measured_has_their_times() {
    let of = |rows: u32| found(&schedules::two_shot(), &Shape::new(rows, 1024, 64)).all_reduce;
    let mib = f64::from(1u32 << 20);
    assert_eq!(of(512), Some([mib, 17e-6, 16e-6]));
    assert_eq!(of(1024), Some([2.0 * mib, 26e-6, 21e-6]));
    let [bytes, unicast, switch] = of(1536).expect("between two");
    assert_eq!(bytes, 3.0 * mib);
    assert!((unicast - 31.5e-6).abs() < 1e-12 && (switch - 26e-6).abs() < 1e-12);
    assert_eq!(
        [of(128), of(4096)],
        [None; 2],
        "nothing is published of these"
    );
}

/// My rows to everybody, by CTAs or by a copy engine.
fn gather(ctas: Option<u32>) -> Program {
    let mut s = ScheduleBuilder::new("gather");
    let x = s.gathered("x", Dtype::Bf16);
    let chunks = s.chunks("chunks", x, 64);
    let copies = |s: &mut ScheduleBuilder| {
        s.for_items("c", chunks.of(me()), |s, c| {
            s.copy(x.everywhere().at(c), x.at(c));
        });
    };
    match ctas {
        Some(ctas) => s.comm(ctas, copies),
        None => s.copy_engine(copies),
    }
    s.finish()
}

/// My rows of every rank's part.
fn scatter(ctas: u32) -> Program {
    let mut s = ScheduleBuilder::new("scatter");
    let y = s.reduce_scattered("y", Dtype::Bf16);
    let chunks = s.chunks("chunks", y, 64);
    let part = s.symmetric("part", Dtype::Bf16, y.whole(), 1);
    s.comm(ctas, |s| {
        s.for_items("c", chunks.of(me()), |s, c| {
            let sum = s.sum(part.everywhere().at(c));
            s.store(y.at(c), sum);
        });
    });
    s.finish()
}

/// A timeline, which nobody has proved.
fn timed(program: &Program, world: u32, shape: &Shape) -> (Kernel, Timeline) {
    let kernel = lower(program, &Variant::new(world)).unwrap_or_else(|found| panic!("{found}"));
    let plan = Plan::new(&kernel, shape, &Machine::h200());
    let plan = plan.unwrap_or_else(|found| panic!("{found}"));
    let timeline = predict(&kernel, &plan, &Machine::h200());
    (kernel, timeline.unwrap_or_else(|found| panic!("{found}")))
}

/// Seconds from the first byte that crosses a link to the last.
fn crossing(timeline: &Timeline) -> f64 {
    let moved = || timeline.events.iter().filter(|event| event.kind.crosses());
    let start = moved()
        .map(|event| event.start)
        .fold(f64::INFINITY, f64::min);
    moved().map(|event| event.end).fold(0.0, f64::max) - start
}

fn within(value: f64, expected: f64) {
    let ratio = value / expected;
    assert!((0.95..1.05).contains(&ratio), "{value} s, not {expected}");
}

/// 16 CTAs fill the links, and what a rank receives, its own too, takes them longest. One CTA sends its rows once, not once for each rank.
#[test]
fn what_goes_everywhere_leaves_a_rank_once_in_time() {
    let shape = Shape::new(16384, 256, 8192);
    for world in [2, 4, 8] {
        let own = 16384 / u64::from(world) * 8192 * 2;
        let (_, timeline) = timed(&gather(Some(16)), world, &shape);
        let received = own * u64::from(world); // 2^28 bytes, at 320 GiB/s
        assert_eq!(timeline.volume.sent, vec![own; world as usize]);
        assert_eq!(timeline.volume.received, vec![received; world as usize]);
        within(crossing(&timeline), 781.25e-6);
        let (_, timeline) = timed(&gather(Some(1)), world, &shape);
        let issued = own as f64 / Machine::h200().link_push_cta;
        within(crossing(&timeline), issued.max(781.25e-6));
    }
}

/// The switch reads every rank's copy, also that of the rank that asks, and one sum arrives.
#[test]
fn a_sum_reads_every_ranks_copy_in_time() {
    let shape = Shape::new(16384, 256, 8192);
    for world in [2, 4, 8] {
        let all = 16384 * 8192 * 2;
        let own = all / u64::from(world);
        let (_, timeline) = timed(&scatter(32), world, &shape);
        assert_eq!(timeline.volume.sent, vec![all; world as usize]);
        assert_eq!(timeline.volume.received, vec![own; world as usize]);
        for (rank, other) in [(0, 0), (0, 1), (1, 0)] {
            assert_eq!(timeline.volume.pair(rank, other), own);
        }
        within(crossing(&timeline), 781.25e-6);
    }
    // One rank has no links.
    let (_, alone) = timed(&scatter(32), 1, &shape);
    assert_eq!(
        (alone.volume.sent, alone.volume.received),
        (vec![0], vec![0])
    );
}

/// A kernel that sums and stores everywhere has all that NVLink carries, 450 GB/s.
#[test]
fn sums_and_stores_in_one_kernel_have_the_rate_of_both() {
    let mut s = ScheduleBuilder::new("both");
    let (x, y) = (
        s.gathered("x", Dtype::Bf16),
        s.reduce_scattered("y", Dtype::Bf16),
    );
    let (mine, rows) = (s.chunks("mine", x, 64), s.chunks("rows", y, 64));
    let part = s.symmetric("part", Dtype::Bf16, y.whole(), 1);
    s.comm(32, |s| {
        s.for_items("p", mine.of(me()), |s, p| {
            s.copy(x.everywhere().at(p), x.at(p));
        });
    });
    s.comm(32, |s| {
        s.for_items("c", rows.of(me()), |s, c| {
            let sum = s.sum(part.everywhere().at(c));
            s.store(y.at(c), sum);
        });
    });
    // Rows of `x` are as long as those of `y`: N is K here.
    let (_, timeline) = timed(&s.finish(), WORLD, &Shape::new(16384, 8192, 8192));
    assert_eq!(timeline.volume.sent, [5 << 26; 4]);
    assert_eq!(timeline.volume.received, [5 << 26; 4]);
    assert_eq!(timeline.link_rate, 450e9);
    // The same CTAs do one after the other, with some overlap: 2^28 bytes in, and then as many out.
    let took = crossing(&timeline);
    assert!((745.6e-6..1193.1e-6).contains(&took), "{took} s");
}

/// A copy engine has no multicast, so each byte leaves once for each rank, at a copy engine's rate, and its statement could gain.
#[test]
fn a_copy_engine_goes_to_one_rank_after_another() {
    let shape = Shape::new(16384, 256, 8192);
    let own = 4096 * 8192 * 2;
    let (kernel, timeline) = timed(&gather(None), WORLD, &shape);
    assert_eq!(timeline.volume.sent, [3 * own; 4]);
    let crosses = timeline.events.iter().filter(|event| event.kind.crosses());
    let to: Vec<u16> = crosses
        .filter(|event| event.rank == 1)
        .map(|event| event.peer)
        .collect();
    assert_eq!(to[..6], [0, 2, 3, 0, 2, 3], "piece by piece");
    let machine = Machine::h200();
    let copies = 3.0 * 64.0;
    let fixed = copies * machine.copy_engine_latency;
    within(
        crossing(&timeline),
        fixed + 3.0 * own as f64 / machine.link_copy_engine,
    );
    assert!(!kernel.needs_multicast());
    let found = found(&gather(None), &shape);
    assert_eq!(ways(&found), [Way::Everywhere]);
    assert_eq!(
        (found.all.unicast, found.all.switch),
        ([3 * own; 2], [own, 4 * own])
    );
}

/// What each rank's links carry in the timeline is what the plan says, and no schedule is faster than its bound.
#[test]
fn every_byte_of_the_switch_is_in_the_timeline() {
    for program in everywhere::all(everywhere::REAL) {
        for world in [1, 2, 4, 8] {
            let (_, timeline) = timed(&program, world, &Shape::new(4096, 1024, 512));
            let told = format!("{} in a world of {world}", program.name);
            let mut sent = vec![0; world as usize];
            let mut received = sent.clone();
            let events = timeline.events.iter().filter(|event| event.kind.crosses());
            for event in events {
                let (src, dst) = match event.kind == EventKind::Push {
                    true => (event.rank, event.peer),
                    false => (event.peer, event.rank),
                };
                for rank in 0..world as u16 {
                    let sends = src == rank || src == EVERYWHERE;
                    let receives = dst == rank || dst == EVERYWHERE;
                    sent[usize::from(rank)] += u64::from(sends) * event.bytes;
                    received[usize::from(rank)] += u64::from(receives) * event.bytes;
                }
            }
            let Volume {
                sent: out,
                received: into,
                ..
            } = &timeline.volume;
            assert_eq!((&sent, &received), (out, into), "{told}");
            assert!(
                timeline.total >= timeline.bound(),
                "{told}: {}",
                timeline.summary()
            );
        }
    }
}
