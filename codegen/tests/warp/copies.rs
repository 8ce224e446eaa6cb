//! Rows that travel between ranks, in every way there is: what both levels say, what the emulator makes of it, and that the
//! warp level misses no order of the tile level.

use counterflow_codegen as codegen;

use crate::fixtures::copies as ways;
use crate::fixtures::left_out::unnoticed;
use crate::fixtures::wide::{in_turn, sampled, wide};
use codegen::kernel::{Block, Kernel, OpKind};
use codegen::lower::lower;
use codegen::shape::Shape;
use codegen::sm90;
use codegen::variant::Variant;
use codegen::verify::{self, Checked};
use codegen::warp::{Node, Pipeline};
use counterflow_codegen::machine::Machine;
use counterflow_emulator::{self as interp, Options};
use ways::{Mover, Way, gather};

fn kernel(mover: Mover, way: Way, world: u32) -> Checked<Kernel> {
    lower(&gather(mover, way, 4), &Variant::new(world))
        .and_then(verify::kernel)
        .unwrap_or_else(|error| panic!("{mover:?} {way:?}, world {world}: {error}"))
}

fn built(mover: Mover, way: Way) -> Pipeline {
    sm90::build(&kernel(mover, way, 4)).unwrap_or_else(|error| panic!("{mover:?} {way:?}: {error}"))
}

/// Several launches of which each has another M, from some schedules of the ranks: what is gathered and multiplied is right.
fn emulated(kernel: &Checked<Kernel>, rows: &[u32], seeds: std::ops::Range<u64>) {
    let most = rows.iter().copied().max().unwrap_or(1);
    let shape = |m| Shape::new(m, 72, 24);
    let series = verify::series(kernel, &shape(most), &Machine::h200())
        .unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
    let plan = |m: &u32| {
        let plan = series.plan(&shape(*m));
        plan.unwrap_or_else(|error| panic!("{} of {m} rows: {error}", kernel.name))
    };
    let plans: Vec<_> = rows.iter().map(plan).collect();
    for seed in seeds {
        let launches: Vec<_> = plans.iter().collect();
        let outcome = interp::run(
            &series,
            &launches,
            &Options::seed(seed),
            interp::integers(seed),
        )
        .unwrap_or_else(|failure| panic!("{}: {failure}", kernel.name));
        for (launch, plan) in plans.iter().enumerate() {
            let expected = interp::reference(kernel, plan, launch, interp::integers(seed))
                .unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
            interp::compare_exactly(&outcome, &expected)
                .unwrap_or_else(|off| panic!("{} seed {seed}: {off}", kernel.name));
        }
    }
}

/// In every world: the tile level accepts it, the emulator makes of it what it says, and the warp level can do it.
fn right(mover: Mover, way: Way) {
    // The movers and ways have the worlds in turn.
    let at = ways::all().position(|of| of == (mover, way));
    let worlds: [&[u32]; 7] = [&[1, 5], &[6], &[3], &[8], &[4], &[2], &[7]];
    for world in in_turn(worlds, at.unwrap_or(0)).flatten().copied() {
        let kernel = kernel(mover, way, world);
        if world <= 4 {
            let (rows, seeds) = if wide() {
                (&[600, 259, 3, 600][..], 0..2)
            } else {
                (&[600, 259, 3][..], 0..1)
            };
            emulated(&kernel, rows, seeds);
        } else {
            let most = if wide() { 1111 } else { 259 };
            emulated(&kernel, &[most, 3], 0..1);
        }
        if ways::all().any(|of| of == (mover, way)) {
            sm90::build(&kernel)
                .and_then(verify::pipeline)
                .unwrap_or_else(|error| panic!("{mover:?} {way:?}, world {world}: {error}"));
        }
    }
}

/// Whose queues carry such a copy is the driver's choice: the proof does not know them.
#[test]
fn a_copy_engine_does_not_copy_between_two_other_ranks() {
    let kernel = kernel(Mover::Engine, Way::Relay, 4);
    let found = sm90::build(&kernel).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()));
}

