//! Items that wait behind a signal of their own: what stands before the wait is stored and signalled first.

use crate::fixtures::strangers::one_shot;
use crate::roles::right;
use codegen::builder::*;
use codegen::diag::Rule;
use codegen::dtype::Dtype::{Bf16, E4M3, F32};
use codegen::lower::lower;
use codegen::program::Program;
use codegen::sm90;
use codegen::variant::{Scales, Variant};
use codegen::verify;
use codegen::warp::{FragmentOp, Node, Pipeline, ReadInto};
use counterflow_codegen as codegen;
use counterflow_emitter as cuda;

#[test]
fn a_product_that_is_sent_and_added_in_one_item() {
    right(&one_shot());
}

/// What the items of such schedules are made of.
struct Parts {
    x: TensorRef,
    w: TensorRef,
    b: TensorRef,
    z: TensorRef,
    y: TensorRef,
    partial: TensorRef,
    landed: CountersRef,
    read: CountersRef,
}

impl Parts {
    fn sent(&self, s: &mut ScheduleBuilder, t: Item, value: &Value) {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.store(self.partial.on(&peer).at(me()).at(t), value.clone());
            s.signal(self.landed.on(&peer).at(me()).at(t), 1);
        });
    }
}

/// A kernel whose items do that.
fn schedule(item: impl FnOnce(&mut ScheduleBuilder, &Parts, Item)) -> Program {
    let mut s = ScheduleBuilder::new("in_one_item");
    let (x, w, b) = (s.local("x", Bf16), s.local("w", Bf16), s.vector("b", Bf16));
    let (z, y) = (s.local("z", Bf16), s.all_reduced("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    let partial = s.symmetric("partial", Bf16, y.whole(), world());
    let [landed, read] =
        ["landed", "read"].map(|name| s.counters(name, [world().into(), tiles.into()]));
    let parts = Parts {
        x,
        w,
        b,
        z,
        y,
        partial,
        landed,
        read,
    };
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| item(s, &parts, t));
        });
    });
    s.finish()
}

/// The vector is read in both passes, the wait behind all of them stands alone.
#[test]
fn a_vector_in_both_passes_and_a_wait_behind_all() {
    right(&schedule(|s, it, t| {
        let (product, bias) = (s.dot(it.x.at(t), it.w.at(t)), s.load(it.b.at(t)));
        let own = s.out("own", Bf16);
        s.store(own.at(t), product.clone() + bias.clone());
        it.sent(s, t, &product);
        s.wait(it.landed.at(others()).at(t));
        let theirs = s.sum(it.partial.at(others()).at(t));
        s.store(it.y.at(t), product + theirs + bias);
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.signal(it.read.on(&peer).at(me()).at(t), 1);
        });
        s.wait(it.read.at(others()).at(t));
    }));
}

/// Sums in f32 that are added in both passes: no place is released behind the next store, which is in one pass alone.
#[test]
fn sums_are_added_in_both_passes() {
    let program = schedule(|s, it, t| {
        let product = s.dot(it.x.at(t), it.w.at(t));
        let [early, late] = ["early", "late"].map(|name| s.accumulated(name, F32));
        s.store_add(early.at(t), product.clone());
        it.sent(s, t, &product);
        s.wait(it.landed.at(others()).at(t));
        let theirs = s.sum(it.partial.at(others()).at(t));
        s.store(it.y.at(t), product.clone() + theirs.clone());
        s.store_add(late.at(t), product + theirs);
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.signal(it.read.on(&peer).at(me()).at(t), 1);
        });
        s.wait(it.read.at(others()).at(t));
    });
    right(&program);
    let text = cuda::emit(&verify::pipeline(built(&program).expect("built")).expect("right")).text;
    let (_, kernel) = text.split_once("extern \"C\"").expect("a kernel");
    let adds = kernel.matches("tma_reduce_add").count();
    assert_eq!(
        (adds, kernel.contains("tma_wait_read<1>")),
        (2, false),
        "{kernel}"
    );
}

/// What warps that multiply do in the first pass of such an item whose operands have scales, and in the one behind it.
fn multiplied(scales: Scales, tile: (u32, u32)) -> (String, String) {
    let variant = Variant::new(4).dtype(E4M3).scales(scales);
    let kernel = lower(&one_shot(), &variant.set("tiles", tile)).and_then(verify::kernel);
    let warps = kernel.and_then(|kernel| verify::warps(&kernel));
    let text = cuda::emit(&warps.unwrap_or_else(|found| panic!("{found}"))).text;
    let (_, multiplied) = text.rsplit_once("// multiply\n").expect("a role");
    let (first, later) = multiplied.split_once("// y[t] = ").expect("two passes");
    (first.into(), later.into())
}

