//! Tiles that two warpgroups end with staggered epilogues, in the same places of shared memory: what the verifier accepts, and what
//! it says when one thing is changed.

use crate::fixtures::left_out::unnoticed;
use crate::fixtures::library;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::{Bf16, F32};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Expr, Node, Phase, Pipeline, Slot, Test};

/// What becomes of a tile's product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum After {
    Stored,
    /// Added in f32 to what is there.
    Accumulated,
    /// A function of it is stored.
    Function,
}

fn program(tile: (u32, u32), stages: Option<u32>, result: After) -> Program {
    let options = GemmOptions {
        stages: stages.map(Into::into),
        ..GemmOptions::default()
    };
    with(options, tile, result)
}

fn with(options: GemmOptions, tile: (u32, u32), result: After) -> Program {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = match result {
        After::Accumulated => s.accumulated("y", F32),
        After::Stored | After::Function => s.out("y", Bf16),
    };
    let tiles = s.tiles("tiles", y, tile);
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            match result {
                After::Stored => s.store(y.at(t), product),
                After::Accumulated => s.store_add(y.at(t), product),
                After::Function => s.store(y.at(t), product * 2.0),
            }
        });
    });
    s.finish()
}

fn built(tile: (u32, u32), stages: Option<u32>, result: After, layout: Layout) -> Pipeline {
    made(
        &program(tile, stages, result),
        &Variant::new(1).layout(layout),
    )
}

fn made(program: &Program, variant: &Variant) -> Pipeline {
    let kernel = lower(program, variant).and_then(verify::kernel);
    sm90::build(&kernel.unwrap_or_else(|e| panic!("{variant}: {e}")))
        .unwrap_or_else(|e| panic!("{variant}: {e}"))
}

/// Columns on the instruction's M side, and rows there.
const TILES: [(u32, u32); 2] = [(200, 256), (256, 192)];

fn good() -> Pipeline {
    built(TILES[0], None, After::Stored, Layout::Nt)
}

#[test]
fn where_three_stages_leave_no_room_for_a_tile() {
    use After::{Accumulated, Function, Stored};
    let cases = [
        ((200, 256), None, Stored, Layout::Nt, true),
        ((200, 256), None, Stored, Layout::Nn, true),
        // Half of it has no room beside stages of 256 rows each.
        ((200, 256), None, Stored, Layout::Tn, false),
        ((256, 192), None, Stored, Layout::Nt, true),
        ((256, 192), None, Stored, Layout::Tn, true),
        ((256, 192), Some(3), Stored, Layout::Nt, true),
        // The one that waits holds a stage, and the other one needs two.
        ((256, 192), Some(2), Stored, Layout::Nt, false),
        // Results of f32 gain nothing by it.
        ((128, 256), None, Accumulated, Layout::Tn, false),
        ((128, 256), None, Stored, Layout::Nt, false),
        ((256, 160), None, Stored, Layout::Nt, true),
        // What is computed beside accumulators was not measured.
        ((256, 160), None, Function, Layout::Nt, false),
        // Subtiles of 8 and 16 rows.
        ((152, 256), None, Stored, Layout::Nt, false),
        ((176, 256), None, Stored, Layout::Nt, false),
        ((168, 256), None, Stored, Layout::Nt, true),
        ((256, 128), None, Stored, Layout::Nt, false),
    ];
    for (tile, stages, result, layout, wanted) in cases {
        let pipeline = built(tile, stages, result, layout);
        let got = pipeline.cta.staggered();
        assert_eq!(got, wanted, "{tile:?} {stages:?} {result:?} {layout:?}");
        verify::pipeline(pipeline)
            .unwrap_or_else(|e| panic!("{tile:?} {result:?} {layout:?}: {e}"));
    }
}

/// In a tile that they would end with staggered epilogues by themselves.
#[test]
fn what_keeps_warpgroups_together() {
    let tile = (256, 144);
    let nn = Variant::new(1).layout(Layout::Nn);
    let alone = GemmOptions::default;
    let cases = [
        (alone(), true),
        (
            GemmOptions {
                cluster: Some((2, 1).into()),
                ..alone()
            },
            false,
        ),
        (
            GemmOptions {
                split: Some(2.into()),
                ..alone()
            },
            false,
        ),
        (
            GemmOptions {
                subtiles: Some(2.into()),
                ..alone()
            },
            false,
        ),
    ];
    for (at, (options, wanted)) in cases.into_iter().enumerate() {
        let pipeline = made(&with(options, tile, After::Stored), &nn);
        assert_eq!(pipeline.cta.staggered(), wanted, "case {at}");
    }
    // Kernels that signal.
    let fused = library::all();
    let fused = fused.iter().find(|program| program.name == "ag_gemm");
    let variant = Variant::new(4).set("tiles", (256, 160));
    assert!(!made(fused.expect("a schedule"), &variant).cta.staggered());
}

