//! The text of scales that a tile makes of its own results.

use super::Text;
use super::value::{literal, results};
use crate::dtype::Dtype;
use crate::rule::Convention;
use crate::warp::{Elements, Expr, Field, FragmentOp, Spelling};

impl Text<'_> {
    /// The numbers of the rule, if tiles make scales.
    pub(super) fn constants_of_rule(&mut self) {
        let Some(rule) = self.pipeline.kernel.variant.output_scales else {
            return;
        };
        let largest = rule.to.largest();
        let numbers = [rule.eps, largest, 1.0 / largest, Dtype::F32.largest()].map(literal);
        let numbers = numbers.join(", ");
        self.line(format!(
            "constexpr RuleNumbers RULE = {{{numbers}}};  // of scales of {}: {rule}",
            rule.to.dtype()
        ));
    }

    /// What the registers for the scales of elements begin with.
    fn scales_of(&self, elements: Elements) -> String {
        match elements {
            Elements::Applied(index) => results(&self.pipeline.epilogues[index]),
            Elements::Product(0) => "acc".into(),
            Elements::Product(more) => format!("acc_{more}"),
        }
    }

    /// What a lane's rows of a subtile are multiplied by: of a block, where it has several.
    pub(super) fn multipliers(&self, elements: Elements) -> String {
        let block = self.blocks().map_or("", |_| "[block]");
        format!("{}_multipliers{block}", self.scales_of(elements))
    }

    /// Makes the scales of a subtile's rows.
    pub(super) fn make_scales(&mut self, (elements, part): (Elements, &Expr), columns: &[Expr; 2]) {
        let Some(rule) = self.pipeline.kernel.variant.output_scales else {
            return;
        };
        let convention = match rule.convention {
            Convention::TransformerEngine => "TRANSFORMER_ENGINE",
            Convention::DeepGemm => "DEEP_GEMM",
            Convention::DeepGemmOnGpu => "DEEP_GEMM_ON_GPU",
        };
        let name = self.scales_of(elements);
        let (array, at) = self.elements(elements, part);
        let [column, end] = columns.each_ref().map(|at| self.expr(at));
        let (subtile, of_blocks) = (self.subtile_n(), self.of_blocks());
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
    pub(super) fn write_scales(&mut self, op: &FragmentOp) {
        let FragmentOp::WriteScales {
            tensor,
            elements,
            rows,
            all,
            columns,
            ..
        } = op
        else {
            return;
        };
        let plane = self.field(Field::Vector(*tensor));
        let [[row, end], [all, line]] = [rows, all].map(|of| of.each_ref().map(|at| self.expr(at)));
        let (column, subtile) = (self.factor(&columns[0]), self.subtile_n());
        let exists = columns.each_ref().map(|at| self.expr(at)).join(" < ");
        let (name, first) = (self.scales_of(*elements), self.first_on_m());
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
