//! Chunks divide the rows or the columns, items divide the chunks, and what overlaps is found, for ragged sizes.

use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::kernel::{DimId, Kernel};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::{CounterId, PartitionId, Side};
use counterflow_codegen::shape::{Extent, Geometry, Item, Shape};
use counterflow_codegen::variant::{Arch, Variant};
use proptest::prelude::*;

const PIECES: PartitionId = PartitionId(0);
const PANELS: PartitionId = PartitionId(1);
const TILES: PartitionId = PartitionId(2);

/// A product whose rows, or whose columns, the ranks divide: the rows of its first operand or of its second.
fn kernel(divided: Side, world: u32, piece: u32, panel: u32, tile: (u32, u32)) -> Kernel {
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
    let pieces = s.pieces("pieces", gathered, piece);
    let panels = s.panels("panels", gathered, panel);
    let tiles = s.tiles("tiles", y, tile);
    let _ = s.counters("by_piece", [pieces.into()]);
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
        piece in 1u32..40, panel in 1u32..100, tile in (1u32..40, 1u32..100),
    ) {
        let (n, k) = (n * 8, k * 8);
        let kernel = kernel(divided, world, piece, panel, tile);
        let g = Geometry::new(&kernel, &Shape::new(m, n, k)).unwrap_or_else(|e| panic!("{e}"));
        let (name, size, unit) = match divided {
            Side::Rows => ("m", m, 1),
            Side::Columns => ("n", n, 8),
        };
        let by_ranks = dim(&kernel, name);

        let chunks = || (0..world).map(|chunk| g.chunk(by_ranks, chunk));
        let all = Extent { start: 0, end: size };
        prop_assert!(partitions(all, chunks().filter(|chunk| !chunk.is_empty())));
        prop_assert!(chunks().all(|chunk| chunk.len() <= g.chunk_rows(by_ranks)));
        // A chunk of columns begins at whole 16 bytes.
        prop_assert_eq!(g.chunk_rows(by_ranks) % unit, 0);

        for partition in [PIECES, PANELS, TILES] {
            let of = &kernel.partitions[partition.index()];
            let part = |side: Side, chunk: u32| match of.dim(side) {
                dim if dim == by_ranks => g.chunk(dim, chunk),
                dim => Extent { start: 0, end: g.size(dim) },
            };
            let mut cells = vec![false; g.cells(partition) as usize];
            prop_assert_eq!(g.partition_chunks(partition), world);
            for chunk in 0..world {
                let (rows, columns) = g.grid(partition, Some(chunk));
                let item = |row, column| g.item(partition, Item { chunk, row, column });
                if columns > 0 {
                    prop_assert!(partitions(part(Side::Rows, chunk), (0..rows).map(|row| item(row, 0).0)));
                }
                if rows > 0 {
                    let across = (0..columns).map(|column| item(0, column).1);
                    prop_assert!(partitions(part(Side::Columns, chunk), across));
                }
                prop_assert!(rows * columns > 0 || g.chunk(by_ranks, chunk).is_empty());
                for row in 0..rows {
                    for column in 0..columns {
                        let cell = g.cell(partition, Item { chunk, row, column }) as usize;
                        prop_assert!(!cells[cell], "two items have cell {}", cell);
                        cells[cell] = true;
                    }
                }
            }
        }
        prop_assert_eq!(u64::from(g.counter_cells(CounterId(0))), g.cells(PIECES));
        prop_assert_eq!(u64::from(g.counter_cells(CounterId(1))), g.cells(PANELS) * 3);
    }

    #[test]
    fn overlapping_is_exactly_what_intersects(
        divided in either(), world in 1u32..=6, m in 1u32..200, n in 1u32..25, piece in 1u32..30,
        panel in 1u32..50, tile in (1u32..30, 1u32..50),
    ) {
        let kernel = kernel(divided, world, piece, panel, tile);
        let g = Geometry::new(&kernel, &Shape::new(m, n * 8, 160)).unwrap_or_else(|e| panic!("{e}"));
        let along = |(rows, columns): (Extent, Extent)| match divided {
            Side::Rows => rows,
            Side::Columns => columns,
        };
        for chunk in 0..world {
            let (rows, columns) = g.grid(TILES, Some(chunk));
            let items = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
            for (row, column) in items {
                let extent = along(g.item(TILES, Item { chunk, row, column }));
                for partition in [PIECES, PANELS] {
                    let found = g.overlapping(partition, chunk, (Side::Rows, extent));
                    let (grid_rows, grid_columns) = g.grid(partition, Some(chunk));
                    for r in 0..grid_rows {
                        let piece = g.item(partition, Item { chunk, row: r, column: 0 }).0;
                        prop_assert_eq!(piece.overlaps(extent), found.0.contains(&r));
                    }
                    prop_assert!(found.0.end <= grid_rows);
                    prop_assert_eq!(found.1, 0..grid_columns);
                }
                // Of its own partition, those of its row and of its column.
                let (all_rows, all_columns) = g.item(TILES, Item { chunk, row, column });
                let of_row = g.overlapping(TILES, chunk, (Side::Rows, all_rows));
                prop_assert_eq!(of_row, (row..row + 1, 0..columns));
                let of_column = g.overlapping(TILES, chunk, (Side::Columns, all_columns));
                prop_assert_eq!(of_column, (0..rows, column..column + 1));
            }
        }
    }
}
