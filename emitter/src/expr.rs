//! Numbers as C++.

use super::{Text, params};
use counterflow_codegen::kernel::DimId;
use counterflow_codegen::warp::{CellNumber, Expr, Field, OrderId, Test};
use counterflow_codegen::warp::{Spelling, number, test};

impl Text<'_> {
    /// A number.
    pub(super) fn expr(&self, expr: &Expr) -> String {
        number(expr, self)
    }

    /// Condition of a branch.
    pub(super) fn test(&self, asked: &Test) -> String {
        match asked {
            Test::Less(Expr::Within, count) => format!("scheduler.has({})", self.expr(count)),
            asked => test(asked, self),
        }
    }
}

impl Spelling for Text<'_> {
    fn field(&self, field: Field) -> String {
        match field {
            Field::Me => "me".into(),
            Field::World => "world".into(),
            other => format!("plan.{}", params::name(self.pipeline, other)),
        }
    }

    fn rows_of(&self, dim: DimId, shard: &str) -> String {
        format!("{}(plan, {shard})", self.rows_function(dim))
    }

    fn ordered(&self, order: OrderId, step: &str) -> String {
        format!("{}[{step}]", self.field(Field::Order(order)))
    }

    fn block(&self) -> &'static str {
        "blockIdx.x"
    }

    fn blocks(&self) -> &'static str {
        "gridDim.x"
    }

    fn within(&self) -> &'static str {
        "scheduler.tile()"
    }

    fn cell(&self, cell: &CellNumber) -> Option<String> {
        let arguments = cell.arguments.iter().map(|number| self.expr(number));
        let arguments: Vec<String> = arguments.collect();
        let function = self.cell_function(cell.counter);
        Some(format!("{function}(plan, {})", arguments.join(", ")))
    }
}
