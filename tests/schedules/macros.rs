//! `#[schedule]` builds the same program as the builder calls a person would write, at the user's own lines.

#[path = "accepted/design.rs"]
mod design;
#[path = "accepted/table.rs"]
mod table;

use counterflow::__private::*;
use counterflow::codegen::lower::lower;
use counterflow::codegen::program::RoleKind;
use counterflow::prelude::*;
use counterflow::{Program, Variant};

/// A program's text without locations.
fn text(program: &Program) -> String {
    let text = format!("{program:#?}");
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find("Location {") {
        let end = rest[start..].find('}').expect("a location ends");
        out.push_str(&rest[..start]);
        rest = &rest[start + end + 1..];
    }
    out + rest
}

#[track_caller]
fn same(written: &Program, built: &Program) {
    let (written, built) = (text(written), text(built));
    for (line, (a, b)) in written.lines().zip(built.lines()).enumerate() {
        assert_eq!(a, b, "line {line} of\n{written}\nand\n{built}");
    }
    assert_eq!(written, built);
}

#[test]
fn ag_gemm_is_what_a_person_would_build() {
    let mut s = ScheduleBuilder::new("ag_gemm");
    let x = s.gathered("x", bf16::DTYPE);
    let w = s.local("w", bf16::DTYPE);
    let y = s.out("y", bf16::DTYPE);
    let chunks = s.chunks("chunks", x, tune([128, 256]));
    let tiles = s.tiles("tiles", y, tune([(128, 256), (256, 128)]));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(tune([2, 4, 8]), |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    let options = GemmOptions {
        k: Some(64.into()),
        cluster: Some((2, 1).into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(shard).grouped(tune([8, 4, 16])), |s, t| {
                s.wait(arrived.at(t.rows()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    same(&design::ag_gemm(), &s.finish());
}

#[test]
fn gemm_rs_is_what_a_person_would_build() {
    let mut s = ScheduleBuilder::new("gemm_rs");
    let x = s.local("x", bf16::DTYPE);
    let w = s.local("w", bf16::DTYPE);
    let y = s.reduce_scattered("y", bf16::DTYPE);
    let tiles = s.tiles("tiles", y, tune([(128, 256), (256, 128)]));
    let partial = s.symmetric("partial", bf16::DTYPE, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let options = || GemmOptions {
        k: Some(64.into()),
        ..Default::default()
    };
    s.gemm(options(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), product);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
    });
    s.gemm(options(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let own = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), own + theirs);
        });
    });
    same(&design::gemm_rs(), &s.finish());
}

#[schedule]
fn math(x: Local<bf16>, w: Local<bf16>, b: Vector<f32>, z: Local<bf16>, y: Out<f16>) {
    let tiles = y.tiles((128, 256));
    let ready = counters(tiles);
    #[spare_warps]
    for t in tiles {
        if me() != 0 && !(me() + 1 == world()) {
            ready[t].add(1);
        } else {
            ready[t].add(2);
        }
    }
    #[gemm(stages = tune(4, 6))]
    for t in tiles.grouped(8) {
        let mut acc = zero();
        acc += dot(x[t], w[t]);
        let sum = acc.bias(b).map(table::leaky, z[t].wait(ready));
        let tile = z[t];
        y[t] = -(0.5 * sum - tile).gelu() / sum;
        y[t] += acc.tanh().max(1.0).cast::<bf16>().scale(2.0);
    }
}

#[test]
fn values_evaluate_from_left_to_right() {
    let mut s = ScheduleBuilder::new("math");
    let x = s.local("x", bf16::DTYPE);
    let w = s.local("w", bf16::DTYPE);
    let b = s.vector("b", f32::DTYPE);
    let z = s.local("z", bf16::DTYPE);
    let y = s.out("y", f16::DTYPE);
    let tiles = s.tiles("tiles", y, (128, 256));
    let ready = s.counters("ready", [tiles.into()]);
    s.spare_warps(|s| {
        s.for_items("t", tiles, |s, t| {
            let inner = Cond::compare(Comparison::Ne, me(), 0)
                .and(Cond::compare(Comparison::Eq, me() + 1, world()).negate());
            s.when_else(
                inner,
                |s| s.signal(ready.at(t), 1),
                |s| s.signal(ready.at(t), 2),
            );
        });
    });
    let options = GemmOptions {
        stages: Some(tune([4, 6])),
        ..Default::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.accumulator("acc");
            s.accumulate(&acc, x.at(t), w.at(t));
            let bias = s.load(b);
            s.wait(ready.at(t));
            let other = s.load(z.at(t));
            let sum = acc.clone().bias(bias).call(table::leaky::scalar(), [other]);
            let tile = s.load(z.at(t));
            s.name(&tile, "tile");
            let gelu = (Value::from(0.5) * sum.clone() - tile).gelu();
            s.store(y.at(t), gelu.apply(Unary::Neg).combine(Binary::Div, sum));
            let last = acc.apply(Unary::Tanh).combine(Binary::Max, 1.0);
            s.store_add(y.at(t), last.cast(bf16::DTYPE).scale(2.0));
        });
    });
    same(&math(), &s.finish());
}

