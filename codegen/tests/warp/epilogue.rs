//! The math after the dot at the warp level: what is emitted, and what the verifier says when an operand is missing.

use crate::fixtures::{features as schedules, foreign};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{self, Bf16, F32};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Program, Side};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::value::{Binary, Compare, ScalarFn, Unary, Value};
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Along, FragmentOp, Node, Pipeline, ReadInto};
use counterflow_emitter as cuda;

/// What stays of the activation's input for the way back, and the activation times a gate.
fn gated(gate_type: Dtype) -> Program {
    let leaky = ScalarFn {
        name: "leaky",
        params: &["x"],
        body: Value::select(
            Compare::Lt,
            0.0.into(),
            Value::Arg(0),
            Value::Arg(0),
            Value::from(0.1).combine(Binary::Mul, Value::Arg(0)),
        )
        .into(),
    };
    let mut s = ScheduleBuilder::new("gated");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let (bias, slope) = (s.vector("bias", Bf16), s.vector("slope", F32));
    let gate = s.local("gate", gate_type);
    let (before, y) = (s.out("before", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 256));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let (bias, slope, gate) = (s.load(bias), s.load(slope), s.load(gate.at(t)));
            let sum = product.bias(bias);
            s.store(before.at(t), sum.clone());
            let squared = sum.clone() * sum.clone() * slope;
            let value = sum.call(leaky.clone(), []) * gate + squared.apply(Unary::Tanh);
            s.store(y.at(t), value);
        });
    });
    s.finish()
}

