//! From events to a report: known answers, and what must hold of every trace.

use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_emitter::{Site, SiteKind};
use counterflow_timeline::model;
use counterflow_timeline::trace::{
    self, Alone, Events, Mark, Misread, Phase, Recorded, Strand, Trace, measured, report, segments,
};
use proptest::prelude::*;

/// The probes of the kernels here, by their numbers.
const KINDS: [SiteKind; 12] = [
    SiteKind::Start,
    SiteKind::Tile { sums: false },
    SiteKind::Tile { sums: true },
    SiteKind::Move,
    SiteKind::Waits,
    SiteKind::Met,
    SiteKind::Loaded,
    SiteKind::Multiplied,
    SiteKind::Stored,
    SiteKind::Signals,
    SiteKind::End,
    SiteKind::MetEarlier,
];

fn sites() -> Vec<Site> {
    let each = KINDS.iter().map(|kind| Site {
        kind: *kind,
        role: "role",
        statement: match kind {
            SiteKind::Waits | SiteKind::Met | SiteKind::MetEarlier => "wait arrived".into(),
            _ => String::new(),
        },
        loc: None,
        counter: None,
    });
    each.collect()
}

fn site(kind: SiteKind) -> u32 {
    KINDS
        .iter()
        .position(|known| *known == kind)
        .expect("known") as u32
}

fn mark(kind: SiteKind, time: u64, number: u32) -> Mark {
    Mark {
        time,
        site: site(kind),
        number,
        cell: (0, 0),
    }
}

fn signal(time: u64, cell: (u32, u32)) -> Mark {
    Mark {
        cell,
        ..mark(SiteKind::Signals, time, 0)
    }
}

fn strand(block: u32, marks: Vec<Mark>) -> Strand {
    Strand {
        block,
        marks,
        lost: 0,
    }
}

fn read(ranks: &[Recorded]) -> Result<Trace, Misread> {
    let sites = sites();
    measured(
        "t".into(),
        &Events {
            sites: &sites,
            ranks,
        },
    )
}

fn none() -> Alone {
    Alone {
        gemm: None,
        communication: 0.0,
        launch: None,
    }
}

/// One CTA: a load lane that waits, a multiply lane, a store lane. Every nanosecond is accounted for by hand.
fn one_cta() -> Recorded {
    use SiteKind::{End, Loaded, Met, Multiplied, Start, Stored, Waits};
    let tile = SiteKind::Tile { sums: false };
    let sums = SiteKind::Tile { sums: true };
    let load = vec![
        mark(Start, 1000, 0),
        mark(tile, 1000, 0),
        mark(Waits, 1100, 7),
        mark(Met, 3000, 7),
        mark(sums, 3300, 1),
        mark(End, 5000, 0),
    ];
    let multiply = vec![
        mark(Start, 1010, 0),
        mark(tile, 1020, 0),
        mark(Loaded, 3500, 0),
        mark(Multiplied, 5500, 0),
        mark(sums, 6000, 1),
        mark(Loaded, 6000, 0),
        mark(Multiplied, 8000, 0),
        mark(End, 9000, 0),
    ];
    let store = vec![
        mark(Start, 1000, 0),
        mark(tile, 1000, 0),
        mark(Stored, 6300, 0),
        mark(sums, 6300, 1),
        mark(Stored, 9800, 0),
        mark(End, 9900, 0),
    ];
    Recorded {
        clock: 0,
        strands: vec![strand(0, load), strand(0, multiply), strand(0, store)],
    }
}

