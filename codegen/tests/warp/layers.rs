//! Several loops over tiles, each with operands and sizes of its own: what a stage holds, what each loop counts, and what the
//! verifier says of a second layer that does not wait for the first.

use crate::fixtures::left_out::unnoticed;
use crate::fixtures::strangers;
use crate::fixtures::wide::{in_turn, sampled};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Expr, Node, Pipeline};
use counterflow_emitter as cuda;

fn built(program: &Program, layout: Layout) -> Result<Pipeline, String> {
    let kernel = lower(program, &Variant::new(3).layout(layout)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    sm90::build(&kernel).map_err(|error| error.first().text(&|_| String::new()))
}

fn good() -> Pipeline {
    built(&strangers::two_layers(), Layout::Nt).unwrap_or_else(|error| panic!("{error}"))
}

/// What the verifier says of a pipeline of which one thing was changed.
fn verdict(mut pipeline: Pipeline, mut change: impl FnMut(&mut Pipeline, &mut bool)) -> String {
    let mut done = false;
    change(&mut pipeline, &mut done);
    assert!(done, "nothing to change");
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// The same of the last of the nodes that `change` changes.
fn last(pipeline: &mut Pipeline, done: &mut bool, mut change: impl FnMut(&mut Node) -> bool) {
    let mut count = 0;
    pipeline
        .clone()
        .lists(&mut |list| count += list.iter_mut().map(&mut change).filter(|it| *it).count());
    pipeline.lists(&mut |list| {
        for node in list {
            let mut changed = node.clone();
            if change(&mut changed) {
                count -= 1;
                if count == 0 {
                    (*node, *done) = (changed, true);
                }
            }
        }
    });
}

/// Both layers' operands lie in the same places, and neither loop keeps what only the other one counts.
#[test]
fn layers_share_their_stages() {
    let pipeline = good();
    let stages = pipeline.rings[0].buffer.as_ref().expect("stages");
    let parts: Vec<_> = (stages.parts.iter())
        .map(|part| (part.name.as_str(), part.at, part.bytes))
        .collect();
    let at = 16384 * pipeline.cta.stages();
    assert_eq!(
        parts,
        [
            ("x", 0, 16384),
            ("up", at, 32768),
            ("hidden", 0, 16384),
            ("down", at, 32768)
        ]
    );
    assert_eq!(stages.operands, [[0, 1], [2, 3]]);
    assert_eq!(pipeline.lets, []);
    let checked = verify::pipeline(pipeline).unwrap_or_else(|found| panic!("{found}"));
    let text = cuda::emit(&checked).text;
    let multiply = text.find("// multiply").expect("who multiplies");
    insta::assert_snapshot!(&text[multiply..]);
}

/// But for the last wait for stores, which have been signalled, and what brings a CTA's warps together at the end.
/// Loops of one product and of two: with columns on the instruction's M side, too, and where one instruction has no room for
/// two products.
#[test]
fn layers_of_one_product_and_of_two() {
    let programs = [strangers::gated_layers(), strangers::gated_at_the_end()];
    for (at, program) in programs.into_iter().enumerate() {
        let some = [((128, 128), 128), ((128, 96), 128)];
        let others = [((256, 64), 256), ((104, 128), 104)];
        for (tile, rows) in in_turn([some, others], at).flatten() {
            let variant = Variant::new(3).set("tiles", tile).set("rows", rows);
            let kernel = lower(&program, &variant).and_then(verify::kernel);
            let pipeline = kernel.and_then(|kernel| sm90::build(&kernel));
            let checked = pipeline.and_then(verify::pipeline);
            checked.unwrap_or_else(|found| panic!("{} {tile:?}: {found}", program.name));
        }
    }
}

/// One tensor of two loops, whose tiles of either width have as many bytes.
#[test]
fn a_tensor_in_loops_of_two_widths_has_a_name_for_each() {
    let mut s = ScheduleBuilder::new("shared");
    let (x, z, w) = (s.local("x", Bf16), s.local("z", Bf16), s.local("w", Bf16));
    let (y, u) = (s.out("y", Bf16), s.out("u", Bf16));
    let narrow = s.tiles("narrow", y, (128, 80));
    let wide = s.tiles("wide", u, (128, 96));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", narrow.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
        s.for_items("t", wide.all(), |s, t| {
            let product = s.dot(z.at(t), w.at(t));
            s.store(u.at(t), product);
        });
    });
    let kernel = lower(&s.finish(), &Variant::new(1).layout(Layout::Nn)).and_then(verify::kernel);
    let pipeline = kernel
        .and_then(|kernel| sm90::build(&kernel))
        .and_then(verify::pipeline);
    let text = cuda::emit(&pipeline.unwrap_or_else(|found| panic!("{found}"))).text;
    let widths = text.lines().find(|line| line.contains("_TILE_N = "));
    insta::assert_snapshot!(widths.expect("widths"), @"constexpr u32 TILE_M = 128, W_TILE_N = 80, W__TILE_N = 96, TILE_K = 64;");
}

