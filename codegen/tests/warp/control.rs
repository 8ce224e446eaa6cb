//! Control on ranks: branches between loops and inside items, orders by closure, any arithmetic over ranks. All warps of a CTA
//! take the same branches.

use crate::fixtures::strangers::{self, STRANGERS};
use crate::fixtures::wide::{in_turn, wide};
use crate::generator::judge;
use crate::parallel::in_parallel;
use crate::reach::names_stand_once;
use counterflow_codegen::builder::*;
use counterflow_codegen::diag::Rule;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::kernel::{DimId, Kernel};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::order::RankTable;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Program, Var};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use counterflow_codegen::warp::{Expr, Field, Node, OrderId, Pipeline, Test, Values};
use counterflow_emitter as cuda;
use counterflow_emulator::Numbers;

fn kernel(program: &Program, world: u32) -> Checked<Kernel> {
    let kernel = lower(program, &Variant::new(world)).and_then(verify::kernel);
    kernel.unwrap_or_else(|found| panic!("{} for {world}: {found}", program.name))
}

fn pipeline(program: &Program, world: u32) -> Pipeline {
    let pipeline = sm90::build(&kernel(program, world));
    let pipeline = pipeline.unwrap_or_else(|found| panic!("{} for {world}: {found}", program.name));
    names_stand_once(&pipeline);
    pipeline
}

#[test]
fn what_asks_about_ranks_has_right_warps() {
    in_parallel(STRANGERS.len(), |stranger| {
        let (program, worlds) = STRANGERS[stranger];
        let program = program();
        // The smallest of them, three ranks or the largest, if not all.
        let three = worlds.len().min(3) - 1;
        let one = [0, three, 0, worlds.len() - 1][stranger % 4];
        let end = &worlds[one..=one];
        for world in if wide() { worlds } else { end } {
            let checked = verify::pipeline(pipeline(&program, *world));
            checked.unwrap_or_else(|found| panic!("{} for {world}: {found}", program.name));
        }
    });
}

/// An order that leaves out more than any number of 31 bits, in steps or at once, has no step.
#[test]
fn constants_of_any_size_may_be_left_out() {
    for n in [(1 << 30) + 1, i64::MAX] {
        for order in [ring(1).but_last(n), ring(1).but_last(1).but_last(n)] {
            let mut s = ScheduleBuilder::new("left_out");
            let gather = strangers::Gather::new(&mut s);
            s.comm(2u32, |s| {
                s.for_ranks("peer", order, |s, peer| gather.push(s, &peer));
                s.for_ranks("peer", ranks().before_me(), |s, peer| gather.push(s, &peer));
            });
            gather.multiply(&mut s, ranks().from_me());
            let program = s.finish();
            verify::pipeline(pipeline(&program, 4)).unwrap_or_else(|found| panic!("{n}: {found}"));
        }
    }
}

#[test]
fn what_asks_about_ranks_has_the_numbers_of_its_reference() {
    in_parallel(STRANGERS.len(), |stranger| {
        let (program, worlds) = STRANGERS[stranger];
        // Three ranks, if it is for so many.
        let three = worlds.len().min(3) - 1;
        let some = if wide() {
            worlds
        } else {
            &worlds[three..=three]
        };
        for world in some {
            let kernel = kernel(&program(), *world);
            let shapes = [(128 * world + 37, 136, 72), (5, 264, 8)];
            let shapes = shapes.map(|(m, n, k)| Shape::new(m, n, k).up_to(128 * world + 37));
            for shape in in_turn(shapes, stranger) {
                let plan = verify::plan(&kernel, &shape, &Machine::h200());
                let plan = plan.unwrap_or_else(|found| panic!("{} {shape}: {found}", kernel.name));
                let plans: [Plan; 1] = [(*plan).clone()];
                assert_eq!(
                    judge::unlike_reference(&kernel, &plans),
                    None,
                    "{}",
                    kernel.name
                );
            }
        }
    });
}

