//! Products of FP8: what the library's schedules become, and what is refused.

use crate::fixtures::library;
use crate::fixtures::wide::{in_turn, sampled};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, Value};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{self, Bf16, E4M3, E5M2, F16, F32};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Layout, Tensors, Variant};
use counterflow_codegen::warp::Pipeline;
use counterflow_codegen::{sm90, verify};
use counterflow_emitter as cuda;
use counterflow_emulator::{self as interp, Options};

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

fn variant(dtype: Dtype) -> Variant {
    Variant::new(2).dtype(dtype).set("tiles", (128, 128))
}

fn built(program: &Program, variant: &Variant) -> Result<Pipeline, Diagnostics> {
    let kernel = lower(program, variant).and_then(verify::kernel);
    sm90::build(&kernel.unwrap_or_else(|error| panic!("{error}")))
}

fn refused(program: &Program, variant: &Variant) -> String {
    let found = built(program, variant).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// A product whose value is what `value` makes of it.
fn product([x, w, y]: [Dtype; 3], value: impl Fn(Value) -> Value) -> Program {
    let mut s = ScheduleBuilder::new("product");
    let (x, w, y) = (s.local("x", x), s.local("w", w), s.out("y", y));
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), value(product));
        });
    });
    s.finish()
}

/// Steps of 128 elements, multiplied 32 at a time; chunks in boxes of as many bytes as those of 16 bits; sums in bf16.
#[test]
fn schedules_of_the_library_take_fp8_operands() {
    for name in ["gemm", "ag_gemm", "gemm_rs"] {
        let pipeline = built(&program(name), &variant(E4M3)).and_then(verify::pipeline);
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{name}: {error}"));
        let types = |name: &str| {
            let mut buffers = pipeline.kernel.buffers.iter();
            let found = buffers.find(|buffer| buffer.name == name);
            found.map(|buffer| buffer.dtype)
        };
        let of = ["x", "w", "y"].map(types);
        assert_eq!(of, [E4M3, E4M3, Bf16].map(Some), "{name}");
        assert_eq!(pipeline.tile().k, 128, "{name}");
        let text = cuda::emit(&pipeline).text;
        assert!(
            text.contains("for (u32 k = 0; k < TILE_K / 32; ++k)"),
            "{text}"
        );
        assert!(
            text.contains("wgmma_m64k32<") && text.contains("subtile_store<bf16,"),
            "{text}"
        );
        assert_eq!(
            text.contains("STAGING_N_NARROW = 128;"),
            name == "ag_gemm",
            "{text}"
        );
        let expected = cuda::expected::instructions(&pipeline);
        assert!(
            expected
                .iter()
                .any(|(kind, count)| *kind == "QGMMA" && *count >= 4),
            "{name}"
        );
    }
}

