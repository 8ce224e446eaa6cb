//! Which loops one pipeline carries: tiles, types, products and depths that may stand beside each other.

use crate::layers::refused;
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{self, Bf16, F16};
use counterflow_codegen::program::Program;
use counterflow_codegen::value::Value;
use counterflow_codegen::variant::Layout;

/// What a second loop stores, of the tiles of `z`, `v` and `g`.
type Of = fn(&mut ScheduleBuilder, [TensorRef; 3], Item) -> Value;

/// Two loops: a product each, of tensors of their own.
fn two(options: GemmOptions, more: (u32, u32), of: Of, second: Dtype) -> Program {
    let mut s = ScheduleBuilder::new("two");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let others = ["z", "v", "g"].map(|name| s.local(name, second));
    let u = s.out("u", second);
    let tiles = s.tiles("tiles", y, (128, 128));
    let more = s.tiles("more", u, more);
    s.gemm(options, |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
        s.for_items("t", more.all(), |s, t| {
            let value = of(s, others, t);
            s.store(u.at(t), value);
        });
    });
    s.finish()
}

fn one(s: &mut ScheduleBuilder, [z, v, _]: [TensorRef; 3], t: Item) -> Value {
    s.dot(z.at(t), v.at(t))
}

fn gated(s: &mut ScheduleBuilder, [z, v, g]: [TensorRef; 3], t: Item) -> Value {
    s.dot(z.at(t), g.at(t)).silu() * s.dot(z.at(t), v.at(t))
}

fn of_two_inputs(s: &mut ScheduleBuilder, [z, v, g]: [TensorRef; 3], t: Item) -> Value {
    s.dot(z.at(t), v.at(t)).silu() * s.dot(g.at(t), v.at(t))
}

#[test]
fn loops_that_have_no_pipeline_together() {
    let plain = GemmOptions::default;
    let said = |options, more, of, second| refused(&two(options, more, of, second), Layout::Nt);
    insta::assert_snapshot!(said(plain(), (128, 128), one, Bf16), @"accepted");
    insta::assert_snapshot!(said(plain(), (128, 256), one, Bf16), @"accepted");
    insta::assert_snapshot!(said(plain(), (256, 128), one, Bf16), @"accepted");
    insta::assert_snapshot!(said(plain(), (64, 128), one, Bf16), @"
    error[resources]: tiles of 64x128, beside a loop with tiles of 128x128
      help: tiles of 128 or 256 rows in all loops, as this kernel's warpgroups share each tile: rows and columns may differ
    ");
    insta::assert_snapshot!(said(plain(), (104, 128), one, Bf16), @"
    error[resources]: tiles of 104x128, beside a loop with tiles of 128x128
      help: tiles of 128 or 256 rows in all loops, as this kernel's warpgroups share each tile: rows and columns may differ
    ");
    insta::assert_snapshot!(said(plain(), (128, 168), one, Bf16), @"
    error[resources]: tiles of 128x168
      help: 128 or 256 shared rows by a multiple of 16 columns: at most 256, of 256 rows 160 (128 where tiles of ranks are added, 176 without clusters, 192 of plain products by CTAs alone)
    ");
    insta::assert_snapshot!(said(plain(), (128, 256), gated, Bf16), @"
    error[resources]: tiles of 128x256 of 2 products
      help: 2 products an item have tiles of up to 128x128
    ");
    insta::assert_snapshot!(said(plain(), (128, 128), one, F16), @"
    error[resources]: a product of f16, beside a loop of bf16
      help: operands of one type in all loops
    ");
    insta::assert_snapshot!(said(plain(), (128, 128), gated, Bf16), @"accepted");
    insta::assert_snapshot!(said(plain(), (128, 128), of_two_inputs, Bf16), @"
    error[resources]: items of 2 products, beside a loop whose items have 1
      help: operands of the tile's rows that each item's products share, or as many products in each loop, which share operands alike: loops have the same stages
    ");
    let ping_pong = GemmOptions {
        ping_pong: Some(Tune::from(true)),
        ..plain()
    };
    insta::assert_snapshot!(said(ping_pong.clone(), (104, 128), one, Bf16), @"
    error[resources]: tiles of 104x128, beside a loop with tiles of 128x128
      help: tiles of 64 or 128 rows in all loops, as each of this kernel's warpgroups has tiles of its own: rows and columns may differ
    ");
    insta::assert_snapshot!(said(ping_pong, (128, 128), one, Bf16), @"
    error[resources]: loops of another depth, with tiles in ping-pong
      help: cooperative tiles: each warpgroup skips as many steps as the other one's next tile has
    ");
}
