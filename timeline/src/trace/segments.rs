//! What each CTA is doing at each moment: one phase at a time.

use super::span::{Phase, Span, Trace};
use std::collections::BTreeMap;

/// A stretch of time of a CTA, with one phase. The segments of a CTA follow each other and cover its rank's span.
///
/// [`segments`] has an example.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Segment {
    /// The CTA's rank.
    pub rank: u16,
    /// The CTA, by its number on the rank.
    pub cta: u32,
    /// Phase of the lane.
    pub phase: Phase,
    /// The statement of the span that says so.
    pub statement: Option<u32>,
    /// Begin, in seconds.
    pub start: f64,
    /// End, in seconds.
    pub end: f64,
}

/// The segments of every CTA of a trace.
///
/// Several lanes of a CTA may do something at once. Multiplying comes before adding, that before epilogues, then moving
/// data, waiting for a counter, waiting for operands, storing. What is left is launch, idle or tail.
///
/// ```
/// use counterflow_codegen::machine::Machine;
/// use counterflow_timeline::model;
/// use counterflow_timeline::trace::{self, Phase, Segment};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let timeline = model::predict(series.kernel(), &plan, &Machine::h200())?;
/// let trace = trace::predicted(series.kernel(), &timeline);
/// let waits = trace::segments(&trace).into_iter().filter(|segment: &Segment| segment.phase == Phase::Wait);
/// println!("{} s of CTAs", waits.map(|segment| segment.end - segment.start).sum::<f64>());
/// # Ok::<(), counterflow_codegen::diag::Diagnostic>(())
/// ```
pub fn segments(trace: &Trace) -> Vec<Segment> {
    let mut ctas: BTreeMap<(u16, u32), Vec<(u8, &Span)>> = BTreeMap::new();
    for lane in &trace.lanes {
        if let Some(cta) = lane.cta {
            ctas.entry((lane.rank, cta)).or_default();
        }
    }
    for span in trace.spans.iter().filter(|span| span.end > span.start) {
        let lane = &trace.lanes[span.lane as usize];
        if let (Some(cta), Some(priority)) = (lane.cta, span.phase.priority()) {
            let spans = ctas.entry((lane.rank, cta)).or_default();
            spans.push((priority, span));
        }
    }
    let mut segments = Vec::new();
    for ((rank, cta), spans) in ctas {
        let (start, end) = trace.ranks[usize::from(rank)];
        let segment = |phase, statement, start, end| Segment {
            rank,
            cta,
            phase,
            statement,
            start,
            end,
        };
        of_cta(&spans, (start, end), |phase, statement, start, end| {
            segments.push(segment(phase, statement, start, end));
        });
    }
    segments
}

/// A CTA's segments over its rank's span, which holds all its spans.
fn of_cta(
    spans: &[(u8, &Span)],
    (start, end): (f64, f64),
    mut found: impl FnMut(Phase, Option<u32>, f64, f64),
) {
    let first = spans.iter().map(|(_, span)| span.start).reduce(f64::min);
    let last = spans.iter().map(|(_, span)| span.end).reduce(f64::max);
    let (Some(first), Some(last)) = (first, last) else {
        return found(Phase::Idle, None, start, end);
    };
    if first > start {
        found(Phase::Launch, None, start, first);
    }
    // When a span begins or ends, and which.
    let mut edges: Vec<(f64, bool, usize)> = Vec::with_capacity(2 * spans.len());
    for (index, (_, span)) in spans.iter().enumerate() {
        edges.push((span.start, true, index));
        edges.push((span.end, false, index));
    }
    edges.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut open: Vec<usize> = Vec::new();
    let mut from = first;
    for (time, begins, index) in edges {
        if time > from {
            let best = open.iter().min_by_key(|index| spans[**index].0);
            match best.map(|index| spans[*index].1) {
                Some(span) => found(span.phase, span.statement, from, time),
                None => found(Phase::Idle, None, from, time),
            }
            from = time;
        }
        match begins {
            true => open.push(index),
            false => open.retain(|other| *other != index),
        }
    }
    if end > last {
        found(Phase::Tail, None, last, end);
    }
}