macro_rules! each_way {
    ($($name:ident: $way:ident),*) => {$(
        #[test]
        fn $name() {
            right(Mover::Ctas, Way::$way);
            right(Mover::Engine, Way::$way);
        }
    )*};
}
each_way!(
    pushed: Push, pulled: Pull, pulled_backwards: PullBackwards, passed_on: Ring, relayed: Relay,
    through_scratch: Staged, pulled_when_told: PullWhenTold, pushed_when_asked: PushWhenAsked
);

/// What the verifier says when one thing is left out: a node of a role that `is` one of these, the first after so many.
fn without(mover: Mover, way: Way, role: &str, after: usize, is: impl Fn(&Node) -> bool) -> String {
    let mut pipeline = built(mover, way);
    let (mut seen, mut done) = (0, false);
    let warps = std::mem::take(&mut pipeline.warps);
    let (mut of_role, others): (Vec<_>, Vec<_>) = warps
        .into_iter()
        .enumerate()
        .partition(|(_, warp)| warp.name == role);
    pipeline.warps = of_role.drain(..).map(|(_, warp)| warp).collect();
    let kept = (
        std::mem::take(&mut pipeline.start),
        std::mem::take(&mut pipeline.end),
    );
    pipeline.lists(&mut |list| {
        let found = list.iter().position(|node| {
            let here = !done && is(node);
            seen += usize::from(here);
            here && seen > after
        });
        if let Some(at) = found {
            done = true;
            list.remove(at);
        }
    });
    assert!(done, "nothing to leave out");
    (pipeline.start, pipeline.end) = kept;
    for (at, warp) in others {
        pipeline.warps.insert(at, warp);
    }
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// A wait that stays, but in the thread that sends: what the fetching thread reads is not behind it.
#[test]
fn a_wait_in_the_other_thread() {
    let mut pipeline = built(Mover::Ctas, Way::Pull);
    let mut moved: Option<Node> = None;
    let holds = |node: &Node| {
        let mut found = false;
        node.visit(&mut |node| found |= waits(node));
        found && matches!(node, Node::If { .. })
    };
    pipeline.lists(&mut |list| {
        let in_ranks = list.iter().any(|node| matches!(node, Node::Items { .. }));
        match (&moved, list.iter().position(holds)) {
            (None, Some(at)) if in_ranks => moved = Some(list.remove(at)),
            (Some(_), _) if in_ranks && list.iter().any(sends) => list.extend(moved.take()),
            (None | Some(_), _) => {}
        }
    });
    assert!(moved.is_none(), "it is somewhere");
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()));
}

fn sends(node: &Node) -> bool {
    let mut found = false;
    node.visit(&mut |node| found |= matches!(node, Node::Store { .. }));
    found
}

#[test]
fn a_launch_that_ends_while_a_peer_reads() {
    let mut pipeline = built(Mover::Ctas, Way::Pull);
    for node in &mut pipeline.end {
        if let Node::LastCta { body, .. } = node {
            body.retain(|node| !matches!(node, Node::Others { .. }));
        }
    }
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()));
}

#[test]
fn a_number_without_a_value_is_our_bug() {
    let mut pipeline = built(Mover::Ctas, Way::Pull);
    pipeline.lists(&mut |list| {
        list.retain(|node| !matches!(node, Node::Let { name, .. } if name == "batch"));
    });
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()));
}