#[test]
fn a_ctas_time_is_where_it_was_by_hand() {
    let trace = read(&[one_cta()]).expect("a trace");
    let told = report(&trace, &none());
    let ns = |phase: Phase| (told.phases[phase.index()] * 1e9).round() as i64;
    // Starved from 1020 to 3500: 1100 to 3000 by the wait. Sums from 8000 to 9000; then the last store.
    let known = [
        (Phase::Launch, 20),
        (Phase::Wait, 1900),
        (Phase::Load, 80 + 500),
        (Phase::Multiply, 2000 + 2000),
        (Phase::Epilogue, 500),
        (Phase::Sum, 1000),
        (Phase::Store, 800),
        (Phase::Move, 0),
        (Phase::Idle, 0),
        (Phase::Tail, 100),
    ];
    for (phase, time) in known {
        assert_eq!(ns(phase), time, "{phase:?}");
    }
    assert_eq!((told.total * 1e9).round() as i64, 8900);
    let [wait] = &told.waits[..] else {
        panic!("{:?}", told.waits)
    };
    assert_eq!((wait.count, &wait.statement.text[..]), (1, "wait arrived"));
    for seconds in [wait.total, wait.longest, wait.exposed] {
        assert_eq!((seconds * 1e9).round() as i64, 1900);
    }
    let ladder = told.ladders[0];
    let at = |time: Option<f64>| time.map(|time| (time * 1e9).round() as i64);
    assert_eq!(at(ladder.first_load), Some(2500));
    assert_eq!(at(ladder.last_multiply), Some(7000));
    assert_eq!(at(ladder.last_sum), Some(8000));
    assert_eq!(at(ladder.last_store), Some(8800));
    assert_eq!(at(Some(ladder.end)), Some(8900));
    assert_eq!(ladder.signal_seen, None);
}

#[test]
fn overlap_is_what_is_hidden_of_communication() {
    let trace = read(&[one_cta()]).expect("a trace");
    let overlap = |gemm: f64, communication: f64| {
        report(
            &trace,
            &Alone {
                gemm: Some(gemm * 1e-9),
                communication: communication * 1e-9,
                launch: None,
            },
        )
    };
    // One after the other: nothing is hidden. As fast as the product alone: everything is.
    let near = |told: Option<f64>, known: f64| (told.expect("known") - known).abs() < 1e-6;
    assert!(near(overlap(6900.0, 2000.0).overlap, 0.0));
    assert!(near(overlap(8900.0, 2000.0).overlap, 1.0));
    assert!(near(overlap(7900.0, 2000.0).overlap, 0.5));
    assert!(near(overlap(4900.0, 2000.0).overlap, -1.0));
    assert!(near(
        overlap(6900.0, 2000.0).exposed.map(|it| it * 1e9),
        2000.0
    ));
    // A probed launch takes longer than the one that is compared with the product.
    let plain = report(
        &trace,
        &Alone {
            gemm: Some(6900e-9),
            communication: 2000e-9,
            launch: Some(7900e-9),
        },
    );
    assert!(near(plain.overlap, 0.5));
    assert!(near(plain.exposed.map(|it| it * 1e9), 1000.0));
    assert_eq!(overlap(6900.0, 0.0).overlap, None);
    assert_eq!(report(&trace, &none()).exposed, None);
}

#[test]
fn what_is_no_trace_is_refused() {
    let empty = Recorded {
        clock: 0,
        strands: Vec::new(),
    };
    assert_eq!(read(&[one_cta(), empty]), Err(Misread::Nothing { rank: 1 }));
    let mut unknown = one_cta();
    unknown.strands[0].marks[1].site = 99;
    assert_eq!(read(&[unknown]), Err(Misread::Site { rank: 0, site: 99 }));
    let mut backwards = one_cta();
    backwards.strands[0].marks.swap(1, 2);
    assert_eq!(read(&[backwards]), Err(Misread::Clocks { rank: 0 }));
    // A wait that was met before its signal, on one clock.
    let start = mark(SiteKind::Start, 0, 0);
    let early = Recorded {
        clock: 0,
        strands: vec![strand(
            0,
            vec![
                start,
                mark(SiteKind::Waits, 10, 3),
                mark(SiteKind::Met, 20, 3),
            ],
        )],
    };
    let late = Recorded {
        clock: 1,
        strands: vec![strand(
            0,
            vec![
                start,
                signal(500, (0, 3)),
                mark(SiteKind::Waits, 600, 4),
                mark(SiteKind::Met, 700, 4),
            ],
        )],
    };
    let mut contradicts = early.clone();
    contradicts.strands[0].marks.push(signal(400, (1, 4)));
    // 20 - 500 and 700 - 400: a loop of -180.
    assert_eq!(read(&[contradicts, late]), Err(Misread::Clocks { rank: 0 }));
}

