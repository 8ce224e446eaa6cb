//! What is emitted, compiled for Hopper, one kernel of each kind: no spill, no slow code, and as many instructions of
//! each sort as the tile asks for. The ignored tests compile the whole matrix.

use crate::epilogues;
use crate::halves;
use crate::sass::{all_pass, checked, nvidia};
use crate::strangers::{
    STRANGERS, gated_at_the_end, gated_layers, layers_of_two_widths, one_shot, reduced_by_turns,
    scattered_by_turns,
};
use crate::{gathered, newcomers, outsiders};
use counterflow::codegen::lower::lower;
use counterflow::codegen::{cuda, sm90, verify};
use counterflow::jit::sass_checks::findings;
use counterflow::jit::{Compiled, Probes, Source, Target};
use counterflow::{Dtype, Error, Layout, Program, Scales, Variant, launch, schedules, tuned};

#[test]
fn one_of_each_kind_passes_the_sass_checks() {
    let variant = Variant::new(4).set("tiles", (128, 256));
    all_pass(&[
        (schedules::gemm(), variant.clone()),
        (schedules::gemm(), variant.clone().layout(Layout::Nn)),
        (schedules::gemm(), variant.clone().layout(Layout::Tn)),
        (
            schedules::swiglu(),
            Variant::new(4).set("tiles", (128, 128)),
        ),
        (schedules::ag_gemm(), variant.clone()),
        (schedules::fsdp_gemm(), variant.clone()),
        (schedules::gemm_rs(), variant.clone()),
        (schedules::rs_ring(), variant.clone()),
        (schedules::gemm_ar(), variant.clone()),
        (schedules::mlp(), variant.clone()),
        (
            schedules::mlp(),
            variant.clone().set("hidden_tiles", (256, 128)),
        ),
        (schedules::mlp(), Variant::new(4).set("tiles", (256, 128))),
        (schedules::bulk_rs(), variant),
    ]);
}

/// Tiles of all ranks' rows, of every size that the library offers.
#[test]
fn tiles_across_shards_pass_the_sass_checks() {
    let mut cases = Vec::new();
    let all = [
        schedules::ag_gemm_across,
        schedules::gemm_ar_one_shot,
        schedules::gemm_rs_across,
    ];
    for schedule in all {
        let program = schedule();
        let tiles = tuned::choices(&program)["tiles"].to_vec();
        let of = |tile| (schedule(), Variant::new(4).set("tiles", tile));
        cases.extend(tiles.into_iter().map(of));
    }
    let scaled = Variant::new(4).dtype(Dtype::E4M3).scales(Scales::PerRow);
    cases.push((schedules::ag_gemm_across(), scaled.clone()));
    cases.push((schedules::gemm_rs_across(), scaled));
    for layout in [Layout::Nt, Layout::Nn] {
        let swapped = Variant::new(4).set("tiles", (208, 128)).layout(layout);
        cases.push((schedules::gemm_rs_across(), swapped));
    }
    cases.push((
        schedules::gemm_rs_across(),
        Variant::new(4).dtype(Dtype::F16),
    ));
    all_pass(&cases);
}

/// Sums over ranks in tiles that warpgroups take by turns: what is added is in registers beside all of a tile.
#[test]
fn sums_by_turns_pass_the_sass_checks() {
    let scattered = |edit: fn(Variant) -> Variant| (scattered_by_turns(), edit(Variant::new(4)));
    all_pass(&[
        scattered(|variant| variant),
        (reduced_by_turns(), Variant::new(4)),
        scattered(|variant| variant.layout(Layout::Nn)),
        scattered(|variant| variant.layout(Layout::Tn)),
        scattered(|variant| variant.dtype(Dtype::F16)),
        scattered(|variant| variant.dtype(Dtype::E4M3)),
    ]);
}

/// Constant operands come first: the loads stand twice, and each role waits for earlier launches by itself.
#[test]
fn constants_that_come_first_pass_the_sass_checks() {
    let weights = || Variant::new(1).constant("w");
    let gemm = |variant: Variant| (schedules::gemm(), variant);
    let few = [(128, 64), (64, 128), (128, 256), (208, 128)];
    let mut cases: Vec<_> = few.map(|tile| gemm(weights().set("tiles", tile))).into();
    let square = || weights().set("tiles", (128, 128));
    cases.extend([
        gemm(square().layout(Layout::Nn)),
        gemm(square().set("gemm.ping_pong", 1)),
        gemm(square().set("gemm.cluster", (2, 1))),
        gemm(square().set("gemm.split", 2)),
        gemm(square().dtype(Dtype::E4M3).scales(Scales::PerRow)),
        gemm(square().dtype(Dtype::E4M3).scales(Scales::Blocks1d2d)),
        gemm(square().constant("x")),
        (schedules::linear_gelu(), square()),
        (schedules::linear_residual(), weights()),
        (schedules::all_gather(), Variant::new(4)),
    ]);
    all_pass(&cases);
}