/// Loops in both branches, and one after them, over the same tiles.
#[test]
fn loops_after_branches_know_what_both_named() {
    let mut s = ScheduleBuilder::new("after");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let (y, z) = (s.out("y", Bf16), s.out("z", Bf16));
    let tiles = s.tiles("tiles", y, (128, 256));
    let all = |s: &mut ScheduleBuilder, to: TensorRef, relu: bool| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let product = if relu { product.relu() } else { product };
            s.store(to.at(t), product);
        });
    };
    s.gemm(GemmOptions::default(), |s| {
        let even = Cond::compare(Comparison::Eq, me() % 2, 0);
        s.when_else(even, |s| all(s, y, true), |s| all(s, y, false));
        all(s, z, false);
    });
    let pipeline = pipeline(&s.finish(), 2);
    verify::pipeline(pipeline).unwrap_or_else(|found| panic!("{found}"));
}

/// Branches that follow each other and ask the same: what does not hold belongs to the one before, and to no other.
#[test]
fn branches_that_follow_each_other_have_one_else_each() {
    let mut s = ScheduleBuilder::new("alternately");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let outs = ["a", "b", "c"].map(|name| s.out(name, Bf16));
    let tiles = s.tiles("tiles", outs[0], (128, 256));
    s.gemm(GemmOptions::default(), |s| {
        for out in outs {
            let all = |s: &mut ScheduleBuilder, relu: bool| {
                s.for_items("t", tiles.all(), |s, t| {
                    let product = s.dot(x.at(t), w.at(t));
                    s.store(out.at(t), if relu { product.relu() } else { product });
                });
            };
            let even = Cond::compare(Comparison::Eq, me() % 2, 0);
            s.when_else(even, |s| all(s, true), |s| all(s, false));
        }
    });
    let checked = verify::pipeline(pipeline(&s.finish(), 2));
    let text = cuda::emit(&checked.unwrap_or_else(|found| panic!("{found}"))).text;
    let lines = text.lines().map(str::trim);
    let asked = lines.filter(|line| line.starts_with("if (me % 2") || *line == "} else {");
    let asked: Vec<_> = asked.collect();
    assert!(asked.len() >= 12, "{text}");
    for pair in asked.chunks(2) {
        assert_eq!(pair, ["if (me % 2 == 0) {", "} else {"], "{text}");
    }
}

/// What the verifier says of warps of which one is changed.
#[track_caller]
fn found(mut pipeline: Pipeline, change: impl Fn(&mut Node) -> bool) -> Rule {
    let mut done = false;
    pipeline.lists(&mut |list| {
        for node in list {
            done |= !done && change(node);
        }
    });
    assert!(done, "nothing to change");
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().rule
}

/// A branch that one warp of a CTA takes, and the others do not.
#[test]
fn warps_that_take_other_branches_are_found() {
    let about_ranks = |test: &Test| {
        let mut found = false;
        for expr in test.exprs() {
            expr.visit(&mut |part| {
                found |= matches!(part, Expr::Field(Field::Me | Field::World));
            });
        }
        found
    };
    let other = |node: &mut Node| match node {
        Node::If { test, .. } if about_ranks(test) => {
            *test = test.clone().negate();
            true
        }
        _ => false,
    };
    for program in [
        strangers::odd_owners_first,
        strangers::even_ranks_rectify,
        strangers::double_ring,
    ] {
        let rule = found(pipeline(&program(), 4), other);
        assert!(
            [Rule::Progress, Rule::Race, Rule::Coverage].contains(&rule),
            "{rule:?}"
        );
    }
}

/// One warp follows another order than the others.
#[test]
fn warps_that_follow_other_orders_are_found() {
    let mut pipeline = pipeline(&strangers::odd_owners_first(), 4);
    assert_eq!(pipeline.orders.len(), 1);
    pipeline.orders.push(pipeline.orders[0].clone());
    pipeline.orders[1].by = RankTable::of(|me, step, world| (me + step) % world, 4);
    let rule = found(pipeline, |node| match node {
        Node::Ranks { rank, .. } => {
            let mut other = rank.clone();
            let Expr::Ordered(order, _) = &mut other else {
                return false;
            };
            *order = OrderId(1);
            *rank = other;
            true
        }
        _ => false,
    });
    assert!(
        [Rule::Progress, Rule::Race, Rule::Coverage].contains(&rule),
        "{rule:?}"
    );
}