#[test]
fn lost_events_are_told_and_what_is_left_still_adds_up() {
    let mut rank = one_cta();
    for strand in &mut rank.strands {
        strand.marks.truncate(4);
        strand.lost = 3;
    }
    let trace = read(&[rank]).expect("a trace");
    assert_eq!(trace.lost, 9);
    adds_up(&trace);
}

/// Every CTA's segments follow each other and cover its rank's span; so the phases add up to the mean span.
fn adds_up(trace: &Trace) {
    let mut at: Option<(u16, u32, f64)> = None;
    let mut spans = Vec::new();
    for segment in segments(trace) {
        let (start, end) = trace.ranks[usize::from(segment.rank)];
        let begins = match at {
            Some((rank, cta, time)) if (rank, cta) == (segment.rank, segment.cta) => time,
            _ => {
                spans.push(end - start);
                start
            }
        };
        assert_eq!(segment.start, begins, "{segment:?}");
        assert!(
            segment.end >= segment.start && segment.end <= end,
            "{segment:?}"
        );
        at = Some((segment.rank, segment.cta, segment.end));
    }
    let told = report(trace, &none());
    let sum: f64 = told.phases.iter().sum();
    let mean = spans.iter().sum::<f64>() / spans.len().max(1) as f64;
    assert!(
        (sum - mean).abs() <= 1e-9 * mean.max(1e-9),
        "{sum} of {mean}"
    );
    for (phases, (start, end)) in told.by_rank.iter().zip(&trace.ranks) {
        let sum: f64 = phases.iter().sum();
        assert!(
            (sum - (end - start)).abs() <= 1e-9 * sum.max(1e-9),
            "{phases:?}"
        );
    }
    let exposed: f64 = told.waits.iter().map(|wait| wait.exposed).sum();
    let waiting: f64 = segments(trace)
        .iter()
        .filter(|segment| segment.phase == Phase::Wait)
        .map(|segment| segment.end - segment.start)
        .sum();
    assert!(
        (exposed - waiting).abs() <= 1e-9 * waiting.max(1e-9),
        "{exposed} of {waiting}"
    );
}

/// Ranks that signal each other, each by its own clock: `ahead` of the true time, with latencies from `least` up.
fn exchange(ahead: &[i64], latencies: &[u64], least: u64) -> Vec<Recorded> {
    let world = ahead.len();
    let by = |rank: usize, time: u64| (1_000_000_000 + time as i64 + ahead[rank]) as u64;
    let mut marks: Vec<Vec<Mark>> = (0..world)
        .map(|rank| vec![mark(SiteKind::Start, by(rank, 0), 0)])
        .collect();
    let mut next = latencies.iter().cycle();
    let mut events: Vec<(u64, usize, Mark)> = Vec::new();
    for round in 0..4u64 {
        for from in 0..world {
            for to in (0..world).filter(|to| *to != from) {
                let sent = 1000 + round * 5000 + from as u64 * 37;
                let met = sent + least + next.next().expect("a cycle");
                let cell = (round * 100 + from as u64 * 10) as u32;
                events.push((sent, from, signal(by(from, sent), (to as u32, cell))));
                events.push((
                    sent - 500,
                    to,
                    mark(SiteKind::Waits, by(to, sent - 500), cell),
                ));
                events.push((met, to, mark(SiteKind::Met, by(to, met), cell)));
            }
        }
    }
    events.sort_by_key(|(time, ..)| *time);
    for (_, rank, mark) in events {
        marks[rank].push(mark);
    }
    let each = (0..).zip(marks);
    each.map(|(clock, marks)| Recorded {
        clock,
        strands: vec![strand(0, marks)],
    })
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The true difference of two clocks is never further from the estimate than is said, and with equal latencies the
    /// estimate is exact.
    #[test]
    fn clocks_are_as_near_as_is_said(
        ahead in prop::collection::vec(-5_000_000i64..5_000_000, 2..5),
        latencies in prop::collection::vec(0u64..3000, 1..40),
        least in 200u64..1500,
    ) {
        let trace = read(&exchange(&ahead, &latencies, least)).expect("a trace");
        for (clock, ahead_of_true) in trace.clocks.iter().zip(&ahead) {
            let truth = ahead_of_true - ahead[0];
            let within = clock.within.expect("signals in both directions");
            prop_assert!((clock.ahead - truth).abs() <= within, "{clock:?}, true {truth}");
        }
        prop_assert!(trace.arrows.iter().all(|arrow| arrow.met.is_finite()));
        let exact = read(&exchange(&ahead, &[0], least)).expect("a trace");
        for (clock, ahead_of_true) in exact.clocks.iter().zip(&ahead) {
            prop_assert!((clock.ahead - (ahead_of_true - ahead[0])).abs() <= 1);
            prop_assert!(clock.within <= Some(least as i64 + 1));
        }
        // On aligned clocks all ranks started together.
        prop_assert!(exact.ranks.iter().all(|(start, _)| *start < 2e-9), "{:?}", exact.ranks);
    }

    /// Whatever lanes do, in whatever order: a CTA has one phase at a time, and they add up.
    #[test]
    fn phases_add_up(lanes in prop::collection::vec(
        (0u32..3, prop::collection::vec((0usize..KINDS.len(), 0u64..900, 0u32..4), 0..30)), 1..6)
    ) {
        let strands = lanes.into_iter().map(|(block, marks)| {
            let mut time = 5000;
            let mut all = vec![mark(SiteKind::Start, time, 0)];
            for (kind, after, number) in marks {
                time += after;
                all.push(Mark { site: kind as u32, ..mark(SiteKind::Start, time, number) });
            }
            strand(block, all)
        });
        let rank = Recorded { clock: 0, strands: strands.collect() };
        // Signals of no one else: the clock is one.
        if let Ok(trace) = read(&[rank]) {
            adds_up(&trace);
        }
    }
}

