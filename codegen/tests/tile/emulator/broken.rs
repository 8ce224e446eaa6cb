//! Broken schedules, one or more for every kind of failure: each is caught, and named rightly.

use super::{padded, schedules};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::{Axis, Block, Kernel, Op, OpKind, Purpose};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Program, StoreMode};
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify;
use counterflow_emulator::{self as interp, Failure, FailureKind, Options, Policy};
use std::collections::BTreeSet;

fn kernel(program: &Program, world: u32) -> Kernel {
    let kernel = lower(program, &Variant::new(world).arch(Arch::Cpu));
    kernel.unwrap_or_else(|error| panic!("{error}"))
}

fn plan(kernel: &Kernel, m: u32) -> Plan {
    Plan::new(kernel, &padded(kernel, m, 16, 8), &Machine::h200()).expect("a shape")
}

/// Replaces every op by what `f` makes of it.
fn edit(kernel: &mut Kernel, mut f: impl FnMut(&Kernel, Op) -> Vec<Op>) {
    fn blocks(body: Vec<Block>, f: &mut impl FnMut(Op) -> Vec<Op>) -> Vec<Block> {
        let block = |block| match block {
            Block::ForRanks {
                at,
                var,
                order,
                body,
            } => Block::ForRanks {
                at,
                var,
                order,
                body: blocks(body, f),
            },
            Block::If {
                at,
                cond,
                then,
                otherwise,
            } => Block::If {
                at,
                cond,
                then: blocks(then, f),
                otherwise: blocks(otherwise, f),
            },
            Block::Items {
                at,
                var,
                partition,
                shard,
                order,
                selection,
                body,
            } => Block::Items {
                at,
                var,
                partition,
                shard,
                order,
                selection,
                body: ops(body, f),
            },
            Block::Once { body } => Block::Once { body: ops(body, f) },
            Block::Join => Block::Join,
        };
        body.into_iter().map(block).collect()
    }
    fn ops(body: Vec<Op>, f: &mut impl FnMut(Op) -> Vec<Op>) -> Vec<Op> {
        let inner = body.into_iter().map(|mut op| {
            match &mut op.kind {
                OpKind::ForRanks { body, .. } => {
                    *body = ops(std::mem::take(body), f);
                }
                OpKind::If {
                    then, otherwise, ..
                } => {
                    *then = ops(std::mem::take(then), f);
                    *otherwise = ops(std::mem::take(otherwise), f);
                }
                OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::Copy { .. }
                | OpKind::Dot { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Store { .. } => {}
            }
            op
        });
        inner.collect::<Vec<_>>().into_iter().flat_map(f).collect()
    }
    let whole = kernel.clone();
    for role in &mut kernel.roles {
        role.body = blocks(std::mem::take(&mut role.body), &mut |op| f(&whole, op));
    }
}

fn without(program: &Program, world: u32, gone: impl Fn(&Kernel, &OpKind) -> bool) -> Kernel {
    let mut kernel = kernel(program, world);
    let mut dropped = 0;
    edit(&mut kernel, |whole, op| {
        let keep = !gone(whole, &op.kind);
        dropped += usize::from(!keep);
        keep.then_some(op).into_iter().collect()
    });
    assert!(dropped > 0, "there was nothing to drop");
    kernel
}

fn waits_on(kernel: &Kernel, op: &OpKind, purpose: impl Fn(Purpose) -> bool) -> bool {
    matches!(op, OpKind::Wait { cells, .. } if purpose(kernel.counters[cells.counter.index()].purpose))
}

fn stores_to(kernel: &Kernel, op: &OpKind, name: &str) -> bool {
    matches!(op, OpKind::Store { dst, .. } if kernel.buffers[dst.buffer.index()].name == name)
}

/// The failures over many seeds: there must be one for each.
fn failures(kernel: &Kernel, launches: &[Vec<&Plan>]) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    for seed in 0..60 {
        let failure = fails(kernel, launches, &Options::seed(seed).tags_only());
        assert_eq!(failure.seed, seed);
        let again = fails(kernel, launches, &Options::seed(seed));
        assert_eq!(
            format!("{failure}"),
            format!("{again}"),
            "numbers change nothing, and a seed reproduces"
        );
        found.insert(failure.kind.name());
    }
    let walked = interp::provoke_all(kernel, launches, 1, 20_000);
    assert!(
        walked.is_err_and(|failure| !failure.schedule.is_empty()),
        "a walk finds it too"
    );
    found
}

