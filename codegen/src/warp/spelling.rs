//! The numbers of a pipeline as text: parentheses by precedence. CUDA and people differ in a few words only.

use super::{Expr, Field, Op, OrderId, Pipeline, Test};
use crate::kernel::DimId;

/// What the parts of a number are called.
pub(crate) trait Spelling {
    /// What the host passes.
    fn field(&self, field: Field) -> String;
    /// Rows of a chunk.
    fn rows_of(&self, dim: DimId, chunk: &str) -> String;
    /// The rank at a step of an order.
    fn ordered(&self, order: OrderId, step: &str) -> String;
    /// The CTA's number.
    fn block(&self) -> &'static str;
    /// How many CTAs there are.
    fn blocks(&self) -> &'static str;
    /// The item of the current loop.
    fn within(&self) -> &'static str;
}

/// A number.
pub(crate) fn number(expr: &Expr, names: &impl Spelling) -> String {
    inside(expr, 0, names)
}

/// A number as a factor.
pub(crate) fn factor(expr: &Expr, names: &impl Spelling) -> String {
    inside(expr, 4, names)
}

fn inside(expr: &Expr, outer: u8, names: &impl Spelling) -> String {
    match expr {
        Expr::Const(value) => value.to_string(),
        Expr::Symbol(name, _) | Expr::Var(name) => name.clone(),
        Expr::Field(field) => names.field(*field),
        Expr::Block => names.block().into(),
        Expr::Blocks => names.blocks().into(),
        Expr::Binary(op, a, b) => {
            let (sign, level) = match op {
                Op::Xor => ("^", 1),
                Op::Add => ("+", 2),
                Op::Sub => ("-", 2),
                Op::Mul => ("*", 3),
                Op::Div => ("/", 3),
                Op::Rem => ("%", 3),
            };
            // Sums of unsigned numbers may be regrouped.
            let right = if matches!(op, Op::Add) {
                level
            } else {
                level + 1
            };
            let (a, b) = (inside(a, level, names), inside(b, right, names));
            let text = format!("{a} {sign} {b}");
            if level < outer {
                format!("({text})")
            } else {
                text
            }
        }
        Expr::Min(a, b) => format!("min({}, {})", number(a, names), number(b, names)),
        Expr::CeilDiv(a, b) => format!("ceil_div({}, {})", number(a, names), number(b, names)),
        Expr::RowsOf(dim, chunk) => names.rows_of(*dim, &number(chunk, names)),
        Expr::Ordered(order, step) => names.ordered(*order, &number(step, names)),
        Expr::Within => names.within().into(),
        Expr::Named(name, _) => (*name).into(),
    }
}

/// What a branch asks.
pub(crate) fn test(test: &Test, names: &impl Spelling) -> String {
    let (a, sign, b) = match test {
        Test::Less(a, b) => (a, "<", b),
        Test::AtLeast(a, b) => (a, ">=", b),
        Test::Equal(a, b) => (a, "==", b),
        Test::Differ(a, b) => (a, "!=", b),
        Test::And(a, b) => return joined(a, "&&", b, names),
        Test::Or(a, b) => return joined(a, "||", b, names),
    };
    // A comparison binds tighter than `^` in C++.
    format!("{} {sign} {}", inside(a, 2, names), inside(b, 2, names))
}

/// Two questions, each in parentheses where it is two of the other kind.
fn joined(a: &Test, sign: &str, b: &Test, names: &impl Spelling) -> String {
    let part = |part: &Test| {
        let text = test(part, names);
        match (part, sign) {
            (Test::And(..), "||") | (Test::Or(..), "&&") => format!("({text})"),
            _ => text,
        }
    };
    format!("{} {sign} {}", part(a), part(b))
}

/// A field's name, after the schedule's.
pub(crate) fn field_name(pipeline: &Pipeline, field: Field) -> String {
    let kernel = &pipeline.kernel;
    let dim = |dim: DimId| kernel.dims[usize::from(dim.0)].name.replace('.', "_");
    match field {
        Field::Size(id) => dim(id),
        Field::ChunkRows(id) if dim(id) == "m" => "rows".into(),
        Field::ChunkRows(id) => format!("{}_chunk", dim(id)),
        Field::PartialChunk(id) if dim(id) == "m" => "partial_chunk".into(),
        Field::PartialChunk(id) => format!("{}_partial_chunk", dim(id)),
        Field::Me => "me".into(),
        Field::World => "world".into(),
        Field::First(counter) => kernel.counters[counter.index()].name.clone(),
        Field::CellRows(partition) => format!("{}_m", kernel.partitions[partition.index()].name),
        Field::LateJoin => "late_join".into(),
        Field::Order(order) => pipeline.order_table(order).name.clone(),
        Field::Heap => "heap".into(),
        Field::Stride => "stride".into(),
        Field::Counters => "offset".into(),
        Field::Arrivals => "arrivals".into(),
        Field::Finished => "finished".into(),
        Field::Vector(tensor) => {
            // Behind the counters and before the sizes, by names that neither has.
            let name = &kernel.buffers[tensor.index()].name;
            let taken = |name: &str| {
                ["cells", "rows", "partial_chunk", "me", "world", "late_join"].contains(&name)
                    || kernel
                        .dims
                        .iter()
                        .any(|dim| dim.name.replace('.', "_") == name)
                    || kernel.counters.iter().any(|counter| counter.name == name)
            };
            if taken(name) {
                format!("{name}_vector")
            } else {
                name.clone()
            }
        }
    }
}
