//! A chart of what [`bench`](crate::bench) measured, as an SVG.

use counterflow_runtime::Error;
use serde_json::Value as Json;
use std::fmt::Write;

/// Pixels: of a card, of the margin left of its bars, from no time to the largest, of a bar, above a group and a schedule.
const CARD: usize = 520;
const LEFT: usize = 110;
const LENGTH: f64 = 330.0;
const BAR: usize = 10;
const GROUP: usize = 8;
const HEAD: usize = 26;
const TOP: usize = 74;
/// Of contenders in the order in which they appear.
const COLOURS: [&str; 6] = [
    "#d1495b", "#8d99ae", "#5c677d", "#2a9d8f", "#e9c46a", "#6d597a",
];

/// Products of one schedule with the same M: each contender's time over that of the product alone.
struct Group {
    schedule: String,
    m: u64,
    bars: Vec<(String, Vec<f64>)>,
}

/// A chart of `results`: one panel a card, one group of bars a schedule and M, one bar a contender. A bar is the geometric mean,
/// over the group's products, of the contender's median over that of the first contender of the same product: the product
/// alone. Shorter is better, 1 is communication for nothing.
///
/// `results` is JSON: a list of objects of `bench --json`, each with its `card`. A product may name its schedule (`op`).
///
/// # Errors
/// [`Error::Usage`] names what is missing.
///
/// ```
/// let row = |contender, us| format!(r#"{{"contender": "{contender}", "seconds": {{"median": {us}e-6}}}}"#);
/// let contenders = [row("cuBLASLt", 100), row("ours", 110)].join(", ");
/// let product = format!(r#"{{"m": 512, "contenders": [{contenders}]}}"#);
/// let svg = counterflow_workbench::chart(&format!(
///     r#"[{{"card": "Two H200", "schedule": "ag_gemm", "products": [{product}]}}]"#
/// ))?;
/// assert!(svg.contains("1.10"));
/// # Ok::<(), counterflow_runtime::Error>(())
/// ```
pub fn chart(results: &str) -> Result<String, Error> {
    let parsed: Json =
        serde_json::from_str(results).map_err(|error| missing(&error.to_string()))?;
    let cards = parsed.as_array().ok_or_else(|| missing("a list"))?;
    let cards = cards
        .iter()
        .map(|card| Ok((said(card, "card")?, said(card, "date").ok(), groups(card)?)));
    let cards: Vec<_> = cards.collect::<Result<_, Error>>()?;
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in cards
        .iter()
        .flat_map(|(_, _, groups)| groups.iter().flat_map(|group| &group.bars))
    {
        if !names.contains(&&name[..]) {
            names.push(name);
        }
    }
    if names.len() > COLOURS.len() {
        return Err(missing(&format!("at most {} contenders", COLOURS.len())));
    }
    let bars = cards
        .iter()
        .flat_map(|(_, _, groups)| groups.iter().flat_map(|group| &group.bars));
    let most = bars.map(|(_, each)| mean(each)).fold(1.0, f64::max);
    let (mut body, mut height) = (String::new(), 0);
    for (at, (card, date, groups)) in cards.iter().enumerate() {
        let title = date
            .as_ref()
            .map_or_else(|| card.clone(), |date| format!("{card}, {date}"));
        text(&mut body, (at * CARD + 16, TOP - 8), ("15", "bold"), &title);
        let end = panel(&mut body, at * CARD, groups, &names, most);
        height = height.max(end);
    }
    legend(&mut body, &names);
    let (width, height) = (cards.len() * CARD, height + 12);
    let alone = "Time over that of the local product alone (line: 1). Shorter is better.";
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"system-ui, sans-serif\" fill=\"#1f2933\">\n<title>{alone}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"22\" font-size=\"13\">{alone}</text>\n{body}</svg>\n"
    ))
}

fn missing(what: &str) -> Error {
    Error::Usage {
        what: format!("these results: {what}"),
        legal: "a list of objects of `bench --json`, each with a `card`".into(),
    }
}

fn said(of: &Json, name: &str) -> Result<String, Error> {
    let word = of.get(name).and_then(Json::as_str);
    word.map(str::to_owned)
        .ok_or_else(|| missing(&format!("no `{name}`")))
}