fn fails(kernel: &Kernel, launches: &[Vec<&Plan>], options: &Options) -> Failure {
    let result = interp::provoke(kernel, launches, options, interp::integers(1));
    let failure = result.expect_err("a broken schedule");
    let text = failure.to_string();
    assert!(text.contains(failure.kind.name()), "{text}");
    failure
}

/// The verifier must refuse what the emulator catches; then the failures over many seeds.
fn once(kernel: &Kernel, m: u32) -> BTreeSet<&'static str> {
    let plan = plan(kernel, m);
    let mut refused = verify::kernel_findings(kernel);
    refused.extend(verify::plan_findings(kernel, &plan, None));
    assert!(!refused.is_empty(), "{} is refused", kernel.name);
    failures(kernel, &[vec![&plan], vec![&plan]])
}

fn only(name: &'static str) -> BTreeSet<&'static str> {
    BTreeSet::from([name])
}

#[test]
fn deadlock() {
    let mut s = ScheduleBuilder::new("after_you");
    let x = s.local("x", Dtype::F32);
    let chunks = s.chunks("chunks", x, 4);
    let turn = s.counters("turn", []);
    s.comm(1, |s| {
        s.for_items("p", chunks.all(), |s, _| {
            s.wait(turn);
            s.signal(turn.on((me() + 1) % world()), 1);
        });
    });
    let kernel = kernel(&s.finish(), 3);
    assert_eq!(once(&kernel, 4), only("Deadlock"));
    let plan = plan(&kernel, 4);
    let failure = fails(&kernel, &[vec![&plan]], &Options::default());
    let FailureKind::Deadlock { waits } = *failure.kind else {
        panic!("{failure}");
    };
    assert_eq!(waits.len(), 3);
    assert_eq!((waits[0].seen, waits[0].wanted), (0, 1));
    assert_eq!(waits[0].on.counter, "turn");
    assert_eq!((waits[0].missing.len(), waits[0].missing[0].rank), (1, 2));
}

#[test]
fn uninitialised_read() {
    let kernel = without(&schedules::gemm_rs(), 2, |k, op| {
        stores_to(k, op, "partial")
    });
    assert_eq!(once(&kernel, 8), only("UninitialisedRead"));
}

#[test]
fn missing_acquire() {
    // The signal goes before the data: whoever comes late finds the data, but by luck.
    let mut early = kernel(&schedules::ag_gemm(), 2);
    edit(&mut early, |whole, op| match &op.kind {
        OpKind::Copy { .. } => Vec::new(),
        OpKind::Signal { cells, .. }
            if !whole.counters[cells.counter.index()].purpose.is_credit() =>
        {
            let mut copy = None;
            edit(&mut whole.clone(), |_, op| {
                if matches!(op.kind, OpKind::Copy { .. }) {
                    copy = Some(op.clone());
                }
                vec![op]
            });
            vec![op, copy.expect("a copy")]
        }
        _ => vec![op],
    });
    let found = once(&early, 8);
    let either = BTreeSet::from(["MissingAcquire", "UninitialisedRead"]);
    assert!(
        found.contains("MissingAcquire") && found.is_subset(&either),
        "{found:?}"
    );
    let plan = plan(&early, 8);
    let late = Options {
        policy: Some(Policy::StarveRole(1)),
        ..Options::default()
    };
    let failure = fails(&early, &[vec![&plan]], &late);
    let FailureKind::MissingAcquire { by, what, other } = &*failure.kind else {
        panic!("{failure}");
    };
    assert_eq!(
        (by.role.as_str(), other.role.as_str(), what.buffer.as_str()),
        ("gemm", "comm", "x")
    );

    let deaf = without(&schedules::gemm_rs(), 3, |k, op| {
        waits_on(k, op, |purpose| purpose == Purpose::Data)
    });
    let found = once(&deaf, 9);
    assert!(
        found.contains("MissingAcquire") && found.is_subset(&either),
        "{found:?}"
    );
}

/// Of one item's three signals, a wait for two has seen the first two.
#[test]
fn a_wait_for_less_has_seen_the_first_signals_of_an_item() {
    let names = |last: i32| {
        let mut s = ScheduleBuilder::new("first_two");
        let x = s.local("x", Dtype::F32);
        let y = s.out("y", Dtype::F32);
        let chunks = s.chunks("chunks", y, 4);
        let slots = s.symmetric("slots", Dtype::F32, y, 3);
        let landed = s.counters("landed", [chunks.into()]);
        s.comm(1, |s| {
            s.for_items("c", chunks.all(), |s, c| {
                for slot in 0..3 {
                    s.copy(slots.on(me() ^ 1).at(slot).at(c), x.at(c));
                    s.signal(landed.on(me() ^ 1).at(c), 1);
                }
            });
        });
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("c", chunks.all(), |s, c| {
                s.wait_at_least(landed.at(c), 2);
                let (a, b) = (s.sum(slots.at(0).at(c)), s.sum(slots.at(last).at(c)));
                s.store(y.at(c), a + b);
                s.wait(landed.at(c));
            });
        });
        let kernel = kernel(&s.finish(), 2);
        let plan = plan(&kernel, 8);
        let run = |seed| {
            let options = Options::seed(seed).tags_only();
            let launches = [vec![&plan], vec![&plan]];
            let result = interp::provoke(&kernel, &launches, &options, |_, _| {});
            result.map_err(|failure| failure.kind.name()).err()
        };
        (0..30).map(run).collect::<BTreeSet<_>>()
    };
    assert_eq!(names(1), BTreeSet::from([None]));
    let found = names(2);
    assert!(!found.contains(&None), "{found:?}");
    assert!(found.contains(&Some("MissingAcquire")), "{found:?}");
}

