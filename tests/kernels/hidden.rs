//! A hidden layer in FP8: what it is, what is refused, and its kernels.

use crate::sass::all_pass;
use Dtype::{Bf16, E4M3};
use counterflow::codegen::lower::lower;
use counterflow::codegen::variant::{Asked, Tensors};
use counterflow::{Dtype, Program, Scales, Variant, schedules};

fn variant(world: u32, scales: Scales, hidden: Dtype) -> Variant {
    let variant = Variant::new(world).dtype(E4M3).scales(scales);
    variant.hidden("hidden", hidden)
}

#[test]
fn a_hidden_layer_of_fp8_passes_the_sass_checks() {
    all_pass(&[
        (schedules::mlp(), variant(4, Scales::PerTensor, E4M3)),
        (schedules::mlp(), variant(4, Scales::PerRow, E4M3)),
    ]);
}

#[test]
fn the_layer_is_a_tensor_of_that_encoding() {
    let kernel = lower(&schedules::mlp(), &variant(2, Scales::PerRow, E4M3));
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    let of = |name: &str| {
        let found = kernel.buffers.iter().find(|buffer| buffer.name == name);
        found.unwrap_or_else(|| panic!("no {name}"))
    };
    assert_eq!(of("hidden").dtype, E4M3);
    let number = of("hidden.scale").usage;
    assert!(number.is_number() && number.is_fixed());
}

#[test]
fn what_a_hidden_layer_cannot_be_is_refused() {
    let told = |program: &Program, variant: &Variant| {
        let error = lower(program, variant).map(drop).expect_err("refused");
        error.first().message.clone()
    };
    let mlp = schedules::mlp();
    let plain_operands = Variant::new(2).dtype(E4M3);
    let scaled = |scales| Variant::new(2).dtype(E4M3).scales(scales);
    let asked =
        |asked: Asked| scaled(Scales::PerRow).encode(Tensors::Hidden("hidden".into()), asked);
    let own = variant(2, Scales::PerRow, E4M3).asked(&Tensors::Hidden("hidden".into()));
    let amax = Asked { amax: true, ..own };
    let plain = Asked { scale: None, ..own };
    let encoding = "`hidden` is a hidden layer, and its encoding is not one that a launch can make";
    let cases = [
        (
            scaled(Scales::PerRow),
            "`hidden` is computed, and has no scale",
        ),
        (
            variant(2, Scales::Blocks1d2d, E4M3),
            "`hidden` has one scale, beside operands that have scales of blocks",
        ),
        (
            plain_operands.clone().hidden("middle", E4M3),
            "mlp has no hidden layer `middle`",
        ),
        (variant(2, Scales::PerRow, Bf16), encoding),
        (asked(amax), encoding),
        (asked(plain), encoding),
        (
            plain_operands.clone().hidden("partial", E4M3),
            "`partial` is multiplied by nothing, and is to be FP8 with a scale of its own",
        ),
    ];
    for (variant, wanted) in cases {
        let told = told(&mlp, &variant);
        assert!(told.contains(wanted), "{variant}: {told}");
    }
}
