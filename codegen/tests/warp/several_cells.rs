//! Items that are larger than the chunks that a counter has cells for: each is announced in all of its cells.

use crate::fixtures::strangers;
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;

fn has_right_warps(program: &Program, variant: &Variant) {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let pipeline = kernel.and_then(|kernel| sm90::build(&kernel));
    let checked = pipeline.and_then(verify::pipeline);
    checked.unwrap_or_else(|found| panic!("{} {variant}: {found}", program.name));
}

/// Tiles of 256 rows, where a cell has 128: a signal that is remembered until the next tile is stored is of one cell only.
#[test]
fn tiles_of_two_cells() {
    let variant = Variant::new(3).set("tiles", (256, 128));
    has_right_warps(&strangers::two_layers(), &variant);
}

/// Copied chunks of 256 rows, where a cell has 128.
#[test]
fn chunks_of_two_cells() {
    let mut s = ScheduleBuilder::new("chunks_of_two_cells");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let moved = s.chunks("moved", x, 256);
    let counted = s.chunks("counted", x, 128);
    let tiles = s.tiles("tiles", y, (128, 128));
    let arrived = s.counters("arrived", [counted.into()]);
    s.comm(4u32, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", moved.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p.rows()), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.rows()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    has_right_warps(&s.finish(), &Variant::new(3));
}
