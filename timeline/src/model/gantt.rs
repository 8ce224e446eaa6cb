//! A timeline as a chart for a terminal: each rank's busy CTAs, waiting CTAs and links over time.

use super::event::{Event, EventKind};
use super::timeline::Timeline;
use super::volume::EVERYWHERE;
use std::ops::Range;

/// The most ranks that are all shown. Of more, only the first few.
const ALL_UP_TO: u32 = 8;
const FIRST_FEW: u32 = 4;
/// Columns before the chart: `rank 12 gemm `.
const LABEL: usize = 13;

impl Timeline {
    /// The chart, `width` columns wide (at least 40).
    pub fn gantt(&self, width: usize) -> String {
        let columns = width.max(40) - LABEL - 1;
        let shown = if self.world <= ALL_UP_TO {
            self.world
        } else {
            FIRST_FEW
        };
        let mut text = format!("{}\n{}\n", self.title, self.summary());
        text.push_str(&axis(self.total, columns));
        for (rank, chart) in (0..).zip(charts(self, shown as u16, columns)) {
            text.push_str(&chart.text(rank));
        }
        if shown < self.world {
            text.push_str(&format!(
                "ranks 0 to {} of {}; the others are alike unless the schedule asks for their rank\n",
                shown - 1,
                self.world
            ));
        }
        text.push_str(
            "gemm: CTAs that compute  wait: CTAs that wait  out, in: what the link carries, of its best\n\
             ▲ first wait for data met  ▼ last bytes in\n",
        );
        text
    }

    /// The bytes of an event that leave and reach `rank`.
    pub(super) fn link_use(event: &Event, rank: u16) -> (u64, u64) {
        let (src, dst) = match event.kind {
            EventKind::Push => (event.rank, event.peer),
            EventKind::Pull => (event.peer, event.rank),
            EventKind::Dot
            | EventKind::Reduce
            | EventKind::Load
            | EventKind::Local
            | EventKind::Wait
            | EventKind::Join
            | EventKind::Drain => return (0, 0),
        };
        // A sum in the switch reads this rank's copy, too; a store to every rank is here already.
        let sends = src == rank || src == EVERYWHERE;
        let receives = dst == rank || (dst == EVERYWHERE && src != rank);
        [sends, receives]
            .map(|uses| if uses { event.bytes } else { 0 })
            .into()
    }
}

struct Chart {
    gemm: Vec<f64>,
    wait: Vec<f64>,
    out: Vec<f64>,
    into: Vec<f64>,
    first_met: Option<usize>,
    last_in: Option<usize>,
}

fn charts(timeline: &Timeline, shown: u16, columns: usize) -> Vec<Chart> {
    let step = timeline.total / columns as f64;
    let ctas = timeline.lanes.iter().filter(|lane| lane.cta).count().max(1) as f64;
    let link = timeline.link_rate * step;
    let chart = || Chart {
        gemm: vec![0.0; columns],
        wait: vec![0.0; columns],
        out: vec![0.0; columns],
        into: vec![0.0; columns],
        first_met: None,
        last_in: None,
    };
    let column = |time: f64| ((time / step) as usize).min(columns - 1);
    let mut charts: Vec<Chart> = (0..shown).map(|_| chart()).collect();
    let mut last_in = vec![0.0f64; usize::from(shown)];
    for event in &timeline.events {
        if let Some(chart) = charts.get_mut(usize::from(event.rank)) {
            let lane = match event.kind {
                EventKind::Dot | EventKind::Reduce | EventKind::Load => Some(&mut chart.gemm),
                EventKind::Wait | EventKind::Join | EventKind::Drain => Some(&mut chart.wait),
                EventKind::Local | EventKind::Push | EventKind::Pull => None,
            };
            if let Some(lane) = lane {
                spread(event, step, lane, 1.0 / ctas / step);
            }
        }
        if !event.kind.crosses() {
            continue;
        }
        for (rank, chart) in (0..).zip(&mut charts) {
            let (out, into) = Timeline::link_use(event, rank);
            let rate = |bytes: u64| bytes as f64 / (event.end - event.start).max(1e-12) / link;
            if out > 0 {
                spread(event, step, &mut chart.out, rate(out));
            }
            if into > 0 {
                spread(event, step, &mut chart.into, rate(into));
                let last = &mut last_in[usize::from(rank)];
                *last = last.max(event.end);
            }
        }
    }
    let by_cta = |lane: u16| timeline.lanes[usize::from(lane)].cta;
    let flows = timeline.flows.iter();
    for flow in flows.filter(|flow| !flow.credit && by_cta(flow.to.1)) {
        if let Some(chart) = charts.get_mut(usize::from(flow.to.0)) {
            let met = column(flow.met);
            chart.first_met = Some(chart.first_met.map_or(met, |first| first.min(met)));
        }
    }
    for (chart, last) in charts.iter_mut().zip(last_in) {
        chart.last_in = (last > 0.0).then(|| column(last));
    }
    charts
}

/// Adds `rate` for each second of the event to the columns it touches.
fn spread(event: &Event, step: f64, columns: &mut [f64], rate: f64) {
    let last = columns.len() - 1;
    let touched: Range<usize> = ((event.start / step) as usize).min(last)
        ..((event.end / step).ceil() as usize).clamp(1, last + 1);
    for column in touched {
        let (from, to) = (column as f64 * step, (column + 1) as f64 * step);
        let within = event.end.min(to) - event.start.max(from);
        columns[column] += within.max(0.0) * rate;
    }
}

impl Chart {
    fn text(&self, rank: u16) -> String {
        let lines = [
            ("gemm", &self.gemm),
            ("wait", &self.wait),
            ("out", &self.out),
            ("in", &self.into),
        ];
        let mut text = String::new();
        for (index, (name, values)) in lines.into_iter().enumerate() {
            let rank = if index == 0 {
                format!("rank {rank}")
            } else {
                String::new()
            };
            let bars: String = values.iter().map(|value| bar(*value)).collect();
            text.push_str(&format!("{rank:<8}{name:<4} {}\n", bars.trim_end()));
        }
        let mut marks = vec![' '; self.gemm.len()];
        for (at, mark) in [(self.first_met, '▲'), (self.last_in, '▼')] {
            if let Some(at) = at {
                marks[at] = mark;
            }
        }
        let marks: String = marks.into_iter().collect();
        text.push_str(&format!("{:LABEL$}{}", "", marks.trim_end()));
        format!("{}\n", text.trim_end())
    }
}

/// A share of one as a block of that height.
fn bar(share: f64) -> char {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    if share < 1e-4 {
        return ' ';
    }
    BLOCKS[((share * 8.0).round() as usize).clamp(1, 8)]
}

/// Two lines: times in microseconds, and the ticks under them.
fn axis(total: f64, columns: usize) -> String {
    let total = total * 1e6;
    let least = total / columns as f64 * 10.0;
    let power = 10f64.powf(least.max(1e-9).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = step
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(least);
    let mut ticks = vec!['─'; columns];
    let mut labels = String::new();
    let mut index = 0u32;
    while f64::from(index) * step <= total {
        let time = f64::from(index) * step;
        let at = ((time / total * columns as f64) as usize).min(columns - 1);
        ticks[at] = '┬';
        let label = format!("{time}");
        if at + label.len() <= columns && labels.chars().count() <= at {
            labels.push_str(&" ".repeat(at - labels.chars().count()));
            labels.push_str(&label);
        }
        index += 1;
    }
    let ticks: String = ticks.into_iter().collect();
    format!("{:>LABEL$}{labels}\n{:LABEL$}{ticks}\n", "µs ", "")
}
