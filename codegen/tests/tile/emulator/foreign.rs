//! Functions of another language: emulated ranks compute their twins, within bounds that follow from those.

use super::Case;
use crate::fixtures::foreign::{function, gemm, soft_cap};
use counterflow_codegen::given::{Given, Matrix};
use counterflow_codegen::program::Program;
use counterflow_codegen::value::{Foreign, ScalarFn};
use counterflow_codegen::variant::Variant;
use counterflow_emulator as interp;

/// The same in f64, all the way.
fn reference(given: &Given<'_>) -> Result<Matrix, String> {
    let rank = given.rank();
    let [x, w, limit] = ["x", "w", "limit"].map(|name| given.input(name, rank));
    let (product, limit) = (x?.times(&w?), limit?);
    let (rows, columns) = (product.rows(), product.columns());
    Ok(Matrix::of(rows, columns, |row, column| {
        let limit = 1.0 + limit.at(0, column).abs();
        limit * (product.at(row, column) / limit).tanh()
    }))
}

fn case(program: &Program) -> Case {
    Case::new(program, &Variant::new(2), &[16, 13], 24, 40)
}

#[test]
fn a_product_with_a_foreign_function_is_what_f64_says() {
    let program = gemm(&soft_cap(), (8, 8)).reference(reference);
    case(&program).agrees(0..8, false);
}

#[test]
fn the_twin_is_what_ranks_compute() {
    let twin = |x: &[f32]| x[1] * (x[0] / x[1]).tanh() * 1.02;
    let other = Foreign::new("return limit * tanhf(x / limit);", twin);
    let case = case(&gemm(&function(other), (8, 8)).reference(reference));
    let outcome = case.run(1, interp::uniform(1));
    let expected = &case.expected(|| interp::uniform(1))[0];
    interp::compare(&outcome, expected).expect_err("2 % more than the reference");
}

/// Bounds grow with what the twin makes of an argument's error, and with what text and twin may differ by.
#[test]
fn bounds_follow_the_twin() {
    let bound = |function: &ScalarFn| {
        let expected = case(&gemm(function, (8, 8))).expected(|| interp::uniform(3));
        let bounds = expected[0].tensors.iter().flat_map(|of| of.bounds.clone());
        bounds.fold(0.0, f64::max)
    };
    let of = |cuda: &str, twin, ulps| {
        bound(&function(Foreign {
            ulps,
            ..Foreign::new(cuda, twin)
        }))
    };
    let plain = of("return x;", |x| x[0], 0);
    let steep = of("return 64.0f * x;", |x| 64.0 * x[0], 0);
    assert!(steep > 50.0 * plain, "{steep} of {plain}");
    let rough = of("return x;", |x| x[0], 1 << 18);
    assert!(rough > 3.0 * plain, "{rough} of {plain}");
}
