//! Tiles of all rows at once, wherever ranks divide them: each waits for the pieces of every shard that it reads, and for no
//! others, and is proved, emulated and held to the reference. No kernel has them yet.

use counterflow_codegen::builder::*;
use counterflow_codegen::diag::Rule;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::interp::{self, Options};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::model::{Machine, Volume};
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::unroll::StepKind;
use counterflow_codegen::variant::{Arch, Layout, Scales, Variant};
use counterflow_codegen::verify;

const TILE: (u32, u32) = (8, 8);
const PIECE: u32 = 4;

/// What is wrong with the schedule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// Tiles wait for nothing.
    NoWait,
    /// A loop visits tiles of one chunk.
    OfChunk,
}

/// y = all_gather(x) · wᵀ in tiles over all ranks' rows, so that `w` is read once for all of them.
fn gather(piece: u32, tile: (u32, u32), mistake: Mistake) -> Program {
    let mut s = ScheduleBuilder::new("ag_gemm_across");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let pieces = s.pieces("pieces", x, piece);
    let tiles = s.tiles_across("tiles", y, tile);
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        let all = match mistake {
            Mistake::OfChunk => tiles.of(me()),
            Mistake::None | Mistake::NoWait => tiles.all(),
        };
        s.for_items("t", all, |s, t| {
            if mistake != Mistake::NoWait {
                s.wait(arrived.at(t.rows()));
            }
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

fn kernel(program: &Program, variant: Variant) -> Kernel {
    lower(program, &variant).unwrap_or_else(|found| panic!("{found}"))
}

/// Proves a launch, emulates it in several interleavings, and holds it to the reference.
fn agrees(kernel: &Kernel, shape: &Shape) {
    let of = |found| -> ! { panic!("{shape} {}:\n{found}", kernel.variant) };
    let checked = verify::kernel(kernel.clone()).unwrap_or_else(|found| of(found));
    let plan = verify::plan(&checked, shape, &Machine::h200()).unwrap_or_else(|found| of(found));
    let launches = [vec![&*plan], vec![&*plan]];
    for seed in 0..3 {
        let inputs = || interp::integers(3);
        let outcome = interp::provoke(kernel, &launches, &Options::seed(seed), inputs());
        let outcome = outcome.unwrap_or_else(|failure| panic!("{shape}: {failure}"));
        for launch in 0..2 {
            let expected = interp::reference(kernel, &plan, launch, inputs());
            let expected = expected.unwrap_or_else(|why| panic!("{shape}: {why}"));
            interp::compare_exactly(&outcome, &expected).unwrap_or_else(|why| panic!("{why}"));
        }
    }
}

fn cpu(world: u32) -> Variant {
    Variant::new(world).arch(Arch::Cpu)
}

#[test]
fn ragged_shards_and_fewer_rows_than_ranks() {
    for world in 1..=8 {
        let kernel = kernel(&gather(PIECE, TILE, Mistake::None), cpu(world));
        for m in [1, 3, 7, 8, 13, 40, 61] {
            agrees(&kernel, &Shape::new(m, 16, 8));
        }
    }
}

/// Where rows are contiguous, each shard is a matrix of its own.
#[test]
fn operands_of_either_layout() {
    for layout in Layout::ALL {
        let kernel = kernel(&gather(PIECE, TILE, Mistake::None), cpu(3).layout(layout));
        for m in [24, 48] {
            agrees(&kernel, &Shape::new(m, 16, 8));
        }
    }
}

/// Scales of rows and of blocks, whose shards are multiples of 4 rows, or of 128.
#[test]
fn fp8_with_scales() {
    for scales in Scales::ALL {
        let variant = cpu(3).dtype(E4M3).scales(scales);
        let kernel = kernel(&gather(128, (128, 64), Mistake::None), variant);
        for m in [300, 500] {
            agrees(&kernel, &Shape::new(m, 64, 256));
        }
    }
}

/// A tile waits for the pieces that it reads, of whatever shard, and for no others.
#[test]
fn each_tile_waits_for_what_it_reads() {
    let kernel = kernel(&gather(PIECE, TILE, Mistake::None), cpu(4));
    let checked = verify::kernel(kernel).unwrap_or_else(|found| panic!("{found}"));
    // Shards of 6 rows: pieces of 4 and 2. Tiles of 8 rows.
    let plan = verify::plan(&checked, &Shape::new(24, 8, 8), &Machine::h200());
    let plan = plan.unwrap_or_else(|found| panic!("{found}"));
    let gemm = checked.roles.iter().position(|role| role.name == "gemm");
    let agent = plan.agent(0, gemm.expect("a role"));
    let waits: Vec<Vec<u32>> = (agent.items.iter())
        .map(|item| {
            let steps = &agent.steps[item.start as usize..item.end as usize];
            let cells = steps.iter().filter_map(|step| match step.kind {
                StepKind::Wait { counter, cell, .. } if counter.0 == 0 => Some(cell),
                _ => None,
            });
            cells.collect()
        })
        .filter(|cells: &Vec<u32>| !cells.is_empty())
        .collect();
    // Two cells a shard: rows 0..4, 4..6, 6..10, 10..12, 12..16, 16..18, 18..22, 22..24.
    assert_eq!(waits, [[0, 1, 2], [2, 3, 4], [5, 6, 7]]);
    let volume = Volume::of(&checked, &plan);
    assert_eq!(volume.total(), volume.least_total());
}

/// Few rows of many ranks are one tile, so `w` is read once.
#[test]
fn few_rows_are_one_tile() {
    let across = kernel(&gather(PIECE, TILE, Mistake::None), cpu(8));
    let checked = verify::kernel(across).unwrap_or_else(|found| panic!("{found}"));
    let plan = verify::plan(&checked, &Shape::new(8, 8, 8), &Machine::h200());
    let plan = plan.unwrap_or_else(|found| panic!("{found}"));
    for agent in &*plan.agents {
        let products = agent.steps.iter();
        let products = products.filter(|step| matches!(step.kind, StepKind::Dot { .. }));
        let computes = checked.roles[usize::from(agent.role)].name == "gemm";
        assert_eq!(products.count(), usize::from(computes));
    }
}

#[test]
fn what_is_wrong_is_refused() {
    let rejected = |mistake| {
        let kernel = lower(&gather(PIECE, TILE, mistake), &cpu(2)).and_then(verify::kernel);
        let shape = Shape::new(24, 8, 8);
        let plan = kernel.and_then(|kernel| verify::plan(&kernel, &shape, &Machine::h200()));
        plan.expect_err("a refusal")
    };
    assert_eq!(
        rejected(Mistake::NoWait)
            .iter()
            .next()
            .map(|found| found.rule),
        Some(Rule::Race)
    );
    assert!(
        rejected(Mistake::OfChunk)
            .to_string()
            .contains("`tiles` has no chunks")
    );
}

/// Which shards a tile is in depends on the rows, so a series has launches of as many rows.
#[test]
fn a_series_has_one_number_of_rows() {
    let kernel = kernel(&gather(PIECE, TILE, Mistake::None), cpu(2));
    let checked = verify::kernel(kernel).unwrap_or_else(|found| panic!("{found}"));
    let series = verify::series(&checked, &Shape::new(24, 8, 8), &Machine::h200());
    let series = series.unwrap_or_else(|found| panic!("{found}"));
    assert!(series.plan(&Shape::new(24, 8, 8)).is_ok());
    let found = series.plan(&Shape::new(20, 8, 8)).expect_err("a refusal");
    assert!(
        found.to_string().contains("make a series for m = 20"),
        "{found}"
    );
}

#[test]
fn no_kernel_has_them_yet() {
    let kernel = kernel(&gather(128, (128, 128), Mistake::None), Variant::new(2));
    let checked = verify::kernel(kernel).unwrap_or_else(|found| panic!("{found}"));
    let found = sm90::build(&checked).expect_err("a refusal").to_string();
    assert!(
        found.contains("`tiles`, whose tiles are in several shards"),
        "{found}"
    );
}
