//! Many products on a page: a line for each, then a line for each suite, as text and as Markdown.

use super::stats::{Spread, geometric_mean};
use super::table::{Result, Row, micros};
use crate::render;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// The most products for which every candidate is shown. For more, only our best beside cuBLASLt.
pub(super) const FEW: usize = 12;

/// A table before it is text: headings, lines, and which columns are numbers.
struct Page<'a> {
    header: Vec<&'a str>,
    lines: Vec<Vec<String>>,
    right: Vec<usize>,
}

impl Page<'_> {
    fn text(self) -> String {
        render::table(&self.header, self.lines, &self.right)
    }

    fn markdown(self) -> String {
        let line = |words: &[String]| format!("| {} |\n", words.join(" | "));
        let header: Vec<String> = self.header.iter().map(|word| (*word).into()).collect();
        let rule = (0..header.len()).map(|column| {
            let right = self.right.contains(&column);
            String::from(if right { "---:" } else { "---" })
        });
        let rule: Vec<String> = rule.collect();
        let head = line(&header) + &line(&rule);
        self.lines
            .iter()
            .fold(head, |text, words| text + &line(words))
    }
}

/// The baseline of a ratio: cuBLASLt alone, or with communication the bound that no schedule can beat.
fn over(results: &[Result]) -> &'static str {
    if results.iter().any(|result| result.link.is_some()) {
        "of bound"
    } else {
        "x cuBLASLt"
    }
}

/// A line for each product.
fn products(results: &[Result]) -> Page<'static> {
    let lines = results.iter().map(|result| {
        let [m, n, k] = result.case.size.map(|size| size.to_string());
        let [clock, power] = result.reading.map_or(["-".into(), "-".into()], |reading| {
            [reading.clock.median, reading.power.median].map(|number| format!("{number:.0}"))
        });
        let of = |row: &Row| {
            let Spread { median, low, high } = row.seconds;
            [
                micros(median),
                format!("{}..{}", micros(low), micros(high)),
                format!("{:.3}", result.speed(row)),
            ]
        };
        let none = || ["-"; 3].map(String::from);
        let best = result.best();
        let [ours, spread, speed] = best.map_or_else(none, of);
        let wrong = result.rows.iter().any(|row| row.difference.wrong > 0);
        let variant = match (best, wrong) {
            (Some(row), false) => row.variant(),
            (Some(row), true) => format!("{}; others are WRONG", row.variant()),
            (None, _) => "all are WRONG".into(),
        };
        let layer = result.case.layer.clone();
        let cublas = micros(result.cublas());
        vec![
            layer, m, n, k, cublas, ours, spread, speed, clock, power, variant,
        ]
    });
    let header = vec![
        "layer",
        "M",
        "N",
        "K",
        "cuBLASLt µs",
        "ours µs",
        "p10..p90",
        over(results),
        "MHz",
        "W",
        "variant",
    ];
    Page {
        header,
        lines: lines.collect(),
        right: (1..10).collect(),
    }
}

/// Our best kernels over the products of a suite.
#[derive(Clone, PartialEq, Debug)]
struct Suite {
    name: String,
    products: usize,
    mean: f64,
    least: (f64, String),
    /// Number of rows below 0.95, and below 1.
    below: [usize; 2],
}

impl Suite {
    fn of(name: &str, speeds: &[(f64, String)]) -> Option<Suite> {
        let numbers: Vec<f64> = speeds.iter().map(|(speed, _)| *speed).collect();
        let below = |limit: f64| numbers.iter().filter(|speed| **speed < limit).count();
        Some(Suite {
            name: name.into(),
            products: numbers.len(),
            mean: geometric_mean(&numbers)?,
            least: speeds
                .iter()
                .min_by(|(a, _), (b, _)| a.total_cmp(b))?
                .clone(),
            below: [below(0.95), below(1.0)],
        })
    }
}

/// Suite by suite, then all products.
fn suites(results: &[Result]) -> Vec<Suite> {
    let speed = |result: &Result| {
        let best = result.best()?;
        Some((result.speed(best), result.case.to_string()))
    };
    let mut each: BTreeMap<&str, Vec<(f64, String)>> = BTreeMap::new();
    for result in results {
        for suite in &result.case.suites {
            each.entry(suite).or_default().extend(speed(result));
        }
    }
    let each = each
        .iter()
        .filter_map(|(name, speeds)| Suite::of(name, speeds));
    let all: Vec<_> = results.iter().filter_map(speed).collect();
    each.chain(Suite::of("all", &all)).collect()
}

fn suite_lines(results: &[Result]) -> Page<'static> {
    let lines = suites(results).into_iter().map(|suite| {
        let [few, slow] = suite.below.map(|count| count.to_string());
        let (least, at) = suite.least;
        let products = suite.products.to_string();
        let numbers = [suite.mean, least].map(|number| format!("{number:.3}"));
        let [mean, least] = numbers;
        vec![suite.name, products, mean, least, few, slow, at]
    });
    Page {
        header: vec![
            "best of ours",
            "products",
            "geometric mean",
            "least",
            "< 0.95",
            "< 1.00",
            "least at",
        ],
        lines: lines.collect(),
        right: (1..6).collect(),
    }
}