/// Branches on ranks, in and around items, and orders by closure.
#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn what_asks_about_ranks_passes_the_sass_checks() {
    let cases = STRANGERS.map(|(program, worlds)| {
        let (program, variant) = (program(), Variant::new(worlds[worlds.len() - 1]));
        // What only moves data has no tiles.
        let tiled = program.tunables.iter().any(|it| it.name == "tiles");
        let variant = match tiled {
            true => variant.set("tiles", (128, 256)),
            false => variant,
        };
        (program, variant)
    });
    all_pass(&cases);
}

/// What readers of papers write, but for what has no kernel.
#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn what_readers_of_papers_write_passes_the_sass_checks() {
    let case = |(program, worlds): (fn() -> Program, &[u32])| {
        let world = worlds[worlds.len() - 1];
        (program(), Variant::new(world))
    };
    let has_kernel = |case: &(Program, Variant)| {
        let kernel = lower(&case.0, &case.1).and_then(verify::kernel);
        kernel.and_then(|kernel| sm90::build(&kernel)).is_ok()
    };
    let some = outsiders::ALL.into_iter().map(case).filter(has_kernel);
    let some: Vec<_> = some.collect();
    assert!(some.len() >= 8);
    let known = |of: &&(fn() -> Program, &[u32])| !newcomers::REFUSED.contains(&&*of.0().name);
    let some = some
        .into_iter()
        .chain(newcomers::ALL.iter().filter(known).copied().map(case));
    // Of these each has one.
    let all = gathered::ALL.into_iter().map(case);
    let cases: Vec<_> = some.chain(all).collect();
    all_pass(&cases);
}

/// Two blocks of rows a warpgroup leave a sum of its own the registers for narrow subtiles only, and a stage no room for wide ones
/// of two stored tiles.
#[test]
fn tall_tiles_beside_sums_and_stored_tiles_pass_the_sass_checks() {
    let known = |(program, _): &&(fn() -> Program, &[u32])| {
        let name = program().name;
        [
            "taken_apart",
            "one_shot",
            "added_around",
            "scaled_by_owners",
        ]
        .contains(&&*name)
    };
    let all = STRANGERS.iter().chain(&newcomers::ALL).filter(known);
    let tall = |(program, _): &(fn() -> Program, &[u32])| {
        (program(), Variant::new(4).set("tiles", (256, 128)))
    };
    let cases: Vec<_> = all.map(tall).collect();
    assert_eq!(cases.len(), 4);
    all_pass(&cases);
}

/// What an item sends is multiplied by its operands' scales, and so is what it adds to what peers sent.
#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn scales_of_what_is_sent_and_added_in_one_item_pass_the_sass_checks() {
    let mut cases = Vec::new();
    for tile in [(128, 256), (256, 128), (80, 256), (208, 128)] {
        let variant = Variant::new(4).set("tiles", tile);
        let scaled = variant.clone().dtype(Dtype::E4M3);
        let scaled =
            [Scales::PerTensor, Scales::PerRow].map(|scales| scaled.clone().scales(scales));
        let all = [variant].into_iter().chain(scaled);
        cases.extend(all.map(|variant| (one_shot(), variant)));
    }
    all_pass(&cases);
}

/// Loops of one product and of two share registers and stages.
#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn layers_of_one_product_and_of_two_pass_the_sass_checks() {
    let mut cases = Vec::new();
    for program in [gated_layers, gated_at_the_end] {
        for (tile, rows) in [
            ((128, 128), 128),
            ((128, 96), 128),
            ((256, 64), 256),
            ((104, 128), 104),
        ] {
            let variant = Variant::new(4).set("tiles", tile).set("rows", rows);
            cases.push((program(), variant));
        }
    }
    all_pass(&cases);
}

