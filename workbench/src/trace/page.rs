//! The page of a trace: measured beside predicted.

use super::super::args::Request;
use super::super::band;
use super::super::render::{self, Console};
use super::gantt;
use super::measured::Measured;
use counterflow_codegen::machine::Machine;
use counterflow_timeline::model::Band;
use counterflow_timeline::trace::{Alone, Ladder, Phase, Report, Trace, WaitLine};
use serde_json::{Map, Value as Json, json};

/// Columns of the charts.
const WIDTH: usize = 100;
/// Statements whose waits are listed.
const WAITS: usize = 6;

/// A trace and its report.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub trace: &'a Trace,
    pub report: &'a Report,
}

/// All that is told of a launch.
pub(super) struct Page<'a> {
    pub machine: &'a Machine,
    pub predicted: Seen<'a>,
    pub measured: Option<&'a Measured>,
    pub alone: &'a Alone,
    pub band: &'a Option<Band>,
}

/// Phases of a CTA in a tile. The model has no wait for operands and no epilogue of its own: they are in a tile's
/// cost.
pub(super) const COMPUTE: [Phase; 5] = [
    Phase::Load,
    Phase::Multiply,
    Phase::Sum,
    Phase::Epilogue,
    Phase::Store,
];

/// The rows of the table of phases, and the phases that each adds up.
pub(super) const ROWS: [(&str, &[Phase]); 6] = [
    ("launch", &[Phase::Launch]),
    ("wait", &[Phase::Wait]),
    ("compute", &COMPUTE),
    ("move", &[Phase::Move]),
    ("idle", &[Phase::Idle]),
    ("tail", &[Phase::Tail]),
];

