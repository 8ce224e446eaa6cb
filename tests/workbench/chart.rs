//! The README's chart is what `chart` makes of the figures beside it.

use super::has;
use std::path::Path;

const FIGURES: &str = include_str!("../../notes/bench/peers.json");

#[test]
fn the_readmes_chart_is_drawn_from_its_figures() {
    let drawn = counterflow_workbench::chart(FIGURES).expect("a chart");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("notes/bench/peers.svg");
    if std::env::var_os("UPDATE_CHART").is_some() {
        std::fs::write(&path, &drawn).expect("written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, drawn, "UPDATE_CHART=1 draws it again");
    has(&drawn, &["Two H200", "Two H100", "cuBLASMp", "counterflow"]);
}

/// Two products of one M are one bar, their geometric mean; the line is at the first contender's time.
#[test]
fn a_bar_is_the_geometric_mean_over_its_products() {
    let row = |name, us| format!(r#"{{"contender": "{name}", "seconds": {{"median": {us}e-6}}}}"#);
    let product = |ours| {
        let each = [row("alone", 100), row("ours", ours)].join(", ");
        format!(r#"{{"m": 512, "contenders": [{each}]}}"#)
    };
    let products = [product(200), product(450)].join(", ");
    let drawn = counterflow_workbench::chart(&format!(
        r#"[{{"card": "c", "schedule": "s", "products": [{products}]}}]"#
    ));
    has(&drawn.expect("a chart"), &[">3.00<", ">M = 512<", ">s<"]);
}

#[test]
fn results_that_lack_something_are_refused_by_what_is_missing() {
    let card =
        |product: &str| format!(r#"[{{"card": "c", "schedule": "s", "products": [{product}]}}]"#);
    let cases = [
        ("nothing".to_owned(), "expected"),
        ("{}".to_owned(), "a list"),
        ("[{}]".to_owned(), "`card`"),
        (r#"[{"card": "c"}]"#.to_owned(), "`products`"),
        (card(r#"{"contenders": []}"#), "`m`"),
        (card(r#"{"m": 1}"#), "`contenders`"),
        (card(r#"{"m": 1, "contenders": []}"#), "nobody"),
        (
            card(r#"{"m": 1, "contenders": [{"contender": "a"}]}"#),
            "`seconds.median`",
        ),
    ];
    for (results, wanted) in cases {
        let refused = counterflow_workbench::chart(&results).expect_err("refused");
        has(&refused.to_string(), &[wanted]);
    }
}
