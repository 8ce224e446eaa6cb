//! The timeline model: sane totals, every byte accounted for, and the texts that show it.

use crate::fixtures::features as schedules;
use counterflow_codegen::builder::{GemmOptions, ItemsRef, ScheduleBuilder};
use counterflow_codegen::diag::Rule;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::{Machine, Sm};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_timeline::model::{EventKind, Timeline, predict};
use std::collections::HashMap;

fn planned(program: &Program, world: u32, shape: &Shape) -> (Kernel, Plan) {
    let kernel = lower(program, &Variant::new(world)).unwrap_or_else(|found| panic!("{found}"));
    let plan =
        Plan::new(&kernel, shape, &Machine::h200()).unwrap_or_else(|found| panic!("{found}"));
    (kernel, plan)
}

fn timeline(program: &Program, world: u32, shape: &Shape, machine: &Machine) -> Timeline {
    let (kernel, plan) = planned(program, world, shape);
    predict(&kernel, &plan, machine).unwrap_or_else(|found| panic!("{found}"))
}

fn within(value: f64, expected: f64, part: f64) {
    let ratio = value / expected;
    assert!(
        (ratio - 1.0).abs() <= part,
        "{value} is {ratio:.3} times {expected}"
    );
}

/// Those that run in any world, with the total of bytes that cross in units of rows, by hand.
fn library() -> Vec<Program> {
    vec![
        schedules::push_all_gather(),
        schedules::pull(),
        schedules::ring_all_gather(),
        schedules::slots_sum(),
        schedules::reduce_add(),
        schedules::two_shot(),
        schedules::gated_pair(),
        schedules::gemm(),
    ]
}

#[test]
fn one_gemm_takes_what_was_measured() {
    // cuBLAS on one H200, short runs.
    for (m, n, k, measured) in [
        (8192, 8192, 8192, 1371.3e-6),
        (4096, 4096, 4096, 171.9e-6),
        (2048, 8192, 7168, 295.9e-6),
        (8192, 8192, 2048, 356.0e-6),
        (2048, 16384, 13312, 1089.8e-6),
    ] {
        let timeline = timeline(
            &schedules::gemm(),
            1,
            &Shape::new(m, n, k),
            &Machine::h200(),
        );
        within(timeline.total, measured, 0.05);
        assert_eq!(timeline.exposed_communication(), 0.0);
        assert_eq!(timeline.volume.total(), 0);
    }
}

#[test]
fn a_gathered_gemm_is_near_the_bound() {
    let shape = Shape::new(8192, 7168, 8192);
    for program in [
        schedules::push_all_gather(),
        schedules::pull(),
        schedules::ring_all_gather(),
    ] {
        let timeline = timeline(&program, 4, &shape, &Machine::h200());
        assert!(
            timeline.total <= 1.05 * timeline.bound(),
            "{}",
            timeline.summary()
        );
        assert!(timeline.total >= timeline.bound(), "{}", timeline.summary());
    }
}

#[test]
fn a_gather_that_the_gemm_cannot_hide_takes_its_links_time() {
    // 8 CTAs push 350 GB/s; the tiles of N = 512 are soon done.
    let (kernel, plan) = planned(
        &schedules::push_all_gather(),
        4,
        &Shape::new(8192, 512, 8192),
    );
    let machine = Machine::h200();
    let timeline = predict(&kernel, &plan, &machine).unwrap();
    let received = timeline.volume.received[0] as f64;
    let pushed = received / machine.push_rate(4);
    assert!(timeline.total > pushed, "{}", timeline.summary());
    assert!(
        timeline.total < 1.25 * pushed + 90e-6,
        "{}",
        timeline.summary()
    );
    assert!(timeline.exposed_communication() > 0.5 * pushed);
}

