//! Slabs of rows and K that warps move: boxes of a slab's own columns, cells by rows and slabs, and their text.

use crate::fixtures::slabs::{
    Counted, Mistake, WAYS, Way, across_by_slab, by_slab, by_slab_of, called, gated_by_slab,
    gathered, gathered_as, of_two_widths, scales_apart, scales_apart_by_slab, tuned_by_slab,
    weights_by_slab, whole_rows,
};
use crate::fixtures::wide::{in_turn, sampled, wide};
use crate::generator::warps::{self as random, Accepted, Warps};
use crate::reach::names_stand_once;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3, F16};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::verify::Checked;
use counterflow_codegen::warp::{Expr, Node, Pipeline, Test};
use counterflow_emitter as cuda;
use std::collections::BTreeMap;

fn warps(program: &Program, variant: &Variant) -> Result<Checked<Pipeline>, Diagnostics> {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", program.name));
    verify::warps(&kernel)
}

#[test]
fn slabs_have_right_warps_whoever_moves_them() {
    for (at, way) in WAYS.into_iter().enumerate() {
        for (also, counted) in [Counted::Each, Counted::ByRows].into_iter().enumerate() {
            let program = gathered(way, counted, (128, 256));
            for world in in_turn([1, 2, 4, 8], at + 2 * also) {
                let pipeline = warps(&program, &Variant::new(world))
                    .unwrap_or_else(|error| panic!("{}, {world} ranks: {error}", program.name));
                names_stand_once(&pipeline);
            }
        }
    }
}

/// Whole rows that signal a cell for each slab: also one that is wider than the rows of the case that shows two batches.
#[test]
fn whole_rows_signal_the_cells_of_all_their_slabs() {
    for slab in sampled([(128, 256), (128, 2048), (64, 4096)], 2) {
        let program = whole_rows(slab);
        warps(&program, &Variant::new(2)).unwrap_or_else(|error| panic!("{slab:?}: {error}"));
    }
}

/// One box, as many as a batch has, a number that no batch has, and two batches; rows other than a tile's.
#[test]
fn slabs_of_any_boxes_have_right_warps() {
    // What the sample lacks has a product that waits for it below.
    let slabs = [(128, 64), (64, 192), (128, 1024), (256, 1088), (128, 2048)];
    for slab in sampled(slabs, 2) {
        let program = gathered(Way::Push, Counted::Each, slab);
        warps(&program, &Variant::new(2)).unwrap_or_else(|error| panic!("{slab:?}: {error}"));
    }
    let others = [(F16, (128, 192)), (E4M3, (128, 256)), (E4M3, (128, 1024))];
    for (dtype, slab) in sampled(others, 2) {
        let program = gathered_as(dtype, slab);
        warps(&program, &Variant::new(2)).unwrap_or_else(|error| panic!("{dtype}: {error}"));
    }
}

/// Random gathers in slabs have right warps, or a rule names a statement.
///
/// `SLAB_CASES` says how many, 8 by default and 200 with `WIDE`.
#[test]
fn random_slabs_have_right_warps_or_a_rule_names_a_statement() {
    let cases = std::env::var("SLAB_CASES");
    let some = if wide() { 200 } else { 8 };
    let cases = cases.map_or(some, |cases| cases.parse().expect("a number"));
    let (mut have, mut looked_at) = (0, 0);
    let mut rules: BTreeMap<String, usize> = BTreeMap::new();
    for found in random::accepted_in_slabs(7, |_, _| {}).take(cases) {
        let Accepted { number, kernel, .. } = found;
        assert!(kernel.partitions.iter().any(|of| of.name == "slabs"));
        looked_at += 1;
        match random::warps(&kernel) {
            Warps::Right(_) => have += 1,
            Warps::Refused(found) => {
                let first = found.first();
                assert!(first.at.is_some(), "case {number}: {found}");
                *rules.entry(random::rule(&first.message)).or_default() += 1;
            }
            Warps::Wrong(found) => panic!("case {number} has wrong warps: {found}"),
        }
    }
    println!(
        "{have} of {looked_at} accepted gathers in slabs have warps; of the others: {rules:#?}"
    );
    assert!(
        have * 10 >= looked_at * 6,
        "{have} of {looked_at}: {rules:#?}"
    );
}

