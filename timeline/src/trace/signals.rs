//! Signals and the waits that they end.

use super::clocks::Bounds;
use super::events::Events;
use super::span::Arrow;
use counterflow_emitter::SiteKind;
use std::collections::BTreeMap;

/// A signal or a met wait: rank, lane of all ranks, time.
type Seen = (usize, u32, u64);

/// Signals and the waits that they end, by the rank that waits and its cell.
#[derive(Default)]
pub(super) struct Signals {
    sent: BTreeMap<(u32, u32), Vec<Seen>>,
    /// Waits that were met, each with the time when it began.
    met: BTreeMap<(u32, u32), Vec<(Seen, u64)>>,
}

impl Signals {
    pub fn of(events: &Events<'_>) -> Signals {
        let mut signals = Signals::default();
        let mut lane = 0;
        for (rank, recorded) in events.ranks.iter().enumerate() {
            for strand in recorded
                .strands
                .iter()
                .filter(|strand| !strand.marks.is_empty())
            {
                let mut began = 0;
                for mark in &strand.marks {
                    let seen = (rank, lane, mark.time);
                    match events.sites[mark.site as usize].kind {
                        SiteKind::Signals => signals.sent.entry(mark.cell).or_default().push(seen),
                        SiteKind::Waits => began = mark.time,
                        SiteKind::Met => {
                            let cell = (rank as u32, mark.number);
                            signals.met.entry(cell).or_default().push((seen, began));
                        }
                        SiteKind::Start
                        | SiteKind::Tile { .. }
                        | SiteKind::Move
                        | SiteKind::MetEarlier
                        | SiteKind::Loaded
                        | SiteKind::Multiplied
                        | SiteKind::Sent
                        | SiteKind::Stored
                        | SiteKind::End => {}
                    }
                }
                lane += 1;
            }
        }
        signals
    }

    /// Narrows the bounds of the clocks by each met wait. With events lost, a signal may be missing, never added:
    /// every bound holds.
    pub fn bound(&self, events: &Events<'_>, bounds: &mut Bounds) {
        for (cell, met) in &self.met {
            let Some(sent) = self.sent.get(cell) else {
                continue;
            };
            // All waits of a cell are for the same arrivals: the first that was met bounds most.
            for ((to, _, met), _) in met {
                for (from, _, sent) in sent {
                    if events.ranks[*from].clock != events.ranks[*to].clock {
                        bounds.at_most((*from, *to), *met as i64 - *sent as i64);
                    }
                }
            }
        }
    }

    /// From the last signal to each wait that was not met at once.
    pub fn arrows(&self, seconds: &dyn Fn(usize, u64) -> f64) -> Vec<Arrow> {
        /// A wait whose signal is there takes less, in nanoseconds.
        const AT_ONCE: u64 = 1000;
        let mut arrows = Vec::new();
        for (cell, met) in &self.met {
            let Some(sent) = self.sent.get(cell) else {
                continue;
            };
            let last = sent
                .iter()
                .map(|(from, lane, time)| (seconds(*from, *time), *lane));
            let Some((sent, from)) = last.max_by(|a, b| a.0.total_cmp(&b.0)) else {
                continue;
            };
            for ((to, lane, time), began) in met {
                if time - began > AT_ONCE {
                    arrows.push(Arrow {
                        from,
                        sent,
                        to: *lane,
                        met: seconds(*to, *time),
                    });
                }
            }
        }
        arrows
    }
}
