//! The kernels people read: equal to what is emitted. `UPDATE_KERNELS=1` writes them.

#[path = "common/halves.rs"]
mod halves;
#[path = "../codegen/tests/fixtures/strangers.rs"]
mod strangers;
#[path = "../codegen/tests/fixtures/wide.rs"]
mod wide;

use Dtype::{Bf16, E4M3};
use Layout::{Nt, Tn};
use counterflow::codegen;
use counterflow::codegen::cuda::{self, CudaSource};
use counterflow::codegen::lower::lower;
use counterflow::codegen::program::Setting;
use counterflow::codegen::sm90;
use counterflow::codegen::verify;
use counterflow::codegen::warp::Pipeline;
use counterflow::rule::{Fp8, ScaleRule};
use counterflow::{Checked, Dtype, Layout, Program, Scales, Variant, schedules};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn pipeline(
    program: &Program,
    dtype: Dtype,
    tile: (u32, u32),
    layout: Layout,
    knobs: &Knobs,
) -> Checked<Pipeline> {
    let variant = Variant::new(4).dtype(dtype).layout(layout);
    let set = |variant: Variant, (name, setting): &(&str, Setting)| variant.set(name, *setting);
    // What only moves chunks has no tiles.
    let tiled = program.tunables.iter().any(|each| each.name == "tiles");
    let variant = if tiled {
        variant.set("tiles", tile)
    } else {
        variant
    };
    let variant = knobs.choices.iter().fold(variant, set);
    let variant = knobs
        .scales
        .into_iter()
        .fold(variant, |variant, scales| variant.scales(scales));
    let kernel = lower(program, &(knobs.results)(variant)).and_then(verify::kernel);
    let pipeline = kernel
        .and_then(|kernel| sm90::build(&kernel))
        .and_then(verify::pipeline);
    pipeline.unwrap_or_else(|found| panic!("{}: {found}", program.name))
}

/// What a kernel has beside its type, tile and layout, and what the file's name says of it.
struct Knobs {
    choices: &'static [(&'static str, Setting)],
    scales: Option<Scales>,
    /// What results are.
    results: fn(Variant) -> Variant,
    name: &'static str,
}

const fn choices(choices: &'static [(&'static str, Setting)], name: &'static str) -> Knobs {
    Knobs {
        choices,
        scales: None,
        results: |variant| variant,
        name,
    }
}

const fn scales(scales: Scales, name: &'static str) -> Knobs {
    Knobs {
        choices: &[],
        scales: Some(scales),
        results: |variant| variant,
        name,
    }
}

type Kind = (fn() -> Program, Dtype, (u32, u32), Layout, Knobs);

const NONE: Knobs = choices(&[], "");
const AMAX: Knobs = Knobs {
    results: |variant| variant.output(Dtype::E4M3).amax(true),
    ..choices(&[], "-to-e4m3-amax")
};
const COMPUTED_SCALES: Knobs = Knobs {
    results: |variant| {
        variant.output_scales(ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two())
    },
    ..choices(&[], "-to-e4m3-1x128")
};
const PING_PONG: Knobs = choices(&[("gemm.ping_pong", Setting::One(1))], "-ping_pong");
const CLUSTER: Knobs = choices(&[("gemm.cluster", Setting::Pair(2, 1))], "-cluster");
const SPLIT: Knobs = choices(&[("gemm.split", Setting::One(3))], "-split");

const CONSTANT: Knobs = Knobs {
    results: |variant| variant.constant("w"),
    ..choices(&[], "-constant")
};

const WHOLE: Knobs = scales(Scales::PerTensor, "-whole");
const ROWS: Knobs = scales(Scales::PerRow, "-rows");
const BLOCKS: Knobs = scales(Scales::Blocks1d2d, "-1d2d");