#[test]
fn no_step_can_be_left_out() {
    let mut verdict = String::new();
    for tile in TILES {
        let left = unnoticed(|| built(tile, None, After::Stored, Layout::Nt));
        verdict += &format!("{tile:?}: {left}\n");
    }
    // Nobody needs to be behind for the result's sake.
    insta::assert_snapshot!(verdict, @"
    (200, 256): AwaitStores, AwaitOrder
    (256, 192): AwaitStores, AwaitOrder
    ");
}

/// What the verifier says of a pipeline whose nodes `edit` has changed: all it can.
fn trace(edit: impl Fn(&mut Node) -> bool) -> String {
    let mut pipeline = good();
    let mut edited = 0;
    pipeline.lists(&mut |list| {
        for node in list.iter_mut() {
            edited += u32::from(edit(node));
        }
    });
    assert!(edited > 0, "the edit found nothing to change");
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn a_place_that_is_not_passed_on() {
    let verdict = trace(|node| match node {
        Node::Arrive { slot, .. } if *slot == Slot::NextSet => {
            *slot = Slot::Current;
            true
        }
        _ => false,
    });
    insta::assert_snapshot!(verdict, @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (2, 0), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (2, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (2, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = multiply of block 0 on rank 0 waits for a stage to be full
      = multiply of block 0 on rank 0 waits for a subtile to be empty
    ");
    // The second consumer takes the places before the first one's half was stored.
    let verdict = trace(|node| match node {
        Node::Await { phase, .. } if *phase == Phase::Staggered => {
            *phase = Phase::PreviousPhase;
            true
        }
        _ => false,
    });
    insta::assert_snapshot!(verdict, @"
    error[race]: multiply of block 0 on rank 0 writes subtile 0
      = multiply of block 0 on rank 0 writes subtile 0
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // The first one waits for a half that comes later.
    let verdict = trace(|node| match node {
        Node::Await { phase, .. } if *phase == Phase::Staggered => {
            *phase = Phase::ThisPhase;
            true
        }
        _ => false,
    });
    insta::assert_snapshot!(verdict, @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (2, 0), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (2, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = multiply of block 0 on rank 0 waits for a subtile to be empty
      = multiply of block 0 on rank 0 waits for a subtile to be empty
    ");
}

/// Sets that are in the same places, each of which says by itself when it may be written.
#[test]
fn places_that_each_consumer_takes_for_its_own() {
    let mut pipeline = good();
    pipeline.lists(&mut |list| {
        for node in list {
            match node {
                Node::Await { phase, .. } if *phase == Phase::Staggered => {
                    *phase = Phase::PreviousPhase;
                }
                Node::Arrive { slot, .. } if *slot == Slot::NextSet => *slot = Slot::Current,
                _ => {}
            }
        }
    });
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[race]: multiply of block 0 on rank 0 writes subtile 0
      = multiply of block 0 on rank 0 writes subtile 0
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

/// Both consumers' halves to where the first one's belongs.
#[test]
fn a_half_that_goes_to_the_others_place() {
    let verdict = trace(|node| match node {
        Node::Store { at, .. } => {
            at.column = Expr::from(0);
            true
        }
        _ => false,
    });
    insta::assert_snapshot!(verdict, @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..40, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the subtile is of another place
    ");
}

/// With one more stage, the first consumer could be through with two short tiles before the second one has looked.
#[test]
fn an_arrival_at_an_order_barrier_before_the_one_before_was_seen() {
    let mut pipeline = good();
    let [stages, subtiles, ..] = &mut pipeline.rings[..] else {
        panic!("stages and subtiles")
    };
    stages.slots += 1;
    let buffers = (stages.buffer.as_mut(), subtiles.buffer.as_mut());
    let (Some(stages), Some(subtiles)) = buffers else {
        panic!("memory")
    };
    stages.places += 1;
    stages.parts[1].at += stages.parts[0].stride;
    subtiles.at += stages.slot_bytes;
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[progress]: multiply of block 0 on rank 0 waits at its order barrier
      = the next phase is complete, too: the parity says that the awaited one is not
      help: wait for its own phase, and before anyone can end the next one
    ");
}

/// The second consumer waits while it still holds the stage that the first one's last step needs.
#[test]
fn a_consumer_that_falls_too_far_behind() {
    let verdict = trace(|node| match node {
        Node::If { test, body } if body.as_slice() == [Node::AwaitOrder] => {
            *test = Test::Equal(Expr::var("step") + 3, Expr::var("steps"));
            true
        }
        _ => false,
    });
    insta::assert_snapshot!(verdict, @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (0, 0), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (0, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = multiply of block 0 on rank 0 waits for a stage to be full
      = multiply of block 0 on rank 0 waits at its order barrier
    ");
}

/// A subtile is full when the four warps of its consumer have written it.
#[test]
fn a_subtile_that_counts_both_consumers() {
    let mut pipeline = good();
    pipeline.rings[1].full.arrivals = 8;
    let found = verify::pipeline(pipeline).expect_err("refused");
    let verdict = found.first().text(&|_| String::new());
    assert!(verdict.starts_with("error[progress]"), "{verdict}");
}
