//! What a trace says: where the CTAs' time went, what waits cost, and the steps of the launch.

use super::segments::segments;
use super::span::{Phase, Statement, Trace};
use std::collections::{BTreeMap, BTreeSet};

const PHASES: usize = Phase::ALL.len();

/// Times of computing and communicating alone, to which a launch is compared.
///
/// [`crate::trace`] has an example.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Alone {
    /// The product alone, on all SMs, in seconds. `None`: not known.
    pub gemm: Option<f64>,
    /// The least bytes over the busiest link at its best rate, in seconds.
    pub communication: f64,
    /// The launch without probes, timed as the product was, in seconds. `None`: the trace's own time.
    pub launch: Option<f64>,
}

/// Summary of a trace. Times are in seconds.
///
/// [`crate::trace`] has an example.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// From the first rank's start to the last rank's end.
    pub total: f64,
    /// Mean time that a CTA spent in each of [`Phase::ALL`]. Their sum is the mean over CTAs of their rank's span.
    pub phases: [f64; PHASES],
    /// Seconds in each phase, by rank.
    pub by_rank: Vec<[f64; PHASES]>,
    /// Time beyond that of the product alone.
    pub exposed: Option<f64>,
    /// Share of the communication that the product hides: (product alone + communication alone - launch) / communication
    /// alone. 1: all of it. Less than 0: slower than one after the other. `None` without communication.
    pub overlap: Option<f64>,
    /// The waits by statement, the one first during which CTAs lost most time.
    pub waits: Vec<WaitLine>,
    /// The steps of each rank's launch.
    pub ladders: Vec<Ladder>,
}

/// The waits of a statement.
#[derive(Clone, PartialEq, Debug)]
pub struct WaitLine {
    /// The statement.
    pub statement: Statement,
    /// Number of waits that lasted at all.
    pub count: u64,
    /// Their sum over all lanes.
    pub total: f64,
    /// The longest one.
    pub longest: f64,
    /// Time during which a CTA did nothing else, summed over CTAs.
    pub exposed: f64,
}

/// The steps of a rank's launch, in seconds after the first rank's start. `None`: the launch has no such step.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Ladder {
    /// The rank's first role began.
    pub start: f64,
    /// The first tile's operands were there, or multiplying began.
    pub first_load: Option<f64>,
    /// The last product was done.
    pub last_multiply: Option<f64>,
    /// The last tile was stored.
    pub last_store: Option<f64>,
    /// The last signal of a peer was seen.
    pub signal_seen: Option<f64>,
    /// The last sum of other ranks' terms was done.
    pub last_sum: Option<f64>,
    /// The rank's last role ended.
    pub end: f64,
}

/// The report of a trace, by its [`segments`].
pub fn report(trace: &Trace, alone: &Alone) -> Report {
    let mut by_rank = vec![[0.0; PHASES]; trace.world as usize];
    let mut exposed = BTreeMap::new();
    for segment in segments(trace) {
        let length = segment.end - segment.start;
        by_rank[usize::from(segment.rank)][segment.phase.index()] += length;
        if segment.phase == Phase::Wait {
            *exposed.entry(segment.statement).or_insert(0.0) += length;
        }
    }
    let mut ctas = vec![BTreeSet::new(); trace.world as usize];
    for lane in &trace.lanes {
        ctas[usize::from(lane.rank)].extend(lane.cta);
    }
    let all = ctas.iter().map(BTreeSet::len).sum::<usize>().max(1) as f64;
    let mut phases = [0.0; PHASES];
    for (of_rank, ctas) in by_rank.iter_mut().zip(ctas) {
        for (sum, phase) in phases.iter_mut().zip(of_rank) {
            *sum += *phase / all;
            *phase /= ctas.len().max(1) as f64;
        }
    }
    let overlap = alone.gemm.filter(|_| alone.communication > 0.0);
    let launch = alone.launch.unwrap_or(trace.total);
    Report {
        total: trace.total,
        phases,
        by_rank,
        exposed: alone.gemm.map(|gemm| (launch - gemm).max(0.0)),
        overlap: overlap.map(|gemm| (gemm + alone.communication - launch) / alone.communication),
        waits: waits(trace, &exposed),
        ladders: ladders(trace),
    }
}

fn waits(trace: &Trace, exposed: &BTreeMap<Option<u32>, f64>) -> Vec<WaitLine> {
    let mut lines: BTreeMap<Option<u32>, WaitLine> = BTreeMap::new();
    let waits = trace.spans.iter().filter(|span| span.phase == Phase::Wait);
    for span in waits.filter(|span| span.end > span.start) {
        let line = lines.entry(span.statement).or_insert_with(|| WaitLine {
            statement: span.statement.map_or_else(
                || Statement {
                    text: "a wait of no statement".into(),
                    place: None,
                },
                |statement| trace.statements[statement as usize].clone(),
            ),
            count: 0,
            total: 0.0,
            longest: 0.0,
            exposed: exposed.get(&span.statement).copied().unwrap_or(0.0),
        });
        let length = span.end - span.start;
        line.count += 1;
        line.total += length;
        line.longest = line.longest.max(length);
    }
    let mut lines: Vec<WaitLine> = lines.into_values().collect();
    lines.sort_by(|a, b| {
        let by_exposed = b.exposed.total_cmp(&a.exposed);
        by_exposed.then(b.total.total_cmp(&a.total))
    });
    lines
}

fn ladders(trace: &Trace) -> Vec<Ladder> {
    let mut ladders: Vec<Ladder> = trace
        .ranks
        .iter()
        .map(|(start, end)| Ladder {
            start: *start,
            end: *end,
            ..Ladder::default()
        })
        .collect();
    let later =
        |step: &mut Option<f64>, time: f64| *step = Some(step.map_or(time, |s| s.max(time)));
    for span in &trace.spans {
        let ladder = &mut ladders[usize::from(trace.lanes[span.lane as usize].rank)];
        match span.phase {
            Phase::Multiply => {
                let first = ladder.first_load.get_or_insert(span.start);
                *first = first.min(span.start);
                later(&mut ladder.last_multiply, span.end);
            }
            Phase::Store => later(&mut ladder.last_store, span.end),
            Phase::Sum => later(&mut ladder.last_sum, span.end),
            Phase::Launch
            | Phase::Wait
            | Phase::Load
            | Phase::Epilogue
            | Phase::Move
            | Phase::Idle
            | Phase::Tail => {}
        }
    }
    for arrow in &trace.arrows {
        let [from, to] = [arrow.from, arrow.to].map(|lane| trace.lanes[lane as usize].rank);
        if from != to {
            later(&mut ladders[usize::from(to)].signal_seen, arrow.met);
        }
    }
    ladders
}