/// One operand e4m3 and the other e5m2, either way round, also where the tile's columns are on the instruction's M side.
#[test]
fn operands_have_a_type_each() {
    for (at, (first, second)) in [(E4M3, E5M2), (E5M2, E4M3)].into_iter().enumerate() {
        for (nth, name) in ["gemm", "ag_gemm", "gemm_rs"].into_iter().enumerate() {
            let tiles = [((128, 128), [first, second]), ((80, 128), [second, first])];
            for (tile, [m, n]) in in_turn(tiles, at + nth) {
                let variant = variant(first).rhs_dtype(second).set("tiles", tile);
                let pipeline = built(&program(name), &variant).and_then(verify::pipeline);
                let pipeline = pipeline.unwrap_or_else(|error| panic!("{name}: {error}"));
                let text = cuda::emit(&pipeline).text;
                let text_in_one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(
                    text_in_one_line.contains(&format!("k != 0, {m}(), {n}());")),
                    "{text}"
                );
                assert!(text.contains(&format!("typedef {first} T;  // of first operands")));
                assert!(
                    text.contains(&format!("{first}×{second}  nt  tiles")),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn types_of_operands_are_refused_where_they_cannot_be_told_apart() {
    let refused = |program: &Program, variant: &Variant| {
        let found = lower(program, variant).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    let gemm = program("gemm");
    insta::assert_snapshot!(refused(&gemm, &Variant::new(1).rhs_dtype(E5M2)), @"
    error[shape]: second operands of e5m2, beside first ones of the schedule's type
      help: two types are for FP8: e4m3 and e5m2
    ");
    insta::assert_snapshot!(refused(&gemm, &variant(E4M3).rhs_dtype(F16)), @"
    error[shape]: second operands of f16, beside first ones of e4m3
      help: two types are for FP8: e4m3 and e5m2
    ");
    let mut s = ScheduleBuilder::new("square");
    let (x, y) = (s.local("x", Bf16), s.out("y", F32));
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), x.at(t));
            s.store(y.at(t), product);
        });
    });
    insta::assert_snapshot!(refused(&s.finish(), &variant(E4M3).rhs_dtype(E5M2)), @"
    error[shape]: `x` is the first operand of a product and the second of one
      help: one type for both, or a tensor for each
    ");
}

#[test]
fn results_are_of_any_type() {
    for y in Dtype::ALL {
        let program = product([E4M3, E4M3, y], |acc| acc);
        let pipeline = built(&program, &Variant::new(1)).and_then(verify::pipeline);
        pipeline.unwrap_or_else(|error| panic!("{y}: {error}"));
    }
}

#[test]
fn what_has_no_pipeline() {
    let gemm = program("gemm");
    let one = Variant::new(1);
    let as_it_is = |types| product(types, |acc| acc);
    insta::assert_snapshot!(refused(&gemm, &variant(E4M3).layout(Layout::Nn)), @"
    error[resources]: `w` of e4m3, whose K is not contiguous in layout nn
      help: layout nt: keep a transposed copy of it, and multiply that
    ");
    insta::assert_snapshot!(refused(&gemm, &variant(E4M3).layout(Layout::Tn)), @"
    error[resources]: `x` of e4m3, whose K is not contiguous in layout tn
      help: layout nt: keep a transposed copy of it, and multiply that
    ");
    insta::assert_snapshot!(refused(&gemm, &variant(E5M2)), @"
    error[resources]: a product of e5m2
      help: make one of the two e4m3: 3 bits of precision in both are too few
    ");
    insta::assert_snapshot!(refused(&gemm, &variant(E5M2).rhs_dtype(E5M2)), @"
    error[resources]: a product of e5m2
      help: make one of the two e4m3: 3 bits of precision in both are too few
    ");
    assert!(built(&as_it_is([E4M3, E5M2, Bf16]), &one).is_ok());
    insta::assert_snapshot!(refused(&as_it_is([Bf16, E4M3, Bf16]), &one), @"
    error[resources]: a product of bf16 and e4m3
      help: operands of one type, or one e4m3 and the other e5m2
    ");
}

/// What is multiplied and stored in a loop after one that has a pipeline.
fn second([v, u]: [Dtype; 2]) -> Program {
    let mut s = ScheduleBuilder::new("second");
    let (x, w, y) = (s.local("x", E4M3), s.local("w", E4M3), s.out("y", Bf16));
    let (v, u) = (s.local("v", v), s.out("u", u));
    let [tiles, others] =
        [("tiles", y), ("others", u)].map(|(name, of)| s.tiles(name, of, (128, 128)));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
        s.for_items("t", others.all(), |s, t| {
            let product = s.dot(x.at(t), v.at(t));
            s.store(u.at(t), product);
        });
    });
    s.finish()
}

#[test]
fn every_loop_is_held_to_the_rules() {
    let one = Variant::new(1);
    for v in [E4M3, E5M2] {
        assert!(built(&second([v, Bf16]), &one).is_ok());
    }
    insta::assert_snapshot!(refused(&second([F16, Bf16]), &one), @"
    error[resources]: a product of e4m3 and f16
      help: operands of one type, or one e4m3 and the other e5m2
    ");
    assert!(built(&second([E4M3, E4M3]), &one).is_ok());
}

/// Columns and a depth that no tile divides: to the bit. A row in memory is a multiple of 16 bytes.
#[test]
fn shapes_that_nothing_divides() {
    for operands in [variant(E4M3), variant(E5M2).rhs_dtype(E4M3)] {
        let kernel = lower(&program("gemm"), &operands).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
        let sizes = [(130, 576, 272), (5, 2112, 144)];
        for (m, n, k) in sizes {
            let shape = Shape::new(m, n, k);
            let series = verify::series(&kernel, &shape, &Machine::h200());
            let series = series.unwrap_or_else(|error| panic!("{shape:?}: {error}"));
            let plan = series.plan(&shape);
            let plan = plan.unwrap_or_else(|error| panic!("{shape:?}: {error}"));
            let found = interp::run(&series, &[&plan], &Options::seed(1), interp::integers(1));
            let known = interp::reference(series.kernel(), &plan, 0, interp::integers(1));
            let found = found.unwrap_or_else(|error| panic!("{shape:?}: {error}"));
            interp::compare_exactly(&found, &known.expect("a reference"))
                .unwrap_or_else(|error| panic!("{shape:?}: {error}"));
        }
        let shape = Shape::new(130, 576, 264);
        let series = verify::series(&kernel, &shape, &Machine::h200());
        let refused = series.and_then(|series| series.plan(&shape).map(|_| ()));
        let refused = refused.expect_err("refused");
        let message = refused.first().text(&|_| String::new());
        let x = operands
            .asked(&Tensors::OfFirstType)
            .element
            .expect("a type");
        let row = format!("error[shape]: a row of x is 264 {x} = 264 bytes\n");
        assert!(message.starts_with(&row), "{message}");
        assert!(
            message.contains("make k a multiple of 16, or give x a leading dimension"),
            "{message}"
        );
    }
}

/// Sums of small integers to the bit, others within the bound: at the tile level, with schedules that communicate.
#[test]
fn results_are_right() {
    let operands = [
        variant(E4M3),
        variant(E4M3).rhs_dtype(E5M2),
        variant(E5M2).rhs_dtype(E4M3),
    ];
    let all =
        ["gemm", "ag_gemm", "gemm_rs"].map(|name| operands.clone().map(|variant| (name, variant)));
    for (name, variant) in sampled(all.into_iter().flatten(), 4) {
        let kernel = lower(&program(name), &variant).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{name}: {error}"));
        let shape = Shape::new(260, 136, 272);
        let series = verify::series(&kernel, &shape, &Machine::h200());
        let series = series.unwrap_or_else(|error| panic!("{name}: {error}"));
        let plan = series
            .plan(&shape)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for seed in sampled(0..2, 2) {
            let exact = interp::run(
                &series,
                &[&plan],
                &Options::seed(seed),
                interp::integers(seed),
            );
            let known = interp::reference(series.kernel(), &plan, 0, interp::integers(seed));
            let exact = exact.unwrap_or_else(|error| panic!("{name}: {error}"));
            interp::compare_exactly(&exact, &known.expect("a reference"))
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let some = interp::run(
                &series,
                &[&plan],
                &Options::seed(seed),
                interp::uniform(seed),
            );
            let known = interp::reference(series.kernel(), &plan, 0, interp::uniform(seed));
            let mut some = some.unwrap_or_else(|error| panic!("{name}: {error}"));
            let known = known.expect("a reference");
            interp::compare(&some, &known).unwrap_or_else(|error| panic!("{name}: {error}"));
            // The bound is no excuse: it tells a wrong element from a right one.
            let y = some.outputs.len() - 1;
            some.outputs[y].values[0] += 8.0;
            assert!(interp::compare(&some, &known).is_err(), "{name}");
        }
    }
}
