//! Unit snapshots: the text of expressions and orders, one line each.

use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::order::{self, TileOrder};
use counterflow_codegen::program::Var;
use counterflow_codegen::value::{AccId, Binary, Compare, ScalarFn, Unary, Value};

fn rank(expr: RankExpr, expected: &str) {
    assert_eq!(expr.text(&|var: Var| format!("r{}", var.0)), expected);
}

#[test]
fn rank_expressions_have_parentheses_by_precedence() {
    rank((me() + 1) % world(), "(me + 1) % world");
    rank(me() - (world() - 1), "me - (world - 1)");
    rank(me() - world() - 1, "me - world - 1");
    rank(me() ^ 1, "me ^ 1");
    rank((me() ^ 1) + 2, "(me ^ 1) + 2");
    rank(me() / 2 * 2 + RankExpr::Var(Var(3)), "me / 2 * 2 + r3");
    rank(me() * (RankExpr::Const(6) / 4), "me * (6 / 4)");
}

#[test]
fn conditions_say_how_they_are_joined() {
    let low = Cond::compare(Comparison::Lt, me(), world() / 2);
    let odd = Cond::compare(Comparison::Eq, me() % 2, 1);
    let text = |cond: &Cond| cond.text(&|_| "peer".into());
    assert_eq!(text(&low), "me < world / 2");
    assert_eq!(
        text(&low.clone().and(odd.clone())),
        "(me < world / 2 && me % 2 == 1)"
    );
    assert_eq!(
        text(&low.or(odd).negate()),
        "!(me < world / 2 || me % 2 == 1)"
    );
}

fn value(value: Value, expected: &str) {
    let name = |acc: AccId| ["g", "u", "bias"][usize::from(acc.0)].into();
    assert_eq!(value.text(&name), expected);
}

#[test]
fn values_read_as_math() {
    let [g, u, bias] = [0, 1, 2].map(|id| Value::Acc(AccId(id)));
    value(g.clone().silu() * u.clone(), "silu(g) * u");
    value(
        (g.clone() + u.clone()).bias(bias).gelu(),
        "gelu(g + u + bias)",
    );
    value(g.clone().scale(0.5).cast(Dtype::Bf16), "bf16(g * 0.5)");
    value(
        g.clone().combine(Binary::Max, 0.0).apply(Unary::Sqrt),
        "sqrt(max(g, 0.0))",
    );
    value(
        Value::select(Compare::Lt, g.clone(), 0.0.into(), u.clone(), 1.0.into()),
        "(g < 0.0 ? u : 1.0)",
    );
    let clip = ScalarFn {
        name: "clip",
        params: &["x", "most"],
        body: Value::Arg(0).combine(Binary::Min, Value::Arg(1)).into(),
    };
    value(g.call(clip, [u]), "clip(g, u)");
}

#[test]
fn orders_have_the_names_the_language_gives_them() {
    let text = |ranks: Ranks| ranks.0.to_string();
    assert_eq!(text(ranks()), "ascending");
    assert_eq!(text(ranks().from_me()), "from_me");
    assert_eq!(text(ranks().after_me()), "after_me");
    assert_eq!(text(ranks().before_me()), "before_me");
    assert_eq!(text(ring(-1)), "from_me");
    assert_eq!(text(ring(1)), "ring(1)");
    assert_eq!(text(ring(1).but_last(1)), "ring(1).but_last(1)");
    assert_eq!(text(ranks().by(|_, step, _| step)), "table");
    let other: order::RankOrder = order::RankOrder::FromMe {
        start: 2,
        stride: 3,
        skipped: 0,
        but_last: Vec::new(),
    };
    assert_eq!(other.to_string(), "from(2 by 3, 0 skipped)");
    assert_eq!(TileOrder::Grouped(8).to_string(), "grouped(8)");
    assert_eq!(TileOrder::ColumnMajor.to_string(), "column_major");
}
