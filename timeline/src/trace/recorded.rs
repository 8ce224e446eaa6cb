//! From a traced kernel's events to a trace.

use super::clocks::Bounds;
use super::events::{Events, Mark, Misread, Recorded, Strand};
use super::signals::Signals;
use super::span::{Lane, Phase, Span, Statement, Trace};
use counterflow_emitter::{Site, SiteKind};
use std::collections::HashMap;

/// The trace of a launch from the events of its traced kernel.
///
/// Clocks of different GPUs are aligned by the signals between them: a wait is met after its signals were sent, in both
/// directions. [`Clock`](super::Clock) says how well that is known.
///
/// ```
/// use counterflow_emitter::{Site, SiteKind};
/// use counterflow_timeline::trace::{Events, Mark, Misread, Recorded, Strand, measured};
///
/// let site = |kind| Site { kind, role: "multiply", statement: String::new(), loc: None, counter: None };
/// let sites = [SiteKind::Start, SiteKind::Tile { sums: false }, SiteKind::Multiplied, SiteKind::End].map(site);
/// let mark = |(site, time)| Mark { time, site, number: 0, cell: (0, 0) };
/// let marks = [(0, 1000), (1, 1200), (2, 1900), (3, 2000)].map(mark).to_vec();
/// let rank = Recorded { clock: 0, strands: vec![Strand { block: 0, marks, lost: 0 }] };
/// let trace = measured("gemm".into(), &Events { sites: &sites, ranks: &[rank] })?;
/// assert_eq!((trace.total * 1e9).round(), 1000.0); // nanoseconds
/// # Ok::<(), Misread>(())
/// ```
///
/// # Errors
/// [`Misread`]: the events are not those of one launch.
pub fn measured(title: String, events: &Events<'_>) -> Result<Trace, Misread> {
    let mut starts = Vec::new();
    for (rank, recorded) in events.ranks.iter().enumerate() {
        starts.push(start(rank, recorded, events.sites)?);
    }
    let signals = Signals::of(events);
    let mut bounds = Bounds::new(events.ranks.len());
    for (a, one) in events.ranks.iter().enumerate() {
        for (b, other) in events.ranks.iter().enumerate() {
            if one.clock == other.clock {
                bounds.at_most((a, b), 0);
            }
        }
    }
    signals.bound(events, &mut bounds);
    let clocks = bounds.solve(&starts)?;
    let shifted = |rank: usize, time: u64| time as i64 - clocks[rank].ahead;
    let zero = starts
        .iter()
        .enumerate()
        .map(|(rank, start)| shifted(rank, *start));
    let zero = zero.min().unwrap_or(0);
    let seconds = |rank: usize, time: u64| (shifted(rank, time) - zero) as f64 * 1e-9;
    let mut trace = Trace {
        title,
        world: events.ranks.len() as u32,
        lanes: Vec::new(),
        spans: Vec::new(),
        arrows: Vec::new(),
        statements: Vec::new(),
        total: 0.0,
        ranks: Vec::new(),
        clocks: clocks.clone(),
        lost: 0,
    };
    let mut statements = HashMap::new();
    let of_sites: Vec<Option<u32>> = events
        .sites
        .iter()
        .map(|site| {
            let place = site.loc.map(|loc| format!("{}:{}", loc.file(), loc.line()));
            let known = (site.statement.clone(), place);
            (!site.statement.is_empty()).then(|| {
                *statements.entry(known).or_insert_with_key(|(text, place)| {
                    trace.statements.push(Statement {
                        text: text.clone(),
                        place: place.clone(),
                    });
                    trace.statements.len() as u32 - 1
                })
            })
        })
        .collect();
    for (rank, recorded) in events.ranks.iter().enumerate() {
        let products = products(recorded, events.sites);
        let mut end = 0.0f64;
        for strand in &recorded.strands {
            let Some(begins) = strand.marks.first() else {
                continue;
            };
            let role = events.sites[begins.site as usize].role;
            trace.lost += u64::from(strand.lost);
            trace.lanes.push(Lane {
                rank: rank as u16,
                cta: Some(strand.block),
                name: role.into(),
            });
            let lane = trace.lanes.len() as u32 - 1;
            let time = |time| seconds(rank, time);
            let spans = Spans {
                sites: events.sites,
                of_sites: &of_sites,
                products: &products,
                lane,
                time: &time,
            };
            spans.of(strand, &mut trace.spans);
            end = strand
                .marks
                .iter()
                .map(|mark| time(mark.time))
                .fold(end, f64::max);
        }
        trace.ranks.push((seconds(rank, starts[rank]), end));
        trace.total = trace.total.max(end);
    }
    trace.arrows = signals.arrows(&seconds);
    Ok(trace)
}

/// A rank's earliest time, once its events are known to be readable.
fn start(rank: usize, recorded: &Recorded, sites: &[Site]) -> Result<u64, Misread> {
    for strand in &recorded.strands {
        let unknown = strand
            .marks
            .iter()
            .find(|mark| mark.site as usize >= sites.len());
        if let Some(Mark { site, .. }) = unknown {
            return Err(Misread::Site { rank, site: *site });
        }
        if !strand.marks.is_sorted_by_key(|mark| mark.time) {
            return Err(Misread::Clocks { rank });
        }
    }
    let first = recorded
        .strands
        .iter()
        .filter_map(|strand| strand.marks.first());
    let first = first.map(|mark| mark.time).min();
    first.ok_or(Misread::Nothing { rank })
}

