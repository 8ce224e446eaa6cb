//! Products of depth 0: the kernel is that of any depth, and multiplies one step of zeros by zeros.

use crate::fixtures::library;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::{self, Bf16, E4M3, F16, F32};
use counterflow_codegen::host::MapShape;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Layout, Scales, Variant};
use counterflow_codegen::{sm90, verify};
use counterflow_emitter::{self as cuda, Param};
use std::collections::BTreeSet;

fn variant(dtype: Dtype) -> Variant {
    Variant::new(2).dtype(dtype).set("tiles", (128, 128))
}

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

fn wgrad() -> Program {
    let mut s = ScheduleBuilder::new("wgrad");
    let (dy, x) = (s.local("dy", Bf16), s.local("x", Bf16));
    let grad = s.accumulated("grad", F32);
    let tiles = s.tiles("tiles", grad, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(dy.at(t), x.at(t));
            s.store_add(grad.at(t), product);
        });
    });
    s.finish()
}

/// Operands, and scales of their blocks if they have some: what has no elements.
fn kernels() -> Vec<(Program, Variant, usize)> {
    let (gemm, gemm_rs) = (program("gemm"), program("gemm_rs"));
    let fp8 = variant(E4M3);
    let mut all = vec![
        (gemm.clone(), variant(Bf16), 2),
        (gemm.clone(), variant(Bf16).layout(Layout::Tn), 2),
        (gemm.clone(), variant(F16), 2),
        (gemm.clone(), fp8.clone(), 2),
        (gemm_rs, variant(Bf16), 2),
        (wgrad(), Variant::new(1).layout(Layout::Tn), 2),
    ];
    for scales in Scales::ALL {
        let blocks = !matches!(scales, Scales::PerTensor | Scales::PerRow);
        let empty = if blocks { 4 } else { 2 };
        all.push((gemm.clone(), fp8.clone().scales(scales), empty));
    }
    all
}

/// What a GPU is told of a launch: a line of zeros in the place of each tensor without elements, one step, and all else as at
/// another depth.
#[test]
fn tensors_without_elements_are_a_line_of_zeros() {
    for (program, variant, count) in kernels() {
        let name = &program.name;
        let kernel = lower(&program, &variant).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
        let pipeline = sm90::build(&kernel).and_then(verify::pipeline);
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
        let machine = Machine::h200();
        let series =
            verify::series(&kernel, &Shape::new(264, 272, 16), &machine).expect("a series");
        let [none, some] = [0, 16].map(|k| series.plan(&Shape::new(264, 272, k)).expect("a plan"));
        let mut empty = BTreeSet::new();
        for param in cuda::emit(&pipeline).params {
            match param {
                Param::Map {
                    map,
                    partial_shard: short,
                } => {
                    let shape = |plan| pipeline.map_shape(map, short, plan, 1);
                    let (tensor, wanted) = (pipeline.map(map).tensor, shape(&some));
                    let buffer = &kernel.buffers[tensor.index()];
                    assert!(!wanted.zeros);
                    let wanted = match none.bytes(&kernel, tensor) {
                        0 => MapShape {
                            dims: [u64::from(16 / buffer.dtype.bytes()), 1, 1, 1],
                            strides: [16; 2],
                            zeros: true,
                            ..wanted
                        },
                        _ => wanted,
                    };
                    assert_eq!(shape(&none), wanted, "{name} {variant}: {}", buffer.name);
                    if wanted.zeros {
                        empty.insert(tensor.index());
                    }
                }
                Param::Plan { fields, .. } => {
                    for at in fields {
                        let value = |plan| pipeline.value(at.field, plan, &machine, 1);
                        match &at.name[..] {
                            "k" => assert_eq!([value(&none), value(&some)], [1, 16].map(Some)),
                            of => assert_eq!(value(&none), value(&some), "{name} {variant}: {of}"),
                        }
                    }
                }
                Param::EveryCopy { .. } | Param::EachRank { .. } | Param::Watch => {}
            }
        }
        assert_eq!(empty.len(), count, "{name} {variant}");
    }
}

/// A product of what is gathered or not, whose rows are somebody's items or not.
fn product(gathered: bool, in_chunks: bool) -> Program {
    let mut s = ScheduleBuilder::new("product");
    let x = match gathered {
        true => s.gathered("x", Bf16),
        false => s.local("x", Bf16),
    };
    let (w, y) = (s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    if in_chunks {
        let chunks = s.chunks("chunks", x, 64);
        let seen = s.counters("seen", [chunks.into()]);
        s.comm(1, |s| {
            s.for_items("c", chunks.all(), |s, c| s.signal(seen.at(c), 1));
        });
    }
    s.finish()
}

#[test]
fn what_is_more_than_an_operand_has_a_depth() {
    for (gathered, in_chunks) in [(false, false), (true, false), (false, true)] {
        let kernel = lower(&product(gathered, in_chunks), &Variant::new(1));
        let kernel = kernel.and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
        let series = |k| verify::series(&kernel, &Shape::new(256, 256, k), &Machine::h200());
        series(64).unwrap_or_else(|error| panic!("{error}"));
        let told = series(0).err();
        let told = told.map(|found| found.first().text(&|_| String::new()));
        let refused = gathered || in_chunks;
        let words = "nothing of it is gathered, stored or cut into chunks";
        match told {
            None => assert!(!refused),
            Some(told) => assert!(refused && told.contains(words), "{told}"),
        }
    }
}

/// What ranks gather has rows to move. All else has its products, whatever becomes of them.
#[test]
fn what_ranks_gather_has_a_depth() {
    let mut refused = Vec::new();
    for program in library::all() {
        let kernel = lower(&program, &Variant::new(3)).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", program.name));
        let further = kernel.dims.iter().filter(|dim| dim.is_further());
        let shape = further.fold(Shape::new(300, 256, 0), |shape, dim| {
            shape.dim(&dim.name, 256)
        });
        if let Err(found) = verify::series(&kernel, &shape, &Machine::h200()) {
            let text = found.first().text(&|_| String::new());
            assert_eq!(
                text.trim(),
                "error[shape]: k is 0\n  help: a product has depth 0 only where each rank is given all that is along it, and nothing of it is gathered, stored or cut into chunks: launch none, or give a size from 1 to 2147483647"
            );
            refused.push(program.name);
        }
    }
    assert_eq!(
        refused,
        ["ag_gemm", "ag_gemm_pull", "ag_gemm_ring", "fsdp_gemm"]
    );
}
