//! This rank's own term of a sum over the others: rounded as theirs were, in its turn, of the right subtile.

use crate::fixtures::library::{self, real};
use crate::roles::right;
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{self, Bf16, E4M3, F32};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Elements, Expr, Field, FragmentOp, Node, Pipeline, Unroll};
use counterflow_emitter as cuda;

fn built(program: &Program, variant: &Variant) -> Pipeline {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.and_then(|kernel| sm90::build(&kernel));
    kernel.unwrap_or_else(|found| panic!("{}: {found}", program.name))
}

/// The operations in a rank's own turn.
fn own_terms(pipeline: &Pipeline) -> Vec<FragmentOp> {
    let mut found = Vec::new();
    pipeline.visit(|node| {
        if let Node::Others { own: Some(own), .. } = node {
            found.push(own.clone());
        }
    });
    found
}

/// A reduce-scatter by scratch of that type.
fn scattered(scratch: Dtype) -> Program {
    let mut s = ScheduleBuilder::new("scattered");
    let (x, w, y) = (
        s.local("x", Bf16),
        s.local("w", Bf16),
        s.reduce_scattered("y", Bf16),
    );
    let tiles = s.tiles("tiles", y, (128, 256));
    let partial = s.symmetric("partial", scratch, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), product);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let sum = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), product + sum);
        });
    });
    s.finish()
}

#[test]
fn sums_over_the_others_have_their_own_terms() {
    for program in [
        library::gemm_rs(&real()),
        library::gemm_rs_bias(&real()),
        library::gemm_ar(&real()),
        library::bulk_rs(&real()),
    ] {
        right(&program);
        let pipeline = built(&program, &Variant::new(4));
        assert_eq!(own_terms(&pipeline).len(), 1, "{}", program.name);
    }
}

/// Two sums of an item, of which the second one's own term is a stored tile: the loader brings that before all sums.
#[test]
fn a_sum_whose_own_term_is_a_tile_follows_one_whose_own_term_is_the_product() {
    let mut s = ScheduleBuilder::new("two_sums");
    let (x, w, c) = (s.local("x", Bf16), s.local("w", Bf16), s.local("c", Bf16));
    let (y, z) = (s.reduce_scattered("y", Bf16), s.reduce_scattered("z", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    let partial = s.symmetric("partial", Bf16, y, world());
    let moved = s.symmetric("moved", Bf16, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                let tile = s.load(c.at(t));
                s.store(partial.on(&owner).at(me()).at(t), product);
                s.store(moved.on(&owner).at(me()).at(t), tile);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let tile = s.load(c.at(t));
            s.wait(landed.at(others()).at(t));
            let (sum, tiles) = (
                s.sum(partial.at(others()).at(t)),
                s.sum(moved.at(others()).at(t)),
            );
            s.store(y.at(t), product + sum);
            s.store(z.at(t), tile + tiles);
        });
    });
    let program = s.finish();
    assert_eq!(own_terms(&built(&program, &Variant::new(4))).len(), 2);
    right(&program);
}

/// Nothing is rounded on its way, and nothing beside it.
#[test]
fn partial_sums_in_f32_have_kernels() {
    right(&scattered(F32));
    let pipeline = built(&scattered(F32), &Variant::new(4));
    let [
        FragmentOp::AddOwn {
            dtype, elements, ..
        },
    ] = own_terms(&pipeline)[..]
    else {
        panic!("{:?}", own_terms(&pipeline));
    };
    assert_eq!((dtype, elements), (F32, Elements::Product(0)));
    let text = cuda::emit(&verify::pipeline(pipeline).expect("accepted")).text;
    assert!(
        text.contains("add_own<float, SUBTILE_N>(partial, acc + part * SUBTILE_N / 2);"),
        "{text}"
    );
}