/// Time at which each tile of a CTA was multiplied, by CTA and item.
fn products(recorded: &Recorded, sites: &[Site]) -> HashMap<(u32, u32), u64> {
    let mut products = HashMap::new();
    for strand in &recorded.strands {
        let mut item = None;
        for mark in &strand.marks {
            match sites[mark.site as usize].kind {
                SiteKind::Tile { .. } => item = Some(mark.number),
                SiteKind::Multiplied => {
                    if let Some(item) = item {
                        let last = products.entry((strand.block, item)).or_insert(0);
                        *last = mark.time.max(*last);
                    }
                }
                SiteKind::Start
                | SiteKind::Move
                | SiteKind::Waits
                | SiteKind::Met
                | SiteKind::MetEarlier
                | SiteKind::Loaded
                | SiteKind::Sent
                | SiteKind::Stored
                | SiteKind::Signals
                | SiteKind::End => {}
            }
        }
    }
    products
}

/// Makes a strand's spans.
struct Spans<'a> {
    sites: &'a [Site],
    of_sites: &'a [Option<u32>],
    products: &'a HashMap<(u32, u32), u64>,
    lane: u32,
    time: &'a dyn Fn(u64) -> f64,
}

impl Spans<'_> {
    fn of(&self, strand: &Strand, spans: &mut Vec<Span>) {
        let kind = |mark: &Mark| self.sites[mark.site as usize].kind;
        let is_item = |mark: &Mark| {
            matches!(
                kind(mark),
                SiteKind::Tile { .. } | SiteKind::Move | SiteKind::End
            )
        };
        let mut waits = None;
        let mut at = 0;
        while at < strand.marks.len() {
            let mark = &strand.marks[at];
            match kind(mark) {
                SiteKind::Waits => waits = Some(mark),
                SiteKind::Met | SiteKind::MetEarlier => {
                    if let Some(from) = waits.take() {
                        self.push(spans, Phase::Wait, from, mark.time);
                    }
                }
                SiteKind::Tile { .. } | SiteKind::Move => {
                    let rest = &strand.marks[at + 1..];
                    let count = rest.iter().position(is_item).unwrap_or(rest.len());
                    let end = rest.get(count).or(rest.last()).unwrap_or(mark).time;
                    self.item(strand.block, mark, (&rest[..count], end), spans);
                    // The waits within are spans of the item.
                    at += count;
                }
                SiteKind::Start
                | SiteKind::Loaded
                | SiteKind::Multiplied
                | SiteKind::Sent
                | SiteKind::Stored
                | SiteKind::Signals
                | SiteKind::End => {}
            }
            at += 1;
        }
    }

    /// An item from its mark to `end`.
    fn item(&self, block: u32, head: &Mark, (within, end): (&[Mark], u64), spans: &mut Vec<Span>) {
        let kind = |mark: &Mark| self.sites[mark.site as usize].kind;
        let last = |wanted: SiteKind| within.iter().rfind(|mark| kind(mark) == wanted);
        let mut from = *head;
        match kind(head) {
            SiteKind::Tile { sums } => {
                if let Some(done) = last(SiteKind::Multiplied) {
                    let loaded = within.iter().find(|mark| kind(mark) == SiteKind::Loaded);
                    if let Some(loaded) = loaded {
                        self.push(spans, Phase::Load, &from, loaded.time);
                        from.time = loaded.time;
                    }
                    self.push(spans, Phase::Multiply, &from, done.time);
                    from.time = done.time;
                    let after = if sums { Phase::Sum } else { Phase::Epilogue };
                    self.push(spans, after, &from, end);
                } else if let Some(stored) = last(SiteKind::Stored).or(last(SiteKind::Sent)) {
                    let done = self.products.get(&(block, head.number)).copied();
                    from.time = done.unwrap_or(head.time).clamp(head.time, stored.time);
                    self.waits(within, spans);
                    self.push(spans, Phase::Store, &from, stored.time);
                } else {
                    self.waits(within, spans);
                }
            }
            SiteKind::Move => {
                // What is not waiting is moving.
                for mark in within {
                    match kind(mark) {
                        SiteKind::Waits => {
                            self.push(spans, Phase::Move, &from, mark.time);
                            from = *mark;
                        }
                        SiteKind::Met | SiteKind::MetEarlier => {
                            self.push(spans, Phase::Wait, &from, mark.time);
                            from = Mark {
                                time: mark.time,
                                ..*head
                            };
                        }
                        SiteKind::Start
                        | SiteKind::Tile { .. }
                        | SiteKind::Move
                        | SiteKind::Loaded
                        | SiteKind::Multiplied
                        | SiteKind::Sent
                        | SiteKind::Stored
                        | SiteKind::Signals
                        | SiteKind::End => {}
                    }
                }
                self.push(spans, Phase::Move, &from, end);
            }
            SiteKind::Start
            | SiteKind::Waits
            | SiteKind::Met
            | SiteKind::MetEarlier
            | SiteKind::Loaded
            | SiteKind::Multiplied
            | SiteKind::Sent
            | SiteKind::Stored
            | SiteKind::Signals
            | SiteKind::End => {}
        }
    }

    fn waits(&self, within: &[Mark], spans: &mut Vec<Span>) {
        for pair in within.windows(2) {
            let kinds = [0, 1].map(|at| self.sites[pair[at].site as usize].kind);
            if kinds[0] == SiteKind::Waits
                && matches!(kinds[1], SiteKind::Met | SiteKind::MetEarlier)
            {
                self.push(spans, Phase::Wait, &pair[0], pair[1].time);
            }
        }
    }

    fn push(&self, spans: &mut Vec<Span>, phase: Phase, from: &Mark, end: u64) {
        if end > from.time {
            spans.push(Span {
                lane: self.lane,
                phase,
                statement: self.of_sites[from.site as usize],
                start: (self.time)(from.time),
                end: (self.time)(end),
            });
        }
    }
}
