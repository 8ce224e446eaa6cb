//! What was measured, in lines.

use serde_json::Value;
use std::collections::BTreeMap;

/// Median, and p10 to p90, of a cell.
fn cell(of: &Value, name: &str) -> Option<[f64; 3]> {
    let of = of["cells"][name].as_array()?;
    let number = |at: usize| of.get(at)?.as_f64();
    Some([number(0)?, number(1)?, number(2)?])
}

fn median(of: &Value, name: &str) -> Option<f64> {
    cell(of, name).map(|of| of[0])
}

/// A case's results: milliseconds call by call (e), as a graph (g), and of the host (h).
pub fn line(name: &str, of: &Value) -> String {
    if !of["cells"].is_object() {
        let why = of["error"].as_str().unwrap_or("no result");
        return format!("{name:26} FAILED {why}");
    }
    let time = |kind: &str, way: &str| {
        let found = cell(of, &format!("{kind}{way}"));
        found.map(|[median, p10, p90]| format!(" {median:.3}{way} [{p10:.3}..{p90:.3}]"))
    };
    let both = |kind| {
        let each = ["e", "g"].map(|way| time(kind, way).unwrap_or_default());
        each.concat()
    };
    let host = |kind: &str| {
        let part = median(of, &format!("{kind}h"));
        let whole = median(of, &format!("{kind}e"));
        part.zip(whole)
            .map_or(f64::NAN, |(part, whole)| part / whole)
    };
    let apart = match of["err"].as_array() {
        Some(apart) => {
            let each = apart
                .iter()
                .map(|of| format!("{:.0e}", of.as_f64().unwrap_or(f64::NAN)));
            each.collect::<Vec<_>>().join(" ")
        }
        None => "-".into(),
    };
    let graph = match of["graph_error"].as_str() {
        Some(why) => format!(" | no graph: {why}"),
        None => String::new(),
    };
    let taken = of["taken"].as_array().map_or(f64::NAN, |taken| {
        taken.iter().filter_map(Value::as_f64).sum()
    });
    format!(
        "{name:26} f{} | b{} | host/time {:.2} {:.2} | allocations and waits {taken} | apart {apart}{graph}",
        both("f"),
        both("b"),
        host("f"),
        host("b")
    )
}

/// For each precision, rows and module: without overlap, the best way, and without communication.
pub fn best(results: &BTreeMap<String, Value>) -> Vec<String> {
    let mut groups: BTreeMap<(String, &str), BTreeMap<&str, f64>> = BTreeMap::new();
    for (name, of) in results {
        let [precision, rows, way, module] = name.split('.').collect::<Vec<_>>()[..] else {
            continue;
        };
        for (kind, word) in [("f", "forward"), ("b", "forward+backward")] {
            let each = ["e", "g"].map(|way| median(of, &format!("{kind}{way}")));
            let Some(time) = each.into_iter().flatten().min_by(f64::total_cmp) else {
                continue;
            };
            let group = format!("{precision}.{rows}.{module}");
            groups.entry((group, word)).or_default().insert(way, time);
        }
    }
    let line = |((group, word), ways): ((String, &str), BTreeMap<&str, f64>)| {
        let overlapped = ways
            .iter()
            .filter(|(way, _)| !["none", "nocomm"].contains(way));
        let (way, time) = overlapped.min_by(|a, b| a.1.total_cmp(b.1))?;
        let of = |way: &str| ways.get(way).copied();
        let number = |of: Option<f64>| of.map_or("-".into(), |of| format!("{of:.3}"));
        let (none, without) = (of("none"), of("nocomm"));
        Some(format!(
            "{group:20} {word:16} {} -> {time:.3} ({way}), without communication {}: x{}, over that {}",
            number(none),
            number(without),
            number(none.map(|none| none / time)),
            number(without.map(|without| time / without))
        ))
    };
    groups.into_iter().filter_map(line).collect()
}
