//! Shards divide the rows or the columns, items divide the shards, and what overlaps is found, for ragged sizes.

use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::kernel::{DimId, Kernel};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::{CounterId, PartitionId, Side};
use counterflow_codegen::shape::{Extent, Geometry, Item, Shape};
use counterflow_codegen::variant::{Arch, Variant};
use proptest::prelude::*;

const CHUNKS: PartitionId = PartitionId(0);
const PANELS: PartitionId = PartitionId(1);
const TILES: PartitionId = PartitionId(2);

/// A product whose rows, or whose columns, the ranks divide: the rows of its first operand or of its second.
fn kernel(divided: Side, world: u32, chunk: u32, panel: u32, tile: (u32, u32)) -> Kernel {
    let mut s = ScheduleBuilder::new("gather");
    let (x, w, gathered) = match divided {
        Side::Rows => {
            let x = s.gathered("x", Bf16);
            (x, s.local("w", Bf16), x)
        }
        Side::Columns => {
            let w = s.gathered("w", Bf16);
            (s.local("x", Bf16), w, w)
        }
    };
    let y = s.out("y", Bf16);
    let chunks = s.chunks("chunks", gathered, chunk);
    let panels = s.panels("panels", gathered, panel);
    let tiles = s.tiles("tiles", y, tile);
    let _ = s.counters("by_chunk", [chunks.into()]);
    let _ = s.counters("by_panel", [panels.into(), Axis::from(3u32)]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    let variant = Variant::new(world).arch(Arch::Cpu);
    lower(&s.finish(), &variant).unwrap_or_else(|found| panic!("{found}"))
}

/// Whether the extents, in order, are exactly `whole`.
fn partitions(whole: Extent, parts: impl IntoIterator<Item = Extent>) -> bool {
    let mut next = whole.start;
    for part in parts {
        if part.is_empty() || part.start != next {
            return false;
        }
        next = part.end;
    }
    next == whole.end
}

fn either() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Rows), Just(Side::Columns)]
}

fn dim(kernel: &Kernel, name: &str) -> DimId {
    let named = |id: &DimId| kernel.dims[usize::from(id.0)].name == name;
    (0..).map(DimId).find(named).expect("a dimension")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn geometry_is_exact(
        divided in either(), world in 1u32..=9, m in 1u32..300, n in 1u32..60, k in 1u32..40,
        chunk in 1u32..40, panel in 1u32..100, tile in (1u32..40, 1u32..100),
    ) {
        let (n, k) = (n * 8, k * 8);
        let kernel = kernel(divided, world, chunk, panel, tile);
        let g = Geometry::new(&kernel, &Shape::new(m, n, k)).unwrap_or_else(|e| panic!("{e}"));
        let (name, size, unit) = match divided {
            Side::Rows => ("m", m, 1),
            Side::Columns => ("n", n, 8),
        };
        let by_ranks = dim(&kernel, name);

        let shards = || (0..world).map(|shard| g.shard(by_ranks, shard));
        let all = Extent { start: 0, end: size };
        prop_assert!(partitions(all, shards().filter(|shard| !shard.is_empty())));
        prop_assert!(shards().all(|shard| shard.len() <= g.shard_rows(by_ranks)));
        // A shard of columns begins at whole 16 bytes.
        prop_assert_eq!(g.shard_rows(by_ranks) % unit, 0);

        for partition in [CHUNKS, PANELS, TILES] {
            let of = &kernel.partitions[partition.index()];
            let part = |side: Side, shard: u32| match of.dim(side) {
                dim if dim == by_ranks => g.shard(dim, shard),
                dim => Extent { start: 0, end: g.size(dim) },
            };
            let mut cells = vec![false; g.cells(partition) as usize];
            prop_assert_eq!(g.partition_shards(partition), world);
            for shard in 0..world {
                let (rows, columns) = g.grid(partition, Some(shard));
                let item = |row, column| g.item(partition, Item { shard, row, column });
                if columns > 0 {
                    prop_assert!(partitions(part(Side::Rows, shard), (0..rows).map(|row| item(row, 0).0)));
                }
                if rows > 0 {
                    let across = (0..columns).map(|column| item(0, column).1);
                    prop_assert!(partitions(part(Side::Columns, shard), across));
                }
                prop_assert!(rows * columns > 0 || g.shard(by_ranks, shard).is_empty());
                for row in 0..rows {
                    for column in 0..columns {
                        let cell = g.cell(partition, Item { shard, row, column }) as usize;
                        prop_assert!(!cells[cell], "two items have cell {}", cell);
                        cells[cell] = true;
                    }
                }
            }
        }
        prop_assert_eq!(u64::from(g.counter_cells(CounterId(0))), g.cells(CHUNKS));
        prop_assert_eq!(u64::from(g.counter_cells(CounterId(1))), g.cells(PANELS) * 3);
    }

    #[test]
    fn overlapping_is_exactly_what_intersects(
        divided in either(), world in 1u32..=6, m in 1u32..200, n in 1u32..25, chunk in 1u32..30,
        panel in 1u32..50, tile in (1u32..30, 1u32..50),
    ) {
        let kernel = kernel(divided, world, chunk, panel, tile);
        let g = Geometry::new(&kernel, &Shape::new(m, n * 8, 160)).unwrap_or_else(|e| panic!("{e}"));
        let along = |(rows, columns): (Extent, Extent)| match divided {
            Side::Rows => rows,
            Side::Columns => columns,
        };
        for shard in 0..world {
            let (rows, columns) = g.grid(TILES, Some(shard));
            let items = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
            for (row, column) in items {
                let extent = along(g.item(TILES, Item { shard, row, column }));
                for partition in [CHUNKS, PANELS] {
                    let found = g.overlapping(partition, shard, (Side::Rows, extent));
                    let (grid_rows, grid_columns) = g.grid(partition, Some(shard));
                    for r in 0..grid_rows {
                        let chunk = g.item(partition, Item { shard, row: r, column: 0 }).0;
                        prop_assert_eq!(chunk.overlaps(extent), found.0.contains(&r));
                    }
                    prop_assert!(found.0.end <= grid_rows);
                    prop_assert_eq!(found.1, 0..grid_columns);
                }
                // Of its own partition, those of its row and of its column.
                let (all_rows, all_columns) = g.item(TILES, Item { shard, row, column });
                let of_row = g.overlapping(TILES, shard, (Side::Rows, all_rows));
                prop_assert_eq!(of_row, (row..row + 1, 0..columns));
                let of_column = g.overlapping(TILES, shard, (Side::Columns, all_columns));
                prop_assert_eq!(of_column, (0..rows, column..column + 1));
            }
        }
    }
}