/// Who waits for a spare warp that says nothing waits for ever.
#[test]
fn a_spare_warp_that_says_nothing_is_found() {
    let pipeline = pipeline(&strangers::acknowledged(), 4);
    let mut counters = pipeline.kernel.counters.iter();
    let seen = counters.position(|counter| counter.name == "seen");
    let seen = seen.expect("a counter");
    let rule = found(pipeline, |node| match node {
        Node::CounterAdd { counter, .. } if counter.index() == seen => {
            *node = Node::SyncWarp;
            true
        }
        _ => false,
    });
    assert_eq!(rule, Rule::Progress);
}

#[test]
fn a_spare_warp_does_not_compute() {
    let mut s = ScheduleBuilder::new("spare");
    let (x, w, r) = (s.local("x", Bf16), s.local("w", Bf16), s.local("r", Bf16));
    let (y, z) = (s.out("y", Bf16), s.out("z", Bf16));
    let tiles = s.tiles("tiles", y, (128, 256));
    s.spare_warps(|s| {
        s.for_items("t", tiles.all(), |s, t| {
            let read = s.load(r.at(t));
            s.store(z.at(t), read);
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    let found = sm90::build(&kernel(&s.finish(), 4)).expect_err("refused");
    let found = found.first();
    insta::assert_snapshot!(found.text(&|_| String::new()), @"
    error[resources]: a #[spare_warps] loop that computes
      help: copies, waits and signals; `#[comm]` roles add and store tiles, `#[gemm]` loops do
    ");
    assert!(found.at.is_some_and(|at| at.file().ends_with("control.rs")));
}

/// One closure is one table, whichever roles follow it.
#[test]
fn an_order_is_passed_once() {
    let checked = verify::pipeline(pipeline(&strangers::two_hops(), 4)).expect("warps");
    let text = cuda::emit(&checked).text;
    assert_eq!(text.matches("_order[128];").count(), 1, "{text}");
    let table = checked.ordered(OrderId(0), &plan(&strangers::two_hops()), 3);
    assert_eq!(table[..5], [2, 3, 0, 1, 0]);
}

fn plan(program: &Program) -> Plan {
    let plan = verify::plan(
        &kernel(program, 4),
        &Shape::new(512, 256, 64),
        &Machine::h200(),
    );
    (*plan.expect("a plan")).clone()
}

/// A rank expression of some depth over the two loop variables.
fn drawn(draw: &mut Numbers, vars: &[RankExpr; 2], depth: u32) -> RankExpr {
    if depth == 0 || draw.below(4) == 0 {
        return match draw.below(6) {
            0 => me(),
            1 => world(),
            2 => vars[0].clone(),
            3 => vars[1].clone(),
            _ => RankExpr::from(draw.below(9) as i64 - 3),
        };
    }
    let a = drawn(draw, vars, depth - 1);
    let divisor = match draw.below(3) {
        0 => RankExpr::from(draw.below(5) as i64 + 1),
        _ => world(),
    };
    match draw.below(6) {
        0 => a + drawn(draw, vars, depth - 1),
        1 | 2 => a - drawn(draw, vars, depth - 1),
        3 => a % divisor,
        4 => a / divisor,
        _ => (a % world()) ^ (drawn(draw, vars, depth - 1) % divisor),
    }
}

/// What a warp reads in a branch.
struct At {
    me: u32,
    world: u32,
    vars: [u32; 2],
}

impl Values for At {
    fn var(&self, name: &str) -> u32 {
        self.vars[["a", "b"]
            .iter()
            .position(|known| *known == name)
            .expect(name)]
    }
    fn field(&self, field: Field) -> u32 {
        match field {
            Field::Me => self.me,
            Field::World => self.world,
            other => panic!("{other:?}"),
        }
    }
    fn rows_of(&self, _: DimId, _: u32) -> u32 {
        panic!("rows")
    }
    fn ordered(&self, _: OrderId, _: u32) -> u32 {
        panic!("an order")
    }
    fn block(&self) -> (u32, u32) {
        (0, 1)
    }
    fn within(&self) -> u32 {
        0
    }
}

/// A kernel that asks something of ranks; what it asks, with its variables; and that question of its warps.
fn asks(draw: &mut Numbers) -> Option<(Cond, [Var; 2], Test)> {
    let mut s = ScheduleBuilder::new("asks");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    let mut asked = None;
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("a", ranks(), |s, a| {
            s.for_ranks("b", ranks(), |s, b| {
                let vars = [a.clone(), b];
                let comparisons = [
                    Comparison::Eq,
                    Comparison::Ne,
                    Comparison::Lt,
                    Comparison::Le,
                    Comparison::Gt,
                    Comparison::Ge,
                ];
                let mut compare = || {
                    let [left, right] = [0; 2].map(|_| drawn(draw, &vars, 3));
                    Cond::compare(comparisons[draw.below(6) as usize], left, right)
                };
                let (one, other) = (compare(), compare());
                let cond = match draw.below(4) {
                    0 => one.and(other.negate()),
                    1 => one.or(other).negate(),
                    _ => one,
                };
                let ids = vars.map(|var| match var {
                    RankExpr::Var(id) => id,
                    other => panic!("{other:?}"),
                });
                asked = Some((cond.clone(), ids));
                s.when(cond, |s| {
                    s.for_items("t", tiles.all(), |s, t| {
                        let product = s.dot(x.at(t), w.at(t));
                        s.store(y.at(t), product);
                    });
                });
            });
        });
    });
    let kernel = lower(&s.finish(), &Variant::new(1)).and_then(verify::kernel);
    let pipeline = sm90::build(&kernel.expect("a kernel")).ok()?;
    let mut test = None;
    pipeline.visit(|node| {
        if let Node::If { test: asked, body } = node
            && body.iter().any(|node| matches!(node, Node::Items { .. }))
        {
            test.get_or_insert(asked.clone());
        }
    });
    let (cond, vars) = asked.expect("a condition");
    Some((cond, vars, test.expect("a branch")))
}

/// Numbers of 32 bits, never negative, say what numbers of 64 bits say: in every world, on every rank.
#[test]
fn branches_ask_what_the_schedule_asks() {
    let mut draw = Numbers::new(18);
    let (mut refused, mut compared, mut held) = (0, 0u32, 0u32);
    for _ in 0..400 {
        let Some((cond, vars, test)) = asks(&mut draw) else {
            refused += 1;
            continue;
        };
        for world in [1, 2, 3, 5, 8, 128] {
            for _ in 0..40 {
                let mut rank = || draw.below(u64::from(world)) as u32;
                let at = At {
                    me: rank(),
                    world,
                    vars: [rank(), rank()],
                };
                let value = |var| {
                    let at = vars.iter().zip(at.vars).find(|(known, _)| **known == var);
                    at.map(|(_, value)| i64::from(value))
                };
                let Ok(holds) = cond.eval(at.me, world, &value) else {
                    continue;
                };
                assert_eq!(
                    test.eval(&at),
                    holds,
                    "{cond:?} is {test:?} at {} of {world}, {:?}",
                    at.me,
                    at.vars
                );
                compared += 1;
                held += u32::from(holds);
            }
        }
    }
    println!("{compared} compared, {held} of them hold; {refused} conditions refused");
    assert!(compared > 50_000 && held > 5_000 && held < compared - 5_000);
}

/// Each chunk goes into scratch of mine, and once all of it is there, to the peer: in one item.
fn waits_for_its_own(s: &mut ScheduleBuilder, gather: &strangers::Gather) {
    let relay = s.symmetric("relay", Bf16, gather.x.whole(), world());
    let there = s.counters("there", [world().into(), gather.chunks.into()]);
    let moves = |s: &mut ScheduleBuilder| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", gather.chunks.of(me()), |s, c| {
                s.copy(relay.at(&peer).at(c), gather.x.at(c));
                s.signal(there.at(&peer).at(c), 1);
                s.wait(there.at(&peer).at(c));
                s.copy(gather.x.on(&peer).at(c), relay.at(&peer).at(c));
                s.signal(gather.arrived.on(&peer).at(c), 1);
            });
        });
    };
    s.comm(4u32, moves);
}