/// A scale of a tensor is a name of the tile, and the later pass's is one of its subtiles.
#[test]
fn a_later_pass_has_scales_of_its_own() {
    let (first, later) = multiplied(Scales::PerTensor, (128, 256));
    let depth = |text: &str| {
        let mut lines = text.lines().filter(|line| line.contains(" x_scale = "));
        let line = lines.next().expect("it is read");
        assert_eq!(lines.next(), None);
        line.len() - line.trim_start().len()
    };
    assert!(depth(&later) > depth(&first), "{first}{later}");
}

/// Where scales of rows are read again, the compiler is not told that it is the same place: it would keep its address.
#[test]
fn a_later_pass_keeps_no_address() {
    for tile in [(128, 256), (80, 128)] {
        let (first, later) = multiplied(Scales::PerRow, tile);
        let reads = [first, later].map(|text| text.matches("again(").count());
        assert_eq!(reads, [0, 2], "{tile:?}");
    }
}

fn built(program: &Program) -> Result<Pipeline, String> {
    let kernel = lower(program, &Variant::new(4)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|found| panic!("{}: {found}", program.name));
    sm90::build(&kernel).map_err(|found| found.first().text(&|_| String::new()))
}

/// What the verifier says of the kernel without the first node of a kind in each warp that has one.
#[track_caller]
fn without(gone: impl Fn(&Node) -> bool) -> Rule {
    let mut pipeline = built(&one_shot()).expect("a pipeline");
    let mut done = 0;
    pipeline.lists(&mut |list| {
        if let Some(at) = list.iter().position(&gone) {
            list.remove(at);
            done += 1;
        }
    });
    assert!(done > 0, "nothing to remove");
    verify::pipeline(pipeline)
        .expect_err("refused")
        .first()
        .rule
}

#[test]
fn what_is_missing_is_found() {
    let added = |node: &Node| {
        matches!(
            node,
            Node::Fragment(FragmentOp::ReadSubtile {
                into: ReadInto::Sum { .. },
                ..
            })
        )
    };
    assert_eq!(without(added), Rule::Coverage);
    let waited = |node: &Node| matches!(node, Node::CounterWait { lag: 0, .. });
    assert_eq!(without(waited), Rule::Race);
    let complete = |node: &Node| matches!(node, Node::AwaitStores { .. });
    assert_eq!(without(complete), Rule::Race);
}

#[test]
fn what_no_order_of_passes_has_is_refused_with_what_is_possible() {
    let refused =
        |item: fn(&mut ScheduleBuilder, &Parts, Item)| built(&schedule(item)).expect_err("refused");
    insta::assert_snapshot!(refused(|s, it, t| {
        let product = s.dot(it.x.at(t), it.w.at(t));
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.store(it.partial.on(&peer).at(me()).at(t), product.clone());
            s.signal(it.landed.on(&peer).at(me()).at(t), 1);
            s.wait(it.landed.at((me() - &peer + me()) % world()).at(t));
        });
        let theirs = s.sum(it.partial.at(others()).at(t));
        s.store(it.y.at(t), product + theirs);
    }), @"
    error[resources]: a wait and a signal in one loop over ranks inside an item
      help: a loop that sends and signals, then one that waits
    ");
    insta::assert_snapshot!(refused(|s, it, t| {
        let (product, z) = (s.dot(it.x.at(t), it.w.at(t)), s.load(it.z.at(t)));
        let own = s.out("own", Bf16);
        s.store(own.at(t), product.clone() + z.clone());
        it.sent(s, t, &product);
        s.wait(it.landed.at(others()).at(t));
        let theirs = s.sum(it.partial.at(others()).at(t));
        s.store(it.y.at(t), product + theirs + z);
    }), @"
    error[resources]: a stored tile that is read before a signal and used behind a wait after it
      help: read it again where it is used: its subtiles are not kept meanwhile
    ");
}

/// An item that signals, waits, and then does something.
fn told(then: impl FnOnce(&mut ScheduleBuilder, [TensorRef; 3], Item)) -> Program {
    let mut s = ScheduleBuilder::new("told");
    let [x, w] = ["x", "w"].map(|name| s.local(name, Bf16));
    let [y, v] = ["y", "v"].map(|name| s.out(name, Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    let told = s.counters("told", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.signal(told.on(&peer).at(me()).at(t), 1);
            });
            s.wait(told.at(others()).at(t));
            then(s, [x, w, v], t);
        });
    });
    s.finish()
}

#[test]
fn only_one_pass_multiplies() {
    let again = told(|s, [x, w, v], t| {
        let product = s.dot(x.at(t), w.at(t));
        s.store(v.at(t), product);
    });
    insta::assert_snapshot!(built(&again).expect_err("refused"), @"
    error[resources]: a product behind a wait that stands behind a signal of its own item
      help: all products of an item before its first signal, or a loop for each
    ");
    right(&told(|s, [_, _, v], t| {
        let z = s.local("z", Bf16);
        let value = s.load(z.at(t));
        s.store(v.at(t), value);
    }));
}
