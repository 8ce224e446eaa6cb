//! Promoted sums of FP8 products: what a step becomes, in how many pieces, and what is refused.

use crate::fixtures::library;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::warp::{FragmentOp, Node, Pipeline, RingId};
use counterflow_codegen::{sm90, verify};
use counterflow_emitter as cuda;
use counterflow_emulator::{self as interp, Input, Options};

/// What fills the operands of a run.
type Fill = Box<dyn FnMut(Input<'_>, &mut [f32])>;

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

fn variant(tile: (u32, u32)) -> Variant {
    let variant = Variant::new(2).dtype(E4M3).promote(true);
    variant.set("tiles", tile)
}

fn built(program: &Program, variant: &Variant) -> Result<Pipeline, Diagnostics> {
    sm90::build(&lower(program, variant).and_then(verify::kernel)?)
}

fn text(name: &str, variant: &Variant) -> String {
    let pipeline = built(&program(name), variant).and_then(verify::pipeline);
    let pipeline = pipeline.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
    cuda::emit(&pipeline).text
}

/// What the text says of a step, from its accumulators on.
fn step(text: &str) -> String {
    let from = text.find("float acc").unwrap_or_else(|| panic!("{text}"));
    let lines = text[from..].lines();
    let mut step: Vec<&str> = Vec::new();
    for line in lines {
        step.push(line.trim());
        if line.trim() == "}" {
            break;
        }
    }
    step.join("\n")
}

#[test]
fn a_step_is_multiplied_from_zero_and_added() {
    insta::assert_snapshot!(step(&text("gemm", &variant((128, 128)))), @"
    float acc[TILE_N / 2] = {};  // this thread's of 64 rows
    float short_acc[TILE_N / 2];  // what tensor cores sum of a step, which keeps 13 fraction bits
    // Several steps stand one after another: what the next one needs is worked out while sums are added.
    #pragma unroll 4
    for (u32 step = 0; step < steps; ++step) {
    if (!stage.token) stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
    wgmma_fence();
    const u64 xs = wgmma_at<X_BYTES>(x_tile, stage.index), ws = wgmma_at<W_BYTES>(w_tile, stage.index);
    #pragma unroll
    for (u32 k = 0; k < TILE_K / 32; ++k)
    wgmma_m64k32<TILE_N>(short_acc, xs + k * WGMMA_K_STEP, ws + k * WGMMA_K_STEP, k != 0, e4m3(),
    e4m3());
    wgmma_commit();
    wgmma_wait<0>();
    if (lane == 0) stage_empty[stage.index].arrive();
    stage.advance();
    stage.token = stage_full[stage.index].test(stage.phase);  // meanwhile the last sums are added
    #pragma unroll
    for (u32 i = 0; i < TILE_N / 2; ++i) acc[i] += short_acc[i];
    }
    ");
}

#[test]
fn a_step_in_pieces_has_the_registers_of_one() {
    insta::assert_snapshot!(step(&text("gemm", &variant((256, 128)))), @"
    float acc[BLOCKS][TILE_N / 2] = {};  // this thread's of each 64 rows
    float short_acc[TILE_N / 2];  // what tensor cores sum of a step, which keeps 13 fraction bits
    // Several steps stand one after another: what the next one needs is worked out while sums are added.
    #pragma unroll 4
    for (u32 step = 0; step < steps; ++step) {
    if (!stage.token) stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
    wgmma_fence();
    const u64 xs = wgmma_at<X_BYTES>(x_tile, stage.index), ws = wgmma_at<W_BYTES>(w_tile, stage.index);
    #pragma unroll
    for (u32 k = 0; k < TILE_K / 32; ++k)
    wgmma_m64k32<TILE_N>(short_acc, xs + k * WGMMA_K_STEP, ws + k * WGMMA_K_STEP, k != 0, e4m3(),
    e4m3());
    wgmma_commit();
    wgmma_wait<0>();
    #pragma unroll
    for (u32 i = 0; i < TILE_N / 2; ++i) acc[0][i] += short_acc[i];
    wgmma_fence();
    #pragma unroll
    for (u32 k = 0; k < TILE_K / 32; ++k)
    wgmma_m64k32<TILE_N>(short_acc, xs + k * WGMMA_K_STEP + WGMMA_64_ROWS, ws + k * WGMMA_K_STEP,
    k != 0, e4m3(), e4m3());
    wgmma_commit();
    wgmma_wait<0>();
    if (lane == 0) stage_empty[stage.index].arrive();
    stage.advance();
    stage.token = stage_full[stage.index].test(stage.phase);  // meanwhile the last sums are added
    #pragma unroll
    for (u32 i = 0; i < TILE_N / 2; ++i) acc[1][i] += short_acc[i];
    }
    ");
    insta::assert_snapshot!(step(&text("gemm", &variant((128, 256)))), @"
    float acc[TILE_N / 2] = {};  // this thread's of 64 rows
    float short_acc[TILE_N / 2 / 2];  // what tensor cores sum of a step, which keeps 13 fraction bits
    // Several steps stand one after another: what the next one needs is worked out while sums are added.
    #pragma unroll 4
    for (u32 step = 0; step < steps; ++step) {
    if (!stage.token) stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
    wgmma_fence();
    const u64 xs = wgmma_at<X_BYTES>(x_tile, stage.index), ws = wgmma_at<W_BYTES>(w_tile, stage.index);
    #pragma unroll
    for (u32 k = 0; k < TILE_K / 32; ++k)
    wgmma_m64k32<TILE_N / 2>(short_acc, xs + k * WGMMA_K_STEP, ws + k * WGMMA_K_STEP, k != 0, e4m3(),
    e4m3());
    wgmma_commit();
    wgmma_wait<0>();
    #pragma unroll
    for (u32 i = 0; i < TILE_N / 2 / 2; ++i) acc[i] += short_acc[i];
    wgmma_fence();
    #pragma unroll
    for (u32 k = 0; k < TILE_K / 32; ++k)
    wgmma_m64k32<TILE_N / 2>(short_acc, xs + k * WGMMA_K_STEP,
    ws + k * WGMMA_K_STEP + (TILE_N / 2 * WGMMA_ROW), k != 0, e4m3(), e4m3());
    wgmma_commit();
    wgmma_wait<0>();
    if (lane == 0) stage_empty[stage.index].arrive();
    stage.advance();
    stage.token = stage_full[stage.index].test(stage.phase);  // meanwhile the last sums are added
    #pragma unroll
    for (u32 i = 0; i < TILE_N / 2 / 2; ++i) acc[i + (TILE_N / 2 / 2)] += short_acc[i];
    }
    ");
}

/// Past the other consumer's tile, in ping-pong, nothing says yet that the phase before is over: its parity would be taken for
/// that of the one that is tested.
#[test]
fn a_stage_is_not_tested_a_phase_too_early() {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    let options = GemmOptions {
        ping_pong: Some(true.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    let (program, variant) = (s.finish(), Variant::new(1).dtype(E4M3).promote(true));
    let mut pipeline = built(&program, &variant).unwrap_or_else(|error| panic!("{error}"));
    verify::pipeline(pipeline.clone()).unwrap_or_else(|error| panic!("{error}"));
    pipeline.lists(&mut |list| {
        let end = |node: &Node| *node == Node::ArriveOrder;
        if let Some(at) = list.iter().position(end) {
            list.insert(at + 2, Node::TestWait { ring: RingId(0) });
        }
    });
    let Err(found) = verify::pipeline(pipeline) else {
        panic!("accepted");
    };
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[race]: multiply of block 0 on rank 0 tests a stage before its turn
      = nothing says that the previous phase is complete, and an earlier one has the same parity
      help: a parity names a phase only within one pass over the ring's slots: wait at the order barrier first
    ");
}

/// Tiles of every sort, and schedules that communicate.
#[test]
fn every_tile_that_fits_is_accepted() {
    let tiles = [
        (16, 64),
        (80, 128),
        (64, 256),
        (128, 64),
        (128, 192),
        (256, 96),
        (104, 256),
    ];
    for tile in tiles {
        text("gemm", &variant(tile));
    }
    for name in ["ag_gemm", "gemm_rs", "ag_gemm_pull"] {
        text(name, &variant((128, 128)));
    }
}

#[test]
fn tiles_without_registers_for_both_sums_are_refused() {
    let refused = |tile| {
        let found = built(&program("gemm"), &variant(tile)).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    insta::assert_snapshot!(refused((256, 160)), @"
    error[resources]: tiles of 256x160 with promoted sums
      help: smaller tiles: a thread keeps 192 numbers; promoted sums are 160, scales 0, and the sums of the tensor cores at least 40
    ");
    insta::assert_snapshot!(refused((200, 256)), @"
    error[resources]: tiles of 200x256 with promoted sums
      help: smaller tiles: a thread keeps 192 numbers; promoted sums are 200, scales 0, and the sums of the tensor cores at least 100
    ");
}

/// What the verifier says of a pipeline that is not what was lowered.
fn broken(tile: (u32, u32), break_it: impl Fn(&mut Pipeline)) -> String {
    let pipeline = built(&program("gemm"), &variant(tile));
    let mut pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
    break_it(&mut pipeline);
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// Without the first node of that sort.
fn without(pipeline: &mut Pipeline, is: impl Fn(&Node) -> bool) {
    let mut removed = false;
    pipeline.lists(&mut |list| {
        if let (Some(at), false) = (list.iter().position(&is), removed) {
            list.remove(at);
            removed = true;
        }
    });
    assert!(removed);
}

#[test]
fn a_sum_that_is_lost() {
    let promotes = |node: &Node| matches!(node, Node::Fragment(FragmentOp::Promote { .. }));
    insta::assert_snapshot!(broken((128, 128), |it| without(it, promotes)), @"
    error[coverage]: multiply of block 0 on rank 0 multiplies x of stage 1 by w of stage 1
      = what tensor cores summed before was not added to the promoted sums
    ");
    insta::assert_snapshot!(broken((256, 128), |it| without(it, promotes)), @"
    error[coverage]: multiply of block 0 on rank 0 multiplies x of stage 0 by w of stage 0
      = what tensor cores summed before was not added to the promoted sums
    ");
    let zero = |node: &Node| matches!(node, Node::Accumulators);
    insta::assert_snapshot!(broken((128, 128), |it| without(it, zero)), @"
    error[coverage]: multiply of block 0 on rank 0 promotes block 0 part 0
      = the promoted sums were not set to zero
    ");
    let waits = |node: &Node| matches!(node, Node::MmaWait { .. });
    insta::assert_snapshot!(broken((128, 128), |it| without(it, waits)), @"
    error[race]: multiply of block 0 on rank 0 promotes block 0 part 0
      = multiplies into `acc` are under way
      help: `wgmma_wait` for all groups of an item before its accumulators are named
    ");
    let again = |pipeline: &mut Pipeline| {
        pipeline.lists(&mut |list| {
            if let Some(at) = list.iter().position(promotes) {
                list.insert(at, list[at].clone());
            }
        });
    };
    insta::assert_snapshot!(broken((128, 128), again), @"
    error[coverage]: multiply of block 0 on rank 0 promotes block 0 part 0
      = tensor cores summed nothing of that piece since the last one was promoted
    ");
    // As if tensor cores went on with the sums of the step before.
    let not_fresh = |pipeline: &mut Pipeline| {
        pipeline.lists(&mut |list| {
            for node in list {
                if let Node::Mma { fresh, .. } = node {
                    *fresh = 1.into();
                }
            }
        });
    };
    insta::assert_snapshot!(broken((128, 128), not_fresh), @"
    error[coverage]: multiply of block 0 on rank 0 multiplies x of stage 0 by w of stage 0
      = what tensor cores summed before was not added to the promoted sums
    ");
    // As if all pieces were the first.
    let first = |pipeline: &mut Pipeline| {
        pipeline.lists(&mut |list| {
            for node in list {
                if let Node::Mma {
                    piece: Some(piece), ..
                }
                | Node::Fragment(FragmentOp::Promote { piece, .. }) = node
                {
                    piece.block = 0;
                }
            }
        });
    };
    insta::assert_snapshot!(broken((256, 128), first), @"
    error[coverage]: multiply of block 0 on rank 0 promotes block 0 part 0
      = its operands are not the next of its tile's along K
    ");
}

/// A sum over ranks takes registers, too: the same tile in smaller pieces.
#[test]
fn sums_of_stored_tiles_leave_fewer_registers() {
    let pieces = |name| {
        let pipeline = built(&program(name), &variant((128, 256)));
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut tilings = pipeline.cta.tilings().iter();
        tilings.all(|it| it.promotion().is_some()).then(|| {
            let tilings = pipeline.cta.tilings().iter();
            tilings
                .filter_map(|it| Some(it.promotion()?.count()))
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(pieces("gemm"), Some(vec![2]));
    assert_eq!(pieces("gemm_rs"), Some(vec![2, 4]));
}

/// Sums of small integers to the bit, others within a bound that is smaller than that of tensor cores alone.
#[test]
fn results_are_right() {
    for name in ["gemm", "ag_gemm", "gemm_rs"] {
        let bounds = [true, false].map(|promote| {
            let variant = variant((128, 128)).promote(promote);
            let kernel = lower(&program(name), &variant).and_then(verify::kernel);
            let kernel = kernel.unwrap_or_else(|error| panic!("{name}: {error}"));
            let shape = Shape::new(40, 24, 1040);
            let series = verify::series(&kernel, &shape, &Machine::h200());
            let series = series.unwrap_or_else(|error| panic!("{name}: {error}"));
            let plan = series.plan(&shape);
            let plan = plan.unwrap_or_else(|error| panic!("{name}: {error}"));
            let run = |inputs: Fill| {
                let ran = interp::run(&series, &[&plan], &Options::seed(1), inputs);
                ran.unwrap_or_else(|error| panic!("{name}: {error}"))
            };
            let known = |inputs: Fill| {
                let known = interp::reference(series.kernel(), &plan, 0, inputs);
                known.unwrap_or_else(|error| panic!("{name}: {error}"))
            };
            let (exact, wanted) = (
                run(Box::new(interp::integers(2))),
                known(Box::new(interp::integers(2))),
            );
            interp::compare_exactly(&exact, &wanted)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let (mut some, wanted) = (
                run(Box::new(interp::uniform(2))),
                known(Box::new(interp::uniform(2))),
            );
            interp::compare(&some, &wanted).unwrap_or_else(|error| panic!("{name}: {error}"));
            let y = some.outputs.len() - 1;
            some.outputs[y].values[0] += 8.0;
            assert!(interp::compare(&some, &wanted).is_err(), "{name}");
            let meant = interp::meaning(&program(name), &variant, &shape, 0, interp::uniform(2));
            let meant = meant.unwrap_or_else(|error| panic!("{name}: {error}"));
            let y = meant.tensors.last().expect("a result");
            y.bounds.iter().sum::<f64>()
        });
        assert!(bounds[0] * 2.0 < bounds[1], "{name}: {bounds:?}");
    }
}

#[test]
fn only_sums_of_fp8_are_promoted() {
    let found = built(&program("gemm"), &Variant::new(1).promote(true)).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[resources]: promoted sums of products of bf16
      help: products of FP8, whose sums tensor cores keep in few bits, or no `promote`
    ");
}
