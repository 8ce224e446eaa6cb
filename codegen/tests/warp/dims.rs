//! Warps of products of which two sides have one size.

use crate::fixtures::square::through_scratch;
use counterflow_codegen::lower::lower;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;

#[test]
fn two_sides_of_a_product_have_one_size() {
    for world in 1..=3 {
        let program = through_scratch();
        let kernel = lower(&program, &Variant::new(world)).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", program.name));
        let pipeline = sm90::build(&kernel).and_then(verify::pipeline);
        pipeline.unwrap_or_else(|error| panic!("{}: {error}", program.name));
    }
}