/// A wait less, and another slab's place: either is found in the warps.
#[test]
fn a_slab_that_is_not_waited_for_or_sent_elsewhere_is_found() {
    let pipeline = || {
        let program = gathered(Way::Push, Counted::Each, (128, 256));
        let kernel = lower(&program, &Variant::new(3)).and_then(verify::kernel);
        sm90::build(&kernel.expect("a kernel")).expect("a pipeline")
    };
    let mut waits = pipeline();
    waits.lists(&mut |list| {
        for node in list {
            if let Node::For { var, to, .. } = node
                && var == "slab"
            {
                *to = to.clone() - 1;
            }
        }
    });
    insta::assert_snapshot!(said(waits), @"
    error[race]: load of block 2 on rank 0 loads rows 0..128, columns 256..320 of x (shard or slot 1) on rank 0 into x of stage 1 for tile (0, 0)
      = not everything that the schedule orders before it came before it
      = conflicting accesses of 0 elements came before it in its launch, where 8192 should
      help: wait for everything that the schedule waits for, in this thread or in one that it waits for
    ");
    let mut moved = pipeline();
    let x = moved.maps.iter().map(|map| map.name.starts_with('x'));
    let x: Vec<bool> = x.collect();
    moved.lists(&mut |list| {
        for node in list {
            if let Node::Store { at, map, .. } = node
                && x[usize::from(map.0)]
            {
                at.column = at.column.clone() + 64;
            }
        }
    });
    insta::assert_snapshot!(said(moved), @"
    error[coverage]: store of block 0 on rank 0 stores staging buffer 0 to rows 0..128, columns 64..128 of x (shard or slot 0) on rank 2 for tile (0, 0)
      = the box holds other rows or columns
    ");
}

fn said(pipeline: Pipeline) -> String {
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

fn refused(program: &Program, variant: &Variant) -> String {
    let found = warps(program, variant).expect_err("refused");
    let first = found.first();
    assert!(
        first.at.is_some_and(|at| at.file().ends_with("slabs.rs")),
        "{found}"
    );
    first.text(&|_| String::new())
}

#[test]
fn a_slab_is_whole_boxes() {
    insta::assert_snapshot!(refused(&gathered(Way::Push, Counted::Each, (128, 96)), &Variant::new(2)), @"
    error[resources]: slabs of 96 columns, in boxes of 64
      help: a multiple of 64 columns
    ");
    insta::assert_snapshot!(refused(&gathered_as(E4M3, (128, 64)), &Variant::new(2)), @"
    error[resources]: slabs of 64 columns, in boxes of 128
      help: a multiple of 128 columns
    ");
}

/// Scales travel with all columns of their rows: not with a slab, but by themselves.
#[test]
fn scales_do_not_travel_with_slabs() {
    for scales in [Scales::PerRow, Scales::Blocks1d2d] {
        let variant = Variant::new(2).dtype(E4M3).scales(scales);
        let program = gathered(Way::Push, Counted::Each, (128, 256));
        let found = lower(&program, &variant).expect_err("refused");
        insta::allow_duplicates! {
            insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
            error[language]: slabs of columns, with which `x.scale` would have to travel
              help: the elements in slabs, `.data()[c]`, and the scales in chunks of whole rows, `.scales()[c]`
            ");
        }
        let apart = warps(&scales_apart((128, 256)), &variant);
        apart.unwrap_or_else(|error| panic!("{}: {error}", scales.name()));
    }
}

#[test]
fn the_text_says_where_a_slab_is() {
    let program = gathered(Way::Push, Counted::Each, (128, 256));
    let pipeline = warps(&program, &Variant::new(2)).expect("warps");
    insta::assert_snapshot!(moved(&pipeline.text()), @"
    load: one thread of warp 0
      # The first CTAs move data before they take items of the GEMM.
      if cta < COMM_CTAS
        tile scheduler over the CTAs that move data
        if cta == 0
          # signal ready_x.on(peer)[me] += 1 (credit: my x may be touched)
          for peer_step in 0..(world - 1), peer = (me + 1 + peer_step) % world
            signal ready_x.on(peer)[me] += 1
        for peer_step in 0..(world - 1), peer = (me + world - 1 - peer_step) % world
          c_rows = ceil_div(rows(me), CHUNK)
          c_columns = ceil_div(k, 256)
          slabs = c_rows * c_columns
          for item in my share of slabs
            c = row_major of c_rows×c_columns at item
            # x.on(peer)[c] = x[c]
            for i in 0..4
              await staging.empty of the previous phase
              expect STAGING_BYTES at staging.full
              load staging <- x{c.column * 256 + i * STAGING_N, c.row * CHUNK, me, me}
              next staging
        # All staging buffers were sent: stages and subtiles may lie over them.
        for i in 0..STAGING_SLOTS
          await staging.empty of the previous phase
          next staging
    …
              # wait arrived[t.rows]
              for slab in 0..ceil_div(k, 256)
                arrived_cell = (shard * slabs_m + t.row * TILE_M / CHUNK) * ceil_div(k, 256) + slab
                wait arrived[arrived_cell]
              fence global memory for TMA
            expect x_rows * TILE_K * 2 + w_rows * TILE_K * 2 at stage.full
    …
    store: one thread of warp 1
      # The first CTAs move data before they take items of the GEMM.
      if cta < COMM_CTAS
        tile scheduler over the CTAs that move data
        for peer_step in 0..(world - 1), peer = (me + world - 1 - peer_step) % world
          c_rows = ceil_div(rows(me), CHUNK)
          c_columns = ceil_div(k, 256)
          slabs = c_rows * c_columns
          # Without items here there is nothing to wait for.
          if item < slabs
            # wait ready_x[peer] (credit: its x may be touched)
            wait ready_x[peer]
            fence global memory for TMA
          for item in my share of slabs
            c = row_major of c_rows×c_columns at item
            # x.on(peer)[c] = x[c]
            for i in 0..4
              await staging.full
              store staging -> x{c.column * 256 + i * STAGING_N, c.row * CHUNK, me, peer}
              commit stores
              next staging
              await reads of all but SENDING stores
              release all but SENDING of staging
            await all but 4 stores
            signal what is remembered, += 1
            # signal arrived.on(peer)[c] += 1
            arrived_cell = (me * slabs_m + c.row) * ceil_div(k, 256) + c.column
            remember to signal arrived.on(peer)[arrived_cell] += 1
          # Nothing stays unsignalled across a wait for the next peer.
          await all but 0 stores
          signal what is remembered, += 1
        # All stores are complete: the last staging buffers are released.
        release all but 0 of staging
    ");
}

/// What a pipeline's text says of how slabs move, and of how a tile waits for them.
fn moved(text: &str) -> String {
    let part = |from: &str, to: &str| {
        let start = text.find(from).expect(from);
        let rest = &text[start..];
        let end = rest.find(to).expect(to);
        rest[..end].trim_end().to_string()
    };
    let move_no_data = "  tile scheduler over the CTAs that move no data";
    [
        part("load: one thread", move_no_data),
        part("          # wait arrived[t.rows]", "        load stage.x"),
        part("store: one thread", move_no_data),
    ]
    .join("\n…\n")
}

#[test]
fn products_that_wait_slab_by_slab_have_right_warps_whoever_moves_the_slabs() {
    for (at, way) in WAYS.into_iter().enumerate() {
        for world in in_turn([1, 2, 4, 8], at) {
            let program = by_slab(way, (128, 256));
            let pipeline = warps(&program, &Variant::new(world))
                .unwrap_or_else(|error| panic!("{}, {world} ranks: {error}", program.name));
            names_stand_once(&pipeline);
        }
    }
    for (dtype, slab) in [
        (Bf16, (128, 64)),
        (Bf16, (256, 1088)),
        (F16, (64, 192)),
        (E4M3, (128, 256)),
    ] {
        let program = by_slab_of(Way::Push, slab, dtype, Mistake::None);
        warps(&program, &Variant::new(2))
            .unwrap_or_else(|error| panic!("{dtype}, {slab:?}: {error}"));
    }
}

/// Each setting of a GEMM in a kernel that signals, two products of an item, a weight in slabs, and tiles across shards.
#[test]
fn products_of_any_setting_wait_slab_by_slab() {
    let halves = Variant::new(2).set("tiles", (128, 128));
    let plain = || tuned_by_slab((128, 256));
    for (program, variant) in [
        (plain(), halves.clone()),
        (plain(), halves.clone().set("gemm.ping_pong", 1)),
        (plain(), Variant::new(2).constant("w")),
        (gated_by_slab((128, 256)), halves),
        (weights_by_slab((128, 256)), Variant::new(2)),
        (across_by_slab((128, 256)), Variant::new(2)),
    ] {
        let found = warps(&program, &variant);
        found.unwrap_or_else(|error| panic!("{}, {variant:?}: {error}", program.name));
    }
}

#[test]
fn the_text_says_at_which_step_a_slab_is_awaited() {
    let pipeline = warps(&by_slab(Way::Push, (128, 256)), &Variant::new(2)).expect("warps");
    let text = pipeline.text();
    let start = text.find("        if step % ").expect("a step");
    let end = text[start..].find("        next stage").expect("an end");
    insta::assert_snapshot!(&text[start..start + end], @"
    if step % (256 / TILE_K) == 0
      slab = step / (256 / TILE_K)
      # wait arrived[t.rows] slab by slab
      arrived_cell = (shard * slabs_m + t.row * TILE_M / CHUNK) * ceil_div(k, 256) + slab
      wait arrived[arrived_cell]
      fence global memory for TMA
    expect x_rows * TILE_K * 2 + w_rows * TILE_K * 2 at stage.full
    load stage.x <- x{step * TILE_K, t.row * TILE_M, shard, me}, or by partial boxes x_rows of its TILE_M rows
    ");
}

/// Each way to get it wrong in the warps: the slab before, after the load, once a tile, and not at all.
#[test]
fn a_wait_for_another_slab_or_at_another_step_is_found() {
    let pipeline = || {
        let program = by_slab(Way::Push, (128, 128));
        let kernel = lower(&program, &Variant::new(3)).and_then(verify::kernel);
        sm90::build(&kernel.expect("a kernel")).expect("a pipeline")
    };
    let is_slab = |node: &Node| matches!(node, Node::If { body, .. } if body.iter().any(|node| matches!(node, Node::Let { name, .. } if name == "slab")));
    let wrong = |edit: &dyn Fn(&mut Vec<Node>, usize)| {
        let (mut wrong, mut edited) = (pipeline(), 0);
        wrong.lists(&mut |list| {
            if let Some(at) = list.iter().position(is_slab) {
                edit(list, at);
                edited += 1;
            }
        });
        assert!(edited > 0);
        said(wrong)
    };
    let first = wrong(&|list, at| {
        if let Node::If { body, .. } = &mut list[at]
            && let Some(Node::Let { value, .. }) = body.first_mut()
        {
            *value = 0.into();
        }
    });
    insta::assert_snapshot!(first, @"
    error[race]: load of block 2 on rank 0 loads rows 0..128, columns 128..192 of x (shard or slot 1) on rank 0 into x of stage 0 for tile (0, 0)
      = store of block 1 on rank 1 stores staging buffer 0 to rows 0..128, columns 128..192 of x (shard or slot 1) on rank 0 for tile (0, 1)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    let late = wrong(&|list, at| {
        let wait = list.remove(at);
        let next = list
            .iter()
            .position(|node| matches!(node, Node::Advance { .. }));
        list.insert(next.expect("the next stage"), wait);
    });
    insta::assert_snapshot!(late, @"
    error[race]: load of block 2 on rank 0 loads rows 0..128, columns 0..64 of x (shard or slot 1) on rank 0 into x of stage 1 for tile (0, 0)
      = not everything that the schedule orders before it came before it
      = conflicting accesses of 0 elements came before it in its launch, where 8192 should
      help: wait for everything that the schedule waits for, in this thread or in one that it waits for
    ");
    let once = wrong(&|list, at| {
        if let Node::If { test, .. } = &mut list[at] {
            *test = Test::Equal(Expr::var("step"), 0.into());
        }
    });
    insta::assert_snapshot!(once, @"
    error[race]: load of block 2 on rank 0 loads rows 0..128, columns 128..192 of x (shard or slot 1) on rank 0 into x of stage 0 for tile (0, 0)
      = not everything that the schedule orders before it came before it
      = conflicting accesses of 0 elements came before it in its launch, where 8192 should
      help: wait for everything that the schedule waits for, in this thread or in one that it waits for
    ");
    let never = wrong(&|list, at| drop(list.remove(at)));
    insta::assert_snapshot!(never, @"
    error[race]: load of block 2 on rank 0 loads rows 0..128, columns 0..64 of x (shard or slot 1) on rank 0 into x of stage 1 for tile (0, 0)
      = not everything that the schedule orders before it came before it
      = conflicting accesses of 0 elements came before it in its launch, where 8192 should
      help: wait for everything that the schedule waits for, in this thread or in one that it waits for
    ");
}

/// A wait stands before a step: slabs that copies move, and no boxes, are whole steps, too.
#[test]
fn slabs_that_are_waited_for_are_whole_steps() {
    insta::assert_snapshot!(refused(&by_slab(Way::CopyEngine, (128, 96)), &Variant::new(2)), @"
    error[resources]: a wait for slabs of 96 columns, in K steps of 64
      help: a multiple of 64 columns
    ");
    let found = by_slab_of(Way::CopyEngine, (128, 64), E4M3, Mistake::None);
    insta::assert_snapshot!(refused(&found, &Variant::new(2)), @"
    error[resources]: a wait for slabs of 64 columns, in K steps of 128
      help: a multiple of 128 columns
    ");
    for slab in [(128, 128), (128, 512)] {
        let program = by_slab(Way::CopyEngine, slab);
        warps(&program, &Variant::new(2)).unwrap_or_else(|error| panic!("{slab:?}: {error}"));
    }
}

#[test]
fn scales_apart_are_awaited_before_the_first_slab() {
    for scales in [Scales::PerRow, Scales::Blocks1d2d] {
        let variant = Variant::new(2).dtype(E4M3).scales(scales);
        let apart = warps(&scales_apart_by_slab((128, 256)), &variant);
        apart.unwrap_or_else(|error| panic!("{}: {error}", scales.name()));
    }
}

/// Products of one item that wait for slabs of two widths, one behind the other.
#[test]
fn products_of_an_item_wait_for_slabs_of_one_width() {
    let program = of_two_widths([(128, 128), (128, 256)]);
    insta::assert_snapshot!(refused(&program, &Variant::new(2).set("tiles", (128, 128))), @"
    error[resources]: slabs of 128 and of 256 columns in one item
      help: slabs of one width, or a loop for each product
    ");
}

/// An item may be called what the text calls a slab.
#[test]
fn a_tile_may_be_called_slab() {
    let variant = Variant::new(2).set("tiles", (128, 128));
    let pipeline = warps(&called("slab", (128, 256)), &variant).expect("warps");
    let text = cuda::emit(&pipeline).text;
    let mut tiles = text.lines().filter(|line| line.contains("const Tile slab"));
    assert!(
        tiles.clone().count() > 0 && tiles.all(|line| line.contains("slab_ =")),
        "{text}"
    );
}
