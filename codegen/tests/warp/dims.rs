//! Warps of products of which two sides have one size.

use crate::fixtures::square::{by_itself, through_scratch};
use counterflow_codegen::dtype::Dtype::{E4M3, F16};
use counterflow_codegen::lower::lower;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Scales, Variant};
use counterflow_codegen::verify;

#[test]
fn two_sides_of_a_product_have_one_size() {
    for world in 1..=3 {
        for program in [through_scratch(), by_itself(false)] {
            let kernel = lower(&program, &Variant::new(world)).and_then(verify::kernel);
            let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", program.name));
            let pipeline = sm90::build(&kernel).and_then(verify::pipeline);
            pipeline.unwrap_or_else(|error| panic!("{}: {error}", program.name));
        }
    }
}

/// M is rows of both operands, whatever multiplies them; layout nn would store one tensor in two ways.
#[test]
fn a_product_with_itself_has_warps_of_every_kind() {
    let with = |variant: &Variant| {
        let kernel = lower(&by_itself(false), variant).and_then(verify::kernel)?;
        verify::warps(&kernel)
    };
    for tile in [(128, 128), (128, 256), (256, 128), (64, 128), (16, 128)] {
        let variant = || Variant::new(1).set("tiles", tile);
        let kinds = [
            variant(),
            variant().dtype(F16),
            variant().dtype(E4M3),
            variant().layout(Layout::Tn),
        ];
        for variant in kinds {
            with(&variant).unwrap_or_else(|error| panic!("{variant}: {error}"));
        }
    }
    let said = with(&Variant::new(1).layout(Layout::Nn)).expect_err("refused");
    insta::assert_snapshot!(said.first().text(&|_| String::new()), @"
    error[shape]: `x` is both operands of a dot in layout nn
      help: layouts nt and tn store both operands alike
    ");
    let rows = Variant::new(1).dtype(E4M3).scales(Scales::PerRow);
    let said = with(&rows).expect_err("refused");
    insta::assert_snapshot!(said.first().text(&|_| String::new()), @"
    error[language]: `x` is the first operand of a product and the second of one
      help: one of the two with scales of its rows: give the other as a tensor of its own
    ");
}