/// The text of the line and column a location names, in this file.
fn source(at: &std::panic::Location) -> &'static str {
    assert!(at.file().ends_with("macros.rs"), "{at}");
    let line = include_str!("macros.rs")
        .lines()
        .nth(at.line() as usize - 1);
    &line.expect("the line exists")[at.column() as usize - 1..]
}

#[test]
fn locations_are_the_users_own() {
    let program = math();
    assert!(source(program.at).starts_with("math(x: Local"));
    assert!(source(program.tensors[2].at).starts_with("b: Vector<f32>"));
    assert!(source(program.partitions[0].at).starts_with("tiles((128, 256));"));
    assert!(source(program.counters[0].at).starts_with("counters(tiles);"));
    assert!(source(program.tunables[0].at).starts_with("gemm(stages"));
    assert!(source(program.roles[1].at).starts_with("gemm(stages"));
    let text = format!("{program:?}");
    let mut lines: Vec<&str> = Vec::new();
    visit(&program.roles, &mut |at| lines.push(source(at)));
    assert_eq!(
        lines,
        [
            "for t in tiles {",
            "if me() != 0 && !(me() + 1 == world()) {",
            "ready[t].add(1);",
            "ready[t].add(2);",
            "for t in tiles.grouped(8) {",
            "acc += dot(x[t], w[t]);",
            "b).map(table::leaky, z[t].wait(ready));",
            "wait(ready));",
            "z[t].wait(ready));",
            "z[t];",
            "y[t] = -(0.5 * sum - tile).gelu() / sum;",
            "y[t] += acc.tanh().max(1.0).cast::<bf16>().scale(2.0);",
        ],
        "{text}"
    );
}

fn visit(
    roles: &[counterflow_codegen::program::Role],
    f: &mut impl FnMut(&'static std::panic::Location<'static>),
) {
    fn block(
        stmts: &[counterflow_codegen::program::Stmt],
        f: &mut impl FnMut(&'static std::panic::Location<'static>),
    ) {
        use counterflow_codegen::program::StmtKind;
        for stmt in stmts {
            f(stmt.at);
            match &stmt.kind {
                StmtKind::ForRanks { body, .. } | StmtKind::ForItems { body, .. } => block(body, f),
                StmtKind::If {
                    then, otherwise, ..
                } => {
                    block(then, f);
                    block(otherwise, f);
                }
                _ => {}
            }
        }
    }
    for role in roles {
        block(&role.body, f);
    }
}

#[test]
fn every_row_of_the_table_builds() {
    design::main();
    table::main();
}

#[test]
fn an_epilogue_is_its_own_oracle() {
    let scalar = table::leaky::scalar();
    assert_eq!((scalar.name, scalar.params), ("leaky", &["x", "slope"][..]));
    let clip = table::soft_clip::scalar();
    for x in [
        -100.0,
        -60.0,
        -1.5,
        -0.0,
        0.0,
        0.25,
        30.0,
        60.0,
        210.0,
        f32::NAN,
    ] {
        let kernel = scalar.eval(&[f64::from(x), 0.25]);
        assert_close(kernel, table::leaky(x, 0.25));
        let kernel = clip.eval(&[f64::from(x)]);
        assert_close(kernel, table::soft_clip(x));
    }
}