/// The first of each kind.
const KERNELS: [Kind; 35] = [
    (schedules::gemm, Bf16, (128, 256), Nt, NONE),
    (schedules::gemm, Bf16, (128, 256), Tn, NONE),
    (schedules::gemm, Bf16, (128, 256), Nt, CLUSTER),
    (schedules::gemm, Bf16, (128, 160), Nt, PING_PONG),
    (schedules::gemm, Bf16, (208, 128), Nt, NONE),
    (schedules::gemm, Bf16, (200, 256), Nt, NONE),
    (schedules::gemm, Bf16, (128, 128), Nt, SPLIT),
    (schedules::gemm, Bf16, (128, 64), Nt, CONSTANT),
    (schedules::gemm, E4M3, (128, 256), Nt, WHOLE),
    (schedules::gemm, E4M3, (128, 256), Nt, BLOCKS),
    (schedules::linear_gelu, Bf16, (128, 128), Nt, AMAX),
    (schedules::linear_residual, Bf16, (128, 256), Nt, NONE),
    (schedules::wgrad, Bf16, (128, 256), Tn, NONE),
    (schedules::swiglu, Bf16, (128, 128), Nt, NONE),
    (schedules::swiglu, Bf16, (128, 128), Nt, COMPUTED_SCALES),
    (schedules::ag_gemm, Bf16, (128, 256), Nt, NONE),
    (schedules::ag_gemm, E4M3, (128, 256), Nt, ROWS),
    (schedules::ag_gemm, E4M3, (128, 256), Nt, BLOCKS),
    (schedules::ag_gemm_pull, Bf16, (128, 256), Nt, NONE),
    (schedules::ag_gemm_across, Bf16, (128, 256), Nt, NONE),
    (schedules::ag_gemm_slabs, Bf16, (128, 256), Nt, NONE),
    (schedules::fsdp_gemm, Bf16, (128, 256), Nt, NONE),
    (schedules::gemm_rs, Bf16, (128, 256), Nt, NONE),
    (schedules::rs_ring, Bf16, (128, 256), Nt, NONE),
    (schedules::gemm_ar, Bf16, (128, 256), Nt, NONE),
    (schedules::gemm_rs_across, Bf16, (128, 64), Nt, NONE),
    (schedules::bulk_rs, Bf16, (128, 256), Nt, NONE),
    (schedules::ag_gemm_multicast, Bf16, (128, 256), Nt, NONE),
    (schedules::gemm_ar_multicast, Bf16, (128, 256), Nt, NONE),
    (schedules::all_reduce_multicast, Bf16, (128, 256), Nt, NONE),
    (schedules::mlp, Bf16, (128, 256), Nt, NONE),
    (strangers::odd_owners_first, Bf16, (128, 256), Nt, NONE),
    (strangers::scattered_by_turns, Bf16, (128, 128), Nt, NONE),
    (strangers::sum_of_inputs, Bf16, (128, 256), Nt, NONE),
    (strangers::pushed_by_spare_warps, Bf16, (128, 128), Nt, NONE),
];

#[test]
fn kernels_are_as_emitted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels_generated");
    let update = std::env::var("UPDATE_KERNELS").is_ok();
    let (mut claimed, mut wrong) = (BTreeSet::new(), Vec::new());
    let mut check = |name: String, text: &str| {
        let path = root.join(&name);
        if update {
            fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
            fs::write(&path, text).expect("writable");
        } else if fs::read_to_string(&path).unwrap_or_default() != text {
            wrong.push(name.clone());
        }
        claimed.insert(name);
    };
    for (schedule, dtype, (rows, columns), layout, knobs) in KERNELS {
        let program = schedule();
        let pipeline = pipeline(&program, dtype, (rows, columns), layout, &knobs);
        let layout = match layout {
            Layout::Nt => String::new(),
            Layout::Nn | Layout::Tn => format!("-{}", layout.name()),
        };
        let (program, knobs) = (&program.name, knobs.name);
        let name = format!("sm90/{program}.{dtype}-{rows}x{columns}{layout}{knobs}.cu");
        let text = cuda::emit(&pipeline).text;
        narrow(&name, &text);
        check(name, &text);
    }
    for entry in fs::read_dir(root.join("sm90")).expect("a folder") {
        let name = format!(
            "sm90/{}",
            entry.expect("readable").file_name().to_string_lossy()
        );
        assert!(
            claimed.contains(&name),
            "kernels_generated/{name} is no test's"
        );
    }
    assert!(
        wrong.is_empty(),
        "not what is emitted; UPDATE_KERNELS=1 writes them: {wrong:?}"
    );
}

/// Text that is read has lines of at most 120 columns.
fn narrow(name: &str, text: &str) {
    for line in text.lines() {
        let columns = line.chars().count();
        assert!(columns <= 120, "{name}: {columns} columns: {line}");
    }
}

#[test]
fn every_schedule_of_the_library_has_a_pipeline_in_both_types_and_tiles() {
    let tiles = [(128, 256), (128, 192), (128, 128), (128, 224), (256, 128)];
    let cases = schedules::ALL.into_iter().flat_map(|schedule| {
        let types = [Dtype::Bf16, Dtype::F16].into_iter();
        types.flat_map(move |dtype| tiles.map(|tile| (schedule, dtype, tile)))
    });
    // A sample has one or two of each schedule's ten, each type and each tile: seven shares no factor with two or five.
    for (schedule, dtype, tile) in wide::sampled(cases, 7) {
        let program = schedule();
        let tile = halves::tile(&program, tile);
        let pipeline = pipeline(&program, dtype, tile, Nt, &NONE);
        let without = pipeline.kernel.gemm().is_none();
        let CudaSource {
            text,
            entry,
            shared_bytes,
            threads,
            ..
        } = cuda::emit(&pipeline);
        assert_eq!(entry, program.name);
        assert!(
            shared_bytes <= 232_448 && (threads == 384 || without && threads < 384),
            "{entry}: {shared_bytes}"
        );
        assert!(!text.contains("asm"), "{entry}: PTX is the prelude's");
        assert!(
            !text.contains("multimem") && !text.contains(cuda::MULTICAST_PRELUDE),
            "{entry}"
        );
        narrow(&entry, &text);
        assert_eq!(
            text,
            cuda::emit(&pipeline).text,
            "{entry}: emission is deterministic"
        );
    }
    let prelude = cuda::prelude();
    assert!(!prelude.contains("multimem") && !prelude.contains("#include"));
    narrow("the prelude", &prelude);
    assert!(!cuda::MULTICAST.contains("#include"));
    narrow("what reaches every rank", cuda::MULTICAST);
}
