//! What is stored ends where its shard does: rows behind a shard that is short are not the kernel's to write, whoever's
//! they are.

use crate::fixtures::library;
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Map, MapId, Node, Pipeline, View};
use counterflow_emitter as cuda;
use std::collections::BTreeSet;

const WORLD: u32 = 4;

fn built(program: &Program) -> Pipeline {
    let variant = Variant::new(WORLD).set("tiles", (128, 128));
    let kernel = lower(program, &variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", program.name));
    sm90::build(&kernel).unwrap_or_else(|error| panic!("{}: {error}", program.name))
}

/// Maps that something is stored by.
fn stored_by(pipeline: &Pipeline) -> BTreeSet<MapId> {
    let mut found = BTreeSet::new();
    pipeline.visit(|node| {
        if let Node::Store { map, .. } = node {
            found.insert(*map);
        }
    });
    found
}

/// Each in its turn stores beyond a short shard's end: into the padding of a peer's tensor, of its own, or into the next
/// shard.
#[test]
fn a_store_beyond_a_shards_end_is_refused() {
    let mut said = String::new();
    for program in library::all() {
        let good = built(&program);
        for id in stored_by(&good) {
            let map = good.map(id);
            let kind = good.kernel.buffers[map.tensor.index()].usage;
            let scratch = kind.is_scratch();
            if map.view == View::Flat || scratch {
                assert!(!map.partial_shard, "{}: {}", program.name, map.name);
                continue;
            }
            let mut pipeline = good.clone();
            pipeline.maps[usize::from(id.0)].partial_shard = false;
            let name = format!("{} {}", program.name, map.name);
            match verify::pipeline(pipeline) {
                Ok(_) => panic!("{name}: accepted"),
                Err(found) => {
                    let text = found.first().text(&|_| String::new());
                    assert!(text.contains("does not clip the box"), "{name}: {text}");
                    said += &format!("{name} ({:?})\n", map.view);
                }
            }
        }
    }
    insta::assert_snapshot!(said);
}

/// The map of the short shard has the rows of that shard, whoever's it is, and the other has full shards: what is loaded by
/// it ends nowhere before.
#[test]
fn the_map_of_a_short_shard_has_its_rows() {
    // Shards of 251, 251, 251 and 248 rows, or of 496, 496, 496 and 488 columns.
    for program in library::all() {
        let pipeline = built(&program);
        let further = pipeline.kernel.dims.iter().filter(|dim| dim.is_further());
        let shape = further.fold(Shape::new(1001, 1976, 256), |shape, dim| {
            shape.dim(&dim.name, if dim.sharded { 1001 } else { 256 })
        });
        let plan = Plan::new(&pipeline.kernel, &shape, &Machine::h200());
        let plan = plan.unwrap_or_else(|error| panic!("{}: {error}", program.name));
        for (at, map) in pipeline.maps.iter().enumerate() {
            let of = |short| pipeline.map_shape(MapId(at as u16), short, &plan, 1);
            let (full, short) = (of(false), of(true));
            if !map.partial_shard {
                continue;
            }
            let side = usize::from(map.view != View::ColumnShards);
            assert_eq!(full.dims[2..], short.dims[2..], "{}", map.name);
            assert_eq!(full.strides, short.strides, "{}", map.name);
            let [long, less] = [full, short].map(|shape| shape.dims[side]);
            let (shard, last) = match program.name == "fsdp_gemm" {
                true => (496, 488),
                false => (251, 248),
            };
            assert_eq!((long, less), (shard, last), "{} {}", program.name, map.name);
        }
    }
}

/// A second loop that reads what the first stored in an output of this rank's own: the memory may end where the last shard
/// does, and all of that shard is read.
#[test]
fn a_short_shard_that_is_read_back_has_a_map_of_its_own() {
    let mut s = ScheduleBuilder::new("reads");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let z = s.out("z", Bf16);
    let chunks = s.chunks("chunks", x, 128);
    let tiles = s.tiles("tiles", y, tune([(128, 128), (128, 256)]));
    let arrived = s.counters("arrived", [chunks.into()]);
    let ready = s.counters("ready", [tiles.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.rows()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
                s.signal(ready.at(t), 1);
            });
        });
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(ready.at(t));
                let stored = s.load(y.at(t));
                s.store(z.at(t), stored);
            });
        });
    });
    let pipeline = built(&s.finish());
    let checked = verify::pipeline(pipeline.clone()).unwrap_or_else(|error| panic!("{error}"));
    let text = cuda::emit(&checked).text.replace(['\n', ' '], "");
    let by_its_own = "shard==plan.partial_shard?y_partial_shard:y,";
    for call in ["tma_load(", "tma_store("] {
        let by = text.split(call).filter(|call| {
            let call = call.split(';').next();
            call.is_some_and(|call| call.contains(by_its_own))
        });
        assert_eq!(by.count(), 1, "{call}");
    }
    // By a loop that does not store it either.
    let mut pipeline = pipeline;
    let y = pipeline.maps.iter().position(|map| map.name == "y");
    let y = y.expect("a map");
    pipeline.maps.push(Map {
        name: "y_again".into(),
        partial_shard: false,
        ..pipeline.maps[y].clone()
    });
    let again = MapId((pipeline.maps.len() - 1) as u16);
    pipeline.lists(&mut |list| {
        for node in list {
            if let Node::Load { map, .. } = node
                && usize::from(map.0) == y
            {
                *map = again;
            }
        }
    });
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()));
}
