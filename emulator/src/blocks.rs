//! Scales of blocks, as factors of the sums along K that are promoted.

use counterflow_codegen::encoded::scale_of;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::program::{Program, ScaleBlock, Side, TensorId, Usage};
use counterflow_codegen::shape::Extent;
use ndarray::{Array2, ArrayView2};

/// Sums of one product along K.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Summing {
    /// Elements of K whose sum, as tensor cores make it, is added in f32 to sums that threads have; `None`: tensor cores sum all.
    pub promoted: Option<u32>,
    /// The scale of each operand's blocks, if it has one.
    pub scales: [Option<Blocks>; 2],
}

/// A scale of an operand's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Blocks {
    pub scale: TensorId,
    pub block: ScaleBlock,
    usage: Usage,
}

impl Blocks {
    /// The blocks whose scales an operand has; `None` if it has none.
    pub fn of(program: &Program, operand: TensorId) -> Option<Blocks> {
        let scale = scale_of(program, operand)?;
        let usage = program.tensors[scale.index()].usage;
        let block = usage.blocks()?;
        Some(Blocks {
            scale,
            block,
            usage,
        })
    }

    /// Rows and columns of the plane for these rows of the operand, over so much of K.
    pub fn window(self, rows: Extent, depth: u32) -> [Extent; 2] {
        let blocks = Extent {
            start: 0,
            end: depth.div_ceil(self.block.columns),
        };
        let rows = rows.in_blocks(self.block.rows);
        match self.usage.operand_rows() {
            Some(Side::Columns) => [blocks, rows],
            Some(Side::Rows) | None => [rows, blocks],
        }
    }

    /// The factor of each of the operand's rows for each block of K, from its numbers for them.
    pub fn factors<T: Copy>(self, rows: Extent, plane: &ArrayView2<'_, T>) -> Array2<T> {
        let by = self.block.rows as usize;
        let first = rows.start as usize / by;
        let at = |row: usize| (rows.start as usize + row) / by - first;
        let on_columns = self.usage.operand_rows() == Some(Side::Columns);
        let steps = if on_columns {
            plane.nrows()
        } else {
            plane.ncols()
        };
        Array2::from_shape_fn(
            (rows.len() as usize, steps),
            |(row, step)| match on_columns {
                true => plane[(step, at(row))],
                false => plane[(at(row), step)],
            },
        )
    }
}

impl Summing {
    /// The way a kernel sums the product of two tensors.
    pub fn of(kernel: &Kernel, operands: [TensorId; 2]) -> Summing {
        let fp8 = operands.map(|of| kernel.buffers[of.index()].dtype.is_fp8());
        let scale = |operand: TensorId| {
            let (scale, block) = kernel.block_scale(operand)?;
            let usage = kernel.buffers[scale.index()].usage;
            Some(Blocks {
                scale,
                block,
                usage,
            })
        };
        Summing {
            promoted: kernel
                .variant
                .promotion_interval()
                .filter(|_| fp8 == [true; 2]),
            scales: operands.map(scale),
        }
    }
}
