//! The page as a picture: which share of each rank's CTAs is in which phase over time, and the steps of the launch.

use super::gantt::{self, GROUPS};
use super::page::{Page, steps};
use counterflow_timeline::trace::Ladder;
use std::fmt::Write;

/// Pixels: of the picture, left of the charts, of a chart's width and height, and between them.
const WIDTH: usize = 960;
const LEFT: usize = 90;
const CHART: f64 = 840.0;
const HIGH: f64 = 64.0;
const GAP: usize = 30;
/// Points along a chart.
const COLUMNS: usize = 280;
/// The most letters of a title.
const WORDS: usize = 130;
/// Pixels between the numbers of two steps.
const NEAR: f64 = 12.0;
/// The most ranks that are drawn.
const RANKS: usize = 4;

pub(super) fn svg(page: &Page<'_>) -> String {
    let mut body = String::new();
    let mut y = 64;
    for (kind, seen) in page.charts() {
        let title = format!("{kind}: {:.1} µs", seen.trace.total * 1e6);
        text(&mut body, (16.0, y), (14, "bold", "start"), &title);
        let what: String = seen.trace.title.chars().take(WORDS).collect();
        text(&mut body, (180.0, y), (11, "normal", "start"), &what);
        y += 12;
        let shares = gantt::shares(seen.trace, page.total(), COLUMNS);
        for (rank, columns) in shares.iter().enumerate().take(RANKS) {
            let middle = y + HIGH as usize / 2 + 4;
            text(
                &mut body,
                (16.0, middle),
                (12, "normal", "start"),
                &format!("rank {rank}"),
            );
            stack(&mut body, y, columns);
            let ladder = seen.report.ladders.get(rank).copied().unwrap_or_default();
            marks(&mut body, y, page.total(), &ladder);
            y += HIGH as usize + GAP;
        }
        if shares.len() > RANKS {
            let words = format!("ranks 0 to {} of {}", RANKS - 1, shares.len());
            text(&mut body, (LEFT as f64, y), (11, "normal", "start"), &words);
            y += 16;
        }
        y += 16;
    }
    text(&mut body, (LEFT as f64, y), (10, "normal", "start"), "0");
    let end = format!("{:.1} µs", page.total() * 1e6);
    text(
        &mut body,
        (LEFT as f64 + CHART, y),
        (10, "normal", "end"),
        &end,
    );
    y += 18;
    let names = steps(&Ladder::default()).into_iter().enumerate();
    let names: Vec<String> = names
        .map(|(at, (name, _))| format!("{} {name}", at + 1))
        .collect();
    text(
        &mut body,
        (16.0, y),
        (11, "normal", "start"),
        &names.join("   "),
    );
    legend(&mut body);
    let (width, height) = (WIDTH, y + 16);
    let what = "Share of each rank's CTAs in each phase over time. White: launch, idle, tail.";
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"system-ui, sans-serif\" fill=\"#1f2933\">\n<title>{what}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"20\" font-size=\"12\">{what}</text>\n{body}</svg>\n"
    )
}

/// A line at each step of a launch, and its number. Steps that are too near to tell apart have their numbers at one place.
fn marks(svg: &mut String, y: usize, total: f64, ladder: &Ladder) {
    let mut labels: Vec<(f64, String)> = Vec::new();
    let mut all: Vec<(f64, usize, &str)> = (1..)
        .zip(steps(ladder))
        .filter_map(|(number, (name, time))| Some((time?, number, name)))
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (time, number, name) in all {
        let x = LEFT as f64 + time / total * CHART;
        let (top, end, us) = (y as f64, y as f64 + HIGH, time * 1e6);
        _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{end}\" stroke=\"#1f2933\" stroke-dasharray=\"2 3\"><title>{name}: {us:.1} µs</title></line>"
        );
        match labels.last_mut().filter(|(last, _)| x - *last < NEAR) {
            Some((_, label)) => label.push_str(&format!(" {number}")),
            None => labels.push((x, number.to_string())),
        }
    }
    for (x, label) in labels {
        text(
            svg,
            (x, y + HIGH as usize + 11),
            (9, "normal", "middle"),
            &label,
        );
    }
}

/// Stacked areas, the first group lowest.
fn stack(svg: &mut String, y: usize, columns: &[[f64; GROUPS.len()]]) {
    let step = CHART / columns.len() as f64;
    let bottom = y as f64 + HIGH;
    let mut below = vec![0.0; columns.len()];
    for (group, (name, colour, _)) in GROUPS.iter().enumerate() {
        let above: Vec<f64> = columns
            .iter()
            .zip(&below)
            .map(|(column, below)| below + column[group])
            .collect();
        if above == below {
            continue;
        }
        let point = |at: usize, share: f64| {
            let x = LEFT as f64 + (at as f64 + 0.5) * step;
            format!("{x:.1},{:.1}", bottom - share * HIGH)
        };
        let there = above
            .iter()
            .enumerate()
            .map(|(at, share)| point(at, *share));
        let back = below
            .iter()
            .enumerate()
            .rev()
            .map(|(at, share)| point(at, *share));
        let points: Vec<String> = there.chain(back).collect();
        _ = writeln!(
            svg,
            "<polygon points=\"{}\" fill=\"{colour}\"><title>{name}</title></polygon>",
            points.join(" ")
        );
        below = above;
    }
    _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{CHART}\" height=\"{HIGH}\" fill=\"none\" stroke=\"#cbd2d9\"/>"
    );
}

fn legend(svg: &mut String) {
    let mut x = 16;
    for (name, colour, _) in GROUPS {
        _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"30\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"
        );
        text(svg, ((x + 18) as f64, 41), (12, "normal", "start"), name);
        x += 50 + name.len() * 7;
    }
}

fn text(
    svg: &mut String,
    (x, y): (f64, usize),
    (size, weight, anchor): (usize, &str, &str),
    words: &str,
) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y}\" font-size=\"{size}\" font-weight=\"{weight}\" text-anchor=\"{anchor}\">{words}</text>"
    );
}
