//! Chunks divide the rows, items divide the chunks, and what overlaps is found, for ragged sizes.

use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::kernel::{DimId, Kernel};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::{CounterId, PartitionId};
use counterflow_codegen::shape::{Extent, Geometry, Item, Shape};
use counterflow_codegen::variant::{Arch, Variant};
use proptest::prelude::*;

const PIECES: PartitionId = PartitionId(0);
const PANELS: PartitionId = PartitionId(1);
const TILES: PartitionId = PartitionId(2);

fn kernel(world: u32, piece: u32, panel: u32, tile: (u32, u32)) -> Kernel {
    let mut s = ScheduleBuilder::new("gather");
    let x = s.gathered("x", Bf16);
    let w = s.local("w", Bf16);
    let y = s.out("y", Bf16);
    let pieces = s.pieces("pieces", x, piece);
    let panels = s.panels("panels", x, panel);
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn geometry_is_exact(
        world in 1u32..=9, m in 1u32..300, n in 1u32..60, k in 1u32..40,
        piece in 1u32..40, panel in 1u32..100, tile in (1u32..40, 1u32..100),
    ) {
        let (n, k) = (n * 8, k * 8);
        let kernel = kernel(world, piece, panel, tile);
        let g = Geometry::new(&kernel, &Shape::new(m, n, k)).unwrap_or_else(|e| panic!("{e}"));
        let rows = (0..).map(DimId).find(|id| kernel.dims[usize::from(id.0)].name == "m").unwrap();
        let all = Extent { start: 0, end: m };

        let chunks = || (0..world).map(|chunk| g.chunk(rows, chunk));
        prop_assert!(partitions(all, chunks().filter(|chunk| !chunk.is_empty())));
        prop_assert!(chunks().all(|chunk| chunk.len() <= g.chunk_rows(rows)));

        for partition in [PIECES, PANELS, TILES] {
            let width = if partition == TILES { n } else { k };
            let mut cells = vec![false; g.cells(partition) as usize];
            for chunk in 0..g.partition_chunks(partition) {
                let (grid_rows, grid_columns) = g.grid(partition, Some(chunk));
                let item = |row, column| g.item(partition, Item { chunk, row, column });
                prop_assert!(partitions(g.chunk(rows, chunk), (0..grid_rows).map(|row| item(row, 0).0)));
                if grid_rows > 0 {
                    let columns = Extent { start: 0, end: width };
                    prop_assert!(partitions(columns, (0..grid_columns).map(|column| item(0, column).1)));
                }
                for row in 0..grid_rows {
                    for column in 0..grid_columns {
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
        world in 1u32..=6, m in 1u32..200, piece in 1u32..30, panel in 1u32..50,
        tile in (1u32..30, 1u32..50),
    ) {
        let k = 160;
        let kernel = kernel(world, piece, panel, tile);
        let g = Geometry::new(&kernel, &Shape::new(m, 96, k)).unwrap_or_else(|e| panic!("{e}"));
        for chunk in 0..world {
            let (tile_rows, _) = g.grid(TILES, Some(chunk));
            for row in 0..tile_rows {
                let rows = g.item(TILES, Item { chunk, row, column: 0 }).0;
                for partition in [PIECES, PANELS] {
                    let (found_rows, found_columns) = g.overlapping(partition, chunk, rows);
                    let (grid_rows, grid_columns) = g.grid(partition, Some(chunk));
                    for r in 0..grid_rows {
                        let extent = g.item(partition, Item { chunk, row: r, column: 0 }).0;
                        prop_assert_eq!(extent.overlaps(rows), found_rows.contains(&r));
                    }
                    prop_assert!(found_rows.end <= grid_rows);
                    prop_assert_eq!(found_columns, 0..grid_columns);
                }
            }
        }
    }
}