/// Each batch of the item would wait for those behind it in its thread.
#[test]
fn a_wait_behind_a_copy_or_a_signal_of_its_item() {
    let mut s = ScheduleBuilder::new("waits_for_its_own");
    let gather = strangers::Gather::new(&mut s);
    waits_for_its_own(&mut s, &gather);
    gather.multiply(&mut s, ranks().from_me());
    insta::assert_snapshot!(refused_here(&s.finish()));
}

/// The same in two items, the second with a loop: each of its steps waits behind the one before.
fn waits_step_by_step(s: &mut ScheduleBuilder, gather: &strangers::Gather) {
    let relay = s.symmetric("relay", Bf16, gather.x.whole(), world());
    let there = s.counters("there", [world().into(), gather.chunks.into()]);
    s.comm(4u32, |s| {
        s.for_items("c", gather.chunks.of(me()), |s, c| {
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.copy(relay.at(&peer).at(c), gather.x.at(c));
                s.signal(there.at(&peer).at(c), 1);
            });
        });
        s.for_items("c", gather.chunks.of(me()), |s, c| {
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.wait(there.at(&peer).at(c));
                s.copy(gather.x.on(&peer).at(c), relay.at(&peer).at(c));
                s.signal(gather.arrived.on(&peer).at(c), 1);
            });
        });
    });
}