/// A chunk of 8192 columns has eight batches of boxes, and batches go round the CTAs. Two H200s gathered 128 rows of that in 12 µs with
/// the launch; one CTA alone takes 23 µs for a rank's half of them.
#[test]
fn a_chunk_is_moved_by_as_many_ctas_as_it_has_batches() {
    let shape = Shape::new(128, 256, 8192);
    let moved = |ctas: u32| {
        let timeline = timeline(&schedules::push(ctas), 2, &shape, &Machine::h200());
        let of_rank = timeline.events.iter().filter(|event| event.rank == 0);
        let moved: Vec<_> = of_rank.filter(|event| event.kind.crosses()).collect();
        let bytes: u64 = moved.iter().map(|event| event.bytes).sum();
        assert_eq!(bytes, 64 * 8192 * 2, "{} transfers", moved.len());
        let end = moved.iter().map(|event| event.end).fold(0.0, f64::max);
        end - moved.iter().map(|event| event.start).fold(1.0, f64::min)
    };
    let alone = moved(1);
    within(alone, 64.0 * 16384.0 / 46e9, 0.05);
    // A link takes one packet after another, so the last CTA begins a little later.
    let [four, eight, more] = [4, 8, 16].map(moved);
    assert!((alone / 4.0..alone / 3.0).contains(&four), "{four}");
    assert!((alone / 8.0..alone / 4.0).contains(&eight), "{eight}");
    within(more, eight, 0.01);
}

/// Bytes a second that rank 0 sent or fetched, from its first to its last byte.
fn rate(timeline: &Timeline) -> f64 {
    let moved = || {
        let events = timeline.events.iter();
        events.filter(|event| event.rank == 0 && event.kind.crosses())
    };
    let start = moved()
        .map(|event| event.start)
        .fold(f64::INFINITY, f64::min);
    let end = moved().map(|event| event.end).fold(0.0, f64::max);
    moved().map(|event| event.bytes as f64).sum::<f64>() / (end - start)
}

#[test]
fn links_carry_what_was_measured() {
    let shape = Shape::new(16384, 256, 8192);
    for (ctas, measured) in [(1, 46e9), (2, 91e9), (4, 182e9), (8, 348e9), (16, 345e9)] {
        let program = schedules::push(ctas);
        for world in [2, 4] {
            let timeline = timeline(&program, world, &shape, &Machine::h200());
            within(rate(&timeline), measured, 0.05);
        }
    }
    // 64 KiB to 16 MiB a copy.
    for (rows, measured) in [
        (4, 7.6e9),
        (16, 27e9),
        (64, 89e9),
        (256, 224e9),
        (1024, 318e9),
    ] {
        for world in [2, 4] {
            let timeline = timeline(&schedules::fetch(rows), world, &shape, &Machine::h200());
            within(rate(&timeline), measured, 0.15);
        }
    }
}

#[test]
fn what_was_sent_is_what_the_plan_says() {
    for program in library() {
        for (world, shape) in [
            (4, Shape::new(1000, 512, 256)),
            (3, Shape::new(513, 384, 128)),
        ] {
            let timeline = timeline(&program, world, &shape, &Machine::h200());
            let mut pairs: HashMap<(u16, u16), u64> = HashMap::new();
            for event in timeline.events.iter().filter(|event| event.kind.crosses()) {
                let pushed = event.kind == EventKind::Push;
                let pair = if pushed {
                    (event.rank, event.peer)
                } else {
                    (event.peer, event.rank)
                };
                *pairs.entry(pair).or_default() += event.bytes;
            }
            let volume = &timeline.volume;
            for src in 0..world {
                for dst in 0..world {
                    let moved = pairs.get(&(src as u16, dst as u16)).copied().unwrap_or(0);
                    assert_eq!(
                        moved,
                        volume.pair(src, dst),
                        "{} {src} to {dst}",
                        program.name
                    );
                }
            }
            assert_eq!(volume.by_op.iter().sum::<u64>(), volume.total());
            assert_eq!(
                volume.sent.iter().sum::<u64>(),
                volume.received.iter().sum::<u64>()
            );
            for event in &timeline.events {
                assert!(event.start <= event.end && event.end <= timeline.total + 1e-12);
            }
        }
    }
}

