//! Results as tables.

use super::interleaved::Sustained;
use super::meter::Reading;
use super::stats::{Spread, geometric_mean, round_by_round, slowest};
use super::task::Measured;
use super::variants::Choices;
use crate::cuda::Difference;
use crate::render;
use crate::suite::Case;
use counterflow_runtime::tuned::{self, Key, Winner};

/// The baseline's name.
pub(super) const CUBLAS: &str = "cuBLASLt";

/// One candidate's times of one product.
pub(super) struct Row {
    pub contender: String,
    /// Seconds per launch of the slowest rank.
    pub seconds: Spread,
    /// Speed over cuBLASLt, each sample beside that of its round: a clock that changes between rounds changes both.
    pub over_cublas: f64,
    /// Ratio to the same kernel without options, if that is measured.
    pub over_plain: Option<f64>,
    pub samples: usize,
    /// Launches in a sample.
    pub launches: u32,
    pub difference: Difference,
    /// Back to back.
    pub sustained: Option<Sustained>,
    /// The choices of a kernel of the measured schedule. None for the others.
    pub ours: Option<Choices>,
    /// True if it is cuBLASLt with another kind of scales.
    pub beside: bool,
}

impl Row {
    /// The choices of a kernel of the schedule.
    pub(super) fn variant(&self) -> String {
        let choices = self.ours.iter().flatten();
        let words = choices.map(|(name, setting)| format!("{name}={setting}"));
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Name of a candidate.
pub(super) struct Name {
    pub text: String,
    /// The choices of a kernel of the measured schedule.
    pub choices: Option<Choices>,
    /// Index of the same candidate without options, if there is one.
    pub plain: Option<usize>,
}

impl Name {
    /// Name of what is no kernel of the schedule.
    pub(super) fn of(text: &str) -> Name {
        Name {
            text: text.into(),
            choices: None,
            plain: None,
        }
    }
}

/// All candidates of one product. The first is cuBLASLt.
pub(super) struct Result {
    pub case: Case,
    pub rows: Vec<Row>,
    /// Seconds of the least bytes on the busiest link. None without communication.
    pub link: Option<f64>,
    pub reading: Option<Reading>,
    pub algorithms: usize,
    /// Products of that size.
    pub products: u32,
    /// Kinds of scales that cuBLASLt has no algorithm for.
    pub absent: Vec<String>,
}

impl Result {
    /// Operations of all products.
    pub(super) fn flop(&self) -> f64 {
        self.case.flop() * f64::from(self.products)
    }

    /// Builds the result from the ranks' samples. `names` are the candidates', with the choices of the schedule's
    /// kernels.
    pub(super) fn of(case: &Case, names: &[Name], ranks: &[Measured], link: Option<f64>) -> Result {
        let samples = |which: usize| {
            let each: Vec<&[f64]> = ranks.iter().map(|rank| &rank.seconds[which][..]).collect();
            slowest(&each)
        };
        let cublas = samples(0);
        let rows = names.iter().enumerate().map(|(which, name)| {
            let plain = name.plain.map(samples);
            let samples = samples(which);
            let differences = ranks.iter().map(|rank| rank.differences[which]);
            let sustained = ranks
                .iter()
                .filter_map(|rank| rank.sustained.get(which).copied())
                .max_by(|a, b| a.seconds.total_cmp(&b.seconds));
            Row {
                contender: match (which, ranks.first()) {
                    (0, Some(rank)) => rank.baseline.clone(),
                    _ => name.text.clone(),
                },
                seconds: Spread::of(&samples),
                over_cublas: round_by_round(&cublas, &samples),
                over_plain: plain.map(|plain| round_by_round(&plain, &samples)),
                samples: samples.len(),
                launches: ranks.first().map_or(0, |rank| rank.launches[which]),
                difference: differences.fold(Difference::default(), |all, one| Difference {
                    wrong: all.wrong.saturating_add(one.wrong),
                    worst: all.worst.max(one.worst),
                }),
                sustained,
                ours: name.choices.clone(),
                beside: ranks.iter().any(|rank| rank.beside.contains(&name.text)),
            }
        });
        Result {
            case: case.clone(),
            rows: rows.collect(),
            link,
            // The others wait for the GPU with the lowest clock.
            reading: ranks
                .iter()
                .filter_map(|rank| rank.reading)
                .min_by(|a, b| a.clock.median.total_cmp(&b.clock.median)),
            algorithms: ranks.first().map_or(0, |rank| rank.algorithms),
            products: ranks.first().map_or(1, |rank| rank.products),
            absent: ranks
                .first()
                .map_or_else(Vec::new, |rank| rank.absent.clone()),
        }
    }

    pub(super) fn cublas(&self) -> f64 {
        self.rows.first().map_or(0.0, |row| row.seconds.median)
    }

    /// The bound: the least seconds of a schedule that communicates beside cuBLASLt's product.
    pub(super) fn bound(&self) -> f64 {
        self.cublas().max(self.link.unwrap_or(0.0))
    }

    /// The schedule's kernels with right results.
    fn ours(&self) -> impl Iterator<Item = &Row> {
        let rows = self.rows.iter();
        rows.filter(|row| row.ours.is_some() && row.difference.wrong == 0)
    }

    /// The schedule's fastest kernel with a right result.
    pub(super) fn best(&self) -> Option<&Row> {
        let medians = |a: &&Row, b: &&Row| a.seconds.median.total_cmp(&b.seconds.median);
        self.ours().min_by(medians)
    }

    /// Ratio of a row: speed over cuBLASLt, or time over the bound's.
    pub(super) fn speed(&self, row: &Row) -> f64 {
        match self.link {
            Some(_) => self.bound() / row.seconds.median,
            None => row.over_cublas,
        }
    }

    /// The kernel to record.
    pub(super) fn kept(&self, key: &Key) -> Option<Winner> {
        let [m, n, k] = self.case.size;
        let row = self.winner()?;
        let micros = |seconds: f64| (seconds * 1e7).round() / 10.0;
        let choices = row.ours.iter().flatten();
        Some(Winner {
            key: key.clone(),
            m,
            n,
            k,
            microseconds: micros(row.seconds.median),
            p10: micros(row.seconds.low),
            p90: micros(row.seconds.high),
            cublaslt: micros(self.cublas()),
            choices: choices
                .map(|(name, setting)| (name.clone(), setting.clone()))
                .collect(),
        })
    }

    /// The first in the model's order whose worst slowdown is within 1 % of the smallest: two runs differ by as much. A
    /// kernel's slowdown is its time over the fastest's; if it was also measured back to back, the larger of the two.
    /// In interleaved samples a kernel that draws more power is fast at the others' expense; alone, a kernel that draws
    /// little power wins where nothing else would have used it.
    fn winner(&self) -> Option<&Row> {
        let interleaved = |row: &Row| Some(row.seconds.median);
        let alone = |row: &Row| row.sustained.map(|sustained| sustained.seconds);
        let least =
            |time: &dyn Fn(&Row) -> Option<f64>| self.ours().filter_map(time).reduce(f64::min);
        let (least_interleaved, least_alone) = (least(&interleaved)?, least(&alone));
        let miss = |row: &Row| {
            let interleaved = row.seconds.median / least_interleaved;
            let alone = alone(row).zip(least_alone);
            alone.map_or(interleaved, |(own, least)| interleaved.max(own / least))
        };
        let misses: Vec<f64> = self.ours().map(miss).collect();
        self.ours().nth(tuned::winner(&misses)?)
    }

    fn ratio(&self, row: &Row) -> f64 {
        match self.link {
            Some(_) => row.seconds.median / self.bound(),
            None => row.over_cublas,
        }
    }
}

/// True if any element was off by more than rounding allows.
pub(super) fn wrong(results: &[Result]) -> bool {
    let mut rows = results.iter().flat_map(|result| &result.rows);
    rows.any(|row| row.difference.wrong > 0)
}

pub(super) fn micros(seconds: f64) -> String {
    format!("{:.1}", seconds * 1e6)
}

/// A line for each candidate of each product.
pub(super) fn text(results: &[Result]) -> String {
    let fused = results.iter().any(|result| result.link.is_some());
    let ratio = if fused { "of bound" } else { "x cuBLASLt" };
    let mut rows = results.iter().flat_map(|result| &result.rows);
    let has_plain = rows.any(|row| row.over_plain.is_some());
    let mut header = vec!["product", "contender", "µs", "p10..p90", "TFLOP/s", ratio];
    header.extend(has_plain.then_some("x the same"));
    header.extend(["of rounding", "MHz", "W"]);
    let mut lines = Vec::new();
    for result in results {
        let state = result.reading.map_or(["-".into(), "-".into()], |reading| {
            [
                format!("{:.0}..{:.0}", reading.clock.low, reading.clock.high),
                format!("{:.0}", reading.power.median),
            ]
        });
        for (index, row) in result.rows.iter().enumerate() {
            let first = |text: String| if index == 0 { text } else { String::new() };
            let found = match (index, row.difference.wrong) {
                (0, 0) if row.difference == Difference::default() => "-".into(),
                (_, 0) => format!("{:.0} %", row.difference.worst * 100.0),
                (_, wrong) => format!("WRONG: {wrong}"),
            };
            let mut line = vec![
                first(result.case.to_string()),
                row.contender.clone(),
                micros(row.seconds.median),
                format!("{}..{}", micros(row.seconds.low), micros(row.seconds.high)),
                format!("{:.0}", result.flop() / row.seconds.median / 1e12),
                format!("{:.3}", result.ratio(row)),
            ];
            let plain = row.over_plain.map(|over| format!("{over:.3}"));
            line.extend(has_plain.then(|| plain.unwrap_or_else(|| "-".into())));
            line.extend([found, first(state[0].clone()), first(state[1].clone())]);
            lines.push(line);
        }
        if let Some(link) = result.link {
            let mut line = vec![
                String::new(),
                format!("least bytes over a link"),
                micros(link),
            ];
            line.resize(header.len(), String::new());
            lines.push(line);
        }
    }
    let right: Vec<usize> = (2..header.len()).collect();
    render::table(&header, lines, &right)
}

/// Back-to-back runs: rate, clock and power of each candidate, and the range of the rate once it is steady.
pub(super) fn sustained(results: &[Result]) -> Option<String> {
    let mut lines = Vec::new();
    for result in results {
        let base = result.rows.first().and_then(|row| row.sustained);
        for row in &result.rows {
            let (Some(own), Some(base)) = (row.sustained, base) else {
                continue;
            };
            let rate = |seconds: f64| format!("{:.0}", result.flop() / seconds / 1e12);
            let state = |of: fn(&Reading) -> f64| {
                let reading = own.reading.as_ref();
                reading.map_or("-".into(), |reading| format!("{:.0}", of(reading)))
            };
            lines.push(vec![
                result.case.to_string(),
                row.contender.clone(),
                rate(own.seconds),
                format!("{:.3}", base.seconds / own.seconds),
                own.windows.map_or("-".into(), |windows| {
                    format!("{}..{}", rate(windows.high), rate(windows.low))
                }),
                state(|reading| reading.clock.median),
                state(|reading| reading.power.median),
            ]);
        }
    }
    let header = [
        "back to back",
        "contender",
        "TFLOP/s",
        "x cuBLASLt",
        "by second",
        "MHz",
        "W",
    ];
    (!lines.is_empty()).then(|| render::table(&header, lines, &[2, 3, 4, 5, 6]))
}

/// A candidate over all products: the geometric mean of its ratios, and the worst one with its product.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Summary {
    pub contender: String,
    pub products: usize,
    pub mean: f64,
    pub worst: (f64, String),
}

/// For our best kernel of each product, then for every candidate that was measured on all products.
pub(super) fn summaries(results: &[Result]) -> Vec<Summary> {
    // Over a bound, less is better; over cuBLASLt, more.
    let fused = results.iter().any(|result| result.link.is_some());
    let better = |a: f64, b: f64| if fused { a < b } else { a > b };
    let summary = |contender: &str, ratios: Vec<(f64, String)>| {
        let numbers: Vec<f64> = ratios.iter().map(|(ratio, _)| *ratio).collect();
        let worst = ratios
            .into_iter()
            .reduce(|a, b| if better(a.0, b.0) { b } else { a })?;
        Some(Summary {
            contender: contender.into(),
            products: numbers.len(),
            mean: geometric_mean(&numbers)?,
            worst,
        })
    };
    let best = results.iter().filter_map(|result| {
        let ours = result.ours();
        let ratios = ours.map(|row| result.ratio(row));
        let ratio = ratios.reduce(|a, b| if better(a, b) { a } else { b })?;
        Some((ratio, result.case.to_string()))
    });
    let mut found: Vec<Summary> = summary("best of ours", best.collect())
        .into_iter()
        .collect();
    let names = results.first().map_or(&[][..], |result| &result.rows[1..]);
    for name in names.iter().map(|row| &row.contender) {
        let of = |result: &Result| {
            let row = result.rows.iter().find(|row| row.contender == *name)?;
            Some((result.ratio(row), result.case.to_string()))
        };
        let ratios: Vec<_> = results.iter().filter_map(of).collect();
        if ratios.len() == results.len() {
            found.extend(summary(name, ratios));
        }
    }
    found
}

pub(super) fn summary_text(results: &[Result]) -> String {
    let fused = results.iter().any(|result| result.link.is_some());
    let header = [
        if fused {
            "time over bound"
        } else {
            "speed over cuBLASLt"
        },
        "products",
        "geometric mean",
        "worst",
        "at",
    ];
    let lines = summaries(results).into_iter().map(|summary| {
        vec![
            summary.contender,
            summary.products.to_string(),
            format!("{:.3}", summary.mean),
            format!("{:.3}", summary.worst.0),
            summary.worst.1,
        ]
    });
    render::table(&header, lines.collect(), &[1, 2, 3])
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::object::object;
    use super::*;
    use crate::suite;

    pub(in super::super) fn result(
        size: [u32; 3],
        link: Option<f64>,
        micros: &[(&str, f64)],
    ) -> Result {
        let names: Vec<Name> = micros
            .iter()
            .enumerate()
            .map(|(index, (name, _))| Name {
                choices: (index > 0).then(Choices::new),
                ..Name::of(name)
            })
            .collect();
        let measured = Measured {
            seconds: micros
                .iter()
                .map(|(_, micros)| vec![micros * 1e-6; 30])
                .collect(),
            differences: vec![Difference::default(); micros.len()],
            launches: vec![4; micros.len()],
            algorithms: 8,
            baseline: CUBLAS.into(),
            products: 1,
            ..Measured::default()
        };
        Result::of(&suite::single(size), &names, &[measured], link)
    }

    #[test]
    fn speed_is_cublas_over_ours_and_the_worst_is_the_slowest() {
        let results = [
            result(
                [512; 3],
                None,
                &[(CUBLAS, 100.0), ("a", 80.0), ("b", 110.0)],
            ),
            result([1024; 3], None, &[(CUBLAS, 100.0), ("a", 125.0)]),
        ];
        let all = summaries(&results);
        assert_eq!(all.len(), 2, "b took part once only");
        assert!((all[0].mean - 1.0).abs() < 1e-9, "{all:?}");
        assert!((all[0].worst.0 - 0.8).abs() < 1e-9);
        assert_eq!(all[0].worst.1, "1024x1024x1024");
        let text = text(&results);
        assert!(
            text.contains("1.250") && text.contains("80.0..80.0"),
            "{text}"
        );
    }

    /// In the fourth round the clock doubles between the two: medians of each by itself differ by 2.2, rounds by 1.1.
    #[test]
    fn speed_is_told_round_by_round() {
        let ours = Name {
            choices: Some(Choices::new()),
            plain: Some(0),
            ..Name::of("a")
        };
        let names = [Name::of(CUBLAS), ours];
        let measured = Measured {
            seconds: vec![vec![1.1, 2.2, 1.1, 2.2, 2.2], vec![1.0, 2.0, 1.0, 1.0, 2.0]],
            differences: vec![Difference::default(); 2],
            launches: vec![1; 2],
            algorithms: 8,
            baseline: CUBLAS.into(),
            products: 1,
            ..Measured::default()
        };
        let result = Result::of(&suite::single([512; 3]), &names, &[measured], None);
        let near = |got: f64| assert!((got - 1.1).abs() < 1e-9, "{got}");
        near(result.speed(&result.rows[1]));
        near(result.rows[1].over_plain.expect("a ratio"));
        near(summaries(std::slice::from_ref(&result))[0].mean);
        let object = object(std::slice::from_ref(&result));
        near(
            object["products"][0]["contenders"][1]["over_cublas"]
                .as_f64()
                .expect("a number"),
        );
    }

    /// A column of its own, where anything is.
    #[test]
    fn what_options_cost_is_shown_beside_what_costs_them() {
        let all = [(CUBLAS, 100.0), ("a", 80.0), ("a without --amax", 76.0)];
        let mut one = result([512; 3], None, &all);
        assert!(!text(std::slice::from_ref(&one)).contains("x the same"));
        one.rows[1].over_plain = Some(0.95);
        let text = text(&[one]);
        let line = |begin: &str| text.lines().find(|line| line.contains(begin));
        assert!(text.contains("x the same"), "{text}");
        assert!(line(" a  ").is_some_and(|line| line.contains("0.950")));
        assert!(line("--amax").is_some_and(|line| line.contains("  -  ")));
    }

    #[test]
    fn fused_times_are_over_the_larger_of_link_and_gemm() {
        let results = [
            result([512; 3], Some(50e-6), &[(CUBLAS, 100.0), ("a", 120.0)]),
            result([512; 3], Some(200e-6), &[(CUBLAS, 100.0), ("a", 260.0)]),
        ];
        let best = &summaries(&results)[0];
        assert!((best.worst.0 - 1.3).abs() < 1e-9, "{best:?}");
        assert!((best.mean - (1.2f64 * 1.3).sqrt()).abs() < 1e-9);
        assert!(text(&results).contains("200.0"), "the link is shown");
    }

    #[test]
    fn who_misses_the_fastest_by_least_wins_and_among_equals_who_the_model_likes() {
        let mut one = result(
            [512; 3],
            None,
            &[(CUBLAS, 100.0), ("a", 100.5), ("b", 100.0), ("c", 98.0)],
        );
        let winner = |one: &Result| one.winner().map(|row| row.contender.clone());
        assert_eq!(winner(&one).as_deref(), Some("c"));
        one.rows[3].difference.wrong = 1;
        assert_eq!(winner(&one).as_deref(), Some("a"));
        one.rows[1].sustained = Some(back_to_back(110e-6));
        one.rows[2].sustained = Some(back_to_back(105e-6));
        assert_eq!(winner(&one).as_deref(), Some("b"));
        // 2 % behind alone and the fastest interleaved, or the fastest alone and 4 % behind interleaved.
        one.rows[1].seconds = result([512; 3], None, &[(CUBLAS, 96.0)]).rows[0].seconds;
        one.rows[1].sustained = Some(back_to_back(107e-6));
        assert_eq!(winner(&one).as_deref(), Some("a"));
    }

    fn back_to_back(seconds: f64) -> Sustained {
        Sustained {
            seconds,
            windows: None,
            reading: None,
        }
    }

    #[test]
    fn back_to_back_has_a_row_for_each() {
        let mut one = result([8192; 3], None, &[(CUBLAS, 1700.0), ("a", 1650.0)]);
        assert_eq!(sustained(std::slice::from_ref(&one)), None);
        one.rows[0].sustained = Some(back_to_back(1.6e-3));
        one.rows[1].sustained = Some(Sustained {
            windows: Some(Spread {
                median: 1.59e-3,
                low: 1.58e-3,
                high: 1.61e-3,
            }),
            ..back_to_back(1.59e-3)
        });
        assert_eq!(sustained(&[one]).as_deref(), Some(BACK_TO_BACK));
    }

    const BACK_TO_BACK: &str = "  \
  back to back    contender  TFLOP/s  x cuBLASLt  by second  MHz  W
  8192x8192x8192  cuBLASLt       687       1.000          -    -  -
  8192x8192x8192  a              692       1.006   683..696    -  -";

    #[test]
    fn a_wrong_element_is_seen() {
        let mut results = [result([512; 3], None, &[(CUBLAS, 100.0), ("a", 80.0)])];
        assert!(!wrong(&results));
        results[0].rows[1].difference.wrong = 3;
        assert!(wrong(&results) && text(&results).contains("WRONG: 3"));
        assert_eq!(
            summaries(&results).first().map(|s| &s.contender[..]),
            Some("a"),
            "no best"
        );
    }
}