#[test]
fn without_signals_a_clock_is_not_known_and_that_is_said() {
    let mut other = one_cta();
    other.clock = 1;
    for mark in other
        .strands
        .iter_mut()
        .flat_map(|strand| &mut strand.marks)
    {
        mark.time += 12_345;
    }
    let trace = read(&[one_cta(), other]).expect("a trace");
    assert_eq!(trace.clocks[0].within, Some(0));
    assert_eq!(
        (trace.clocks[1].ahead, trace.clocks[1].within),
        (12_345, None)
    );
    assert_eq!(trace.ranks[1], trace.ranks[0]);
}

/// What the model predicts goes through the same report.
#[test]
fn predictions_add_up_too() {
    let schedules = [
        crate::fixtures::library::ag_gemm,
        crate::fixtures::library::gemm_rs,
        crate::fixtures::library::gemm_ar,
    ];
    for schedule in schedules {
        let kernel = lower(
            &schedule(&crate::fixtures::library::real()),
            &Variant::new(2).set("tiles", (128, 256)),
        );
        let kernel = kernel.and_then(verify::kernel).expect("legal");
        let machine = Machine::h200();
        let plan = verify::plan(&kernel, &Shape::new(4096, 2048, 1024), &machine).expect("a plan");
        let timeline = model::predict(&kernel, &plan, &machine).expect("it ends");
        let trace = trace::predicted(&kernel, &timeline);
        adds_up(&trace);
        let alone = Alone {
            gemm: Some(timeline.gemm_alone),
            communication: timeline.least_link,
            launch: None,
        };
        let told = report(&trace, &alone);
        assert_eq!(told.total, timeline.total);
        assert_eq!(told.exposed, Some(timeline.exposed_communication()));
        let ladder = told.ladders[0];
        assert!(
            ladder.first_load < ladder.last_multiply && ladder.last_multiply <= Some(ladder.end)
        );
        assert!(ladder.signal_seen.is_some(), "{}", kernel.name);
        // The waits that cost most are statements of the schedule.
        let waits = told.waits.iter().filter(|wait| wait.exposed > 0.0);
        for wait in waits {
            assert!(
                wait.statement.text.contains("wait") || wait.statement.text.contains("dot"),
                "{wait:?}"
            );
        }
    }
}