/// Tiles of other rows and columns for each loop, under the accumulators of the largest.
#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn layers_of_several_widths_pass_the_sass_checks() {
    let mut cases = Vec::new();
    for (first, last, rows) in [
        ((128, 128), (128, 256), 128),
        ((128, 96), (128, 192), 128),
        ((128, 80), (128, 64), 128),
        ((256, 64), (256, 128), 256),
        ((256, 64), (128, 256), 256),
        ((128, 128), (256, 128), 128),
        ((128, 96), (256, 64), 128),
    ] {
        let variant = Variant::new(4).set("first_tiles", first).set("rows", rows);
        let variant = variant.set("last_tiles", last);
        cases.push((layers_of_two_widths(), variant.clone().layout(Layout::Nn)));
        cases.push((layers_of_two_widths(), variant));
    }
    all_pass(&cases);
}

/// 128x256 leaves the fewest registers: no word for the math after the dot may spill there.
#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn every_epilogue_passes_the_sass_checks() {
    let library = [schedules::linear_gelu, schedules::linear_residual];
    let all = library.iter().chain(&epilogues::ALL);
    let mut cases: Vec<_> = all.map(|program| (program(), Variant::new(4))).collect();
    cases.push((schedules::wgrad(), Variant::new(4).layout(Layout::Tn)));
    // In ping-pong, and with two blocks of rows a warpgroup.
    let tall = Variant::new(4).set("tiles", (256, 128));
    let ping_pong = Variant::new(4)
        .set("tiles", (128, 128))
        .set("gemm.ping_pong", 1);
    cases.push((schedules::linear_gelu(), ping_pong));
    // With columns on the instruction's M side: one block of them, and two.
    for tile in [(208, 128), (240, 128), (104, 128), (176, 256), (80, 256)] {
        let swapped = Variant::new(4).set("tiles", tile);
        cases.push((schedules::linear_gelu(), swapped.clone()));
        cases.push((schedules::linear_residual(), swapped.clone()));
        cases.push((schedules::wgrad(), swapped.layout(Layout::Tn)));
    }
    for tile in [(208, 128), (80, 256)] {
        let swapped = Variant::new(4).set("tiles", tile);
        cases.extend(epilogues::ALL.map(|program| (program(), swapped.clone())));
    }
    cases.push((schedules::linear_gelu(), tall.clone()));
    cases.push((schedules::linear_residual(), tall));
    all_pass(&cases);
}

/// What tests add to a kernel is not in others: the same instructions as from a prelude without a word of it.
#[test]
fn probes_leave_no_instruction_where_they_are_off() {
    let Some(compiler) = nvidia::caching_compiler() else {
        return;
    };
    let source = cuda::emit(&checked(
        &schedules::gemm_rs(),
        &Variant::new(4).set("tiles", (128, 256)),
    ));
    let prelude = cuda::prelude();
    let probe = |line: &&str| line.trim_start().starts_with("jitter();");
    let (probes, rest): (Vec<&str>, Vec<&str>) = prelude.lines().partition(probe);
    assert!(probes.len() > 10, "{probes:?}");
    let bare = rest.join("\n");
    let headers = [(cuda::PRELUDE, bare.as_str())];
    let bare = Source::new(&source.entry, &source.text).with(&headers);
    let bare = compiler.compile(&bare, Target::Sm90a);
    let sass = |compiled: Result<Compiled, Error>| {
        let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
        nvidia::kept_sass_of_all(&[compiled.cubin()]).map(|mut one| one.remove(0))
    };
    let with = |probes| launch::compile(&compiler.clone().with_probes(probes), &source);
    let jitter = Probes {
        jitter: Some(1),
        trace: false,
    };
    let (Some(bare), Some(off), Some(on)) = (
        sass(bare),
        sass(with(Probes::default())),
        sass(with(jitter)),
    ) else {
        return;
    };
    assert!(bare == off, "probes cost instructions");
    let pauses = [&off, &on].map(|sass| sass.count("NANOSLEEP"));
    println!("{pauses:?} pauses");
    assert!(pauses[1] > pauses[0] + 30, "{pauses:?} pauses");
}

/// The layouts that a schedule of the library has a kernel for: what a `#[comm]` loop moves, and what a loop stores for the
/// next one, is not MN-major, nor are the rows of a tile across shards.
fn layouts(schedule: &str) -> &'static [Layout] {
    match schedule {
        "fsdp_gemm" => &[Layout::Nt],
        "mlp" | "gemm_ar_one_shot" | "gemm_rs_across" => &[Layout::Nt, Layout::Nn],
        name if name.starts_with("ag_") => &[Layout::Nt, Layout::Nn],
        _ => &[Layout::Nt, Layout::Nn, Layout::Tn],
    }
}