fn build(program: &Program) -> Result<Pipeline, String> {
    let kernel = lower(program, &Variant::new(4)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    sm90::build(&kernel).map_err(|error| error.first().text(&|_| String::new()))
}

fn good(program: &Program) -> Pipeline {
    build(program).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn values_are_functions_and_operands_come_by_subtiles() {
    let pipeline = verify::pipeline(good(&gated(Bf16))).unwrap_or_else(|error| panic!("{error}"));
    let text = cuda::emit(&pipeline).text;
    let functions = text
        .find("// The schedule's #[epilogue]")
        .expect("functions");
    let kernel = text.find("extern \"C\"").expect("a kernel");
    let subtiles = text.rfind("// before[t]").expect("the stores");
    insta::assert_snapshot!(format!("{}{}", &text[functions..kernel], &text[subtiles..]));
}

#[test]
fn a_foreign_functions_text_is_a_function_of_the_kernel() {
    let program = foreign::gemm(&foreign::soft_cap(), (128, 256));
    let pipeline = verify::pipeline(good(&program)).unwrap_or_else(|error| panic!("{error}"));
    let text = cuda::emit(&pipeline).text;
    let functions = text.find("// The schedule's").expect("functions");
    let kernel = text.find("extern \"C\"").expect("a kernel");
    insta::assert_snapshot!(&text[functions..kernel]);
}

/// Texts call functions of CUDA by names that a user's function may have: the one does not call the other, nor itself.
#[test]
fn a_function_with_the_name_of_one_that_texts_call_has_another_in_cuda() {
    let ours = ScalarFn {
        name: "tanh",
        ..foreign::soft_cap()
    };
    let program = foreign::gemm(&ours, (128, 256));
    let pipeline = verify::pipeline(good(&program)).unwrap_or_else(|error| panic!("{error}"));
    let text = cuda::emit(&pipeline).text;
    assert!(text.contains("float tanh_(float x, float limit)"), "{text}");
    assert!(text.contains("epilogue::tanh_("), "{text}");
    assert!(text.contains("= tanh(v0);"), "{text}");
}

#[test]
fn a_sum_over_ranks_goes_through_its_epilogue_whole() {
    let pipeline = verify::pipeline(good(&schedules::slots_sum()));
    let pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
    let [epilogue] = pipeline.epilogues.as_slice() else {
        panic!("{:?}", pipeline.epilogues);
    };
    assert_eq!(
        epilogue.value.text(&|acc| format!("acc{}", acc.0)),
        "gelu(acc2 + acc3)"
    );
}

#[test]
fn subtiles_are_as_wide_as_the_widest_type_allows() {
    let pipeline = verify::pipeline(good(&gated(F32))).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(pipeline.tiling().subtile().columns, 32);
    let text = cuda::emit(&pipeline).text;
    assert!(text.contains("subtile_read<float, SUBTILE_N>(gate,"));
    assert!(text.contains("subtile_store<T, SUBTILE_N>(y_values,"));
}

/// What the verifier says when the first node of a kind is gone from the multiplying warps.
fn without(gone: impl Fn(&Node) -> bool) -> String {
    after(|_| true, gone)
}

/// As [`without`], of the nodes after one of another kind in its list.
fn after(first: impl Fn(&Node) -> bool, gone: impl Fn(&Node) -> bool) -> String {
    let mut pipeline = good(&gated(Bf16));
    let mut warps = std::mem::take(&mut pipeline.warps);
    let multiply = warps.pop().expect("a role");
    pipeline.warps.push(multiply);
    let mut done = false;
    pipeline.lists(&mut |list| {
        let start = list.iter().position(&first).unwrap_or(list.len());
        let at = list[start..].iter().position(&gone).map(|at| start + at);
        if let Some(at) = at.filter(|_| !done) {
            list.remove(at);
            done = true;
        }
    });
    assert!(done);
    warps.append(&mut pipeline.warps);
    pipeline.warps = warps;
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn an_operand_or_an_epilogue_left_out() {
    insta::assert_snapshot!(without(|node| matches!(node, Node::Fragment(FragmentOp::Broadcast { along: Some(Along { side: Side::Columns, .. }), .. }))), @"
    error[coverage]: multiply of block 0 on rank 0 applies before_value to subtile 0 for tile (0, 0)
      = `bias` is not there for these rows and columns
    ");
    insta::assert_snapshot!(without(|node| matches!(node, Node::Fragment(FragmentOp::ReadSubtile { into: ReadInto::Own { .. }, .. }))), @"
    error[coverage]: multiply of block 0 on rank 0 applies y_value to subtile 0 for tile (0, 0)
      = `gate` is not there for these rows and columns
    ");
    insta::assert_snapshot!(without(|node| matches!(node, Node::Fragment(FragmentOp::Apply { .. }))), @"
    error[coverage]: multiply of block 0 on rank 0 writes subtile 0 for tile (0, 0)
      = its epilogue was not applied to this subtile
    ");
    insta::assert_snapshot!(after(|node| matches!(node, Node::Fragment(FragmentOp::ReadSubtile { into: ReadInto::Own { .. }, .. })), |node| matches!(node, Node::FenceShared)), @"
    error[race]: load of block 0 on rank 0 loads rows 0..128, columns 192..256 of gate (shard or slot 0) on rank 0 into x of stage 1 for tile (0, 0)
      = multiply of block 0 on rank 0 reads x of stage 1 for tile (0, 0)
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_shared` after ordinary accesses, before the slot is released
    ");
}

#[test]
fn an_operand_of_other_columns() {
    let mut pipeline = good(&gated(Bf16));
    pipeline.lists(&mut |list| {
        for node in list {
            if let Node::Fragment(FragmentOp::Broadcast {
                along:
                    Some(Along {
                        side: Side::Columns,
                        first: column,
                        ..
                    }),
                ..
            }) = node
            {
                *column = 0.into();
            }
        }
    });
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[coverage]: multiply of block 0 on rank 0 applies before_value to subtile 1 for tile (0, 0)
      = `bias` is not there for these rows and columns
    ");
}

/// What is read beside a product widens subtiles as what is stored does: stages are divided once, for plan and kernel.
#[test]
fn a_plan_counts_with_what_its_kernel_has() {
    for gate in [Bf16, F32] {
        let pipeline = good(&gated(gate));
        let machine = Machine::h200();
        let plan = Plan::new(&pipeline.kernel, &Shape::new(512, 512, 512), &machine);
        let plan = plan.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plan.grid.stages, pipeline.rings[0].slots);
        let (counted, has) = (plan.grid.shared_memory, pipeline.shared_bytes());
        assert!(counted >= has, "{gate}: {counted} bytes of {has}");
        assert_eq!(plan.cta.as_ref(), Some(&pipeline.cta));
    }
}

/// A product, and what is read beside it.
fn beside(
    options: GemmOptions,
    more: impl Fn(&mut ScheduleBuilder, Item, [TensorRef; 2]) -> Value,
) -> String {
    beside_tiles((128, 128), options, more)
}

/// The same in tiles of that shape.
fn beside_tiles(
    tile: (u32, u32),
    options: GemmOptions,
    more: impl Fn(&mut ScheduleBuilder, Item, [TensorRef; 2]) -> Value,
) -> String {
    let mut s = ScheduleBuilder::new("beside");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let z = s.local("z", Bf16);
    let partial = s.symmetric("partial", Bf16, y.whole(), 1u32);
    let tiles = s.tiles("tiles", y, tile);
    s.gemm(options, |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let more = more(s, t, [z, partial]);
            s.store(y.at(t), product + more);
        });
    });
    build(&s.finish()).map_or_else(|refused| refused, |_| "accepted".into())
}

/// A tile of 64 rows has work for one warpgroup, whether or not somebody wrote `ping_pong`.
#[test]
fn a_tile_that_one_warpgroup_computes_is_named_instead_of_ping_pong() {
    let of_64_rows = |more: &dyn Fn(&mut ScheduleBuilder, Item, [TensorRef; 2]) -> Value| {
        beside_tiles((64, 128), GemmOptions::default(), more)
    };
    insta::assert_snapshot!(of_64_rows(&|s, t, [z, _]| s.load(z.at(t))), @"
    error[resources]: a stored tile beside the product, with tiles of 64x128, which one warpgroup computes
      help: tiles that both warpgroups share, such as those of 128 or 256 rows: one alone cannot read a stored tile
    ");
    insta::assert_snapshot!(of_64_rows(&|s, t, [_, partial]| s.sum(partial.at(0).at(t))), @"
    error[resources]: a sum of stored tiles, with tiles of 64x128, which one warpgroup computes
      help: tiles that both warpgroups share, such as those of 128 or 256 rows: one alone cannot read a stored tile
    ");
}

/// They come through the stages, which warpgroups in ping-pong and CTAs of a cluster give back in another way.
#[test]
fn stored_tiles_are_read_by_both_warpgroups_of_one_cta() {
    let plain = GemmOptions::default;
    let ping_pong = || GemmOptions {
        ping_pong: Some(true.into()),
        ..plain()
    };
    let cluster = GemmOptions {
        cluster: Some((1, 2).into()),
        ..plain()
    };
    let stored = |s: &mut ScheduleBuilder, t: Item, [z, _]: [TensorRef; 2]| s.load(z.at(t));
    let summed =
        |s: &mut ScheduleBuilder, t: Item, [_, partial]: [TensorRef; 2]| s.sum(partial.at(0).at(t));
    insta::assert_snapshot!(beside(plain(), stored), @"accepted");
    insta::assert_snapshot!(beside(ping_pong(), stored), @"
    error[resources]: a stored tile beside the product, with tiles in ping-pong
      help: no `ping_pong`: warpgroups that take tiles by turns cannot read a stored tile
    ");
    insta::assert_snapshot!(beside(cluster, stored), @"
    error[resources]: a stored tile beside the product, in a cluster
      help: `cluster = (1, 1)`: CTAs of a cluster cannot read a stored tile
    ");
    // Without this rank's own term.
    insta::assert_snapshot!(beside(ping_pong(), summed), @"
    error[resources]: a sum of stored tiles, with tiles in ping-pong
      help: no `ping_pong`. It works for items of the last loop that have one sum with this rank's own term and nothing else beside the product, in tiles of 128 rows by up to 128 columns, without clusters and roles
    ");
}
