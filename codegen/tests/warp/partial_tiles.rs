//! Tiles that are not whole: which rows of their operands come, and what the verifier says of others.

use crate::fixtures::library;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::kernel::DimId;
use counterflow_codegen::lower::lower;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{
    self, BLOCK_ROWS, Expr, Field, Node, OrderId, PARTIAL_BOX_ROWS, Pipeline, Values,
};
use proptest::prelude::*;
use std::collections::HashMap;

type Kind = ((u32, u32), bool, (u32, u32), Layout);

/// Tiles, whether in ping-pong, and clusters.
const KINDS: [Kind; 10] = [
    ((128, 256), false, (1, 1), Layout::Nt),
    ((128, 144), true, (2, 1), Layout::Nt),
    ((128, 192), false, (1, 2), Layout::Nt),
    ((256, 128), false, (2, 1), Layout::Nt),
    ((64, 48), true, (1, 2), Layout::Nt),
    ((32, 64), true, (1, 1), Layout::Nt),
    ((16, 64), true, (2, 1), Layout::Nt),
    ((208, 128), false, (1, 1), Layout::Nt),
    ((80, 128), true, (1, 2), Layout::Nt),
    ((128, 128), false, (1, 2), Layout::Nn),
];

fn good(kind: Kind) -> Pipeline {
    shared(kind, 1)
}

/// The same of CTAs that split the K of a tile.
fn shared((tile, ping_pong, cluster, layout): Kind, split: u32) -> Pipeline {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, tile);
    let options = GemmOptions {
        cluster: Some(cluster.into()),
        split: Some(split.into()),
        ping_pong: Some(ping_pong.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    let kernel = lower(&s.finish(), &Variant::new(1).layout(layout)).and_then(verify::kernel);
    let built = kernel.and_then(|kernel| sm90::build(&kernel));
    built.unwrap_or_else(|found| panic!("{found}"))
}

/// Of shards, the last one short.
fn sharded() -> Pipeline {
    let program = library::all()
        .into_iter()
        .find(|program| program.name == "ag_gemm")
        .expect("a schedule");
    let variant = Variant::new(4).set("tiles", (128, 128));
    let kernel = lower(&program, &variant).and_then(verify::kernel);
    let built = kernel.and_then(|kernel| sm90::build(&kernel));
    built.unwrap_or_else(|found| panic!("{found}"))
}

/// A CTA of a cluster with a tile somewhere in a product of m by n.
struct At<'a> {
    pipeline: &'a Pipeline,
    size: (u32, u32),
    vars: HashMap<String, u32>,
}

impl Values for At<'_> {
    fn var(&self, name: &str) -> u32 {
        self.vars[name]
    }
    fn field(&self, field: Field) -> u32 {
        let Field::Size(DimId(dim)) = field else {
            panic!("{field:?}");
        };
        match self.pipeline.kernel.dims[usize::from(dim)].name.as_str() {
            "m" => self.size.0,
            "n" => self.size.1,
            other => panic!("{other}"),
        }
    }
    fn rows_of(&self, _: DimId, _: u32) -> u32 {
        panic!("shards")
    }
    fn ordered(&self, _: OrderId, _: u32) -> u32 {
        panic!("orders")
    }
    fn block(&self) -> (u32, u32) {
        (0, 1)
    }
    fn within(&self) -> u32 {
        0
    }
}

/// What an operand's load says: into which part, from which row of the tensor, how many rows, of how many.
struct Said {
    part: usize,
    first: u32,
    rows: u32,
    all: u32,
}

/// What an operand's blocks say: into which part, from which row of the tensor, how many, and which K of a step.
struct Blocks {
    part: usize,
    first: u32,
    count: u32,
    k: std::ops::Range<u32>,
}