/// Waiting for one of two ranks' signals says nothing about either.
#[test]
fn a_wait_for_less_joins_only_what_it_cannot_have_missed() {
    let program = |ranks_at: u32| {
        let mut s = ScheduleBuilder::new("partial_wait");
        let x = s.local("x", Dtype::F32);
        let y = s.out("y", Dtype::F32);
        let chunks = s.chunks("chunks", y, 4);
        let slots = s.symmetric("slots", Dtype::F32, y, world());
        let landed = s.counters("landed", []);
        s.comm(1, |s| {
            s.for_items("c", chunks.all(), |s, c| {
                s.for_ranks("peer", ranks().after_me(), |s, peer| {
                    s.copy(slots.on(&peer).at(me()).at(c), x.at(c));
                    s.signal(landed.on(&peer), 1);
                });
            });
        });
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("c", chunks.all(), |s, c| {
                s.wait_at_least(landed, ranks_at);
                let sum = s.sum(slots.at(others()).at(c));
                s.store(y.at(c), sum);
            });
        });
        s.finish()
    };
    let run = |world: u32, at_least: u32| {
        let kernel = kernel(&program(at_least), world);
        let plan = plan(&kernel, 4);
        (0..30)
            .map(|seed| {
                let options = Options::seed(seed);
                let result =
                    interp::provoke(&kernel, &[vec![&plan]], &options, interp::integers(1));
                result.map_err(|failure| failure.kind.name()).err()
            })
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(run(3, 2), BTreeSet::from([None]));
    let found = run(3, 1);
    assert!(!found.contains(&None), "{found:?}");
    assert!(found.contains(&Some("MissingAcquire")), "{found:?}");
}

#[test]
fn stale_read() {
    let whole = kernel(&schedules::gemm_rs(), 2);
    let silent = without(&schedules::gemm_rs(), 2, |k, op| {
        stores_to(k, op, "partial")
    });
    let (first, second) = (plan(&whole, 8), plan(&silent, 8));
    let launches = [vec![&first], vec![&second]];
    assert_eq!(failures(&whole, &launches), only("StaleRead"));
    let failure = fails(&whole, &launches, &Options::default());
    let FailureKind::StaleRead { by, writer, .. } = &*failure.kind else {
        panic!("{failure}");
    };
    assert_eq!((by.launch, writer.launch), (1, 0));
}

