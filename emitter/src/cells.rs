//! A function for each counter whose cells lie in a grid of several sides: the number of a cell.

use super::{Text, params};
use counterflow_codegen::kernel::DimId;
use counterflow_codegen::program::CounterId;
use counterflow_codegen::warp::cells::CellFunction;
use counterflow_codegen::warp::{CellNumber, Expr, Field, OrderId, Spelling, counter_name, number};
use std::collections::BTreeSet;

impl Text<'_> {
    /// The function that numbers a counter's cells.
    pub(super) fn cell_function(&self, counter: CounterId) -> String {
        format!("cell_of_{}", counter_name(&self.pipeline.kernel, counter))
    }

    /// The functions that the text calls, from the sides of the counters' axes.
    pub(super) fn cell_functions(&mut self) {
        let mut called = BTreeSet::new();
        self.pipeline.visit_exprs(|expr| {
            if let Expr::Cell(cell) = expr {
                called.insert(cell.counter);
            }
        });
        for counter in called {
            self.numbering(counter);
        }
    }

    fn numbering(&mut self, counter: CounterId) {
        let kernel = &self.pipeline.kernel;
        let function = CellFunction::of(kernel, self.pipeline.cta.tilings(), counter);
        let names = InFunction(self);
        let sides = function.sides.iter();
        let sides = sides.map(|(name, size)| format!("[{name}: {}]", number(size, &names)));
        let sides: Vec<String> = sides.collect();
        let cell = number(&function.number, &names);
        let name = &kernel.counters[counter.index()].name;
        self.line(format!("// A cell's number in {name}{}.", sides.concat()));
        let parameters = function.parameters.iter();
        let parameters: Vec<String> = parameters.map(|name| format!("u32 {name}")).collect();
        let head = format!(
            "__device__ __forceinline__ u32 {}(const Plan& plan, {})",
            self.cell_function(counter),
            parameters.join(", ")
        );
        self.block(head, |text| text.line(format!("return {cell};")));
        self.line("");
    }
}

/// Numbers where only the plan is in scope.
struct InFunction<'a>(&'a Text<'a>);

impl Spelling for InFunction<'_> {
    fn field(&self, field: Field) -> String {
        format!("plan.{}", params::name(self.0.pipeline, field))
    }

    fn rows_of(&self, dim: DimId, shard: &str) -> String {
        self.0.rows_of(dim, shard)
    }

    fn ordered(&self, order: OrderId, step: &str) -> String {
        self.0.ordered(order, step)
    }

    fn block(&self) -> &'static str {
        Spelling::block(self.0)
    }

    fn blocks(&self) -> &'static str {
        Spelling::blocks(self.0)
    }

    fn within(&self) -> &'static str {
        self.0.within()
    }

    fn cell(&self, cell: &CellNumber) -> Option<String> {
        self.0.cell(cell)
    }
}
