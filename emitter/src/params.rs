//! Parameters of a kernel: tensor maps, the numbers of one launch, and a place to report a stall.

pub(super) use counterflow_codegen::warp::field_name as name;
use counterflow_codegen::warp::{Ctas, Expr, Field, MOST_STEPS, MapId, Node, Pipeline, Whose};
use std::collections::BTreeSet;

/// A kernel parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Param {
    /// A tensor map (128 bytes, by value).
    Map {
        /// Map, which [`Pipeline::maps`] describes.
        map: MapId,
        /// True if it is for the one shard that has some rows, but not all: every shard of it ends after that many.
        partial_shard: bool,
    },
    /// A map's tensor in every rank's memory at once: the struct `EveryCopy` of the prelude, of [`EVERY_COPY_BYTES`]. Its
    /// multicast address, bytes from a row to the next and from a shard or slot to the next, columns, rows of a shard.
    EveryCopy {
        /// Map whose sizes are passed.
        map: MapId,
        /// As that of [`Param::Map`].
        partial_shard: bool,
    },
    /// A map's tensor at each rank's own address: the struct `EachRank` of the prelude, of [`EACH_RANK_BYTES`]. Its address on
    /// the first rank; bytes from a row, a shard or slot, and a rank to the next; columns.
    EachRank {
        /// Map whose sizes are passed.
        map: MapId,
    },
    /// A struct of numbers.
    Plan {
        /// Size in bytes.
        bytes: u32,
        /// Fields of the struct.
        fields: Vec<FieldAt>,
    },
    /// The struct `Watch` of the prelude, of [`WATCH_BYTES`]: where to report a stall, who tells to give up, the time
    /// limits, and who this is.
    Watch,
}

/// Bytes of the prelude's `Watch`.
pub const WATCH_BYTES: usize = 72;

/// Bytes of the prelude's `EveryCopy`.
pub const EVERY_COPY_BYTES: usize = 32;

/// Bytes of the prelude's `EachRank`.
pub const EACH_RANK_BYTES: usize = 40;

/// Place of a number in the struct.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldAt {
    /// Name in the text.
    pub name: String,
    /// Meaning of the number.
    pub field: Field,
    /// Offset in bytes.
    pub offset: u32,
}

/// The parameters, in order.
pub(super) fn of(pipeline: &Pipeline) -> Vec<Param> {
    let mut params = Vec::new();
    for (index, map) in pipeline.maps.iter().enumerate() {
        let id = MapId(index as u16);
        let both = [false, true]
            .into_iter()
            .filter(|partial| !partial || map.partial_shard);
        let reaches = pipeline.reaches(id);
        if reaches.by_tma {
            params.extend(both.clone().map(|partial_shard| Param::Map {
                map: id,
                partial_shard,
            }));
        }
        if reaches.everywhere {
            params.extend(both.map(|partial_shard| Param::EveryCopy {
                map: id,
                partial_shard,
            }));
        }
        if reaches.parts {
            params.push(Param::EachRank { map: id });
        }
    }
    let mut offset = 0;
    let mut fields: Vec<FieldAt> = Vec::new();
    let used = used(pipeline);
    // As the compiler lays them out without gaps: addresses, numbers, tables of bytes.
    let of_bytes = |bytes| used.iter().filter(move |field| field.bytes() == bytes);
    for field in [8, 4, MOST_STEPS].into_iter().flat_map(of_bytes).copied() {
        fields.push(FieldAt {
            name: name(pipeline, field),
            field,
            offset,
        });
        offset += field.bytes();
    }
    params.push(Param::Plan {
        // As the compiler sizes the struct: by its widest field.
        bytes: if fields.iter().any(|at| at.field.wide()) {
            offset.next_multiple_of(8)
        } else {
            offset
        },
        fields,
    });
    params.push(Param::Watch);
    params
}

/// The fields the text reads.
fn used(pipeline: &Pipeline) -> BTreeSet<Field> {
    let mut used = BTreeSet::new();
    pipeline.visit_exprs(|expr| match expr {
        Expr::Field(field) => {
            used.insert(*field);
        }
        Expr::RowsOf(dim, _) => used.extend([Field::Size(*dim), Field::ShardRows(*dim)]),
        Expr::Ordered(order, _) => {
            used.insert(Field::Order(*order));
        }
        Expr::Const(_)
        | Expr::Symbol(..)
        | Expr::Var(_)
        | Expr::Block
        | Expr::Blocks
        | Expr::Binary(..)
        | Expr::Min(..)
        | Expr::CeilDiv(..)
        | Expr::Within
        | Expr::Named(..)
        | Expr::Cell(_) => {}
    });
    pipeline.visit(|node| match node {
        Node::Schedule { scheduler, .. } => {
            if let Ctas::LateComm(_) = &pipeline.scheduler(*scheduler).ctas {
                used.insert(Field::LateJoin);
            }
        }
        Node::Others { .. } => used.extend([Field::Me, Field::World]),
        Node::CounterWait { counter, .. }
        | Node::CounterAdvance { counter, .. }
        | Node::Defer { counter, .. } => used.extend([Field::First(*counter), Field::Me]),
        Node::CounterAdd { counter, whose, .. } => {
            used.extend([Field::First(*counter), Field::Me]);
            if *whose == Whose::Everywhere {
                used.insert(Field::HeapEverywhere);
            }
        }
        Node::LastCta { advance, .. } => {
            used.extend(advance.iter().map(|(counter, _)| Field::First(*counter)));
            used.insert(Field::Me);
        }
        Node::Fragment(op) => {
            used.extend(op.fields());
            if let Some(plane) = op.plane_of_slots() {
                let plane = &pipeline.kernel.buffers[plane.index()];
                used.insert(Field::Size(plane.columns));
            }
        }
        // Where they are on a rank is told as for counters.
        Node::CopyScales { tensor, .. } => used.extend([
            Field::Vector(*tensor),
            Field::Me,
            Field::Heap,
            Field::Stride,
            Field::Counters,
            Field::Arrivals,
            Field::Finished,
        ]),
        Node::Note(_)
        | Node::Let { .. }
        | Node::Ranks { .. }
        | Node::Items { .. }
        | Node::For { .. }
        | Node::If { .. }
        | Node::Ahead { .. }
        | Node::Await { .. }
        | Node::TestWait { .. }
        | Node::AwaitTested { .. }
        | Node::Expect { .. }
        | Node::Arrive { .. }
        | Node::Advance { .. }
        | Node::Skip { .. }
        | Node::Release { .. }
        | Node::AwaitOrder
        | Node::ArriveOrder
        | Node::Load { .. }
        | Node::Store { .. }
        | Node::Commit
        | Node::AwaitRead { .. }
        | Node::AwaitStores { .. }
        | Node::MmaFence
        | Node::Mma { .. }
        | Node::MmaCommit
        | Node::MmaWait { .. }
        | Node::Accumulators
        | Node::FenceShared
        | Node::SyncWarp
        | Node::FenceGlobal
        | Node::FenceAlias
        | Node::Flush { .. }
        | Node::AwaitLaunches
        | Node::SyncCta
        | Node::SyncCluster => {}
    });
    let apart = pipeline.maps.iter().filter(|map| map.partial_shard);
    used.extend(apart.map(|map| Field::PartialShard(map.divided(&pipeline.kernel))));
    if used.iter().any(|field| matches!(field, Field::First(_))) {
        used.extend([
            Field::Heap,
            Field::Stride,
            Field::Counters,
            Field::Arrivals,
            Field::Finished,
        ]);
    }
    used
}