/// The cost of rows that fill no tile: time over that of the next full tile, ours and cuBLASLt's.
fn ragged(results: &[Result]) -> Vec<[String; 4]> {
    let lines = results.iter().filter_map(|result| {
        let full = result.case.full()?;
        let full = results.iter().find(|other| other.case.size == full)?;
        let [ours, theirs] = [result.best()?, full.best()?].map(|row| row.seconds.median);
        Some([
            result.case.to_string(),
            full.case.size[0].to_string(),
            format!("{:.3}", ours / theirs),
            format!("{:.3}", result.cublas() / full.cublas()),
        ])
    });
    lines.collect()
}

fn ragged_lines(results: &[Result]) -> Option<Page<'static>> {
    let lines: Vec<_> = ragged(results).into_iter().map(Vec::from).collect();
    (!lines.is_empty()).then(|| Page {
        header: vec![
            "time over that of full tiles",
            "full M",
            "best of ours",
            "cuBLASLt",
        ],
        lines,
        right: vec![1, 2, 3],
    })
}

/// cuBLASLt by kind of scales: each in µs, and ours beside.
fn kinds(results: &[Result]) -> Option<Page<'_>> {
    let beside = |result: &Result| result.rows.iter().any(|row| row.beside);
    let results: Vec<&Result> = results.iter().filter(|result| beside(result)).collect();
    fn theirs(result: &Result) -> impl Iterator<Item = &Row> {
        let rows = result.rows.iter().enumerate();
        let rows = rows.filter(|(at, row)| *at == 0 || row.beside);
        rows.map(|(_, row)| row)
    }
    let mut names: Vec<&str> = Vec::new();
    for row in results.iter().flat_map(|result| theirs(result)) {
        if !names.contains(&&row.contender[..]) {
            names.push(&row.contender);
        }
    }
    let lines = results.iter().map(|result| {
        let best = result.best();
        let of = |name: &&str| {
            let row = theirs(result).find(|row| row.contender == **name);
            row.map_or("-".into(), |row| micros(row.seconds.median))
        };
        let ours = best.map_or("-".into(), |row| micros(row.seconds.median));
        let head = [result.case.to_string(), ours];
        head.into_iter().chain(names.iter().map(of)).collect()
    });
    let lines: Vec<_> = lines.collect();
    let header: Vec<&str> = ["µs", "best of ours"].into_iter().chain(names).collect();
    let right = (1..header.len()).collect();
    (!lines.is_empty()).then_some(Page {
        header,
        lines,
        right,
    })
}

/// Products, if there are many, and their means.
pub(super) fn text(results: &[Result]) -> Vec<String> {
    let many = results.len() > FEW;
    let products = many.then(|| products(results));
    let kinds = many.then(|| kinds(results)).flatten();
    let pages = (products.into_iter().chain(kinds)).chain([suite_lines(results)]);
    pages.chain(ragged_lines(results)).map(Page::text).collect()
}

/// Table for a file, also for few products.
pub(super) fn markdown(results: &[Result], head: &str) -> String {
    let pages = [products(results)].into_iter().chain(kinds(results));
    let pages = pages.chain([suite_lines(results)]);
    let pages = pages.chain(ragged_lines(results));
    let pages: Vec<String> = pages.map(Page::markdown).collect();
    format!("{head}\n\n{}", pages.join("\n"))
}