/// Scales come before the rounding, as where the term is sent.
#[test]
fn an_own_term_has_the_scales_of_its_operands() {
    let variant = Variant::new(4).dtype(E4M3).scales(Scales::PerRow);
    let pipeline = built(&library::gemm_rs(&real()), &variant);
    let [
        FragmentOp::AddOwn {
            elements: Elements::Applied(own),
            ..
        },
    ] = own_terms(&pipeline)[..]
    else {
        panic!("{:?}", own_terms(&pipeline));
    };
    assert_eq!(
        pipeline.epilogues[own].params.len(),
        3,
        "the product and two scales"
    );
    verify::pipeline(pipeline).unwrap_or_else(|found| panic!("{found}"));
}

/// What the verifier says of a reduce-scatter of whose sums something is changed.
fn changed(change: impl Fn(&mut Option<FragmentOp>) -> Option<FragmentOp>) -> String {
    let mut pipeline = built(&library::gemm_rs(&real()), &Variant::new(4));
    let mut done = 0;
    pipeline.lists(&mut |list| {
        let sums = |node: &Node| matches!(node, Node::Others { own: Some(_), .. });
        let Some(at) = list.iter().position(sums) else {
            return;
        };
        let Node::Others { own, .. } = &mut list[at] else {
            return;
        };
        done += 1;
        if let Some(before) = change(own) {
            list.insert(at, Node::Fragment(before));
        }
    });
    assert_eq!(done, 1);
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn a_wrong_own_term_is_found() {
    let none = changed(|own| {
        *own = None;
        None
    });
    insta::assert_snapshot!(none, @"
    error[coverage]: multiply of block 0 on rank 0 applies y_value to subtile 0
      = `partial` does not have this rank's own term in its turn
    ");
    // Before the terms of lower ranks: rank 0 has none.
    insta::assert_snapshot!(changed(|own| own.take()), @"
    error[coverage]: multiply of block 0 on rank 1 applies y_value to subtile 0
      = `partial` does not have this rank's own term in its turn
    ");
    let unrounded = changed(|own| {
        if let Some(FragmentOp::AddOwn { dtype, .. }) = own {
            *dtype = F32;
        }
        None
    });
    insta::assert_snapshot!(unrounded, @"
    error[coverage]: multiply of block 0 on rank 0 adds its own term of subtile 0 to a sum
      = this rank's own term is rounded to another type than those of the others
    ");
    let elsewhere = changed(|own| {
        if let Some(FragmentOp::AddOwn { part, .. }) = own {
            *part = Expr::from(0);
        }
        None
    });
    insta::assert_snapshot!(elsewhere, @"
    error[coverage]: multiply of block 0 on rank 0 reads x of stage 1
      = the stored subtile is of another place than those it is added to
    ");
    let twice = changed(|own| own.clone());
    insta::assert_snapshot!(twice, @"
    error[coverage]: multiply of block 0 on rank 0 applies y_value to subtile 0
      = `partial` does not have this rank's own term in its turn
    ");
}

/// Nobody sends a rank its own term, so its slot holds what an earlier launch left there.
#[test]
fn an_own_term_that_is_read_from_its_slot_is_found() {
    let mut pipeline = built(&library::gemm_rs(&real()), &Variant::new(4));
    let world = Expr::Field(Field::World);
    let mut done = 0;
    pipeline.lists(&mut |list| {
        for node in list {
            let Node::Others { var, own, body } = node else {
                continue;
            };
            let loads = body.iter().any(|node| matches!(node, Node::Load { .. }));
            if own.is_none() && !loads {
                continue;
            }
            done += 1;
            *node = Node::For {
                var: std::mem::take(var),
                from: 0.into(),
                to: world.clone(),
                by: 1.into(),
                unroll: Unroll::Once,
                body: std::mem::take(body),
            };
        }
    });
    assert_eq!(done, 2, "the loader and who adds");
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[coverage]: multiply of block 0 on rank 0 applies y_value to subtile 0
      = `partial` does not have this rank's own term in its turn
    ");
}
