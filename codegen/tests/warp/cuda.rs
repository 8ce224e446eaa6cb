//! What a Hopper pipeline refuses, and what the host is told.

use crate::fixtures::library;
use crate::fixtures::wide::sampled;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::CounterId;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Arch, Layout, Variant};
use counterflow_codegen::verify::{self, Checked};
use counterflow_codegen::warp::{Field, Pipeline};
use counterflow_emitter::{self as cuda, Param};

fn variant(dtype: Dtype, tile: (u32, u32)) -> Variant {
    Variant::new(4).dtype(dtype).set("tiles", tile)
}

fn build(
    name: &str,
    variant: &Variant,
) -> Result<Pipeline, counterflow_codegen::diag::Diagnostics> {
    let program = library::all()
        .into_iter()
        .find(|program| program.name == name)
        .expect("a schedule");
    let kernel = lower(&program, variant)
        .and_then(verify::kernel)
        .expect("a kernel");
    sm90::build(&kernel)
}

fn pipeline(name: &str) -> Checked<Pipeline> {
    build(name, &variant(Dtype::Bf16, (128, 256)))
        .and_then(verify::pipeline)
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn what_hopper_cannot_do_is_refused_with_the_numbers() {
    let refused = |variant: Variant| {
        build("gemm", &variant)
            .expect_err("refused")
            .first()
            .text(&|_| String::new())
    };
    insta::assert_snapshot!(refused(variant(Dtype::Bf16, (256, 208))), @"
    error[resources]: tiles of 256x208
      help: 128 or 256 shared rows by a multiple of 16 columns: at most 256, of 256 rows 160 (128 where tiles of ranks are added, 176 without clusters, 192 of plain products by CTAs alone)
    ");
    let ranks = ["gemm_rs", "gemm_ar", "gemm_rs_add"];
    for name in ranks {
        assert!(
            build(name, &variant(Dtype::Bf16, (256, 128))).is_ok(),
            "{name}"
        );
        let found = build(name, &variant(Dtype::Bf16, (256, 144))).expect_err(name);
        insta::allow_duplicates! {
            insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
            error[resources]: tiles of 256x144
              help: 128 or 256 shared rows by a multiple of 16 columns: at most 256, of 256 rows 160 (128 where tiles of ranks are added, 176 without clusters, 192 of plain products by CTAs alone)
            ");
        }
    }
    assert!(build("ag_gemm", &variant(Dtype::Bf16, (256, 144))).is_ok());
    insta::assert_snapshot!(refused(variant(Dtype::F32, (128, 256))), @"
    error[resources]: a product of f32
      help: bf16, f16 or e4m3
    ");
    let wgrad = variant(Dtype::Bf16, (128, 256)).layout(Layout::Tn);
    let found = build("ag_gemm", &wgrad).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[resources]: #[comm] moves `x`, which is MN-major
      help: layout nt, or nn where it is `a` of the dot; or `#[copy_engine]`, which copies tensors of any layout
    ");
}

/// A GEMM with tiles and clusters of those shapes.
fn refused_cluster(tile: (u32, u32), cluster: (u32, u32)) -> String {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w) = (s.local("x", Dtype::Bf16), s.local("w", Dtype::Bf16));
    let y = s.out("y", Dtype::Bf16);
    let tiles = s.tiles("tiles", y, tile);
    let options = GemmOptions {
        cluster: Some(cluster.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    let kernel = lower(&s.finish(), &Variant::new(1)).and_then(verify::kernel);
    let found = sm90::build(&kernel.expect("a kernel")).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn clusters_that_hopper_does_not_have_are_refused() {
    insta::assert_snapshot!(refused_cluster((128, 128), (2, 2)), @"
    error[resources]: a cluster of 2x2
      help: 1x1, 2x1 or 1x2
    ");
    insta::assert_snapshot!(refused_cluster((256, 176), (2, 1)), @"
    error[resources]: tiles of 256x176
      help: 128 or 256 shared rows by a multiple of 16 columns: at most 256, of 256 rows 160 (128 where tiles of ranks are added, 176 without clusters, 192 of plain products by CTAs alone)
    ");
    insta::assert_snapshot!(refused_cluster((24, 64), (1, 2)), @"
    error[resources]: a cluster that shares the rows of tiles of 24
      help: a multiple of 16 rows: its CTAs load whole swizzle atoms
    ");
}

/// The refusal says where the schedule is, and what to do without a GPU.
#[test]
fn what_is_for_the_emulator_alone_has_no_kernel() {
    let variant = Variant::new(4).arch(Arch::Cpu).set("tiles", (16, 16));
    let found = build("gemm", &variant).expect_err("refused");
    let found = found.first();
    insta::assert_snapshot!(found.text(&|_| String::new()), @"
    error[resources]: arch cpu has no GPU kernel
      help: leave out `Arch::Cpu`, or run it on emulated ranks, `Communicator::emulated`: `--arch cpu` and `run --device cpu` of the tool
    ");
    assert!(found.at.is_some());
}

#[test]
fn operands_may_be_mn_major() {
    // The sample has each layout of a product alone, and half of them where sums are sent.
    for (name, layouts, each) in [
        ("gemm", &Layout::ALL[..], 1),
        ("ag_gemm", &[Layout::Nn], 1),
        ("gemm_rs", &Layout::ALL, 2),
        ("gemm_ar", &Layout::ALL, 3),
    ] {
        for layout in sampled(layouts, each) {
            let variant = variant(Dtype::F16, (128, 256)).layout(*layout);
            let pipeline = build(name, &variant)
                .and_then(verify::pipeline)
                .unwrap_or_else(|e| panic!("{name} {layout:?}: {e}"));
            let text = cuda::emit(&pipeline).text;
            assert_eq!(
                *layout != Layout::Nt,
                text.contains("wgmma_descriptor_mn_major")
            );
        }
    }
}

#[test]
fn the_host_is_told_every_number() {
    let pipeline = pipeline("ag_gemm");
    let source = cuda::emit(&pipeline);
    let (shape, machine) = (Shape::new(1000, 512, 2048), Machine::h200());
    let plan = Plan::new(&pipeline.kernel, &shape, &machine).expect("a plan");
    let mut verdict = String::new();
    for param in &source.params {
        match param {
            Param::Map { map, partial_shard } => {
                let shape = pipeline.map_shape(*map, *partial_shard, &plan, 1);
                verdict += &format!(
                    "{}{}: dims {:?} strides {:?} box {:?}\n",
                    pipeline.map(*map).name,
                    if *partial_shard { "_partial_shard" } else { "" },
                    shape.dims,
                    shape.strides,
                    shape.boxed,
                );
            }
            Param::Plan { bytes, fields } => {
                verdict += &format!("plan: {bytes} bytes\n");
                for at in fields {
                    let value = pipeline.value(at.field, &plan, &machine, 1);
                    verdict += &format!(
                        "  {} at {}: {}\n",
                        at.name,
                        at.offset,
                        value.map_or("an address".into(), |value| value.to_string())
                    );
                }
            }
            Param::EveryCopy { .. } => verdict += "every copy\n",
            Param::EachRank { .. } => verdict += "each rank\n",
            Param::Watch => verdict += "watch\n",
        }
    }
    insta::assert_snapshot!(verdict, @"
    x: dims [2048, 250, 4, 4] strides [4096, 1024000] box [64, 128, 1, 1]
    x_partial_shard: dims [2048, 250, 4, 4] strides [4096, 1024000] box [64, 128, 1, 1]
    x_partial_box: dims [2048, 250, 4, 4] strides [4096, 1024000] box [64, 32, 1, 1]
    w: dims [2048, 512, 1, 1] strides [4096, 2097152] box [64, 256, 1, 1]
    w_partial_box: dims [2048, 512, 1, 1] strides [4096, 2097152] box [64, 32, 1, 1]
    y: dims [512, 250, 4, 1] strides [1024, 256000] box [64, 128, 1, 1]
    y_partial_shard: dims [512, 250, 4, 1] strides [1024, 256000] box [64, 128, 1, 1]
    plan: 88 bytes
      heap at 0: an address
      stride at 8: an address
      offset at 16: an address
      arrivals at 24: an address
      finished at 32: an address
      m at 40: 1000
      k at 44: 2048
      n at 48: 512
      rows at 52: 250
      partial_shard at 56: 4
      me at 60: 1
      world at 64: 4
      arrived at 68: 0
      ready_x at 72: 8
      chunks_m at 76: 2
      late_join at 80: 2
    watch
    ");
    // Two batches a chunk: 2048 columns are 32 boxes, and a CTA signals every 16.
    let arrivals = pipeline.arrivals(&plan, 1);
    let first = pipeline
        .value(Field::First(CounterId(0)), &plan, &machine, 1)
        .expect("a number") as usize;
    assert_eq!(&arrivals[first..first + 8], [2, 2, 0, 0, 2, 2, 2, 2]);
}
