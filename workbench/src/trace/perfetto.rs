//! Traces as one file of Chrome's trace events, which Perfetto opens.
//!
//! A process for each rank of each trace, a thread for each lane, arrows from signals to the waits that they ended.

use counterflow_timeline::trace::{Phase, Trace};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The most slices of a trace: about 15 MB.
const MOST: usize = 90_000;

/// Writes all traces, each with its kind, and gives how many lanes are left out.
pub(super) fn write(traces: &[(&str, &Trace)], out: &mut String) -> usize {
    let titles: Vec<String> = traces
        .iter()
        .map(|(kind, trace)| format!("{kind}: {}", trace.title))
        .collect();
    let head = json!({ "title": titles.join("; ") });
    _ = writeln!(
        out,
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{head},\"traceEvents\":["
    );
    let mut list = List { out, first: true };
    let (mut process, mut arrow, mut left_out) = (0, 0, 0);
    for (kind, trace) in traces {
        let shown = shown(trace);
        left_out += trace.lanes.len() - shown.len();
        for rank in 0..trace.world {
            let name = format!("{kind}, rank {rank}");
            list.push(&json!({
                "ph": "M", "name": "process_name", "pid": process + rank, "args": { "name": name },
            }));
        }
        let of = |lane: u32| process + u32::from(trace.lanes[lane as usize].rank);
        for lane in &shown {
            let it = &trace.lanes[*lane as usize];
            let name = match (it.cta, *kind) {
                (Some(cta), "measured") => format!("CTA {cta}, {}", it.name),
                _ => it.name.clone(),
            };
            list.push(&json!({
                "ph": "M", "name": "thread_name", "pid": of(*lane), "tid": lane, "args": { "name": name },
            }));
        }
        for span in trace.spans.iter().filter(|span| shown.contains(&span.lane)) {
            let statement = span.statement.map(|at| &trace.statements[at as usize]);
            let name = statement.map_or(span.phase.name(), |it| &it.text);
            // Stores run beside what the model's worker does otherwise.
            let beside = *kind == "predicted" && span.phase == Phase::Store;
            let thread = span.lane + if beside { trace.lanes.len() as u32 } else { 0 };
            list.push(&json!({
                "ph": "X", "name": name, "cat": span.phase.name(), "pid": of(span.lane), "tid": thread,
                "ts": us(span.start), "dur": us(span.end - span.start),
                "args": { "phase": span.phase.name(), "at": statement.and_then(|it| it.place.clone()) },
            }));
        }
        let arrows = trace.arrows.iter();
        for it in arrows.filter(|it| shown.contains(&it.from) && shown.contains(&it.to)) {
            let ends = [("s", it.from, it.sent), ("f", it.to, it.met - 1e-9)];
            for (phase, lane, time) in ends {
                list.push(&json!({
                    "ph": phase, "bp": "e", "id": arrow, "name": "signal", "cat": "signal",
                    "pid": of(lane), "tid": lane, "ts": us(time),
                }));
            }
            arrow += 1;
        }
        process += trace.world;
    }
    list.out.push_str("\n]}\n");
    left_out
}

/// The lanes of the first CTAs of each rank, as many as there is room for, and those of no CTA.
fn shown(trace: &Trace) -> BTreeSet<u32> {
    let mut spans = vec![0usize; trace.lanes.len()];
    for span in &trace.spans {
        spans[span.lane as usize] += 1;
    }
    let mut order: Vec<u32> = (0..trace.lanes.len() as u32).collect();
    order.sort_by_key(|lane| (trace.lanes[*lane as usize].cta, *lane));
    let mut room = MOST;
    let mut shown = BTreeSet::new();
    for lane in order {
        match room.checked_sub(spans[lane as usize]) {
            Some(left) => room = left,
            None => break,
        }
        shown.insert(lane);
    }
    shown
}

fn us(seconds: f64) -> Json {
    // Nanoseconds are the clock's own steps.
    json!((seconds.max(0.0) * 1e9).round() / 1e3)
}

struct List<'a> {
    out: &'a mut String,
    first: bool,
}

impl List<'_> {
    fn push(&mut self, event: &Json) {
        if !std::mem::take(&mut self.first) {
            self.out.push_str(",\n");
        }
        _ = write!(self.out, "{event}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use counterflow_timeline::trace::{Arrow, Lane, Span};

    #[test]
    fn every_span_of_a_lane_that_is_shown_is_in_the_file() {
        let lane = |rank| Lane {
            rank,
            cta: Some(0),
            name: "multiply".into(),
        };
        let span = |lane, at: f64| Span {
            lane,
            phase: Phase::Multiply,
            statement: None,
            start: at,
            end: at + 1e-6,
        };
        let mut trace = Trace {
            title: "t".into(),
            world: 2,
            lanes: vec![lane(0), lane(1)],
            spans: vec![span(0, 0.0), span(0, 2e-6), span(1, 0.0)],
            arrows: vec![Arrow {
                from: 0,
                sent: 1e-6,
                to: 1,
                met: 3e-6,
            }],
            statements: Vec::new(),
            total: 3e-6,
            ranks: vec![(0.0, 3e-6); 2],
            clocks: Vec::new(),
            lost: 0,
        };
        let told = |trace: &Trace| {
            let mut text = String::new();
            let left_out = write(&[("measured", trace)], &mut text);
            (text, left_out)
        };
        let (text, left_out) = told(&trace);
        let parsed: Json = serde_json::from_str(&text).expect("JSON");
        let events = parsed["traceEvents"].as_array().expect("events");
        let count = |ph: &str| events.iter().filter(|event| event["ph"] == ph).count();
        assert_eq!(
            (count("X"), count("s"), count("f"), count("M")),
            (3, 1, 1, 4)
        );
        assert_eq!(left_out, 0);
        // Too many: whole lanes go, and it says how many.
        trace.spans = (0..MOST).map(|at| span(0, at as f64)).collect();
        trace.spans.push(span(1, 0.0));
        let (text, left_out) = told(&trace);
        let slices = text.matches("\"ph\":\"X\"");
        assert_eq!((slices.count(), left_out), (MOST, 1));
    }
}