#[test]
fn out_of_bounds() {
    // A chunk's box without the clip at the end of its shard.
    let mut spilling = kernel(&schedules::ag_gemm(), 2);
    edit(&mut spilling, |_, mut op| {
        if let OpKind::Copy { dst, src } = &mut op.kind {
            (dst.rows, src.rows) = (Axis::All, Axis::All);
        }
        vec![op]
    });
    assert_eq!(once(&spilling, 8), only("OutOfBounds"));
    let mut uneven = kernel(&schedules::ag_gemm(), 2);
    edit(&mut uneven, |_, mut op| {
        if let OpKind::Copy { dst, .. } = &mut op.kind {
            dst.rows = Axis::All;
        }
        vec![op]
    });
    assert_eq!(once(&uneven, 8), only("OutOfBounds"));
}

#[test]
fn counter_decrease() {
    // A copy engine stores its count, so nobody else may signal its cell.
    let mut s = ScheduleBuilder::new("two_hands");
    let x = s.local("x", Dtype::F32);
    let chunks = s.chunks("chunks", x, 4);
    let hand = s.counters("hand", []);
    s.copy_engine(|s| s.for_items("p", chunks.all(), |s, _| s.signal(hand, 1)));
    s.comm(1, |s| {
        s.for_items("p", chunks.all(), |s, _| s.signal(hand, 1));
        s.for_items("p", chunks.all(), |s, _| s.wait(hand));
    });
    assert_eq!(once(&kernel(&s.finish(), 2), 8), only("CounterDecrease"));

    let mut nothing = kernel(&schedules::gemm_rs(), 2);
    edit(&mut nothing, |whole, mut op| {
        if let OpKind::Signal { cells, amount } = &mut op.kind
            && !whole.counters[cells.counter.index()].purpose.is_credit()
        {
            *amount = 0;
        }
        vec![op]
    });
    let found = once(&nothing, 8);
    assert!(found.contains("CounterDecrease"), "{found:?}");
}

#[test]
fn overwrite() {
    let uncredited = |program: Program, world, purpose: fn(Purpose) -> bool| {
        once(
            &without(&program, world, |k, op| waits_on(k, op, purpose)),
            8,
        )
    };
    let found = uncredited(schedules::gemm_rs(), 2, |p| matches!(p, Purpose::Free(_)));
    assert!(found.contains("Overwrite"), "{found:?}");
    assert!(
        found.is_subset(&BTreeSet::from(["Overwrite", "StaleRead"])),
        "{found:?}"
    );
    let found = uncredited(schedules::ag_gemm(), 2, |p| matches!(p, Purpose::Ready(_)));
    assert_eq!(found, only("Overwrite"));
    // Nobody waits for its rows to come back.
    let found = uncredited(schedules::pull(), 2, |p| matches!(p, Purpose::Returned(_)));
    assert!(found.contains("Overwrite"), "{found:?}");
}

/// Rows move when the shape changes: even slots that keep their number then share memory.
#[test]
fn overwrite_where_the_shape_changed() {
    let kernel = without(&schedules::gemm_rs(), 2, |k, op| {
        waits_on(k, op, |p| matches!(p, Purpose::Free(_)))
    });
    let (large, small) = (plan(&kernel, 16), plan(&kernel, 6));
    let found = failures(&kernel, &[vec![&large], vec![&small]]);
    let either = BTreeSet::from(["Overwrite", "StaleRead"]);
    assert!(
        found.contains("Overwrite") && found.is_subset(&either),
        "{found:?}"
    );
}

#[test]
fn written_twice() {
    let mut twice = kernel(&schedules::gemm(), 2);
    edit(&mut twice, |_, op| match op.kind {
        OpKind::Store { .. } => vec![op.clone(), op],
        _ => vec![op],
    });
    assert_eq!(once(&twice, 8), only("WrittenTwice"));
}

#[test]
fn never_written() {
    let kernel = without(&schedules::gemm(), 2, |_, op| {
        matches!(op, OpKind::Store { .. })
    });
    assert_eq!(once(&kernel, 8), only("NeverWritten"));
}

