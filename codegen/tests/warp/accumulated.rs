//! What a launch adds to: what lowering refuses, what is emitted and what the warp-level verifier says, and that launches
//! go on adding.

use crate::fixtures::library;
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{self, Bf16, F16, F32};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Program, Stmt, StmtKind, StoreMode, Usage};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Arch, Layout, Variant};
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_codegen::warp::{Node, Pipeline, Slot, View};
use counterflow_emitter::{self as cuda, expected};
use counterflow_emulator::{self as interp, Input, Options, Outcome};
use counterflow_timeline::model::{Volume, seconds};

/// What a schedule says of each tile of `grad`.
type Body = fn(&mut ScheduleBuilder, [TensorRef; 4], Item);

/// Operands, another tile, and what is added to.
fn schedule(dtype: Dtype, body: Body) -> Program {
    let mut s = ScheduleBuilder::new("wgrad");
    let [dy, x] = ["dy", "x"].map(|name| s.local(name, Bf16));
    let grad = s.accumulated("grad", dtype);
    let z = s.local("z", dtype);
    let tiles = s.tiles("tiles", grad, tune([(128, 256), (128, 128), (4, 8)]));
    let options = GemmOptions {
        ping_pong: Some(tune([false, true])),
        cluster: Some(tune([(1, 1), (2, 1)])),
        split: Some(tune([1, 2])),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| body(s, [dy, x, z, grad], t));
    });
    s.finish()
}

fn add(s: &mut ScheduleBuilder, [dy, x, _, grad]: [TensorRef; 4], t: Item) {
    let product = s.dot(dy.at(t), x.at(t));
    s.store_add(grad.at(t), product);
}

fn wgrad() -> Program {
    schedule(F32, add)
}

/// The same program with `y` added to where it was written.
fn adding(mut program: Program) -> Program {
    for tensor in &mut program.tensors {
        if tensor.usage == Usage::OUT {
            tensor.usage = Usage::ACCUMULATED;
        }
    }
    let outer = program.roles.iter_mut().flat_map(|role| &mut role.body);
    for stmt in outer.flat_map(Stmt::leaves_mut) {
        if let StmtKind::Store { mode, .. } = &mut stmt.kind {
            *mode = StoreMode::Add;
        }
    }
    program
}

fn checked(program: &Program, variant: &Variant) -> Checked<Kernel> {
    let kernel = lower(program, variant).and_then(verify::kernel);
    kernel.unwrap_or_else(|error| panic!("{error}"))
}

fn built(program: &Program, variant: &Variant) -> Pipeline {
    sm90::build(&checked(program, variant)).unwrap_or_else(|error| panic!("{error}"))
}

fn verdict(body: Body) -> String {
    let refused = lower(&schedule(F32, body), &Variant::new(2)).expect_err("refused");
    refused.first().text(&|_| String::new())
}

