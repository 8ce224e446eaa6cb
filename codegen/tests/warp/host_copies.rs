//! What the host enqueues for copies by the copy engine.

use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me, ranks};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::host::{HostOp, HostOpKind};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::program::{CounterId, TensorId};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;

/// Rows fetched from the peers, or pushed to them.
fn all_gather(push: bool) -> Program {
    let mut s = ScheduleBuilder::new("all_gather");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let chunks = s.chunks("chunks", x, 256);
    let tiles = s.tiles("tiles", y, (128, 128));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.copy_engine(|s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            let of = if push { me() } else { peer.clone() };
            s.for_items("c", chunks.of(of), |s, c| {
                if push {
                    s.copy(x.on(&peer).at(c), x.at(c));
                    s.signal(arrived.on(&peer).at(c), 1);
                } else {
                    s.copy(x.at(c), x.on(&peer).at(c));
                    s.signal(arrived.at(c), 1);
                }
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard).grouped(8), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

fn ops(program: &Program, shape: &Shape, rank: u32) -> String {
    let kernel = lower(program, &Variant::new(3))
        .and_then(verify::kernel)
        .expect("a kernel");
    let pipeline = sm90::build(&kernel).expect("a pipeline");
    let plan = verify::plan(&kernel, shape, &Machine::h200()).expect("a plan");
    let name = |tensor: TensorId| &kernel.buffers[tensor.index()].name;
    let counter = |counter: CounterId| &kernel.counters[counter.index()].name;
    let line = |op: &HostOp| match op.kind {
        HostOpKind::Wait {
            counter: set,
            cell,
            arrivals,
        } => format!("wait {}[{cell}] +{arrivals}\n", counter(set)),
        HostOpKind::Copy {
            to,
            from,
            bytes,
            lines,
        } => format!(
            "copy {lines} x {bytes} to {}.on({}) {} / {} from .on({}) {} / {}\n",
            name(to.tensor),
            to.home,
            to.offset,
            to.pitch,
            from.home,
            from.offset,
            from.pitch
        ),
        HostOpKind::Signal {
            counter: set,
            home,
            cell,
            arrivals,
        } => format!("signal {}.on({home})[{cell}] +{arrivals}\n", counter(set)),
    };
    let ops = pipeline.host_ops(&plan, rank).expect("operations");
    ops.iter().map(line).collect()
}

/// Shards of 334, 334 and 332 rows of 128 bytes; a peer's credit is waited for once.
#[test]
fn a_rank_fetches_its_peers_rows_and_says_when_it_has_read_them() {
    let text = ops(&all_gather(false), &Shape::new(1000, 128, 64), 1);
    insta::assert_snapshot!(text, @r"
    signal ready_x.on(2)[1] +1
    signal ready_x.on(0)[1] +1
    wait ready_x[2] +1
    copy 1 x 32768 to x.on(1) 85504 / 128 from .on(2) 85504 / 128
    signal arrived.on(1)[4] +1
    copy 1 x 9728 to x.on(1) 118272 / 128 from .on(2) 118272 / 128
    signal arrived.on(1)[5] +1
    wait ready_x[0] +1
    copy 1 x 32768 to x.on(1) 0 / 128 from .on(0) 0 / 128
    signal arrived.on(1)[0] +1
    copy 1 x 9984 to x.on(1) 32768 / 128 from .on(0) 32768 / 128
    signal arrived.on(1)[1] +1
    signal returned_x.on(2)[1] +1
    signal returned_x.on(0)[1] +1
    ");
}

/// Rows further apart than they are long are copied line by line, and a shard may be empty.
#[test]
fn a_rank_pushes_its_rows_with_gaps_between_them() {
    let shape = Shape::new(4, 128, 64).up_to(1000).ld("x", 72);
    let text = ops(&all_gather(true), &shape, 1);
    insta::assert_snapshot!(text, @r"
    signal ready_x.on(2)[1] +1
    signal ready_x.on(0)[1] +1
    wait ready_x[2] +1
    copy 2 x 128 to x.on(2) 288 / 144 from .on(1) 288 / 144
    signal arrived.on(2)[2] +1
    wait ready_x[0] +1
    copy 2 x 128 to x.on(0) 288 / 144 from .on(1) 288 / 144
    signal arrived.on(0)[2] +1
    ");
    // A rank without rows sends none, and lets the others send theirs.
    let grants = "signal ready_x.on(0)[2] +1\nsignal ready_x.on(1)[2] +1\n";
    assert_eq!(ops(&all_gather(true), &shape, 2), grants);
}