/// Tiles of several widths have stages as large as the widest needs, and subtiles that divide all of them.
#[test]
fn layers_of_several_widths() {
    let built = |first: (u32, u32), last, rows, layout| {
        let variant = Variant::new(3).layout(layout).set("rows", rows);
        let variant = variant.set("first_tiles", first).set("last_tiles", last);
        let kernel = lower(&strangers::layers_of_two_widths(), &variant).and_then(verify::kernel);
        let pipeline = kernel.and_then(|kernel| sm90::build(&kernel));
        pipeline.unwrap_or_else(|found| panic!("{first:?} {last:?}: {found}"))
    };
    let sizes = [
        ((128, 128), (128, 256), 128),
        ((128, 128), (128, 64), 128),
        ((128, 96), (128, 192), 128),
        ((128, 80), (128, 256), 128),
        ((128, 80), (128, 64), 128),
        ((256, 64), (256, 128), 256),
        ((256, 64), (128, 256), 256),
        ((256, 64), (128, 192), 128),
        ((128, 128), (256, 128), 128),
        ((128, 96), (256, 128), 256),
    ];
    let cases = [Layout::Nt, Layout::Nn].map(|layout| sizes.map(|sizes| (sizes, layout)));
    for ((first, last, rows), layout) in sampled(cases.into_iter().flatten(), 11) {
        let checked = verify::pipeline(built(first, last, rows, layout));
        checked.unwrap_or_else(|found| panic!("{first:?} {last:?} {layout:?}: {found}"));
    }
    let pipeline = built((128, 96), (128, 256), 128, Layout::Nt);
    let stages = pipeline.rings[0].buffer.as_ref().expect("stages");
    let parts: Vec<_> = (stages.parts.iter())
        .map(|part| (part.name.as_str(), part.bytes, part.stride))
        .collect();
    assert_eq!(
        parts,
        [
            ("x", 16384, 16384),
            ("gate", 12288, 32768),
            ("up", 12288, 32768),
            ("hidden", 16384, 16384),
            ("down", 32768, 32768)
        ]
    );
    assert_eq!(stages.slot_bytes, 49152);
    let widths = pipeline.cta.tilings().iter();
    let widths: Vec<_> = widths
        .map(|tiling| (tiling.tile().columns, tiling.subtile().columns))
        .collect();
    assert_eq!(widths, [(96, 32), (256, 32), (256, 32)]);
    let checked = verify::pipeline(pipeline).unwrap_or_else(|found| panic!("{found}"));
    let text = cuda::emit(&checked).text;
    let multiply = text.find("// multiply").expect("who multiplies");
    let own = |line: &&str| line.contains("_TILE_N");
    let constants = text.lines().take_while(|line| !line.contains("Plan"));
    let lines = constants.chain(text[multiply..].lines()).filter(own);
    insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"), @"
    constexpr u32 TILE_M = 128, GATE_TILE_N = 96, DOWN_TILE_N = 256, TILE_K = 64;
            const u32 first_tiles_n = ceil_div(plan.n, GATE_TILE_N);
            const u32 last_tiles_n = ceil_div(plan.y_columns, DOWN_TILE_N);
                    float acc[2 * GATE_TILE_N / 2];  // this thread's of 64 rows, product after product
                            wgmma_m64k16<2 * GATE_TILE_N>(acc, xs + k * WGMMA_K_STEP, gates + k * WGMMA_K_STEP,
                    for (u32 part = 0; part < GATE_TILE_N / SUBTILE_N; ++part) {
                                acc[GATE_TILE_N / 2 + part * SUBTILE_N / 2 + i]);
                    float acc[DOWN_TILE_N / 2];  // this thread's of 64 rows
                            wgmma_m64k16<DOWN_TILE_N>(acc, hiddens + k * WGMMA_K_STEP, downs + k * WGMMA_K_STEP,
                    for (u32 part = 0; part < DOWN_TILE_N / SUBTILE_N; ++part) {
                float acc[DOWN_TILE_N / 2];  // this thread's of 64 rows
                        wgmma_m64k16<DOWN_TILE_N>(acc, hiddens + k * WGMMA_K_STEP, downs + k * WGMMA_K_STEP, step + k != 0,
                for (u32 part = 0; part < DOWN_TILE_N / SUBTILE_N; ++part) {
    ");
}

#[test]
fn nothing_of_it_can_be_left_out() {
    insta::assert_snapshot!(unnoticed(good), @"AwaitStores, SyncCta");
}

#[test]
fn a_second_layer_whose_wait_is_left_out() {
    insta::assert_snapshot!(verdict(good(), |pipeline, done| last(pipeline, done, |node| match node {
        Node::CounterWait { .. } => {
            *node = Node::SyncWarp;
            true
        }
        _ => false,
    })), @"
    error[race]: load of block 0 on rank 0 loads rows 0..128, columns 256..264 of hidden (shard or slot 0) on rank 0 into hidden of stage 0 for tile (0, 0)
      = store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 256..264 of hidden (shard or slot 0) on rank 0 for tile (0, 1)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

/// What TMA loads was stored by TMA, of whatever CTA: the counter alone does not order them.
#[test]
fn a_second_layer_without_a_proxy_fence() {
    insta::assert_snapshot!(verdict(good(), |pipeline, done| last(pipeline, done, |node| match node {
        Node::FenceGlobal => {
            *node = Node::SyncWarp;
            true
        }
        _ => false,
    })), @"
    error[race]: load of block 0 on rank 0 loads rows 0..128, columns 256..264 of hidden (shard or slot 0) on rank 0 into hidden of stage 0 for tile (0, 0)
      = store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 256..264 of hidden (shard or slot 0) on rank 0 for tile (0, 1)
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_global` after the wait on a counter, before TMA touches the data
    ");
}

/// Who multiplies counts one step more than its layer has.
#[test]
fn a_layer_that_counts_too_many_steps() {
    let steps = |name: &str| name == "hidden_steps";
    insta::assert_snapshot!(verdict(good(), |pipeline, done| last(pipeline, done, |node| match node {
        Node::Let { name, value } if steps(name) => {
            *value = value.clone() + 1;
            true
        }
        _ => false,
    })), @"
    error[coverage]: multiply of block 0 on rank 0 multiplies hidden of stage 1 by down of stage 1
      = its operands are not the next of its tile's along K
    ");
}

/// The second layer multiplies by the weights of the first.
#[test]
fn a_layer_that_loads_the_weights_of_the_other() {
    insta::assert_snapshot!(verdict(good(), |pipeline, done| {
        let maps = pipeline.maps.clone();
        let named = |wanted: &str| maps.iter().position(|map| map.name == wanted).expect("a map") as u16;
        let (down, up) = (named("down"), named("up"));
        last(pipeline, done, |node| match node {
            Node::Load { map, partial_boxes, .. } if map.0 == down => {
                (map.0, *partial_boxes) = (up, None);
                true
            }
            _ => false,
        });
    }), @"
    error[coverage]: multiply of block 0 on rank 0 multiplies hidden of stage 2 by down of stage 2
      = a stage does not hold one tile of each operand
    ");
}

/// The signal of a layer comes before its stores are complete.
#[test]
fn a_layer_that_signals_too_early() {
    insta::assert_snapshot!(verdict(good(), |pipeline, done| {
        let mut first = true;
        pipeline.lists(&mut |list| {
            for node in list {
                if let Node::AwaitStores { pending } = node
                    && std::mem::take(&mut first)
                {
                    (*pending, *done) = (Expr::from(64), true);
                }
            }
        });
    }), @"
    error[race]: load of block 0 on rank 0 loads rows 512..544, columns 0..64 of hidden (shard or slot 0) on rank 0 into hidden of stage 2 for tile (4, 0)
      = store of block 0 on rank 0 stores subtile 0 to rows 512..574, columns 0..64 of hidden (shard or slot 0) on rank 0 for tile (4, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

/// Two products of one tensor and a loop without any, whose tiles are as those of the second.
fn of_two_widths(options: GemmOptions, [first, second]: [(u32, u32); 2], more: bool) -> Program {
    let mut s = ScheduleBuilder::new("of_two_widths");
    let [x, w, v] = ["x", "w", "v"].map(|name| s.local(name, Bf16));
    let [y, u] = ["y", "u"].map(|name| s.out(name, Bf16));
    let tiles = [("tiles", y, first), ("others", u, second)];
    let tiles = tiles.map(|(name, of, shape)| s.tiles(name, of, shape));
    let added = more.then(|| (s.local("z", Bf16), s.out("r", Bf16)));
    let third = added.map(|(_, r)| s.tiles("third", r, second));
    s.gemm(options, |s| {
        for ((w, y), tiles) in [(w, y), (v, u)].into_iter().zip(tiles) {
            s.for_items("t", tiles.all(), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        }
        for ((z, r), third) in added.into_iter().zip(third) {
            s.for_items("t", third.all(), |s, t| {
                let read = s.load(z.at(t));
                s.store(r.at(t), read.gelu());
            });
        }
    });
    s.finish()
}

/// A stage of the narrow loop waits for as many bytes as it has room for, which are the wide one's: they never come.
#[test]
fn a_narrow_loop_that_expects_the_bytes_of_a_wide_one() {
    let program = of_two_widths(GemmOptions::default(), [(128, 256), (128, 128)], false);
    let good = built(&program, Layout::Nt).unwrap_or_else(|error| panic!("{error}"));
    insta::assert_snapshot!(verdict(good, |pipeline, done| last(pipeline, done, |node| match node {
        Node::Expect { bytes, .. } => {
            *bytes = bytes.clone() + 128 * 64 * 2;
            true
        }
        _ => false,
    })), @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (0, 0), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (0, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = multiply of block 0 on rank 0 waits for a stage to be full
      = multiply of block 0 on rank 0 waits for a stage to be full
      = load of block 1 on rank 0 waits for a stage to be empty for tile (0, 1)
    ");
}

/// Tiles of other rows: a subtile of each loop has its own rows and the columns of all, and each has a number of blocks.
#[test]
fn layers_of_other_rows() {
    let variant = Variant::new(3)
        .set("first_tiles", (256, 64))
        .set("rows", 256);
    let variant = variant.set("last_tiles", (128, 256));
    let kernel = lower(&strangers::layers_of_two_widths(), &variant).and_then(verify::kernel);
    let pipeline = kernel.and_then(|kernel| sm90::build(&kernel));
    let pipeline = pipeline.unwrap_or_else(|found| panic!("{found}"));
    let stages = pipeline.rings[0].buffer.as_ref().expect("stages");
    let parts: Vec<_> = (stages.parts.iter())
        .map(|part| (part.name.as_str(), part.bytes, part.stride))
        .collect();
    assert_eq!(
        parts,
        [
            ("x", 32768, 32768),
            ("gate", 8192, 32768),
            ("up", 8192, 32768),
            ("hidden", 16384, 32768),
            ("down", 32768, 32768)
        ]
    );
    let subtiles = pipeline.cta.tilings().iter().map(|tiling| tiling.subtile());
    let subtiles: Vec<_> = subtiles.map(|it| (it.rows, it.columns)).collect();
    // A sum that is apart leaves two blocks of a product with 64 columns, twice, registers for 32 columns.
    assert_eq!(subtiles, [(256, 32), (128, 32), (128, 32)]);
    let room = pipeline.rings[1].buffer.as_ref().expect("subtiles");
    assert_eq!(room.slot_bytes, 256 * 32 * 2);
    let checked = verify::pipeline(pipeline).unwrap_or_else(|found| panic!("{found}"));
    let text = cuda::emit(&checked).text;
    let own = ["TILE_M = ", "BLOCKS = ", "first_row ="];
    let own = |line: &&str| own.iter().any(|word| line.contains(word));
    insta::assert_snapshot!(text.lines().filter(own).collect::<Vec<_>>().join("\n"), @"
    constexpr u32 GATE_TILE_M = 256, DOWN_TILE_M = 128, GATE_TILE_N = 64, DOWN_TILE_N = 256, TILE_K = 64;
    constexpr u32 GATE_BLOCKS = 2;  // of 64 rows, which a consumer multiplies
                    const u32 first_row = consumer * GATE_BLOCKS * 64 + warp % 4 * 16;  // of this warp's 16 in a tile
                    const u32 first_row = consumer * 64 + warp % 4 * 16;  // of this warp's 16 in a tile
                const u32 first_row = consumer * 64 + warp % 4 * 16;  // of this warp's 16 in a tile
    ");
}

/// The rows of a tile are those of its own loop: of the other one's a box would store into a neighbour's.
#[test]
fn a_low_loop_that_stores_the_boxes_of_a_tall_one() {
    let program = of_two_widths(GemmOptions::default(), [(128, 128), (256, 128)], false);
    let good = built(&program, Layout::Nt).unwrap_or_else(|error| panic!("{error}"));
    insta::assert_snapshot!(verdict(good, |pipeline, done| {
        for map in &mut pipeline.maps {
            if map.name == "y" {
                (map.box_rows, *done) = (256, true);
            }
        }
    }), @"
    error[race]: store of block 0 on rank 0 stores subtile 0 to rows 128..384, columns 0..64 of y (shard or slot 0) on rank 0 for tile (1, 0)
      = store of block 0 on rank 0 stores subtile 0 to rows 0..256, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

/// In clusters, in ping-pong, and beside loops without a product.
#[test]
fn loops_of_two_widths_of_every_sort() {
    let options = |ping_pong: bool, cluster: (u32, u32)| GemmOptions {
        ping_pong: Some(Tune::from(ping_pong)),
        cluster: Some(Tune::from(cluster)),
        ..GemmOptions::default()
    };
    let cases = [
        (options(true, (1, 1)), [(128, 96), (128, 160)], false),
        (options(true, (1, 1)), [(64, 256), (64, 48)], false),
        (options(false, (2, 1)), [(128, 96), (128, 256)], false),
        (options(false, (1, 2)), [(128, 256), (128, 64)], false),
        (options(false, (1, 1)), [(128, 64), (128, 256)], true),
        (options(false, (1, 1)), [(256, 128), (256, 48)], true),
        (options(true, (1, 1)), [(128, 96), (64, 256)], false),
        (options(true, (1, 1)), [(64, 48), (128, 160)], false),
        (options(false, (2, 1)), [(256, 128), (128, 256)], false),
        (options(false, (1, 2)), [(128, 256), (256, 64)], false),
        (options(false, (1, 1)), [(256, 128), (128, 256)], true),
        (options(false, (1, 1)), [(128, 48), (256, 128)], true),
    ];
    for (at, (options, tiles, more)) in cases.into_iter().enumerate() {
        for layout in in_turn([Layout::Nt, Layout::Nn, Layout::Tn], at) {
            let program = of_two_widths(options.clone(), tiles, more);
            let pipeline = built(&program, layout);
            let pipeline = pipeline.unwrap_or_else(|found| panic!("{tiles:?} {layout:?}: {found}"));
            let checked = verify::pipeline(pipeline);
            checked.unwrap_or_else(|found| panic!("{tiles:?} {layout:?}: {found}"));
        }
    }
}

pub fn refused(program: &Program, layout: Layout) -> String {
    match built(program, layout) {
        Ok(_) => "accepted".into(),
        Err(error) => error,
    }
}

/// A layer is stored by rows: in layout tn, the next one would read it by columns.
#[test]
fn a_layer_that_is_read_by_columns() {
    insta::assert_snapshot!(refused(&strangers::two_layers(), Layout::Tn), @"
    error[resources]: tiles of `hidden`, which layout tn has by columns
      help: a layout in which the operand that is stored has rows: nt, or nn for the first one
    ");
    let pipeline =
        built(&strangers::two_layers(), Layout::Nn).unwrap_or_else(|error| panic!("{error}"));
    verify::pipeline(pipeline).unwrap_or_else(|error| panic!("{error}"));
}

/// Scratch has the shape of what is stored in it, and that is some parameter's.
#[test]
fn scratch_of_which_nothing_says_the_shape() {
    let mut s = ScheduleBuilder::new("unshaped");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let hidden = s.scratch("hidden", Bf16);
    let tiles = s.tiles("tiles", y, (128, 256));
    let others = s.tiles_like("others", hidden, tiles);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
        s.for_items("t", others.all(), |s, t| {
            let read = s.load(hidden.at(t));
            s.store(hidden.at(t), read);
        });
    });
    let found = lower(&s.finish(), &Variant::new(3)).expect_err("refused");
    let at = found.first().at;
    assert!(at.is_some_and(|at| at.file().ends_with("layers.rs")));
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[language]: no parameter has as many rows as `hidden`
      help: its shape is that of what is stored in it: a product, or a copy of a parameter; or give it a tensor's, as in `symmetric::<bf16>(y, slots = 1)`
    ");
}

/// An operand that is on the left in one loop and on the right in two: those find it in one place.
#[test]
fn one_place_of_a_stage_has_one_name() {
    let mut s = ScheduleBuilder::new("sides");
    let [x, w, z, v] = ["x", "w", "z", "v"].map(|name| s.local(name, Bf16));
    let all =
        [("a", (x, w)), ("b", (z, x)), ("c", (v, x))].map(|(name, of)| (of, s.out(name, Bf16)));
    for ((a, b), y) in all {
        let tiles = s.tiles("tiles", y, (128, 128));
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", tiles.all(), |s, t| {
                let product = s.dot(a.at(t), b.at(t));
                s.store(y.at(t), product);
            });
        });
    }
    let pipeline = built(&s.finish(), Layout::Nt).unwrap_or_else(|found| panic!("{found}"));
    let stages = pipeline.rings[0].buffer.as_ref().expect("stages");
    let names: Vec<_> = stages.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["x", "w", "z", "x_", "v"]);
    assert_eq!(stages.operands, [[0, 1], [2, 3], [4, 3]]);
}

/// No columns between the layers, or nothing to write.
#[test]
fn sizes_of_zero_are_refused_by_name() {
    let kernel = lower(&strangers::two_layers(), &Variant::new(3)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    for (name, [n, columns]) in [("n", [0, 40]), ("y.columns", [24, 0])] {
        let shape = Shape::new(300, n, 16).dim("y.columns", columns);
        let found = verify::series(&kernel, &shape, &Machine::h200()).expect_err("refused");
        assert_eq!(found.first().message, format!("{name} is 0"));
        let found = verify::plan(&kernel, &shape, &Machine::h200()).expect_err("refused");
        assert_eq!(found.first().message, format!("{name} is 0"));
    }
}