#[test]
fn what_counts_before_is_not_overwritten() {
    let trace = verdict(|s, [dy, x, _, grad], t| {
        let product = s.dot(dy.at(t), x.at(t));
        s.store(grad.at(t), product);
    });
    insta::assert_snapshot!(trace, @"
    error[language]: `grad` is Accumulated: this overwrites what it held before the launch
      help: add to it: `grad[t] += …`; to overwrite it, make it Out
    ");
    let copied = verdict(|s, [_, _, z, grad], t| s.copy(grad.at(t), z.at(t)));
    assert!(
        copied.contains("this overwrites what it held before the launch"),
        "{copied}"
    );
}

#[test]
fn what_is_added_to_is_not_read() {
    let trace = verdict(|s, [dy, x, _, grad], t| {
        let product = s.dot(dy.at(t), x.at(t));
        let before = s.load(grad.at(t));
        s.store_add(grad.at(t), product + before);
    });
    insta::assert_snapshot!(trace, @"
    error[language]: `grad` is Accumulated: the launch that adds to it cannot read it
      help: read `grad` in a later launch, or pass what it held before as a Local tensor of its own
    ");
    let mut s = ScheduleBuilder::new("of_gradients");
    let (grad, w, y) = (
        s.accumulated("grad", Bf16),
        s.local("w", Bf16),
        s.out("y", Bf16),
    );
    let tiles = s.tiles("tiles", y, (128, 256));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(grad.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    let operand = lower(&s.finish(), &Variant::new(2))
        .expect_err("refused")
        .to_string();
    assert!(operand.contains("cannot read it"), "{operand}");
}

#[test]
fn what_is_added_to_is_this_ranks() {
    let trace = verdict(|s, [dy, x, _, grad], t| {
        let product = s.dot(dy.at(t), x.at(t));
        s.store_add(grad.on(0).at(t), product);
    });
    insta::assert_snapshot!(trace, @"
    error[language]: `grad` is Accumulated: peers cannot address it
      help: only Gathered, ReduceScattered, AllReduced, AllToAll and symmetric memory can be addressed on another rank
    ");
}

/// One reduction by TMA for each place that adds, no store, nothing loaded beside the operands.
#[test]
fn adding_is_a_reduction_where_it_lies() {
    for (tile, ping_pong) in [((128, 256), false), ((128, 128), true)] {
        // Where it is K-major, an operand comes as a box or as partial boxes.
        for (layout, loads) in [(Layout::Nt, 4), (Layout::Tn, 2)] {
            let variant = Variant::new(1).layout(layout);
            let variant = variant.set("tiles", tile).set("gemm.ping_pong", ping_pong);
            let pipeline = verify::pipeline(built(&wgrad(), &variant));
            let pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
            let text = cuda::emit(&pipeline).text;
            assert_eq!(text.matches("tma_reduce_add(grad").count(), 1);
            assert!(!text.contains("tma_store") && !text.contains("counter"));
            let wanted = expected::instructions(&pipeline);
            for counted in [("UTMAREDG", 1), ("UTMASTG", 0), ("UTMALDG", loads)] {
                assert!(wanted.contains(&counted), "{wanted:?}");
            }
        }
    }
}

/// Each CTA adds the subtiles whose sums it has.
#[test]
fn ctas_that_load_together_or_share_steps_add_their_own() {
    let of = |tile: (u32, u32)| Variant::new(1).set("tiles", tile);
    for variant in [
        of((128, 256)).set("gemm.cluster", (2, 1)),
        of((128, 128)).set("gemm.split", 2),
    ] {
        let pipeline = verify::pipeline(built(&wgrad(), &variant));
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{variant}: {error}"));
        assert!(expected::instructions(&pipeline).contains(&("UTMAREDG", 1)));
    }
}

#[test]
fn sixteen_bits_are_added_to_as_well() {
    for dtype in [Bf16, F16] {
        let program = schedule(dtype, add);
        let variant = Variant::new(2)
            .dtype(dtype)
            .arch(Arch::Cpu)
            .set("tiles", (4, 8));
        agrees(&checked(&program, &variant), [29, 3]);
        let variant = Variant::new(2).dtype(dtype);
        let pipeline = verify::pipeline(built(&program, &variant));
        assert!(
            cuda::emit(&pipeline.expect("good"))
                .text
                .contains("tma_reduce_add(grad")
        );
    }
}

/// Rows over ranks: the short shard has a map of its own, which an add must not go beyond either.
#[test]
fn shards_that_arrive_are_added_to() {
    for program in library::all() {
        if !["gemm", "ag_gemm", "ag_gemm_ring"].contains(&&program.name[..]) {
            continue;
        }
        let program = adding(program);
        let variant = Variant::new(4);
        let pipeline = built(&program, &variant.clone().set("tiles", (128, 256)));
        let map = pipeline.maps.iter().find(|map| map.name == "y");
        let map = map.expect("what is added to");
        assert_eq!(
            map.partial_shard,
            program.name != "gemm",
            "{}",
            program.name
        );
        assert!(!map.partial_shard || map.view == View::Shards);
        verify::pipeline(pipeline).unwrap_or_else(|error| panic!("{}: {error}", program.name));
        let variant = variant.arch(Arch::Cpu).set("tiles", (4, 8));
        let variant = if program.name == "gemm" {
            variant
        } else {
            variant.set("chunks", 3)
        };
        agrees(&checked(&program, &variant), [29, 9]);
    }
}

fn plans(kernel: &Checked<Kernel>, rows: &[u32]) -> (Series, Vec<Checked<Plan>>) {
    let most = rows.iter().copied().max().unwrap_or(0);
    let shape = |m| Shape::new(m, 24, 16);
    let series = verify::series(kernel, &shape(most), &Machine::h200());
    let series = series.unwrap_or_else(|error| panic!("{error}"));
    let plan = |m: &u32| series.plan(&shape(*m));
    let plans = rows.iter().map(plan).collect::<Result<_, _>>();
    let plans = plans.unwrap_or_else(|error| panic!("{error}"));
    (series, plans)
}

fn run(
    series: &Series,
    plans: &[Checked<Plan>],
    seed: u64,
    inputs: impl FnMut(Input<'_>, &mut [f32]),
) -> Outcome {
    let plans: Vec<_> = plans.iter().collect();
    interp::run(series, &plans, &Options::seed(seed), inputs)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Every launch, from other random contents, against the reference.
fn agrees(kernel: &Checked<Kernel>, rows: [u32; 2]) {
    let (series, plans) = plans(kernel, &rows);
    for seed in 0..5 {
        let outcome = run(&series, &plans, seed, interp::uniform(seed));
        for (launch, plan) in plans.iter().enumerate() {
            let expected = interp::reference(kernel, plan, launch, interp::uniform(seed));
            let expected = expected.unwrap_or_else(|error| panic!("{error}"));
            let agreed = interp::compare(&outcome, &expected);
            agreed.unwrap_or_else(|off| panic!("{} launch {launch}: {off}", kernel.name));
        }
    }
}

/// Who fills nothing between two launches finds there what the first one made; small integers add up exactly.
#[test]
fn launches_go_on_adding() {
    let kernel = checked(
        &wgrad(),
        &Variant::new(2).arch(Arch::Cpu).set("tiles", (4, 8)),
    );
    let (series, plans) = plans(&kernel, &[13, 13, 13]);
    let mut fill = interp::integers(5);
    let outcome = run(&series, &plans, 1, |input, values| {
        if input.name != "grad" || input.launch == 0 {
            fill(input, values);
        }
    });
    let grad = kernel
        .buffers
        .iter()
        .position(|buffer| buffer.name == "grad")
        .expect("there");
    for rank in 0..2 {
        let mut held: Option<Vec<f32>> = None;
        for (launch, plan) in plans.iter().enumerate() {
            let mut fill = interp::integers(5);
            let expected = interp::reference(&kernel, plan, launch, |input, values| {
                match held
                    .as_ref()
                    .filter(|_| input.name == "grad" && input.rank == rank)
                {
                    Some(held) => values.copy_from_slice(held),
                    None => fill(input, values),
                }
            });
            let expected = expected.unwrap_or_else(|error| panic!("{error}"));
            let of = expected
                .tensors
                .iter()
                .find(|of| of.rank == rank)
                .expect("of each rank");
            let now = outcome
                .outputs
                .iter()
                .find(|output| (output.launch, output.rank) == (launch, rank));
            let now = &now.expect("of each launch").values;
            assert_eq!(of.tensor.index(), grad);
            assert!(
                now.iter()
                    .map(|value| f64::from(*value))
                    .eq(of.values.iter().copied()),
                "launch {launch}"
            );
            assert_ne!(held.as_ref(), Some(now), "launch {launch} adds nothing");
            held = Some(now.clone());
        }
    }
}

/// What the verifier says after `edit` has changed the store of the storing warp.
fn trace(edit: impl Fn(&mut Vec<Node>, usize)) -> String {
    let mut pipeline = built(&wgrad(), &Variant::new(2));
    pipeline.lists(&mut |list| {
        let store = |node: &Node| matches!(node, Node::Store { .. });
        if let Some(at) = list.iter().position(store) {
            edit(list, at);
        }
    });
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn a_subtile_that_is_not_added_once() {
    let plain = trace(|list, at| {
        if let Node::Store { mode, .. } = &mut list[at] {
            *mode = StoreMode::Write;
        }
    });
    insta::assert_snapshot!(plain, @"error[coverage]: 0 of 151536 elements of grad on rank 0 are added to, 151536 are overwritten");
    let left_out = trace(|list, at| drop(list.remove(at)));
    insta::assert_snapshot!(left_out, @"error[coverage]: 0 of 151536 elements of grad on rank 0 are added to, 0 are overwritten");
    let twice = trace(|list, at| list.insert(at, list[at].clone()));
    insta::assert_snapshot!(twice, @"
    error[race]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..32 of grad (shard or slot 0) on rank 0 for tile (0, 0)
      = store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..32 of grad (shard or slot 0) on rank 0 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

/// A place that is released behind the store of the next subtile: four stages and two places, and what is wrong without the
/// wait, with one for too few reads, and where the place of the store that was just handed over is released.
#[test]
fn a_place_is_released_behind_the_next_store() {
    let variant = Variant::new(2).set("tiles", (128, 256));
    let pipeline = verify::pipeline(built(&wgrad(), &variant));
    let text = cuda::emit(&pipeline.unwrap_or_else(|error| panic!("{error}"))).text;
    for line in ["STAGES = 4;", "SUBTILES = 2;", "tma_wait_read<1>();"] {
        assert_eq!(text.matches(line).count(), 1, "{line}");
    }
    let late = |edit: fn(&mut Vec<Node>)| {
        trace(|list, at| {
            let release = list[at..].iter_mut().find_map(|node| match node {
                Node::If { body, .. } => Some(body),
                _ => None,
            });
            edit(release.expect("a release"));
        })
    };
    let unread = late(|release| drop(release.remove(0)));
    let too_few = late(|release| release[0] = Node::AwaitRead { pending: 2.into() });
    for found in [&unread, &too_few] {
        assert!(found.starts_with("error[race]"), "{found}");
    }
    let too_soon = late(|release| {
        let Node::Arrive { slot, .. } = &mut release[1] else {
            panic!("an arrival");
        };
        *slot = Slot::Current;
    });
    assert!(too_soon.starts_with("error[progress]"), "{too_soon}");
}

/// An add reads what it adds to, and moves nothing between ranks.
#[test]
fn an_add_costs_a_read_and_a_write() {
    let slow = Machine {
        memory: 1e9,
        memory_half: 0.0,
        ..Machine::h200()
    };
    let variant = Variant::new(1);
    let of = |program: &Program| {
        let kernel = checked(program, &variant.clone().set("tiles", (128, 128)));
        let plan = verify::plan(&kernel, &Shape::new(1024, 1024, 128), &slow);
        let plan = plan.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(Volume::of(&kernel, &plan).total(), 0);
        seconds(&kernel, &plan, &slow).expect("it ends")
    };
    let (written, added) = (
        of(&library::gemm(&library::real())),
        of(&adding(library::gemm(&library::real()))),
    );
    let more = (added - written) * slow.memory;
    let bytes = 2.0 * 1024.0 * 1024.0;
    assert!((more / bytes - 1.0).abs() < 0.1, "{more} bytes more");
}