impl At<'_> {
    /// The loading thread's nodes of a tile, with the names that they bind.
    fn tile(&mut self, place: (u32, u32), multicast_rank: u32) -> Vec<Node> {
        self.vars.extend([
            ("t.row".into(), place.0),
            ("t.column".into(), place.1),
            ("multicast_rank".into(), multicast_rank),
            ("step".into(), 0),
            ("block".into(), 0),
        ]);
        let load = self.pipeline.warps.iter().find(|warp| warp.name == "load");
        let (mut sizes, mut found) = (Vec::new(), Vec::new());
        let body = &load.expect("a role").body;
        let items = body
            .iter()
            .flat_map(Node::body)
            .filter(|node| matches!(node, Node::Items { .. }));
        items.for_each(|node| {
            node.visit(&mut |node| match node {
                Node::Let { name, value } => sizes.push((name.clone(), value.clone())),
                node => found.push(node.clone()),
            });
        });
        for (name, value) in sizes {
            let value = value.eval(self);
            self.vars.insert(name, value);
        }
        found
    }

    /// What the loading thread of a CTA does of a tile, by partial boxes.
    fn loads(&mut self, place: (u32, u32), multicast_rank: u32) -> Vec<Said> {
        let nodes = self.tile(place, multicast_rank);
        let said = |node: &Node| match node {
            Node::Load {
                part,
                at,
                partial_boxes: Some(partial_boxes),
                ..
            } => Some(Said {
                part: *part,
                first: at.row.eval(self),
                rows: partial_boxes.rows.eval(self),
                all: partial_boxes.all.eval(self),
            }),
            _ => None,
        };
        nodes.iter().filter_map(said).collect()
    }

    /// The same by blocks; and how many bytes are expected in all.
    fn blocks(&mut self, place: (u32, u32), multicast_rank: u32) -> (Vec<Blocks>, u32) {
        let nodes = self.tile(place, multicast_rank);
        let blocks = |node: &Node| match node {
            Node::For { var, to, body, .. } if var == "block" => {
                let [Node::Load { part, map, at, .. }] = &body[..] else {
                    panic!("one load a block");
                };
                let k = at.column.eval(self);
                Some(Blocks {
                    part: *part,
                    first: at.row.eval(self),
                    count: to.eval(self),
                    k: k..k + self.pipeline.map(*map).box_columns,
                })
            }
            _ => None,
        };
        let bytes = nodes.iter().find_map(|node| match node {
            Node::Expect { bytes, .. } => Some(bytes.eval(self)),
            _ => None,
        });
        let blocks = nodes.iter().filter_map(blocks).collect();
        (blocks, bytes.expect("bytes"))
    }
}