#[test]
fn the_power_limit_is_as_measured() {
    let shape = Shape::new(8192, 8192, 8192);
    let timeline = timeline(
        &schedules::gemm(),
        1,
        &shape,
        &Machine::h200().at_power_limit(),
    );
    within(timeline.total, 2.0 * 8192f64.powi(3) / 669e12, 0.05);
}

/// Pairs of SMs read columns that neighbours have in common once, while they are in step.
#[test]
fn neighbours_that_share_columns_are_fed_sooner() {
    type Order = fn(ItemsRef) -> ItemsRef;
    let ordered = |order: Order| {
        let mut s = ScheduleBuilder::new("gemm");
        let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
        let y = s.out("y", Bf16);
        let tiles = s.tiles("tiles", y, (128, 80));
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", order(tiles.into()), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
        s.finish()
    };
    let total = |machine: &Machine, order: Order, n| {
        let shape = Shape::new(512, n, 8192);
        timeline(&ordered(order), 1, &shape, machine).total
    };
    // Slow enough that nothing else bounds a step.
    let slow = Machine {
        l2: 60e9 / 2.0 * 132.0,
        // Which tiles are multiplied together decides what memory delivers, too.
        memory: 1e18,
        sm: Sm {
            l2_pair: 60e9,
            ..Sm::HOPPER
        },
        ..Machine::h200()
    };
    let apart = Machine {
        sm: Sm {
            apart: 1e-9,
            ..slow.sm
        },
        ..slow.clone()
    };
    let (down, along): (Order, Order) = (ItemsRef::column_major, ItemsRef::row_major);
    let alone = total(&apart, down, 2560);
    assert!(total(&slow, down, 2560) < alone, "80 of w come once");
    // Each waits for columns of its own, so the 128 rows of x that both read come twice.
    within(total(&slow, along, 2560), alone, 1e-6);
    assert_eq!(total(&apart, along, 2560), alone);
    // Half of the SMs have no neighbour at work.
    assert_eq!(total(&slow, along, 1280), total(&slow, down, 1280));
}

#[test]
fn faster_links_never_hurt() {
    for program in library() {
        for (world, shape) in [
            (4, Shape::new(2048, 1024, 1024)),
            (5, Shape::new(1111, 512, 512)),
        ] {
            let mut last = f64::INFINITY;
            for factor in [0.1, 0.25, 0.5, 1.0, 2.0, 10.0, 1000.0] {
                let mut machine = Machine::h200();
                for rate in [
                    &mut machine.link_copy_engine,
                    &mut machine.link_push,
                    &mut machine.link_pull,
                    &mut machine.link_reduce,
                    &mut machine.link_push_cta,
                    &mut machine.link_pull_cta,
                    &mut machine.link_reduce_cta,
                ] {
                    *rate *= factor;
                }
                let total = timeline(&program, world, &shape, &machine).total;
                // Claiming in order is a list schedule: an earlier arrival may move a tile to another CTA.
                assert!(
                    total <= last * 1.02,
                    "{} {world}: {total} after {last}",
                    program.name
                );
                last = total;
            }
        }
    }
}

#[test]
fn every_run_is_the_same() {
    for program in library() {
        let run = || timeline(&program, 4, &Shape::new(1000, 512, 256), &Machine::h200());
        assert!(run() == run(), "{}", program.name);
    }
}

#[test]
fn ragged_worlds_finish() {
    for program in library() {
        for world in 1..=8 {
            for m in [1, 7, 129, 1000, 1025] {
                let timeline =
                    timeline(&program, world, &Shape::new(m, 264, 136), &Machine::h200());
                assert!(
                    timeline.total >= timeline.gemm_alone * 0.999,
                    "{}",
                    timeline.summary()
                );
                assert!(timeline.total < 1e-3, "{}", timeline.summary());
                let _ = timeline.gantt(80);
            }
        }
    }
}