/// For JSON: suites, and ragged rows.
pub(super) fn object(results: &[Result]) -> [(&'static str, Json); 2] {
    let suites = suites(results).into_iter().map(|suite| {
        json!({
            "suite": suite.name,
            "products": suite.products,
            "geometric_mean": suite.mean,
            "least": suite.least.0,
            "least_at": suite.least.1,
            "below_0.95": suite.below[0],
            "below_1.00": suite.below[1],
        })
    });
    let ragged = ragged(results)
        .into_iter()
        .map(|[product, full, ours, cublas]| {
            let number = |text: String| text.parse::<f64>().ok();
            json!({
                "product": product,
                "full_rows": number(full),
                "ours": number(ours),
                "cublaslt": number(cublas),
            })
        });
    [("suites", suites.collect()), ("ragged", ragged.collect())]
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::result;
    use super::*;
    use crate::suite;

    const MARKDOWN: &str = "\
one H200

| layer | M | N | K | cuBLASLt µs | ours µs | p10..p90 | x cuBLASLt | MHz | W | variant |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
| qkv | 512 | 2560 | 8192 | 50.0 | 40.0 | 40.0..40.0 | 1.250 | - | - | tiles=128x160 |
| qkv | 1024 | 2560 | 8192 | 90.0 | 100.0 | 100.0..100.0 | 0.900 | - | - | tiles=128x160 |
| qkv | 2048 | 2560 | 8192 | 98.0 | 100.0 | 100.0..100.0 | 0.980 | - | - | tiles=128x160 |

| best of ours | products | geometric mean | least | < 0.95 | < 1.00 | least at |
| --- | ---: | ---: | ---: | ---: | ---: | --- |
| llama70b-tp4 | 3 | 1.033 | 0.900 | 1 | 2 | qkv 1024x2560x8192 |
| more | 2 | 0.939 | 0.900 | 1 | 2 | qkv 1024x2560x8192 |
| all | 3 | 1.033 | 0.900 | 1 | 2 | qkv 1024x2560x8192 |
";
    const SUITES: &str = "  \
  best of ours  products  geometric mean  least  < 0.95  < 1.00  least at
  llama70b-tp4         3           1.033  0.900       1       2  qkv 1024x2560x8192
  more                 2           0.939  0.900       1       2  qkv 1024x2560x8192
  all                  3           1.033  0.900       1       2  qkv 1024x2560x8192";

    fn results() -> Vec<Result> {
        let mut results = vec![
            result(
                [512, 2560, 8192],
                None,
                &[
                    ("cuBLASLt", 50.0),
                    ("gemm tiles=128x160", 40.0),
                    ("gemm tiles=128x256", 45.0),
                ],
            ),
            result(
                [1024, 2560, 8192],
                None,
                &[("cuBLASLt", 90.0), ("gemm tiles=128x160", 100.0)],
            ),
            result(
                [2048, 2560, 8192],
                None,
                &[("cuBLASLt", 98.0), ("gemm tiles=128x160", 100.0)],
            ),
        ];
        for (at, result) in results.iter_mut().enumerate() {
            for row in &mut result.rows[1..] {
                let tiles = row
                    .contender
                    .split_once("tiles=")
                    .map(|(_, text)| text.to_owned());
                row.ours = tiles.map(|tiles| BTreeMap::from([("tiles".into(), tiles)]));
            }
            result.case.layer = "qkv".into();
            result.case.suites = vec!["llama70b-tp4".into()];
            if at > 0 {
                result.case.suites.push("more".into());
            }
        }
        results
    }

    #[test]
    fn many_products_are_a_line_each() {
        assert_eq!(markdown(&results(), "one H200"), MARKDOWN);
    }

    #[test]
    fn every_kind_of_scales_has_a_column() {
        let mut results = results();
        assert!(kinds(&results).is_none());
        let mut row = |at: usize, name: &str, micros: f64| {
            let mut more = result([512; 3], None, &[(name, micros)]);
            more.rows[0].beside = true;
            results[at].rows.append(&mut more.rows);
        };
        row(0, "cuBLASLt rows, fast", 60.0);
        row(2, "cuBLASLt rows, fast", 120.0);
        row(2, "cuBLASLt 1x128 by 128x128", 130.0);
        for result in &mut results {
            // What `result` calls it.
            for row in result.rows.iter_mut().filter(|row| row.beside) {
                row.contender = if row.seconds.median > 125e-6 {
                    "cuBLASLt 1x128 by 128x128".into()
                } else {
                    "cuBLASLt rows, fast".into()
                };
            }
        }
        let table = kinds(&results).expect("a table").markdown();
        assert_eq!(
            table,
            "\
| µs | best of ours | cuBLASLt | cuBLASLt rows, fast | cuBLASLt 1x128 by 128x128 |
| --- | ---: | ---: | ---: | ---: |
| qkv 512x2560x8192 | 40.0 | 50.0 | 60.0 | - |
| qkv 2048x2560x8192 | 100.0 | 98.0 | 120.0 | 130.0 |
"
        );
    }

    #[test]
    fn few_products_have_their_suites_only() {
        let text = text(&results());
        assert_eq!(text.len(), 1);
        assert_eq!(text[0], SUITES);
        let many: Vec<Result> = (0..5).flat_map(|_| results()).collect();
        assert_eq!(super::text(&many)[0].lines().count(), 1 + many.len());
    }

    #[test]
    fn ragged_rows_are_over_full_ones() {
        let cases = suite::named("ragged", &[1000], None, None).expect("a suite");
        let results: Vec<Result> = cases
            .into_iter()
            .map(|case| {
                let micros = f64::from(case.size[0]) / 10.0;
                let rows = [
                    ("cuBLASLt", micros),
                    ("a", if case.full().is_some() { 104.4 } else { micros }),
                ];
                let mut one = result(case.size, None, &rows);
                one.case = case;
                one
            })
            .collect();
        let lines = ragged(&results);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], ["1000x8192x8192", "1024", "1.020", "0.977"]);
        let [suites, ragged] = object(&results);
        assert_eq!(ragged.1[0]["full_rows"], 1024.0);
        assert_eq!(suites.1[0]["suite"], "ragged");
    }

    #[test]
    fn a_wrong_result_is_not_the_best() {
        let mut results = results();
        results[0].rows[1].difference.wrong = 1;
        let lines = products(&results).text();
        assert!(lines.contains("tiles=128x256; others are WRONG"), "{lines}");
        results[0].rows[2].difference.wrong = 1;
        let lines = products(&results).text();
        assert!(lines.contains("all are WRONG"), "{lines}");
        assert_eq!(suites(&results)[0].products, 2);
    }
}
