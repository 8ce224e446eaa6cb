//! The scales that are beside a rectangle of a tensor.

use super::Rectangle;
use crate::encoding::ScaleBlock;
use crate::kernel::Kernel;
use crate::program::{Side, TensorId, Usage};

impl Kernel {
    /// Scales of an operand's blocks that a product reads, if it has some: those of its rows and of its range of K.
    ///
    /// ```
    /// use counterflow_codegen::region::{Owner, Rectangle};
    /// use counterflow_codegen::{dtype::Dtype, encoding::Scales, lower::lower, program::TensorId};
    /// use counterflow_codegen::{shape::Extent, variant::Variant};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    ///
    /// let fp8 = Variant::new(2).dtype(Dtype::E4M3).scales(Scales::Blocks1d2d);
    /// let kernel = lower(&example::ag_gemm(), &fp8)?;
    /// let of = |tensor| Rectangle {
    ///     tensor: TensorId(tensor),
    ///     owner: Owner::Rank(0),
    ///     slot: 0,
    ///     rows: Extent { start: 0, end: 128 },
    ///     columns: Extent { start: 256, end: 512 },
    /// };
    /// let (x, y) = (of(0), of(2));
    /// let scales = kernel.operand_scales(&x).expect("of 1×128");
    /// assert_eq!(scales.elements(), 128 * 2);
    /// // Stores compute no scales of y.
    /// assert_eq!(kernel.tile_scales(&y), None);
    /// assert_eq!(kernel.tile_bytes(&y), y.bytes(&kernel));
    /// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
    /// ```
    pub fn operand_scales(&self, operand: &Rectangle) -> Option<Rectangle> {
        let (scale, block) = self.block_scale(operand.tensor)?;
        Some(self.of_blocks(scale, block, operand))
    }

    /// Scales of a tile's blocks that a store writes, or a sum reads, if stores compute some.
    pub fn tile_scales(&self, tile: &Rectangle) -> Option<Rectangle> {
        let (scale, block) = (
            self.computed_scale_of(tile.tensor)?,
            self.computed_scale_block(tile.tensor)?,
        );
        Some(self.of_blocks(scale, block, tile))
    }

    /// Bytes of a tile, and of the scales that stores compute of it.
    pub fn tile_bytes(&self, tile: &Rectangle) -> u64 {
        let scales = self.tile_scales(tile);
        tile.bytes(self) + scales.map_or(0, |scales| scales.bytes(self))
    }

    /// The part of a plane that has a number for each block of a rectangle.
    fn of_blocks(&self, plane: TensorId, block: ScaleBlock, of: &Rectangle) -> Rectangle {
        let lines = of.rows.in_blocks(block.rows);
        let blocks = of.columns.in_blocks(block.columns);
        let (rows, columns) = match self.buffers[plane.index()].usage.operand_rows() {
            Some(Side::Columns) => (blocks, lines),
            Some(Side::Rows) | None => (lines, blocks),
        };
        Rectangle {
            tensor: plane,
            rows,
            columns,
            ..*of
        }
    }
}

/// Numbers of blocks, for each a number of each row, as the plane has them that is lines of them.
pub fn as_lines<T: Copy>(usage: Usage, lines: Vec<T>, rows: usize) -> Vec<T> {
    if usage.operand_rows() == Some(Side::Columns) || rows == 0 {
        return lines;
    }
    let blocks = lines.len() / rows;
    let of_row = |row: usize| (0..blocks).map(move |block| block * rows + row);
    (0..rows).flat_map(of_row).map(|at| lines[at]).collect()
}