/// The wait of a loop's next step stands behind the copy and the signal of this one.
#[test]
fn a_wait_behind_a_copy_of_the_step_before() {
    let mut s = ScheduleBuilder::new("waits_step_by_step");
    let gather = strangers::Gather::new(&mut s);
    waits_step_by_step(&mut s, &gather);
    gather.multiply(&mut s, ranks().from_me());
    assert!(
        refused_here(&s.finish()).contains("a wait behind a copy or a signal of its own item"),
        "another refusal"
    );
}

/// The text of a refusal that points into this file.
fn refused_here(program: &Program) -> String {
    let kernel = kernel(program, 3);
    let found = sm90::build(&kernel)
        .and_then(verify::pipeline)
        .expect_err("refused");
    let at = found.first().at;
    assert!(at.is_some_and(|at| at.file().ends_with("control.rs")));
    found.first().text(&|_| String::new())
}

/// Branches that multiply alike, with an accumulator of its own each: the product stands once, before what uses it.
#[test]
fn branches_with_accumulators_of_their_own_have_one_product() {
    for rectified in [false, true] {
        let mut s = ScheduleBuilder::new("alike");
        let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
        let tiles = s.tiles("tiles", y, (128, 128));
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", tiles.all(), |s, t| {
                let store = |s: &mut ScheduleBuilder, rectified| {
                    let product = s.dot(x.at(t), w.at(t));
                    let product = if rectified { product.relu() } else { product };
                    s.store(y.at(t), product);
                };
                let even = Cond::compare(Comparison::Eq, me() % 2, 0);
                s.when_else(even, |s| store(s, false), |s| store(s, rectified));
            });
        });
        let kernel = lower(&s.finish(), &Variant::new(4)).and_then(verify::kernel);
        let pipeline = kernel.and_then(|kernel| sm90::build(&kernel));
        let checked = pipeline.and_then(verify::pipeline);
        let text = cuda::emit(&checked.unwrap_or_else(|error| panic!("{error}"))).text;
        assert_eq!(text.matches("float acc[").count(), 1, "{text}");
    }
}