#[test]
fn tiles_wait_for_their_rows() {
    let timeline = timeline(
        &schedules::push_all_gather(),
        4,
        &Shape::new(2048, 2048, 1024),
        &Machine::h200(),
    );
    let first_in = |rank: u16| {
        let ends = timeline
            .events
            .iter()
            .filter(|event| event.peer == rank && event.kind.crosses());
        ends.map(|event| event.end).fold(f64::INFINITY, f64::min)
    };
    for rank in 0..4 {
        let met = timeline
            .flows
            .iter()
            .filter(|flow| flow.to.0 == rank && flow.to.1 >= 4);
        let first = met.map(|flow| flow.met).fold(f64::INFINITY, f64::min);
        assert!(first >= first_in(rank) + 1e-6, "rank {rank}");
        let dots = timeline
            .events
            .iter()
            .filter(|event| event.rank == rank && event.kind == EventKind::Dot);
        let early = dots
            .filter(|event| event.end < first_in(rank) + 30e-6)
            .count();
        assert!(
            early > 0,
            "no tile of rank {rank} is done while rows arrive"
        );
    }
}

#[test]
fn a_wait_that_nothing_ends_is_reported() {
    let (kernel, plan) = planned(&schedules::stuck(), 2, &Shape::new(256, 256, 64));
    let error = predict(&kernel, &plan, &Machine::h200()).unwrap_err();
    assert_eq!(error.rule, Rule::Progress);
    assert!(error.message.contains("gemm"), "{error}");
}

#[test]
fn charts_fit_their_width() {
    for world in [1, 4, 8, 9] {
        for program in [schedules::push_all_gather(), schedules::slots_sum()] {
            let timeline = timeline(
                &program,
                world,
                &Shape::new(8192, 2048, 4096),
                &Machine::h200(),
            );
            for width in [60, 100, 160] {
                let chart = timeline.gantt(width);
                let shown = if world <= 8 { world } else { 4 };
                let ranks = chart.lines().filter(|line| line.starts_with("rank "));
                assert_eq!(ranks.count(), shown as usize);
                for line in chart.lines().skip(2) {
                    assert!(line.chars().count() <= width.max(90), "{line}");
                }
            }
        }
    }
}

#[test]
fn traces_are_json() {
    for (program, world) in [
        (schedules::push_all_gather(), 4),
        (schedules::pull(), 2),
        (schedules::two_shot(), 3),
        (schedules::gemm(), 1),
    ] {
        let timeline = timeline(
            &program,
            world,
            &Shape::new(2000, 2048, 512),
            &Machine::h200(),
        );
        let trace: serde_json::Value = serde_json::from_str(&timeline.trace()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |phase: &str| {
            events
                .iter()
                .filter(|e| e["ph"] == phase)
                .collect::<Vec<_>>()
        };
        assert_eq!(of("X").len(), timeline.events.len());
        assert_eq!(of("s").len(), timeline.flows.len());
        assert_eq!(of("f").len(), timeline.flows.len());
        assert_eq!(of("C").is_empty(), timeline.volume.total() == 0);
        let processes = of("M")
            .iter()
            .filter(|e| e["name"] == "process_name")
            .count();
        assert_eq!(processes, world as usize);
        // Slices of one thread do not overlap: viewers would nest them.
        let mut threads: HashMap<(u64, u64), Vec<(f64, f64)>> = HashMap::new();
        for event in of("X") {
            let thread = (
                event["pid"].as_u64().unwrap(),
                event["tid"].as_u64().unwrap(),
            );
            let (ts, dur) = (
                event["ts"].as_f64().unwrap(),
                event["dur"].as_f64().unwrap(),
            );
            assert!(ts >= 0.0 && dur >= 0.0);
            threads.entry(thread).or_default().push((ts, ts + dur));
        }
        for slices in threads.values_mut() {
            slices.sort_by(|a, b| a.partial_cmp(b).unwrap());
            assert!(
                slices.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 0.002),
                "{}",
                program.name
            );
        }
    }
}