/// The steps of a launch.
pub(super) fn steps(ladder: &Ladder) -> [(&'static str, Option<f64>); 7] {
    [
        ("start", Some(ladder.start)),
        ("first load", ladder.first_load),
        ("last multiply", ladder.last_multiply),
        ("last store", ladder.last_store),
        ("last signal seen", ladder.signal_seen),
        ("last sum", ladder.last_sum),
        ("end", Some(ladder.end)),
    ]
}

fn us(seconds: f64) -> String {
    format!("{:.1}", seconds * 1e6)
}

fn maybe(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".into(), us)
}

fn sum(report: &Report, phases: &[Phase]) -> f64 {
    phases
        .iter()
        .map(|phase| report.phases[phase.index()])
        .sum()
}

impl Page<'_> {
    fn of_measured(&self) -> Option<Seen<'_>> {
        self.measured.map(|it| Seen {
            trace: &it.trace,
            report: &it.report,
        })
    }

    /// Both charts have this scale.
    pub(super) fn total(&self) -> f64 {
        let measured = self.measured.map_or(0.0, |it| it.trace.total);
        self.predicted.trace.total.max(measured)
    }

    /// The charts in order: the kind, and what is drawn.
    pub(super) fn charts(&self) -> Vec<(&'static str, Seen<'_>)> {
        let measured = self.of_measured().map(|seen| ("measured", seen));
        let all = measured.into_iter().chain([("predicted", self.predicted)]);
        all.collect()
    }

    pub(super) fn print(&self, console: &mut Console<'_>) {
        console.say("");
        match self.measured {
            Some(it) => self.print_measured(it, console),
            None => console
                .say("**traced** nothing: without a GPU this page is the model's prediction alone"),
        }
        for (kind, seen) in self.charts() {
            let total = us(seen.trace.total);
            console.say(format!("**{kind}** {total} µs  {}", seen.trace.title));
            console.say(gantt::chart(seen.trace, self.total(), WIDTH));
        }
        console.say(band::told(self.band.as_ref(), self.machine));
        console.say("");
        self.print_phases(console);
        self.print_ladder(console);
        self.print_waits(console);
        self.print_overlap(console);
    }

    fn print_measured(&self, it: &Measured, console: &mut Console<'_>) {
        let [plain, probed] = [it.plain, it.probed].map(|time| time.as_secs_f64());
        console.say(format!(
            "**traced** one launch: {} µs from the first role to the last. Back to back a launch takes {} µs, with probes {} µs",
            us(it.trace.total),
            us(plain),
            us(probed)
        ));
        for (rank, clock) in it.trace.clocks.iter().enumerate().skip(1) {
            console.say(match clock.within {
                Some(0) => format!("  rank {rank} has the clock of rank 0"),
                Some(within) => format!(
                    "  clock of rank {rank}: {} µs ahead of rank 0's, give or take {} µs, by the signals in both directions",
                    us(clock.ahead as f64 * 1e-9),
                    us(within as f64 * 1e-9)
                ),
                None => format!(
                    "  clock of rank {rank}: not known, as no signals bound it; its start is taken for that of rank 0"
                ),
            });
        }
        if it.trace.lost > 0 {
            console.say(format!(
                "  **{} are missing**: a thread keeps 1024. What comes late in such a thread is not on this page; trace a smaller shape",
                render::plural(it.trace.lost, "event")
            ));
        }
    }

    fn print_phases(&self, console: &mut Console<'_>) {
        let measured = self.measured.map(|it| &it.report);
        let predicted = self.predicted.report;
        let mut rows = Vec::new();
        for (name, phases) in ROWS {
            let of_model = sum(predicted, phases);
            let found = measured.map(|report| sum(report, phases));
            let error = found.map(|found| of_model - found);
            rows.push(vec![
                name.into(),
                maybe(found),
                us(of_model),
                error.map_or_else(|| "-".into(), |error| format!("{:+.1}", error * 1e6)),
            ]);
            if phases.len() > 1 {
                for phase in phases {
                    let of = |report: &Report| report.phases[phase.index()];
                    let (found, of_model) = (measured.map(of), of(predicted));
                    if found.unwrap_or(0.0) > 0.0 || of_model > 0.0 {
                        let name = format!("  {}", phase.name());
                        rows.push(vec![name, maybe(found), us(of_model), String::new()]);
                    }
                }
            }
        }
        console.say(render::table(
            &["µs of a CTA", "measured", "predicted", "model's error"],
            rows,
            &[1, 2, 3],
        ));
        console.say("");
    }

    fn print_ladder(&self, console: &mut Console<'_>) {
        let ladders = self.measured.map(|it| &it.report.ladders);
        // The last to end.
        let slowest = ladders.and_then(|all| {
            let each = all.iter().enumerate();
            each.max_by(|a, b| a.1.end.total_cmp(&b.1.end))
        });
        let rank = slowest.map_or(0, |(rank, _)| rank);
        let model = self.predicted.report.ladders.get(rank).copied();
        let model = model.unwrap_or_default();
        let found = slowest.map(|(_, ladder)| steps(ladder));
        let rows = steps(&model)
            .into_iter()
            .enumerate()
            .map(|(at, (name, time))| {
                let found = found.and_then(|found| found[at].1);
                vec![name.into(), maybe(found), maybe(time)]
            });
        let head = format!("launch of rank {rank}, µs");
        console.say(render::table(
            &[&head, "measured", "predicted"],
            rows.collect(),
            &[1, 2],
        ));
        console.say("");
    }

    fn print_waits(&self, console: &mut Console<'_>) {
        let found = self.measured.map(|it| &it.report.waits);
        let lines = found.unwrap_or(&self.predicted.report.waits);
        if lines.is_empty() {
            return;
        }
        let model = &self.predicted.report.waits;
        let rows = lines.iter().take(WAITS).map(|line| {
            let same = |of: &&WaitLine| of.statement.place == line.statement.place;
            let predicted = model.iter().filter(same).map(|of| of.exposed).sum();
            vec![
                line.statement.place.clone().unwrap_or_default(),
                line.statement.text.clone(),
                render::count(line.count),
                us(line.longest),
                found.map_or_else(|| "-".into(), |_| us(line.exposed)),
                us(predicted),
            ]
        });
        let kind = if found.is_some() {
            "measured"
        } else {
            "predicted"
        };
        let count = format!("waits, {kind}");
        console.say(render::table(
            &[
                "at",
                "statement",
                &count,
                "longest, µs",
                "CTAs' time lost, measured",
                "predicted",
            ],
            rows.collect(),
            &[2, 3, 4, 5],
        ));
        console.say("");
    }

    fn print_overlap(&self, console: &mut Console<'_>) {
        let line = |kind: &str, report: &Report, gemm: Option<f64>| {
            let Some((exposed, gemm)) = report.exposed.zip(gemm) else {
                return format!(
                    "{kind}: exposed communication not known: this binary's `gemm` is not the same product"
                );
            };
            let overlap = report.overlap.map_or_else(
                || "no communication to hide".into(),
                |share| format!("overlap efficiency {:.1} %", share * 100.0),
            );
            format!(
                "{kind}: exposed communication {} µs beyond {} µs of the product alone; {overlap}",
                us(exposed),
                us(gemm)
            )
        };
        if let Some(it) = self.measured {
            let gemm = it.gemm.map(|gemm| gemm.as_secs_f64());
            console.say(line("measured", &it.report, gemm));
        }
        console.say(line("predicted", self.predicted.report, self.alone.gemm));
        console.say(format!(
            "  overlap efficiency: (product alone + communication alone - launch) / communication alone; communication alone: {} µs, the least bytes at the link's best rate",
            us(self.alone.communication)
        ));
    }

    /// The fields of the verb's JSON object.
    pub(super) fn object(&self, request: &Request) -> Json {
        let of = |seen: Seen<'_>| {
            let phases: Map<String, Json> = Phase::ALL
                .iter()
                .map(|phase| {
                    (
                        phase.name().into(),
                        seen.report.phases[phase.index()].into(),
                    )
                })
                .collect();
            let ladders: Vec<Json> = seen
                .report
                .ladders
                .iter()
                .map(|ladder| {
                    let each = steps(ladder).into_iter();
                    let each = each.map(|(name, time)| (name.to_owned(), json!(time)));
                    Json::Object(each.collect())
                })
                .collect();
            let waits: Vec<Json> = seen.report.waits.iter().map(|line| json!({
                "at": line.statement.place, "statement": line.statement.text, "count": line.count,
                "seconds": line.total, "longest_seconds": line.longest, "exposed_seconds": line.exposed,
            })).collect();
            json!({
                "seconds": seen.trace.total, "phase_seconds": phases, "ladders": ladders, "waits": waits,
                "exposed_seconds": seen.report.exposed, "overlap_efficiency": seen.report.overlap,
                "lost_events": seen.trace.lost,
            })
        };
        let clocks = |it: &Measured| -> Vec<Json> {
            let each = it.trace.clocks.iter();
            each.map(|clock| json!({ "ahead_ns": clock.ahead, "within_ns": clock.within }))
                .collect()
        };
        json!({
            "machine": self.machine.name,
            "predicted": of(self.predicted),
            "measured": self.of_measured().map(of),
            "clocks": self.measured.map(clocks),
            "launch_seconds": self.measured.map(|it| it.plain.as_secs_f64()),
            "launch_with_probes_seconds": self.measured.map(|it| it.probed.as_secs_f64()),
            "gemm_alone_seconds": self.measured.and_then(|it| it.gemm).map(|gemm| gemm.as_secs_f64()),
            "communication_alone_seconds": self.alone.communication,
            "error_band": band::object(self.band.as_ref()),
            "trace": request.trace.as_ref().map(|path| path.display().to_string()),
            "svg": request.svg.as_ref().map(|path| path.display().to_string()),
        })
    }
}
