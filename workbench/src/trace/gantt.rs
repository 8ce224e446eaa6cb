//! A trace over time: which share of a rank's CTAs is in which phase.

use counterflow_timeline::trace::{Phase, Trace, segments};

/// Phases that a chart shows together, in the order of their stack.
pub(super) const GROUPS: [(&str, &str, &[Phase]); 5] = [
    ("multiply", "#2a9d8f", &[Phase::Multiply]),
    ("sum, epilogue", "#8ab17d", &[Phase::Sum, Phase::Epilogue]),
    ("move", "#e9c46a", &[Phase::Move]),
    ("wait", "#d1495b", &[Phase::Wait]),
    ("load, store", "#8d99ae", &[Phase::Load, Phase::Store]),
];

/// Share of CTAs in each of [`GROUPS`], by rank and column. `total` is as wide as all columns.
pub(super) fn shares(trace: &Trace, total: f64, columns: usize) -> Vec<Vec<[f64; GROUPS.len()]>> {
    let mut shares = vec![vec![[0.0; GROUPS.len()]; columns]; trace.world as usize];
    let mut ctas = vec![0u32; trace.world as usize];
    let mut last = None;
    let step = (total / columns as f64).max(1e-12);
    for segment in segments(trace) {
        let rank = usize::from(segment.rank);
        if last.replace((segment.rank, segment.cta)) != Some((segment.rank, segment.cta)) {
            ctas[rank] += 1;
        }
        let group = GROUPS
            .iter()
            .position(|(_, _, phases)| phases.contains(&segment.phase));
        let Some(group) = group else { continue };
        let first = (segment.start / step) as usize;
        for (column, shares) in shares[rank].iter_mut().enumerate().skip(first) {
            let (from, to) = (column as f64 * step, (column + 1) as f64 * step);
            if from >= segment.end {
                break;
            }
            let within = segment.end.min(to) - segment.start.max(from);
            shares[group] += within.max(0.0) / step;
        }
    }
    for (rank, ctas) in shares.iter_mut().zip(ctas) {
        for share in rank.iter_mut().flatten() {
            *share /= f64::from(ctas.max(1));
        }
    }
    shares
}

/// Columns before the chart.
const LABEL: usize = 16;
/// The most ranks that are shown.
const RANKS: usize = 4;

/// The chart for a terminal, `width` columns wide. Groups that a rank has nothing of are left out.
pub(super) fn chart(trace: &Trace, total: f64, width: usize) -> String {
    let columns = width.max(60) - LABEL - 8;
    let mut text = String::new();
    let shares = shares(trace, total, columns);
    for (rank, columns) in shares.iter().enumerate().take(RANKS) {
        let mut label = format!("rank {rank}");
        for (group, (name, ..)) in GROUPS.iter().enumerate() {
            let mean = columns.iter().map(|column| column[group]).sum::<f64>();
            if mean == 0.0 {
                continue;
            }
            let bars: String = columns.iter().map(|column| bar(column[group])).collect();
            text.push_str(&format!("{label:<7}{name:<14} {}\n", bars.trim_end()));
            label.clear();
        }
    }
    if shares.len() > RANKS {
        text.push_str(&format!("ranks 0 to {} of {}\n", RANKS - 1, shares.len()));
    }
    text.push_str(&format!(
        "{:22}0{:>width$}\n",
        "",
        format!("{:.1} µs", total * 1e6),
        width = columns.saturating_sub(1)
    ));
    text
}

/// A share of one as a block of that height.
fn bar(share: f64) -> char {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    if share < 1e-3 {
        return ' ';
    }
    BLOCKS[((share * 8.0).round() as usize).clamp(1, 8)]
}