/// All loops have this tile, which most others cannot be beside.
fn of_one_tile(program: &Program, tile: (u32, u32)) -> Variant {
    let choices = program.tunables.iter().map(|choice| &choice.name);
    choices
        .filter(|name| name.ends_with("tiles"))
        .fold(Variant::new(4), |variant, name| variant.set(name, tile))
}

#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn every_schedule_type_and_tile_passes_the_sass_checks() {
    let mut cases = Vec::new();
    for schedule in schedules::ALL {
        for dtype in [Dtype::Bf16, Dtype::F16] {
            for tile in [(128, 128), (128, 256), (208, 128)] {
                // The world is a parameter of the text.
                let tile = halves::tile(&schedule(), tile);
                let variant = of_one_tile(&schedule(), tile).dtype(dtype);
                for layout in layouts(&schedule().name) {
                    cases.push((schedule(), variant.clone().layout(*layout)));
                }
            }
        }
    }
    all_pass(&cases);
}

/// A kernel as people read it, in `kernels_generated`.
fn checked_in() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels_generated/sm90");
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| {
            let path = entry.expect("readable").path();
            let name = path.file_stem().expect("a name").to_string_lossy();
            (name.into(), std::fs::read_to_string(&path).expect("text"))
        })
        .collect();
    all.sort();
    all
}

#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn the_kernels_people_read_compile_as_they_stand() {
    let Some(compiler) = nvidia::caching_compiler() else {
        return;
    };
    let prelude = cuda::prelude();
    let headers = [
        (cuda::PRELUDE, prelude.as_str()),
        (cuda::MULTICAST_PRELUDE, cuda::MULTICAST),
    ];
    let all = checked_in();
    let sources: Vec<_> = all
        .iter()
        .map(|(name, text)| (Source::new(name, text).with(&headers), Target::Sm90a))
        .collect();
    let compiled = all.iter().zip(compiler.compile_all(&sources));
    let compiled: Vec<Compiled> = compiled
        .map(|((name, _), made)| made.unwrap_or_else(|error| panic!("{name}: {error}")))
        .collect();
    let cubins: Vec<&[u8]> = compiled.iter().map(Compiled::cubin).collect();
    let Some(instructions) = nvidia::kept_sass_of_all(&cubins) else {
        return;
    };
    for (((name, text), compiled), sass) in all.iter().zip(&compiled).zip(instructions) {
        assert_eq!(findings(compiled, Some(&sass)), [] as [&str; 0], "{name}");
        assert!(!text.contains("#line"), "{name}");
        // What names the schedule's lines changes no instruction.
        if name == "ag_gemm.bf16-128x256" {
            let variant = Variant::new(4).set("tiles", (128, 256));
            let source = cuda::emit(&checked(&schedules::ag_gemm(), &variant));
            assert!(source.with_lines().contains("ag_gemm.rs\"\n"));
            let traced = launch::compile(&compiler, &source).expect("compiles");
            let traced = nvidia::kept_sass_of_all(&[traced.cubin()]);
            assert!(traced == Some(vec![sass]), "other instructions");
        }
    }
}

#[test]
fn a_broken_statement_names_the_schedules_line() {
    let Some(compiler) = nvidia::compiler() else {
        return;
    };
    let variant = Variant::new(4).set("tiles", (128, 256));
    let mut source = cuda::emit(&checked(&schedules::ag_gemm(), &variant));
    let whole = "counter_wait(plan.cells, me, plan.arrived ";
    assert!(source.text.contains(whole));
    let broken = whole.replace("arrived", "nowhere");
    source.text = source.text.replace(whole, &broken);
    let error = launch::compile(&compiler, &source).expect_err("refused");
    let schedule = include_str!("../../src/schedules/ag_gemm.rs").lines();
    let line = 1 + schedule
        .clone()
        .position(|line| line.contains(".wait();"))
        .expect("a wait");
    let told = error.to_string();
    assert!(
        told.contains(&format!("src/schedules/ag_gemm.rs:{line}: ")),
        "{told}"
    );
    // The generated lines as the text has them, and the log.
    let at = 1 + source
        .text
        .lines()
        .position(|line| line.contains("nowhere"))
        .expect("broken");
    assert!(told.contains(&format!(">{at:5} | ")), "{told}");
    assert!(told.contains("// wait arrived[t.rows]"), "{told}");
    assert!(told.contains("1 error detected"), "{told}");
    assert!(!told.contains("#line"), "{told}");
}
