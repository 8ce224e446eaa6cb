//! Slabs of rows and K that warps move: boxes of a slab's own columns, cells by rows and slabs, and their text.

use crate::fixtures::slabs::{Counted, WAYS, Way, gathered, gathered_as};
use crate::reach::names_stand_once;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{E4M3, F16};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_codegen::verify::Checked;
use counterflow_codegen::warp::Pipeline;

fn warps(program: &Program, variant: &Variant) -> Result<Checked<Pipeline>, Diagnostics> {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", program.name));
    verify::warps(&kernel)
}

#[test]
fn slabs_have_right_warps_whoever_moves_them() {
    for way in WAYS {
        for counted in [Counted::Each, Counted::ByRows] {
            let program = gathered(way, counted, (128, 256));
            for world in [1, 2, 4, 8] {
                let pipeline = warps(&program, &Variant::new(world))
                    .unwrap_or_else(|error| panic!("{}, {world} ranks: {error}", program.name));
                names_stand_once(&pipeline);
            }
        }
    }
}

/// One box, as many as a batch has, a number that no batch has, and two batches; rows other than a tile's.
#[test]
fn slabs_of_any_boxes_have_right_warps() {
    for slab in [(128, 64), (64, 192), (128, 1024), (256, 1088), (128, 2048)] {
        let program = gathered(Way::Push, Counted::Each, slab);
        warps(&program, &Variant::new(2)).unwrap_or_else(|error| panic!("{slab:?}: {error}"));
    }
    for (dtype, slab) in [(F16, (128, 192)), (E4M3, (128, 256))] {
        let program = gathered_as(dtype, slab);
        warps(&program, &Variant::new(2)).unwrap_or_else(|error| panic!("{dtype}: {error}"));
    }
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
          c_rows = ceil_div(rows(me), PIECE)
          c_columns = ceil_div(k, 256)
          slabs = c_rows * c_columns
          for item in my share of slabs
            c = row_major of c_rows×c_columns at item
            # x.on(peer)[c] = x[c]
            for i in 0..4
              await staging.empty of the previous phase
              expect STAGING_BYTES at staging.full
              load staging <- x{c.column * 256 + i * STAGING_N, c.row * PIECE, me, me}
              next staging
        # All staging buffers were sent: stages and subtiles may lie over them.
        for i in 0..STAGING_SLOTS
          await staging.empty of the previous phase
          next staging
    …
              # wait arrived[t.rows]
              for slab in 0..ceil_div(k, 256)
                arrived_cell = (chunk * slabs_m + t.row * TILE_M / PIECE) * ceil_div(k, 256) + slab
                wait arrived[arrived_cell]
              fence global memory for TMA
    …
    store: one thread of warp 1
      # The first CTAs move data before they take items of the GEMM.
      if cta < COMM_CTAS
        tile scheduler over the CTAs that move data
        for peer_step in 0..(world - 1), peer = (me + world - 1 - peer_step) % world
          c_rows = ceil_div(rows(me), PIECE)
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
              store staging -> x{c.column * 256 + i * STAGING_N, c.row * PIECE, me, peer}
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