#[track_caller]
fn assert_close(kernel: f64, rust: f32) {
    let rust = f64::from(rust);
    let close = (kernel - rust).abs() <= 1e-5 * rust.abs().max(1.0);
    assert!(
        close || (kernel.is_nan() && rust.is_nan()),
        "{kernel} {rust}"
    );
}

/// Schedules whose `#[gemm(…)]` has so many of its options, and how many their programs have.
macro_rules! with_options {
    ($($name:ident: $options:tt;)*) => {
        $(
            #[schedule]
            fn $name(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
                let tiles = y.tiles((128, 256));
                #[gemm $options]
                for t in tiles {
                    y[t] = dot(x[t], w[t]);
                }
            }
        )*
        const WITH_OPTIONS: &[fn() -> Program] = &[$($name),*];
    };
}

with_options! {
    none_of_them: ();
    one_of_them: (k = 64);
    two_of_them: (k = 64, cluster = (2, 1));
    three_of_them: (k = 64, cluster = (2, 1), split = 1);
    four_of_them: (k = 64, cluster = (2, 1), split = 1, stages = 4);
    five_of_them: (k = 64, cluster = (2, 1), split = 1, stages = 4, subtiles = 2);
    all_of_them: (k = 64, cluster = (2, 1), split = 1, stages = 4, subtiles = 2, ping_pong = true);
}

#[test]
fn a_gemm_takes_any_number_of_its_options() {
    for (count, schedule) in WITH_OPTIONS.iter().enumerate() {
        let program = schedule();
        let RoleKind::Gemm {
            k,
            cluster,
            split,
            stages,
            subtiles,
            ping_pong,
        } = program.roles[0].kind
        else {
            panic!("{:?}", program.roles[0].kind);
        };
        let given = [k, cluster, split, stages, subtiles, ping_pong];
        assert_eq!(given.iter().flatten().count(), count, "{}", program.name);
    }
    assert_eq!(WITH_OPTIONS.len(), 7, "from none to all");
}

/// Two gathers at the same time, each by a role of its own.
#[schedule]
fn two_roles(x: Gathered<bf16>, z: Gathered<bf16>) {
    let of_x = x.chunks(rows = 128);
    let of_z = z.chunks(rows = 64);
    let came = counters(of_x);
    let arrived = counters(of_z);
    #[comm(name = halo, ctas = 2)]
    for peer in ranks().before_me() {
        for p in of_x.of(me()) {
            x.on(peer)[p] = x[p];
            came.on(peer)[p].add(1);
        }
    }
    #[comm(ctas = tune(4, 8), name = ring)]
    for peer in ranks().before_me() {
        for p in of_z.of(me()) {
            z.on(peer)[p] = z[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[comm(name = halo, ctas = 2)]
    for peer in ranks().after_me() {
        for p in of_x.of(peer) {
            came[p].wait();
        }
    }
    #[comm(ctas = 1)]
    for peer in ranks().after_me() {
        for p in of_z.of(peer) {
            arrived[p].wait();
        }
    }
}

#[test]
fn a_name_tells_comm_roles_apart() {
    let program = two_roles();
    let names: Vec<&str> = program
        .roles
        .iter()
        .map(|role| role.name.as_str())
        .collect();
    assert_eq!(names, ["halo", "ring", "halo", "comm"]);
    assert_eq!(program.tunables[0].name, "ring.ctas");
    let kernel = lower(&program, &Variant::new(4)).unwrap_or_else(|found| panic!("{found}"));
    let text = kernel.text();
    let roles: Vec<&str> = text.lines().filter(|line| line.starts_with("#[")).collect();
    assert_eq!(
        roles,
        [
            "#[comm(name = halo, ctas = 2)]",
            "#[comm(name = ring, ctas = 4)]",
            "#[comm(ctas = 1)]"
        ]
    );
}
