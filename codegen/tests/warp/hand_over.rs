//! The warp-level verifier: each test takes a good pipeline, changes one thing, and shows the trace that follows.

use crate::fixtures::left_out::unnoticed;
use crate::fixtures::library;
use crate::fixtures::wide::sampled;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Expr, Node, Phase, Pipeline, Side};

fn good(name: &str) -> Pipeline {
    let tiles = if name == PING_PONG {
        (64, 48)
    } else {
        (128, 128)
    };
    let name = name.trim_end_matches(PING_PONG_END);
    let program = library::all()
        .into_iter()
        .find(|program| program.name == name)
        .expect("a schedule");
    let variant = Variant::new(4).set("tiles", tiles);
    let kernel = lower(&program, &variant)
        .and_then(verify::kernel)
        .expect("a kernel");
    sm90::build(&kernel).unwrap_or_else(|e| panic!("{e}"))
}

/// A GEMM whose warpgroups work in ping-pong.
const PING_PONG: &str = "gemm ping-pong";
const PING_PONG_END: &str = " ping-pong";

/// What the verifier says after `edit` has changed the first node of the role that it can, or removed it (`true`).
fn trace(name: &str, role: &str, edit: impl Fn(&mut Node) -> Option<Edit>) -> String {
    let mut pipeline = good(name);
    let mut done = false;
    let warp = pipeline
        .warps
        .iter()
        .position(|warp| warp.name == role)
        .expect("a role");
    let mut others: Vec<_> = Vec::new();
    for (index, warp_) in pipeline.warps.iter_mut().enumerate() {
        others.push(if index == warp {
            Vec::new()
        } else {
            std::mem::take(&mut warp_.body)
        });
    }
    pipeline.lists(&mut |list| {
        let found = list
            .iter_mut()
            .position(|node| !done && edit(node).is_some());
        if let Some(at) = found {
            done = true;
            if edit(&mut list[at]).is_none_or(|edit| edit == Edit::Remove) {
                list.remove(at);
            }
        }
    });
    for (warp, body) in pipeline
        .warps
        .iter_mut()
        .zip(others)
        .filter(|(_, body)| !body.is_empty())
    {
        warp.body = body;
    }
    assert!(done, "the edit found nothing to change");
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[derive(PartialEq)]
enum Edit {
    Change,
    Remove,
}

fn remove(is: impl Fn(&Node) -> bool) -> impl Fn(&mut Node) -> Option<Edit> {
    move |node| is(node).then_some(Edit::Remove)
}

#[test]
fn blocks_of_an_operand_that_are_all_the_same() {
    let variant = Variant::new(4).layout(Layout::Nn).set("tiles", (128, 128));
    let mut pipeline = library::all()
        .iter()
        .find(|program| program.name == "gemm")
        .map(|program| lower(program, &variant).and_then(verify::kernel))
        .and_then(|kernel| sm90::build(&kernel.expect("a kernel")).ok())
        .expect("a pipeline");
    pipeline.lists(&mut |list| {
        for node in list {
            if let Node::Load { part: 1, at, .. } = node {
                at.row = 0.into();
            }
        }
    });
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[coverage]: multiply of block 0 on rank 0 multiplies x of stage 0 by w of stage 0
      = a stage does not hold one tile of each operand
    ");
}

#[test]
fn a_wrong_phase() {
    let found = trace("gemm", "multiply", |node| match node {
        Node::Await { barrier, phase } if barrier.side == Side::Full => {
            *phase = Phase::PreviousPhase;
            Some(Edit::Change)
        }
        _ => None,
    });
    insta::assert_snapshot!(found, @"
    error[progress]: multiply of block 0 on rank 0 waits for a stage to be full
      = the next phase is complete, too: the parity says that the awaited one is not
      help: wait for its own phase, and before anyone can end the next one
    ");
    let found = trace("gemm", "load", |node| match node {
        Node::Await { barrier, phase } if barrier.side == Side::Empty => {
            *phase = Phase::ThisPhase;
            Some(Edit::Change)
        }
        _ => None,
    });
    insta::assert_snapshot!(found, @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (0, 0), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (0, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = multiply of block 0 on rank 0 waits for a stage to be full
      = multiply of block 0 on rank 0 waits for a stage to be full
      = load of block 1 on rank 0 waits for a stage to be empty for tile (1, 0)
    ");
}

#[test]
fn a_missing_proxy_fence() {
    let found = trace(
        "gemm",
        "multiply",
        remove(|node| matches!(node, Node::FenceShared)),
    );
    insta::assert_snapshot!(found, @"
    error[race]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = multiply of block 0 on rank 0 writes subtile 0
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_shared` after ordinary accesses, before the slot is released
    ");
    let found = trace(
        "gemm_rs",
        "load",
        remove(|node| matches!(node, Node::FenceGlobal)),
    );
    insta::assert_snapshot!(found, @"
    error[race]: load of block 0 on rank 0 loads rows 0..128, columns 0..64 of partial (shard or slot 1) on rank 0 into x of stage 5 for tile (0, 0)
      = store of block 0 on rank 1 stores subtile 0 to rows 0..128, columns 0..64 of partial (shard or slot 1) on rank 0 for tile (0, 0)
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_global` after the wait on a counter, before TMA touches the data
    ");
    let found = trace(
        "ag_gemm",
        "load",
        remove(|node| matches!(node, Node::FenceGlobal)),
    );
    insta::assert_snapshot!(found, @"
    error[race]: load of block 2 on rank 0 loads rows 0..128, columns 0..64 of x (shard or slot 1) on rank 0 into x of stage 5 for tile (0, 0)
      = store of block 0 on rank 1 stores staging buffer 0 to rows 0..128, columns 0..64 of x (shard or slot 1) on rank 0
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_global` after the wait on a counter, before TMA touches the data
    ");
}

#[test]
fn a_stage_released_too_early() {
    let found = trace("gemm", "multiply", |node| match node {
        Node::MmaWait {
            pending: pending @ 1,
        } => {
            *pending = 2;
            Some(Edit::Change)
        }
        Node::MmaWait { pending: 2 } => Some(Edit::Change),
        _ => None,
    });
    insta::assert_snapshot!(found, @"
    error[race]: load of block 0 on rank 0 loads rows 0..128, columns 384..392 of x (shard or slot 0) on rank 0 into x of stage 0 for tile (0, 0)
      = multiply of block 0 on rank 0 multiplies x of stage 0 by w of stage 0
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

#[test]
fn a_signal_after_read_only() {
    let found = trace("gemm_rs", "store", |node| match node {
        Node::AwaitStores { pending } if *pending != Expr::Const(0) => {
            let pending = pending.clone();
            *node = Node::AwaitRead { pending };
            Some(Edit::Change)
        }
        Node::AwaitRead { pending } if *pending != Expr::Const(0) => Some(Edit::Change),
        _ => None,
    });
    insta::assert_snapshot!(found, @"
    error[race]: load of block 0 on rank 0 loads rows 0..128, columns 0..64 of partial (shard or slot 1) on rank 0 into x of stage 5 for tile (0, 0)
      = store of block 0 on rank 1 stores subtile 0 to rows 0..128, columns 0..64 of partial (shard or slot 1) on rank 0 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

#[test]
fn a_lagged_signal_held_across_a_wait() {
    let last = |node: &Node| *node == Node::AwaitStores { pending: 0.into() };
    let mut pipeline = good("gemm_rs");
    pipeline.lists(&mut |list| {
        // The flush behind the loop over an owner's tiles.
        if let Some(at) = list
            .iter()
            .position(|node| matches!(node, Node::Items { .. }))
            && matches!(list.get(at + 1), Some(Node::Note(_)))
            && list.get(at + 2).is_some_and(last)
            && matches!(list.get(at + 3), Some(Node::Flush { .. }))
        {
            list.remove(at + 3);
        }
    });
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[progress]: store of block 0 on rank 0 holds back a signal of landed[6] on rank 1
      = store of block 0 on rank 0 waits for free_partial[2]
      = what it waits for may itself wait for that signal
      help: complete the stores and flush the signal before a wait that another rank must answer
    ");
}

#[test]
fn a_box_that_spills_over_a_shards_end() {
    let mut pipeline = good("ag_gemm");
    for map in &mut pipeline.maps {
        map.partial_shard &= map.name != "y";
    }
    let found = verify::pipeline(pipeline).expect_err("refused");
    let found = found.first().text(&|_| String::new());
    insta::assert_snapshot!(found, @"
    error[bounds]: store of block 3 on rank 2 stores subtile 0 to rows 128..192, columns 0..64 of y (shard or slot 2) on rank 2 for tile (1, 0)
      = shard 2 ends after 190 rows, and the map does not clip the box there
      help: a map of its own for the partial shard
    ");
}

#[test]
fn a_counter_that_forgets_its_base() {
    let found = trace(
        "gemm_rs",
        "load",
        remove(|node| matches!(node, Node::CounterAdvance { .. })),
    );
    insta::assert_snapshot!(found, @"
    error[race]: load of block 0 on rank 0 in the next launch loads rows 0..2, columns 0..64 of partial (shard or slot 1) on rank 0 into x of stage 2 for tile (0, 0)
      = store of block 0 on rank 1 in the next launch stores subtile 0 to rows 0..2, columns 0..64 of partial (shard or slot 1) on rank 0 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    let mut pipeline = good("ag_gemm");
    pipeline.lists(&mut |list| {
        for node in list {
            if let Node::LastCta { advance, .. } = node {
                advance.remove(0);
            }
        }
    });
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[race]: load of block 0 on rank 2 in the next launch loads rows 0..2, columns 0..64 of x (shard or slot 1) on rank 2 into x of stage 0 for tile (0, 0)
      = not everything that the schedule orders before it came before it
      = conflicting accesses of 0 elements came before it in its launch, where 128 should
      help: wait for everything that the schedule waits for, in this thread or in one that it waits for
    ");
}

#[test]
fn a_missing_credit() {
    let found = trace(
        "gemm_rs",
        "store",
        remove(|node| matches!(node, Node::CounterWait { .. })),
    );
    insta::assert_snapshot!(found, @"
    error[race]: store of block 0 on rank 0 in the next launch stores subtile 0 to rows 0..2, columns 0..64 of partial (shard or slot 0) on rank 1 for tile (0, 0)
      = load of block 0 on rank 1 loads rows 0..128, columns 0..64 of partial (shard or slot 0) on rank 1 into x of stage 5 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    let found = trace(
        "ag_gemm",
        "store",
        remove(|node| matches!(node, Node::CounterWait { .. })),
    );
    insta::assert_snapshot!(found, @"
    error[race]: store of block 0 on rank 0 stores staging buffer 0 to rows 0..128, columns 0..64 of x (shard or slot 0) on rank 2
      = the caller fills or takes rows 0..192, columns 0..1088 of x (shard or slot 0) on rank 2 between launches
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

#[test]
fn other_edits() {
    // The memory of boxes becomes that of stages before the last box has left it.
    let found = trace("ag_gemm", "load", |node| match node {
        Node::For { body, .. }
            if matches!(body.as_slice(), [Node::Await { .. }, Node::Advance { .. }]) =>
        {
            Some(Edit::Remove)
        }
        _ => None,
    });
    insta::assert_snapshot!(found, @"
    error[race]: load of block 0 on rank 0 loads rows 128..136, columns 0..64 of w (shard or slot 0) on rank 0 into w of stage 0 for tile (0, 1)
      = store of block 0 on rank 0 stores staging buffer 6 to rows 128..192, columns 384..448 of x (shard or slot 0) on rank 1
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // A thread ends while its stores read shared memory.
    let found = trace(
        "gemm",
        "store",
        remove(|node| matches!(node, Node::AwaitRead { .. })),
    );
    insta::assert_snapshot!(found, @"
    error[race]: multiply of block 0 on rank 0 writes subtile 0
      = store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    let mut pipeline = good("gemm_rs");
    pipeline.end.clear();
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[race]: store of block 0 on rank 0 in the next launch stores subtile 0 to rows 0..2, columns 0..64 of partial (shard or slot 0) on rank 1 for tile (0, 0)
      = load of block 0 on rank 1 loads rows 0..128, columns 0..64 of partial (shard or slot 0) on rank 1 into x of stage 5 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

#[test]
fn no_step_can_be_left_out() {
    // The end of a kernel completes its stores, too. A barrier of the CTA says again what a schedule's own waits may
    // say already; so does a credit to a rank that must have signalled in this launch anyway.
    let known = [
        ("gemm", "AwaitStores"),
        ("ag_gemm", "AwaitStores, SyncCta"),
        ("ag_gemm_ring", "AwaitStores, SyncCta"),
        ("gemm_rs", "AwaitStores"),
        (
            "gemm_rs_add",
            "FenceGlobal, AwaitStores, FenceGlobal, LastCta",
        ),
        ("gemm_ar", "FenceGlobal, AwaitStores"),
        ("bulk", "FenceGlobal, AwaitStores, SyncCta"),
    ];
    for (name, known) in sampled(known, 3) {
        assert_eq!(unnoticed(|| good(name)).to_string(), known, "{name}");
    }
}

/// A GEMM in clusters of that shape, its last rows and columns beyond the last whole cluster.
fn clustered(cluster: (u32, u32)) -> Pipeline {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
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
    sm90::build(&kernel.expect("a kernel")).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_cluster_that_does_not_wait_for_all_of_itself() {
    for cluster in [(2, 1), (1, 2)] {
        verify::pipeline(clustered(cluster)).unwrap_or_else(|e| panic!("{cluster:?}: {e}"));
    }
    let verdict = |pipeline| {
        let found = verify::pipeline(pipeline).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    let mut pipeline = clustered((2, 1));
    pipeline.end.clear();
    insta::assert_snapshot!(verdict(pipeline), @"
    error[race]: multiply of block 2 on rank 0 ends while another CTA of its cluster may still write its shared memory
      help: wait for the whole cluster at the end
    ");
    // Meeting at the end completes nothing: what the other CTA loads and arrives at must have been waited for.
    for cluster in [(2, 1), (1, 2)] {
        let mut pipeline = clustered(cluster);
        let all_empty = |node: &Node| matches!(node, Node::For { var, .. } if var == "i");
        let mut edited = false;
        pipeline.lists(&mut |list| {
            let before = list.len();
            list.retain(|node| !all_empty(node));
            edited |= list.len() < before;
        });
        assert!(edited);
        // Which CTA is first to end is the interpreter's luck.
        let verdict = ["0", "1", "2", "3"]
            .iter()
            .fold(verdict(pipeline), |verdict, block| {
                verdict.replace(&format!("block {block}"), "block _")
            });
        insta::allow_duplicates! { insta::assert_snapshot!(verdict, @"
        error[race]: store of block _ on rank 0 ends while its cluster's shared memory may still change
          = multiply of block _ on rank 0 releases a stage
          = nobody waits until this has landed in the other CTA: the cluster barrier at the end does not complete it
          help: wait for the barrier it completes on, or leave it out if nobody needs it
        ") };
    }
    // The consumers of one CTA alone say that a stage is free, but the other one writes it, too.
    let mut pipeline = clustered((2, 1));
    let empty = pipeline.rings[0].empty.as_mut();
    empty.expect("a barrier").arrivals /= 2;
    insta::assert_snapshot!(verdict(pipeline), @"
    error[race]: load of block 0 on rank 0 loads rows 0..128, columns 384..392 of x (shard or slot 0) on rank 0 into x of stage 0 for tile (0, 0)
      = load of block 0 on rank 0 loads rows 0..128, columns 0..64 of x (shard or slot 0) on rank 0 into x of stage 0 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // Both CTAs load the first half.
    let mut pipeline = clustered((1, 2));
    pipeline.lists(&mut |list| {
        for node in list {
            if let Node::Load { part: 0, at, .. } = node {
                at.row = 0.into();
            }
        }
    });
    insta::assert_snapshot!(verdict(pipeline), @"
    error[coverage]: multiply of block 1 on rank 0 multiplies x of stage 0 by w of stage 0
      = a stage does not hold one tile of each operand
    ");
}

#[test]
fn an_order_barrier_without_its_wait_or_its_arrival() {
    verify::pipeline(good(PING_PONG)).unwrap_or_else(|e| panic!("{e}"));
    let found = trace(
        PING_PONG,
        "multiply",
        remove(|node| *node == Node::AwaitOrder),
    );
    insta::assert_snapshot!(found, @"
    error[race]: multiply of block 0 on rank 0 waits for a stage to be full
      = nothing says that the previous phase is complete, and an earlier one has the same parity
      help: a parity names a phase only within one pass over the ring's slots: wait at the order barrier first
    ");
    let found = trace(
        PING_PONG,
        "multiply",
        remove(|node| *node == Node::ArriveOrder),
    );
    insta::assert_snapshot!(found, @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (2, 0), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (2, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (4, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (2, 0)
      = multiply of block 0 on rank 0 waits at its order barrier
      = multiply of block 0 on rank 0 waits at its order barrier
    ");
    let found = trace(
        PING_PONG,
        "multiply",
        remove(|node| matches!(node, Node::Skip { .. })),
    );
    insta::assert_snapshot!(found, @"
    error[progress]: multiply of block 0 on rank 0 waits for a stage to be full
      = the next phase is complete, too: the parity says that the awaited one is not
      help: wait for its own phase, and before anyone can end the next one
    ");
}