/// As it was, the verifier accepts what the builder made; as it is, it says what is wrong with it.
#[cfg(debug_assertions)]
#[test]
fn without_the_fix_a_wrong_pull_is_accepted() {
    use codegen::undo::{Fix, undoing};
    let wrong = undoing(Fix::WarpOrder, || built(Mover::Ctas, Way::Pull));
    let taken = verify::outdated(&wrong).expect("it runs");
    insta::assert_snapshot!(taken.expect("rows of the launch before"), @"load of block 0 on rank 0 in the next launch takes rows of x on rank 1, which has not begun that launch");
    assert_eq!(
        verify::outdated(&built(Mover::Ctas, Way::Pull)).expect("it runs"),
        None
    );
    undoing(Fix::WarpOrder, || verify::pipeline(wrong.clone())).expect("accepted");
    verify::pipeline(wrong).expect_err("refused");
}

/// Whatever else is left out is missed, but for what the end of a kernel, or another wait, sees to as well.
#[test]
fn no_step_can_be_left_out() {
    let verdict = |(mover, way): (Mover, Way)| {
        format!("{mover:?} {way:?}: {}\n", unnoticed(|| built(mover, way)))
    };
    let found: Vec<String> = sampled(ways::all(), 5).map(verdict).collect();
    if wide() {
        insta::assert_snapshot!(found.concat());
        return;
    }
    // A sample's lines stand among those of all.
    let known = include_str!("snapshots/warp__copies__no_step_can_be_left_out.snap");
    for line in found {
        assert!(known.contains(&line), "not in the snapshot: {line}");
    }
}

fn waits(node: &Node) -> bool {
    matches!(node, Node::CounterWait { .. })
}

#[test]
fn a_pull_that_does_not_wait_for_its_peer() {
    let found = without(Mover::Ctas, Way::Pull, "load", 0, waits);
    insta::assert_snapshot!(found);
}

#[test]
fn a_relay_that_waits_for_one_of_its_peers() {
    for role in ["load", "store"] {
        let found = without(Mover::Ctas, Way::Relay, role, 0, waits);
        insta::assert_snapshot!(format!("relay_{role}"), found);
    }
}

#[test]
fn rows_passed_on_before_they_came() {
    let found = without(Mover::Ctas, Way::Ring, "load", 0, waits);
    insta::assert_snapshot!(found);
}

#[test]
fn scratch_read_before_it_is_written() {
    let found = without(Mover::Ctas, Way::Staged, "load", 0, waits);
    insta::assert_snapshot!(found);
}

#[test]
fn scratch_written_before_its_last_reader_is_done() {
    let found = without(Mover::Ctas, Way::Staged, "store", 0, waits);
    insta::assert_snapshot!(found);
}

#[test]
fn a_product_of_rows_that_the_host_still_copies() {
    let found = without(Mover::Engine, Way::Pull, "load", 0, waits);
    insta::assert_snapshot!(found);
    let fence = |node: &Node| matches!(node, Node::FenceGlobal);
    let found = without(Mover::Engine, Way::Pull, "load", 0, fence);
    insta::assert_snapshot!("the_fence_after_it", found);
}

/// The end of a pull's launch, with the wait in the loop over the ranks that are told.
#[test]
fn waits_and_signals_in_one_loop_at_the_end_are_refused() {
    let program = gather(Mover::Ctas, Way::Pull, 4);
    let mut kernel = lower(&program, &Variant::new(4)).expect("a kernel");
    let ends = kernel
        .roles
        .iter_mut()
        .filter_map(|role| match role.body.last_mut() {
            Some(Block::Once { body }) if body.len() > 1 => Some(body),
            _ => None,
        });
    let mut done = 0;
    for body in ends {
        let wait = body.pop().expect("a wait");
        if let Some(OpKind::ForRanks { body: looped, .. }) = body.last_mut().map(|op| &mut op.kind)
        {
            looped.push(wait);
            done += 1;
        }
    }
    assert_eq!(done, 1, "one end");
    let kernel = verify::kernel(kernel).unwrap_or_else(|found| panic!("{found}"));
    let found = sm90::build(&kernel).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[resources]: after the last tile, this role may only signal, then wait
      help: move the copy (or the loop with both) before the `#[gemm]` loop, or into a role of its own
    ");
}
