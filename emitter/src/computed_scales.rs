//! The text of scales that a tile makes of its own results.

use super::Text;
use super::value::{literal, results};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::rule::Convention;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::warp::{Elements, Expr, Field, ScalesTo, Spelling};

impl Text<'_> {
    /// The numbers of the rule, if tiles make scales.
    pub(super) fn constants_of_rule(&mut self) {
        let Some(rule) = self.pipeline.kernel.rule() else {
            return;
        };
        let numbers = [rule.eps, rule.to.largest(), Dtype::F32.largest()].map(literal);
        let numbers = numbers.join(", ");
        self.line(format!(
            "constexpr RuleNumbers RULE = {{{numbers}}};  // of scales of {}: {rule}",
            rule.to.dtype()
        ));
    }

    /// Prefix of the registers for the scales of elements.
    fn scales_of(&self, elements: Elements) -> String {
        match elements {
            Elements::Applied(index) => results(&self.pipeline.epilogues[index]),
            Elements::Product(0) => "acc".into(),
            Elements::Product(more) => format!("acc_{more}"),
        }
    }

    /// Factors of a lane's rows of a subtile: of a block, where it has several.
    pub(super) fn multipliers(&self, elements: Elements) -> String {
        let block = self.blocks().map_or("", |_| "[block]");
        format!("{}_multipliers{block}", self.scales_of(elements))
    }

    /// Makes or writes the scales of a subtile's rows.
    pub(super) fn quantize(
        &mut self,
        (elements, part): (Elements, &Expr),
        columns: &[Expr; 2],
        to: &ScalesTo,
    ) {
        match to {
            ScalesTo::Registers => self.make_scales((elements, part), columns),
            ScalesTo::Plane { tensor, rows, all } => {
                self.write_scales((*tensor, elements), (rows, all), columns);
            }
            ScalesTo::Slot { tensor, to, rows } => {
                self.send_scales((*tensor, elements), to, rows, columns);
            }
        }
    }

    fn make_scales(&mut self, (elements, part): (Elements, &Expr), columns: &[Expr; 2]) {
        let Some(rule) = self.pipeline.kernel.rule() else {
            return;
        };
        let convention = match rule.convention {
            Convention::TransformerEngine => "TRANSFORMER_ENGINE",
            Convention::DeepGemm => "DEEP_GEMM",
        };
        let name = self.scales_of(elements);
        let (array, mut at) = self.elements(elements, part);
        let [column, end] = columns.each_ref().map(|at| self.expr(at));
        let (mut subtile, of_blocks) = (self.subtile_n().to_string(), self.of_blocks());
        let block = rule.block().columns;
        if self.tiling().subtile().columns < block {
            // The block's first accumulator.
            at = format!("{at} / {} * {}", block / 2, block / 2);
            subtile = block.to_string();
        }
        self.line(format!(
            "float {name}_multipliers{of_blocks}[2], {name}_scales{of_blocks}[2];"
        ));
        let power = rule.power_of_two;
        self.each_block(|_, block| {
            format!(
                "scales_make<{subtile}, {convention}, {power}>({name}_multipliers{block}, {name}_scales{block}, \
                 {array}{block}{at}, {column}, {end}, RULE, lane);"
            )
        });
    }

    /// Writes them to their plane.
    fn write_scales(
        &mut self,
        (tensor, elements): (TensorId, Elements),
        (rows, all): (&[Expr; 2], &[Expr; 2]),
        columns: &[Expr; 2],
    ) {
        let plane = self.field(Field::Vector(tensor));
        let [[row, end], [all, line]] = [rows, all].map(|of| of.each_ref().map(|at| self.expr(at)));
        let (column, subtile) = (self.factor(&columns[0]), self.subtile_n());
        let exists = columns.each_ref().map(|at| self.expr(at)).join(" < ");
        let (name, first) = (self.scales_of(elements), self.first_on_m());
        // A subtile beyond the last column has no line of the plane.
        self.block(format!("if ({exists})"), |text| {
            text.each_block(|below, block| {
            format!(
                "scales_write({plane} + static_cast<u64>({column} / {subtile}) * {line}, {name}_scales{block}, \
                 {row} + {first}{below}, {end}, {all}, {line}, lane);"
            )
            });
        });
    }

    /// Writes them beside a slot of partial sums.
    fn send_scales(
        &mut self,
        (tensor, elements): (TensorId, Elements),
        [rank, slot]: &[Expr; 2],
        rows: &[Expr; 2],
        columns: &[Expr; 2],
    ) {
        let mine = self.field(Field::Vector(tensor));
        let rank = self.expr(rank);
        let plane = format!("scales_on({mine}, plan.cells, me, {rank})");
        let line = self.line_of_plane(tensor, (&plane, slot), &columns[0]);
        let [row, end] = rows.each_ref().map(|at| self.expr(at));
        let exists = columns.each_ref().map(|at| self.expr(at)).join(" < ");
        let (name, first) = (self.scales_of(elements), self.first_on_m());
        self.block(format!("if ({exists})"), |text| {
            text.each_block(|below, block| {
                format!(
                    "scales_write({line}, {name}_scales{block}, {row} + {first}{below}, {end}, {end}, {end}, lane);"
                )
            });
        });
    }

    /// Reads those of a tile.
    pub(super) fn read_tile_scales(
        &mut self,
        (tensor, slot): (TensorId, &Expr),
        rows: &[Expr; 2],
        columns: &[Expr; 2],
    ) {
        let plane = self.field(Field::Vector(tensor));
        let first_line = self.line_of_plane(tensor, (&plane, slot), &columns[0]);
        let step = self.field(Field::Line(tensor));
        let [row, end] = rows.each_ref().map(|at| self.expr(at));
        let [column, columns] = columns.each_ref().map(|at| self.expr(at));
        let blocks = format!("{} / {}", self.tile_n(), self.columns_of_blocks(tensor));
        let (of_blocks, first) = (self.of_blocks(), self.first_on_m());
        self.line(format!("float scales{of_blocks}[{blocks}][2];"));
        self.each_block(|below, block| {
            format!(
                "scales_read<{blocks}>(scales{block}, {first_line}, {step}, {column}, {columns}, {row} + {first}{below}, {end}, lane);"
            )
        });
    }

    /// Columns of the blocks that a plane has the scales of; 1 where it has others.
    fn columns_of_blocks(&self, plane: TensorId) -> u32 {
        let blocks = self.pipeline.kernel.buffers[plane.index()].usage.blocks();
        blocks.map_or(1, |block| block.columns)
    }

    /// Offset of the numbers of a block's columns in a slot of a plane.
    fn line_of_plane(
        &mut self,
        tensor: TensorId,
        (plane, slot): (&str, &Expr),
        column: &Expr,
    ) -> String {
        let blocks = self.pipeline.kernel.buffers[tensor.index()].columns;
        let blocks = self.field(Field::Size(blocks));
        let each = self.columns_of_blocks(tensor);
        let line = self.field(Field::Line(tensor));
        let (slot, column) = (self.factor(slot), self.factor(column));
        format!("{plane} + (static_cast<u64>({slot}) * {blocks} + {column} / {each}) * {line}")
    }

    /// A line for each block of 64 rows that a warpgroup has: how far below its first it is, and its index.
    fn each_block(&mut self, line: impl Fn(&str, &str) -> String) {
        match self.blocks() {
            None => self.line(line("", "")),
            Some(blocks) => {
                self.line("#pragma unroll");
                let line = line(" + block * 64", "[block]");
                self.line(format!(
                    "for (u32 block = 0; block < {blocks}; ++block) {line}"
                ));
            }
        }
    }
}