/// The contenders of a product, each with its median in seconds.
fn medians(product: &Json) -> Result<Vec<(String, f64)>, Error> {
    let contenders = product.get("contenders").and_then(Json::as_array);
    let contenders = contenders.ok_or_else(|| missing("no `contenders`"))?;
    let each = contenders.iter().map(|row| {
        let median = row.pointer("/seconds/median").and_then(Json::as_f64);
        let median = median.filter(|seconds| *seconds > 0.0);
        let median = median.ok_or_else(|| missing("a contender without `seconds.median`"))?;
        Ok((said(row, "contender")?, median))
    });
    each.collect()
}

fn groups(card: &Json) -> Result<Vec<Group>, Error> {
    let products = card.get("products").and_then(Json::as_array);
    let products = products.ok_or_else(|| missing("no `products`"))?;
    let mut groups: Vec<Group> = Vec::new();
    for product in products {
        let schedule = said(product, "op").or_else(|_| said(card, "schedule"))?;
        let m = product.get("m").and_then(Json::as_u64);
        let m = m.ok_or_else(|| missing("no `m`"))?;
        let medians = medians(product)?;
        let ((_, alone), others) = medians.split_first().ok_or_else(|| missing("nobody"))?;
        let found = groups
            .iter()
            .position(|group| group.schedule == schedule && group.m == m);
        let group = found.unwrap_or_else(|| {
            groups.push(Group {
                schedule,
                m,
                bars: Vec::new(),
            });
            groups.len() - 1
        });
        let bars = &mut groups[group].bars;
        for (name, median) in others {
            match bars.iter_mut().find(|(known, _)| known == name) {
                Some((_, each)) => each.push(median / alone),
                None => bars.push((name.clone(), vec![median / alone])),
            }
        }
    }
    // Schedules in the order in which they came, of each the least M first.
    let order: Vec<String> = groups.iter().map(|group| group.schedule.clone()).collect();
    let first = |of: &str| order.iter().position(|schedule| schedule == of);
    groups.sort_by_key(|group| (first(&group.schedule), group.m));
    Ok(groups)
}

/// The geometric mean.
fn mean(each: &[f64]) -> f64 {
    (each.iter().map(|time| time.ln()).sum::<f64>() / each.len() as f64).exp()
}

/// The bars of a card, from `left` on; how far down they reach.
fn panel(svg: &mut String, left: usize, groups: &[Group], names: &[&str], most: f64) -> usize {
    let (mut y, mut schedule) = (TOP, "");
    for group in groups {
        if group.schedule != schedule {
            schedule = &group.schedule;
            text(svg, (left + 16, y + 16), ("13", "bold"), schedule);
            y += HEAD;
        }
        let middle = y + group.bars.len() * BAR / 2 + 4;
        let told = format!("M = {}", group.m);
        text(svg, (left + 32, middle), ("12", "normal"), &told);
        let ordered = names
            .iter()
            .enumerate()
            .filter_map(|(at, name)| Some((at, group.bars.iter().find(|(bar, _)| bar == name)?)));
        for (at, (_, each)) in ordered {
            let time = mean(each);
            let (x, wide) = (left + LEFT, time / most * LENGTH);
            let (high, colour) = (BAR - 1, COLOURS[at]);
            _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{wide:.1}\" height=\"{high}\" fill=\"{colour}\"/>"
            );
            let (end, base) = (x as f64 + wide + 4.0, y + high);
            _ = writeln!(
                svg,
                "<text x=\"{end:.1}\" y=\"{base}\" font-size=\"10\">{time:.2}</text>"
            );
            y += BAR;
        }
        y += GROUP;
    }
    let x = (left + LEFT) as f64 + LENGTH / most;
    _ = writeln!(
        svg,
        "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{y}\" stroke=\"#1f2933\" stroke-dasharray=\"3 3\"/>"
    );
    y
}

fn legend(svg: &mut String, names: &[&str]) {
    let mut x = 16;
    for (name, colour) in names.iter().zip(COLOURS) {
        _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"33\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"
        );
        text(svg, (x + 18, 44), ("12", "normal"), name);
        x += 40 + name.len() * 7;
    }
}

fn text(svg: &mut String, (x, y): (usize, usize), (size, weight): (&str, &str), words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" font-weight=\"{weight}\">{words}</text>"
    );
}