/// Tiles of which both operands come in blocks.
const MN_MAJOR: [Kind; 7] = [
    ((128, 192), false, (1, 1), Layout::Tn),
    ((128, 144), false, (2, 1), Layout::Tn),
    ((256, 144), false, (1, 2), Layout::Tn),
    ((176, 128), false, (2, 1), Layout::Tn),
    ((128, 96), true, (1, 2), Layout::Tn),
    ((64, 48), true, (2, 1), Layout::Tn),
    ((200, 256), false, (1, 1), Layout::Tn),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the size: the CTAs of a cluster load the rows of their tiles that exist, in whole partial boxes, and no more.
    #[test]
    fn all_rows_that_exist_come_and_no_others(
        which in 0..KINDS.len(),
        m in 1u32..900,
        n in (1u32..90).prop_map(|n| n * 8),
    ) {
        let (tile, _, (down, across), layout) = KINDS[which];
        let pipeline = good(KINDS[which]);
        let mut at = At { pipeline: &pipeline, size: (m, n), vars: HashMap::new() };
        let tiles = [m.div_ceil(tile.0 * down), n.div_ceil(tile.1 * across)];
        for place in (0..tiles[0]).flat_map(|row| (0..tiles[1]).map(move |column| (row, column))) {
            let cluster: Vec<Vec<Said>> =
                (0..down * across).map(|multicast_rank| at.loads(place, multicast_rank)).collect();
            for (multicast_rank, mine) in cluster.iter().enumerate() {
                let multicast_rank = multicast_rank as u32;
                let first = [
                    (place.0 * down + multicast_rank * (down - 1)) * tile.0,
                    (place.1 * across + multicast_rank * (across - 1)) * tile.1,
                ];
                let parts = mine.iter().map(|said| said.part);
                // More rows than one partial box has, and of what several CTAs load, whole partial boxes each.
                let partial_boxes = |rows: u32, ctas: u32| {
                    let each = rows / ctas;
                    each > PARTIAL_BOX_ROWS && (ctas == 1 || each.is_multiple_of(PARTIAL_BOX_ROWS))
                };
                let contiguous = layout.mn_major();
                let sides = [(tile.0, across), (tile.1, down)].into_iter().zip(contiguous).enumerate();
                let stripped = sides.filter(|(_, ((rows, ctas), mn_major))| !mn_major && partial_boxes(*rows, *ctas));
                prop_assert_eq!(parts.collect::<Vec<_>>(), stripped.map(|(part, _)| part).collect::<Vec<_>>());
                for (index, said) in mine.iter().enumerate() {
                    let (size, block, shared) = match said.part {
                        0 => (m, tile.0, across),
                        _ => (n, tile.1, down),
                    };
                    prop_assert_eq!(said.all, block / shared);
                    let partial_boxes = said.rows.is_multiple_of(PARTIAL_BOX_ROWS);
                    prop_assert!(said.rows == said.all || said.rows < said.all && partial_boxes);
                    // All that comes into this CTA: what each of those that share the tile loads.
                    let loads = cluster.iter().map(|other| &other[index]);
                    let loads: Vec<_> = if shared > 1 { loads.collect() } else { vec![said] };
                    let from = first[said.part];
                    let exist = size.saturating_sub(from).min(block);
                    let come: u32 = loads.iter().map(|said| said.rows).sum();
                    prop_assert_eq!(come, exist.next_multiple_of(PARTIAL_BOX_ROWS).min(block));
                    let mut next = from;
                    for load in loads.iter().filter(|load| load.rows > 0) {
                        prop_assert_eq!(load.first, next, "their rows follow each other");
                        next += load.rows;
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the size: of both operands come the blocks that have a row which exists, and no more, if registers are left
    /// to count them; of what a cluster's CTAs share, each loads its part of the step's K.
    #[test]
    fn all_blocks_that_exist_come_and_no_others(
        which in 0..MN_MAJOR.len(),
        m in (1u32..120).prop_map(|m| m * 8),
        n in (1u32..90).prop_map(|n| n * 8),
    ) {
        let (tile, _, (down, across), _) = MN_MAJOR[which];
        let pipeline = good(MN_MAJOR[which]);
        let mut at = At { pipeline: &pipeline, size: (m, n), vars: HashMap::new() };
        let tiles = [m.div_ceil(tile.0 * down), n.div_ceil(tile.1 * across)];
        for place in (0..tiles[0]).flat_map(|row| (0..tiles[1]).map(move |column| (row, column))) {
            for multicast_rank in 0..down * across {
                let sides = [
                    (m, tile.0, place.0 * down + multicast_rank * (down - 1), across),
                    (n, tile.1, place.1 * across + multicast_rank * (across - 1), down),
                ];
                let (blocks, bytes) = at.blocks(place, multicast_rank);
                prop_assert_eq!(blocks.len(), 2);
                for (part, (size, block, index, shared)) in sides.into_iter().enumerate() {
                    let said = &blocks[part];
                    let from = index * block;
                    let come = if tile == (200, 256) { block } else { size.saturating_sub(from).min(block) };
                    let each = 64 / shared;
                    let mine = multicast_rank * each * (shared - 1);
                    prop_assert_eq!((said.part, said.first), (part, from));
                    prop_assert_eq!(said.count, come.div_ceil(BLOCK_ROWS));
                    prop_assert_eq!(said.k.clone(), mine..mine + each);
                }
                // All that comes into a CTA, from whichever.
                let come: u32 = blocks.iter().map(|said| said.count).sum();
                prop_assert_eq!(bytes, come * BLOCK_ROWS * 64 * 2);
            }
        }
    }
}

fn verdict(pipeline: Pipeline) -> String {
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// What the verifier says after `edit` has changed the nodes of a good pipeline that it can.
fn trace(mut pipeline: Pipeline, mut edit: impl FnMut(&mut Node) -> bool) -> String {
    let mut edited = false;
    pipeline.lists(&mut |list| {
        for node in list {
            edited |= edit(node);
        }
    });
    assert!(edited, "the edit found nothing to change");
    verdict(pipeline)
}

/// Changes how many rows of an operand are said to exist: for its loads, and for the bytes that are expected.
fn said_to_exist(name: &str, rows: impl Fn(Expr) -> Expr) -> impl FnMut(&mut Node) -> bool {
    move |node| {
        let Node::Let { name: known, value } = node else {
            return false;
        };
        let found = *known == name;
        if found {
            *value = rows(value.clone());
        }
        found
    }
}

/// The same for the loads alone.
fn loaded(which: usize, rows: impl Fn(Expr) -> Expr) -> impl FnMut(&mut Node) -> bool {
    move |node| {
        let Node::Load {
            part,
            partial_boxes: Some(partial_boxes),
            ..
        } = node
        else {
            return false;
        };
        let found = *part == which;
        if found {
            partial_boxes.rows = rows(partial_boxes.rows.clone());
        }
        found
    }
}

/// One partial box less than there are, of what is not whole.
fn a_partial_box_less(rows: Expr, all: u32) -> Expr {
    let partial_box = Expr::from(PARTIAL_BOX_ROWS) * (Expr::from(1) - rows.clone() / all);
    rows.clone() - Expr::Min(partial_box.into(), rows.into())
}

const ALONE: Kind = ((128, 128), false, (1, 1), Layout::Nt);

#[test]
fn a_partial_box_that_is_left_out() {
    // Rows of the last tile, of a short shard, and columns.
    insta::assert_snapshot!(trace(good(ALONE), said_to_exist("x_rows", |rows| a_partial_box_less(rows, 128))), @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 512..574, columns 0..64 of y (shard or slot 0) on rank 0 for tile (4, 0)
      = some of what exists of its operands was not loaded
    ");
    insta::assert_snapshot!(trace(sharded(), said_to_exist("x_rows", |rows| a_partial_box_less(rows, 128))), @"
    error[coverage]: store of block 3 on rank 0 stores subtile 0 to rows 128..192, columns 0..64 of y (shard or slot 0) on rank 0 for tile (1, 0)
      = some of what exists of its operands was not loaded
    ");
    insta::assert_snapshot!(trace(good(ALONE), said_to_exist("w_rows", |rows| a_partial_box_less(rows, 128))), @"
    error[coverage]: store of block 1 on rank 0 stores subtile 0 to rows 0..128, columns 128..136 of y (shard or slot 0) on rank 0 for tile (0, 1)
      = some of what exists of its operands was not loaded
    ");
    // Of a half that CTAs of a cluster load into each other.
    for cluster in [(2, 1), (1, 2)] {
        let kind = ((128, 128), false, cluster, Layout::Nt);
        let (name, part) = if cluster == (2, 1) {
            ("w_rows", 1)
        } else {
            ("x_rows", 0)
        };
        let found = trace(
            good(kind),
            said_to_exist(name, |rows| a_partial_box_less(rows, 128)),
        );
        assert!(found.contains("was not loaded"), "{found}");
        let found = trace(
            good(kind),
            loaded(part, |rows| a_partial_box_less(rows, 64)),
        );
        assert!(found.contains("for ever"), "{found}");
    }
}

/// What is said after x lacks a partial box where a variable is not 0, and its bytes are not expected either.
fn lacking(pipeline: Pipeline, name: &str) -> String {
    let less = |rows: Expr| {
        let then = Expr::Min(Expr::var(name).into(), Expr::from(1).into());
        then * PARTIAL_BOX_ROWS * (Expr::from(1) - rows / 128)
    };
    trace(pipeline, |node| match node {
        Node::Load {
            part: 0,
            partial_boxes: Some(partial_boxes),
            ..
        } => {
            partial_boxes.rows = partial_boxes.rows.clone() - less(partial_boxes.rows.clone());
            true
        }
        Node::Expect { barrier, bytes } if barrier.ring.0 == 0 => {
            *bytes = bytes.clone() - less(Expr::var("x_rows")) * 128;
            true
        }
        _ => false,
    })
}

/// Nothing tells the consumers that a partial box is stale: only what is stored of its rows.
#[test]
fn a_partial_box_that_does_not_come_in_every_step() {
    insta::assert_snapshot!(lacking(good(ALONE), "step"), @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 512..574, columns 0..64 of y (shard or slot 0) on rank 0 for tile (4, 0)
      = some of what exists of its operands was not loaded
    ");
    // Its sum is added to that of a CTA which has all rows.
    insta::assert_snapshot!(lacking(shared(ALONE, 2), "split_rank"), @"
    error[coverage]: store of block 1 on rank 0 stores subtile 0 to rows 512..574, columns 64..128 of y (shard or slot 0) on rank 0 for tile (4, 0)
      = some of what exists of its operands was not loaded
    ");
}

#[test]
fn other_bytes_than_come() {
    let whole = trace(good(ALONE), |node| match node {
        Node::Expect { bytes, .. } => {
            *bytes = Expr::from(2 * 128 * 128);
            true
        }
        _ => false,
    });
    insta::assert_snapshot!(whole, @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (4, 0), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (4, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (4, 0)
      = multiply of block 0 on rank 0 waits for a stage to be full
      = multiply of block 0 on rank 0 waits for a stage to be full
      = load of block 1 on rank 0 waits for a stage to be empty for tile (0, 1)
    ");
    // A partial box is left out, but expected; and one too many.
    let less = trace(good(ALONE), loaded(0, |rows| a_partial_box_less(rows, 128)));
    insta::assert_snapshot!(less, @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (4, 0), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (4, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (4, 0)
      = multiply of block 0 on rank 0 waits for a stage to be full
      = multiply of block 0 on rank 0 waits for a stage to be full
      = load of block 1 on rank 0 waits for a stage to be empty for tile (4, 1)
    ");
    let more =
        |rows: Expr| rows.clone() + Expr::from(PARTIAL_BOX_ROWS) * (Expr::from(1) - rows / 128);
    insta::assert_snapshot!(trace(good(ALONE), loaded(1, more)), @"
    error[race]: multiply of block 1 on rank 0 multiplies x of stage 2 by w of stage 2
      = load of block 1 on rank 0 loads rows 136..136, columns 0..64 of w (shard or slot 0) on rank 0 into w of stage 2 for tile (0, 1)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // Of a cluster that shares columns of w, each CTA loads as many partial boxes as if it had the first half.
    let kind = ((128, 128), false, (2, 1), Layout::Nt);
    let some = |_| Expr::Min(Expr::var("w_rows").into(), Expr::from(64).into());
    insta::assert_snapshot!(trace(good(kind), loaded(1, some)), @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (0, 2), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (0, 2)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 2)
      = multiply of block 0 on rank 0 waits for a stage to be full
      = multiply of block 0 on rank 0 waits for a stage to be full
      = load of block 1 on rank 0 waits for a stage to be empty for tile (0, 2)
    ");
}

#[test]
fn partial_boxes_of_something_else() {
    let map = |pipeline: &Pipeline, name| {
        let maps = &pipeline.maps;
        let at = maps.iter().position(|map| map.name == name);
        warp::MapId(at.expect("a map") as u16)
    };
    let w = map(&good(ALONE), "w_partial_box");
    let found = trace(good(ALONE), |node| match node {
        Node::Load {
            part: 0,
            partial_boxes: Some(partial_boxes),
            ..
        } => {
            partial_boxes.map = w;
            true
        }
        _ => false,
    });
    insta::assert_snapshot!(found, @"
    error[coverage]: multiply of block 0 on rank 0 multiplies x of stage 2 by w of stage 2
      = a stage does not hold one tile of each operand
    ");
    // More of them than the part has room for.
    let found = trace(
        good(ALONE),
        said_to_exist("x_rows", |rows| rows + PARTIAL_BOX_ROWS),
    );
    insta::assert_snapshot!(found, @"
    error[race]: load of block 0 on rank 0 loads rows 0..32, columns 64..128 of x (shard or slot 0) on rank 0 into x of stage 1 for tile (0, 0)
      = load of block 0 on rank 0 loads rows 128..160, columns 0..64 of x (shard or slot 0) on rank 0 into x of stage 1 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

/// Small tiles come as one partial box, blocks of rows as blocks.
#[test]
fn what_has_no_partial_boxes() {
    let partial_boxes = |kind| {
        let mut parts = Vec::new();
        good(kind).visit(|node| {
            if let Node::Load {
                part,
                partial_boxes,
                ..
            } = node
            {
                parts.push((*part, partial_boxes.is_some()));
            }
        });
        parts
    };
    let ping_pong = |tile, cluster, layout| partial_boxes((tile, true, cluster, layout));
    assert_eq!(
        ping_pong((8, 64), (1, 1), Layout::Nt),
        [(0, false), (1, true)]
    );
    assert_eq!(
        ping_pong((8, 64), (2, 1), Layout::Nt),
        [(0, false), (1, false)]
    );
    assert_eq!(
        ping_pong((64, 64), (1, 1), Layout::Nn),
        [(0, true), (1, false)]
    );
    assert_eq!(
        ping_pong((64, 64), (1, 1), Layout::Tn),
        [(0, false), (1, false)]
    );
}

/// Tensors may be called what partial boxes, or their rows, of another would be.
#[test]
fn names_stay_apart() {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w) = (s.local("x_partial_box", Bf16), s.local("x", Bf16));
    let y = s.out("x_rows", Bf16);
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    let kernel = lower(&s.finish(), &Variant::new(1)).and_then(verify::kernel);
    let built = kernel.and_then(|kernel| sm90::build(&kernel));
    let built = built.unwrap_or_else(|found| panic!("{found}"));
    let names: Vec<_> = built.maps.iter().map(|map| &map.name[..]).collect();
    let mut apart = names.clone();
    apart.sort_unstable();
    apart.dedup();
    assert_eq!(apart.len(), names.len(), "{names:?}");
    built.visit(|node| {
        if let Node::Let { name, .. } = node {
            assert!(!names.contains(&&name[..]), "{name} is a tensor, too");
        }
    });
}
