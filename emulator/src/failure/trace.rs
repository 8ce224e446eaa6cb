//! A failure's trace, as a diagnostic.

use super::{CellName, Failure, FailureKind, Rect, Site, Stuck};
use counterflow_codegen::diag::{Diagnostic, Rule};
use counterflow_codegen::shape::Extent;
use std::fmt;

impl Failure {
    /// The trace as a diagnostic, each step at its line.
    pub fn diagnostic(&self) -> Diagnostic {
        let rule = self.kind.rule();
        let at = |site: &Site| site.op.map(|(_, at)| at);
        let new = |by: &Site, message: String| Diagnostic::new(rule, at(by), message);
        let trace = match &*self.kind {
            FailureKind::Deadlock { waits } => deadlock(rule, waits),
            FailureKind::UninitialisedRead { by, what } => {
                new(by, format!("{by} {} {what}, which nothing was written to", by.does))
                    .hint("write it first, signal that, and wait for the signal")
            }
            FailureKind::MissingAcquire { by, what, other } => {
                new(by, format!("{by} {} {what}, unordered with {other}", by.does))
                    .note(at(other), format!("{other} {} it", other.does))
                    .hint("signal after the first and wait before the second; a wait counts only if it cannot end without that signal")
            }
            FailureKind::StaleRead { by, what, writer } => {
                new(by, format!("{by} {} {what}, but finds the data of launch {}", by.does, writer.launch))
                    .note(at(writer), format!("{writer} wrote it"))
                    .hint("wait for this launch's signal, and overwrite nothing that is still read")
            }
            FailureKind::OutOfBounds { by, what, inside } => {
                let (rows, columns) = inside;
                new(by, format!("{by} {} {what}, outside {}", by.does, rectangle(*rows, *columns)))
            }
            FailureKind::CounterDecrease { by, on, from, to } => {
                new(by, format!("{by} takes {on} from {from} to {to}"))
                    .hint("counters only grow; a copy engine stores its count, so it must be the cell's only signaller")
            }
            FailureKind::Overwrite { by, what, other } => {
                new(by, format!("{by} {} {what}, but {other} may not be done with it", by.does))
                    .note(at(other), format!("{other} {} it", other.does))
                    .hint("a credit orders one launch after another: ready, returned or free")
            }
            FailureKind::WrittenTwice { by, what, first } => {
                new(by, format!("{by} {} {what} a second time", by.does))
                    .note(at(first), format!("{first} {} it first", first.does))
            }
            FailureKind::NeverWritten { launch, what } => {
                Diagnostic::new(rule, None, format!("nothing writes {what} in launch {launch}"))
            }
            FailureKind::Contribution {
                launch,
                what,
                missing,
                twice,
            } => {
                let mut message = format!("the sum in {what} in launch {launch}");
                if missing.is_empty() && twice.is_empty() {
                    message.push_str(" has a term that does not belong to it");
                }
                for (ranks, wrong) in [(missing, "lacks"), (twice, "has too much of")] {
                    if !ranks.is_empty() {
                        message.push_str(&format!(" {wrong} the contribution of rank {}", list(ranks)));
                    }
                }
                Diagnostic::new(rule, None, message)
            }
            FailureKind::NotGathered { launch, what, owner } => Diagnostic::new(
                rule,
                None,
                format!("{what} in launch {launch} is not what its owner, rank {owner}, had"),
            ),
            FailureKind::LateWrite { by, what } => {
                new(by, format!("{by} {} {what}, but launch {} of rank {} does not wait for it", by.does, by.launch, what.home))
                    .hint("some role of that rank must wait for the signal that follows the write")
            }
            FailureKind::Attribution { by, on, other } => {
                let trace = new(by, format!("{by} {} {on}, which may be counted for another launch", by.does));
                match other {
                    Some(other) => trace.note(at(other), format!("{other} {} it, unordered with that", other.does)),
                    None => trace,
                }
                .hint("give each signaller a cell of its own, or a credit that orders its next launch after this wait")
            }
            FailureKind::Mismatch { by, peer, hashes } => new(
                by,
                format!("{by} launched plan {:016x}, rank {peer} launched plan {:016x}", hashes.0, hashes.1),
            )
            .hint("all ranks launch the same kernel, variant and shape"),
            // Nothing ran.
            FailureKind::OtherSeries { refused } => return refused.clone(),
            FailureKind::StepLimit { limit } => {
                Diagnostic::new(rule, None, format!("not done after {limit} steps"))
            }
        };
        trace.note(
            None,
            format!(
                "{} at step {}, seed {}",
                self.kind.name(),
                self.steps,
                self.seed
            ),
        )
    }
}

fn deadlock(rule: Rule, waits: &[Stuck]) -> Diagnostic {
    let Some(first) = waits.first() else {
        return Diagnostic::new(rule, None, "no worker can continue");
    };
    let tell = |stuck: &Stuck| {
        format!(
            "{} waits for {}: seen {}, wanted {}",
            stuck.by, stuck.on, stuck.seen, stuck.wanted
        )
    };
    let mut trace = Diagnostic::new(rule, first.by.op.map(|(_, at)| at), tell(first));
    if first.missing.is_empty() {
        trace = trace.note(None, "no remaining statement signals it");
    }
    for site in first.missing.iter().take(4) {
        trace = trace.note(
            site.op.map(|(_, at)| at),
            format!("{site} should have signalled it"),
        );
    }
    for stuck in waits.iter().skip(1).take(7) {
        trace = trace.note(stuck.by.op.map(|(_, at)| at), tell(stuck));
    }
    if waits.len() > 8 {
        trace = trace.note(None, format!("and {} more wait", waits.len() - 8));
    }
    trace
}

fn list(ranks: &[u16]) -> String {
    let ranks: Vec<String> = ranks.iter().map(u16::to_string).collect();
    ranks.join(", ")
}

fn rectangle(rows: Extent, columns: Extent) -> String {
    format!(
        "[{}..{}, {}..{}]",
        rows.start, rows.end, columns.start, columns.end
    )
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of rank {} in launch {}",
            self.role, self.rank, self.launch
        )
    }
}

impl fmt::Display for Rect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.buffer)?;
        if self.slot > 0 {
            write!(f, " slot {}", self.slot)?;
        }
        write!(
            f,
            "{} on rank {}",
            rectangle(self.rows, self.columns),
            self.home
        )
    }
}

impl fmt::Display for CellName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}] on rank {}", self.counter, self.cell, self.home)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.diagnostic(), f)
    }
}

impl std::error::Error for Failure {}