#[test]
fn contribution() {
    let deaf = without(&schedules::gemm_rs(), 3, |_, op| {
        matches!(op, OpKind::Reduce { .. })
    });
    assert_eq!(once(&deaf, 9), only("Contribution"));
    let alone = without(&schedules::gemm_rs_add(), 2, |_, op| {
        matches!(
            op,
            OpKind::Store {
                mode: StoreMode::Add,
                ..
            }
        )
    });
    assert_eq!(once(&alone, 8), only("Contribution"));
    let mut again = kernel(&schedules::gemm_rs_add(), 2);
    edit(&mut again, |_, op| match op.kind {
        OpKind::Store {
            mode: StoreMode::Add,
            ..
        } => vec![op.clone(), op],
        _ => vec![op],
    });
    let plan = plan(&again, 8);
    let failure = fails(&again, &[vec![&plan]], &Options::default());
    let FailureKind::Contribution { missing, twice, .. } = &*failure.kind else {
        panic!("{failure}");
    };
    assert!(missing.is_empty() && twice.len() == 1);
}

#[test]
fn late_write() {
    let mut s = ScheduleBuilder::new("shout");
    let x = s.gathered("x", Dtype::F32);
    let chunks = s.chunks("chunks", x, 4);
    s.comm(1, |s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c))
            });
        });
    });
    assert_eq!(once(&kernel(&s.finish(), 2), 8), only("LateWrite"));
}

#[test]
fn attribution() {
    let barrier = |order: fn(Ranks) -> Ranks| {
        let mut s = ScheduleBuilder::new("barrier");
        let x = s.local("x", Dtype::F32);
        let chunks = s.chunks("chunks", x, 64);
        let here = s.counters("here", []);
        s.comm(1, |s| {
            s.for_items("p", chunks.all(), |s, _| {
                s.for_ranks("peer", order(ranks()), |s, peer| {
                    s.signal(here.on(&peer), 1)
                });
                s.wait(here);
            });
        });
        kernel(&s.finish(), 3)
    };
    // Rank 0 leaves when rank 1 has told it, and comes back before rank 1 has told rank 2.
    assert_eq!(once(&barrier(Ranks::before_me), 4), only("Attribution"));
}

#[test]
fn mismatch() {
    for schedule in [schedules::ag_gemm, schedules::gemm_rs, schedules::pull] {
        let kernel = kernel(&schedule(), 3);
        let (large, small) = (plan(&kernel, 16), plan(&kernel, 9));
        let (same, differ) = (vec![&large], vec![&large, &small, &large]);
        assert_eq!(
            failures(&kernel, std::slice::from_ref(&differ)),
            only("Mismatch")
        );
        assert_eq!(failures(&kernel, &[same, differ]), only("Mismatch"));
    }
}

#[test]
fn step_limit() {
    let kernel = kernel(&schedules::gemm(), 1);
    let plan = plan(&kernel, 8);
    let options = Options {
        step_limit: 3,
        ..Options::default()
    };
    let failure = fails(&kernel, &[vec![&plan]], &options);
    assert_eq!((failure.kind.name(), failure.steps), ("StepLimit", 3));
}

/// Two ranks of two roles, three launches: every interleaving is sound.
#[test]
fn every_interleaving_of_small_cases() {
    for (schedule, m) in [
        (schedules::ag_gemm as schedules::Schedule, 4),
        (schedules::ag_gemm_ring, 4),
        (schedules::pull, 4),
        (schedules::gemm_rs, 4),
        (schedules::gemm_rs_add, 2),
        (schedules::gemm_ar, 2),
        (schedules::reduce_scatter, 4),
    ] {
        let kernel = kernel(&schedule(), 2);
        let shape = padded(&kernel, m, 8, 4);
        let plan = Plan::new(&kernel, &shape, &Machine::h200()).expect("a shape");
        for workers in 1..=2 {
            let walked =
                interp::provoke_all(&kernel, &[vec![&plan], vec![&plan]], workers, 100_000)
                    .unwrap_or_else(|failure| panic!("{failure}"));
            assert!(walked.complete, "{}: {walked:?}", kernel.name);
        }
    }
}
