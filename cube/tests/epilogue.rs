//! `#[cube]` functions after a product: their text, their numbers, and what is refused.

mod functions;

use counterflow::codegen::value::{Body, ScalarFn};
use counterflow::codegen::{interp, lower::lower, verify};
use counterflow::given::{Given, Matrix};
use counterflow::prelude::*;
use counterflow::{Arch, Machine, Program, Shape, Variant};
use counterflow_cube::epilogue;

epilogue! {
    /// The name in the kernel.
    fn soft_cap(x, limit) = functions::capped;
    fn bent(x, slope) = functions::bent;
    fn below(x) = functions::below, twin |x| 0.5 + 0.5 * functions::erf(x * std::f32::consts::FRAC_1_SQRT_2);
    fn looped(x) = functions::looped;
    fn shared(x) = functions::shared, twin |x| x;
    fn ranked(x) = functions::ranked, twin |x| x;
    fn remainder(x, by) = functions::remainder;
    fn wide(x) = functions::wide;
    fn pieces(x) = functions::pieces, twin |x| x;
}

#[schedule]
fn gemm_capped(x: Local<bf16>, w: Local<bf16>, limit: Vector<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 128));
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]).map(soft_cap, limit.abs() + 1.0);
    }
}

/// The same in f64.
fn reference(given: &Given<'_>) -> Result<Matrix, String> {
    let [x, w, limit] = ["x", "w", "limit"].map(|name| given.input(name, given.rank()));
    let (product, limit) = (x?.times(&w?), limit?);
    Ok(Matrix::of(
        product.rows(),
        product.columns(),
        |row, column| {
            let limit = 1.0 + limit.at(0, column).abs();
            limit * (product.at(row, column) / limit).tanh()
        },
    ))
}

fn text(function: &ScalarFn) -> &str {
    match &function.body {
        Body::Foreign(foreign) => &foreign.cuda,
        Body::Value(_) => panic!("a function of the language"),
    }
}

/// That text is compiled for Hopper by the workspace's `tests/kernels`.
#[test]
fn a_function_is_arithmetic_on_its_arguments() {
    assert_eq!(text(&soft_cap::scalar()), include_str!("soft_cap.cuh"));
}

#[test]
fn branches_and_unrolled_loops_are_text_of_the_function() {
    assert_eq!(text(&bent::scalar()), include_str!("bent.cuh"));
    assert_eq!(bent(-2.0, 0.5), -1.0);
}

/// What else is being compiled does not change a text.
#[test]
fn texts_are_the_same_in_every_thread() {
    let threads = (0..8).map(|_| {
        std::thread::spawn(|| {
            let make = || {
                let params = &["x", "slope"];
                let function = counterflow_cube::function(
                    "bent",
                    params,
                    |scope, [x, slope]| functions::bent::expand(scope, x, slope),
                    |numbers| numbers[0],
                );
                function.map(|function| text(&function).to_owned())
            };
            (0..20).map(|_| make()).collect::<Result<Vec<String>, _>>()
        })
    });
    for texts in threads.collect::<Vec<_>>() {
        let texts = texts.join().expect("no panic").expect("texts");
        assert!(texts.iter().all(|text| text == include_str!("bent.cuh")));
    }
}

#[test]
fn emulated_ranks_agree_with_f64() {
    let program = gemm_capped().reference(reference);
    let kernel = lower(&program, &Variant::new(2).arch(Arch::Cpu)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    let shape = Shape::new(40, 24, 32);
    let series = verify::series(&kernel, &shape, &Machine::h200());
    let series = series.unwrap_or_else(|error| panic!("{error}"));
    let plan = series.plan(&shape).expect("a plan");
    let inputs = || interp::uniform(1);
    let outcome = interp::run(&series, &[&plan], &interp::Options::seed(1), inputs());
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
    let expected = interp::reference(&kernel, &plan, 0, inputs()).expect("a reference");
    let agreed = interp::compare(&outcome, &expected).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(agreed.elements, 2 * 40 * 24);
}

/// Another twin than Rust's own: Rust has no error function.
#[test]
fn a_twin_may_be_given() {
    assert_eq!(below(0.0), 0.5);
    assert!((below(1.0) - 0.841_344_7).abs() < 1e-6);
    assert!(text(&below::scalar()).contains("erf("));
}

/// What lowering says of a product that the function follows.
fn told(function: ScalarFn) -> String {
    use counterflow::codegen::builder::{GemmOptions, ScheduleBuilder};
    let mut s = ScheduleBuilder::new("gemm");
    let [x, w] = ["x", "w"].map(|name| s.local(name, counterflow::Dtype::Bf16));
    let y = s.out("y", counterflow::Dtype::Bf16);
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let others = function.params[1..].iter().map(|_| 2.0.into());
            s.store(
                y.at(t),
                product.call(function.clone(), others.collect::<Vec<_>>()),
            );
        });
    });
    let program: Program = s.finish();
    match lower(&program, &Variant::new(1)) {
        Ok(_) => "accepted".into(),
        Err(found) => found.first().message.clone(),
    }
}

#[test]
fn what_is_more_than_arithmetic_is_refused() {
    assert_eq!(told(bent::scalar()), "accepted");
    let refused = [
        (looped::scalar(), "`for` repeats or jumps"),
        (
            shared::scalar(),
            "`shared_memory_1` is memory that threads share",
        ),
        (
            ranked::scalar(),
            "`threadIdxGlobal` depends on who computes",
        ),
        (remainder::scalar(), "it has a remainder"),
        (wide::scalar(), "`double` is another type"),
        (pieces::scalar(), "`l_arr_1` is memory"),
    ];
    for (function, why) in refused {
        let begins = format!("`{}` cannot follow a product: {why}", function.name);
        let told = told(function);
        assert!(told.starts_with(&begins), "{told}");
    }
}

#[test]
fn cubecls_own_reason_is_told() {
    let made = counterflow_cube::function(
        "checked",
        &["x"],
        |scope, [x]| {
            scope.push_error("an even number is needed");
            x
        },
        |numbers| numbers[0],
    );
    let refused = made.expect_err("an odd number");
    assert_eq!(refused.name, "checked");
    assert!(refused.why.contains("an even number"), "{refused}");
}
