//! Numbers as C++: parentheses by precedence.

use super::Text;
use crate::pipeline::{Expr, Op, Test};

impl Text<'_> {
    /// A number.
    pub(super) fn expr(&self, expr: &Expr) -> String {
        self.expr_in(expr, 0)
    }

    fn expr_in(&self, expr: &Expr, outer: u8) -> String {
        match expr {
            Expr::Const(value) => value.to_string(),
            Expr::Symbol(name, _) | Expr::Var(name) => name.clone(),
            Expr::Field(field) => self.field(*field),
            Expr::Block => "blockIdx.x".into(),
            Expr::Blocks => "gridDim.x".into(),
            Expr::Binary(op, a, b) => {
                let (sign, level) = match op {
                    Op::Xor => ("^", 1),
                    Op::Add => ("+", 2),
                    Op::Sub => ("-", 2),
                    Op::Mul => ("*", 3),
                    Op::Div => ("/", 3),
                    Op::Rem => ("%", 3),
                };
                // Sums and products of unsigned numbers may be regrouped.
                let right = if matches!(op, Op::Add) {
                    level
                } else {
                    level + 1
                };
                let (a, b) = (self.expr_in(a, level), self.expr_in(b, right));
                let text = format!("{a} {sign} {b}");
                if level < outer {
                    format!("({text})")
                } else {
                    text
                }
            }
            Expr::Min(a, b) => format!("min({}, {})", self.expr(a), self.expr(b)),
            Expr::CeilDiv(a, b) => format!("ceil_div({}, {})", self.expr(a), self.expr(b)),
            Expr::RowsOf(dim, chunk) => {
                format!("{}(plan, {})", self.rows_of(*dim), self.expr(chunk))
            }
            Expr::Within if self.counts_items => {
                if outer > 2 {
                    "(index - first)".into()
                } else {
                    "index - first".into()
                }
            }
            Expr::Within => "index".into(),
            Expr::Named(name, _) => (*name).into(),
        }
    }

    /// What a branch asks.
    pub(super) fn test(&self, test: &Test) -> String {
        let (a, b) = test.sides();
        let sign = match test {
            Test::Less(..) => "<",
            Test::AtLeast(..) => ">=",
            Test::Equal(..) => "==",
            Test::Differ(..) => "!=",
        };
        format!("{} {sign} {}", self.expr(a), self.expr(b))
    }
}
