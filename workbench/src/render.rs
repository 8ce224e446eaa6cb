//! Presentation: colours, source excerpts, numbers, tables. The texts of errors come from elsewhere.

use counterflow_codegen::diag::{Diagnostic, Diagnostics};
use counterflow_codegen::program::Loc;
use counterflow_runtime::Error;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value as Json, json};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The workbench's environment, besides its two streams.
#[derive(Clone, Default, Debug)]
pub struct Surroundings {
    /// Colours on standard output and standard error.
    pub colour: bool,
    /// Progress bars on standard error.
    pub progress: bool,
    /// The value of `DUMP`.
    pub dump: Option<String>,
    /// True if `run` and `demo` look for GPUs where no `--device` is named.
    pub gpus: bool,
}

impl Surroundings {
    /// This process's environment: colours on terminals unless `NO_COLOR` is set, bars on terminals.
    pub fn of_process() -> Surroundings {
        let terminal = std::io::stderr().is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Surroundings {
            colour: wanted && terminal && std::io::stdout().is_terminal(),
            progress: terminal,
            dump: std::env::var("DUMP").ok().filter(|value| !value.is_empty()),
            gpus: true,
        }
    }
}

/// Output of the workbench: text for people, or one JSON object.
pub(super) struct Console<'a> {
    surroundings: &'a Surroundings,
    json: bool,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
}

impl<'a> Console<'a> {
    pub(super) fn new(
        surroundings: &'a Surroundings,
        json: bool,
        out: &'a mut dyn Write,
        err: &'a mut dyn Write,
    ) -> Self {
        Console {
            surroundings,
            json,
            out,
            err,
        }
    }

    pub(super) fn dump(&self) -> Option<&'a str> {
        self.surroundings.dump.as_deref()
    }

    /// True if GPUs are looked for.
    pub(super) fn may_use_gpus(&self) -> bool {
        self.surroundings.gpus
    }

    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints text for people; nothing in JSON mode. `**…**` is emphasised on a terminal.
    pub(super) fn say(&mut self, text: impl AsRef<str>) {
        if !self.json {
            let text = emphasise(text.as_ref(), self.surroundings.colour);
            let _ = writeln!(self.out, "{text}");
            let _ = self.out.flush();
        }
    }

    /// Prints a stage's text for `DUMP`.
    pub(super) fn aside(&mut self, text: &str) {
        let _ = writeln!(self.err, "{text}");
    }

    pub(super) fn help(&mut self, text: &str) {
        let _ = write!(self.out, "{text}");
    }

    /// Prints the JSON object of a verb; nothing in text mode.
    pub(super) fn object(&mut self, object: Map<String, Json>) {
        if self.json {
            let _ = writeln!(self.out, "{}", Json::Object(object));
        }
    }

    /// Prints an error for people; nothing in JSON mode, where the object carries it.
    pub(super) fn error(&mut self, error: &Error) {
        if self.json {
            return;
        }
        let mut text = match error {
            Error::Rejected(found) => findings(found.iter()),
            _ => format!("error: {error}\n"),
        };
        if let Some(help) = error.help() {
            text.push_str(&format!("  help: {help}\n"));
        }
        let text = paint(&text, self.surroundings.colour);
        let _ = write!(self.err, "{text}");
    }

    /// Prints findings that reject nothing: warnings.
    pub(super) fn warn(&mut self, found: &[Diagnostic]) {
        if !self.json && !found.is_empty() {
            let text = paint(&findings(found.iter()), self.surroundings.colour);
            let _ = write!(self.err, "{text}");
        }
    }

    /// A progress bar on a terminal, hidden elsewhere. It disappears when dropped.
    pub(super) fn bar(&self, steps: u64, what: &str) -> Bar {
        if !self.surroundings.progress || self.json {
            return Bar(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {wide_bar} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what.to_string());
        bar.enable_steady_tick(Duration::from_millis(100));
        Bar(bar)
    }
}

/// A progress bar that clears its line when dropped.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn say(&self, what: &str) {
        self.0.set_message(what.to_string());
    }

    pub(super) fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn findings<'a>(found: impl Iterator<Item = &'a Diagnostic>) -> String {
    let sources = Sources::default();
    let texts: Vec<_> = found
        .map(|finding| finding.text(&|at| sources.excerpt(at)))
        .collect();
    texts.join("\n")
}

/// Reads the user's source for excerpts. Without the file, it gives only the location.
#[derive(Default)]
struct Sources {
    files: std::cell::RefCell<std::collections::HashMap<&'static str, Option<String>>>,
}

impl Sources {
    /// `file:line:column`, then the line with a mark under the token.
    fn excerpt(&self, at: Loc) -> String {
        let mut files = self.files.borrow_mut();
        let file = files.entry(at.file()).or_insert_with(|| read(at.file()));
        let line = file
            .as_ref()
            .and_then(|text| text.lines().nth(at.line().saturating_sub(1) as usize));
        let Some(line) = line else {
            return at.to_string();
        };
        let column = at.column().saturating_sub(1) as usize;
        let token: usize = line
            .chars()
            .skip(column)
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .count();
        let number = at.line().to_string();
        let margin = " ".repeat(number.len());
        let lead: String = line
            .chars()
            .take(column)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        let mark = "^".repeat(token.max(1));
        format!("{at}\n  {margin} |\n  {number} | {line}\n  {margin} | {lead}{mark}")
    }
}

/// A path as the compiler saw it, relative to here, the package or its workspace.
fn read(path: &str) -> Option<String> {
    let here = PathBuf::new();
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let roots = manifest.iter().flat_map(|dir| dir.ancestors().take(3));
    std::iter::once(here.as_path())
        .chain(roots)
        .map(|root: &Path| root.join(path))
        // A pipe would be waited for.
        .filter(|path| path.is_file())
        .find_map(|path| std::fs::read_to_string(path).ok())
}

pub(super) fn error_json(error: &Error) -> Json {
    match error {
        Error::Rejected(found) => json!({
            "kind": error.kind(),
            "message": found.first().message,
            "diagnostics": diagnostics_json(found),
        }),
        _ => json!({ "kind": error.kind(), "message": error.to_string(), "help": error.help() }),
    }
}

pub(super) fn diagnostics_json(found: &Diagnostics) -> Json {
    found.iter().map(diagnostic_json).collect()
}

pub(super) fn diagnostic_json(finding: &Diagnostic) -> Json {
    let at = |at: Option<Loc>| {
        at.map(|at| json!({ "file": at.file(), "line": at.line(), "column": at.column() }))
    };
    let notes: Vec<Json> = finding
        .notes
        .iter()
        .map(|note| json!({ "text": note.text, "at": at(note.at) }))
        .collect();
    json!({
        "rule": finding.rule.name(),
        "message": finding.message,
        "at": at(finding.at),
        "notes": notes,
        "help": finding.hint,
    })
}

const RESET: &str = "\u{1b}[0m";
const BOLD: &str = "\u{1b}[1m";

/// `**…**` in bold, or without the marks.
fn emphasise(text: &str, colour: bool) -> String {
    let mut painted = String::with_capacity(text.len());
    for (index, part) in text.split("**").enumerate() {
        match (colour, index % 2) {
            (true, 1) => painted.extend([BOLD, part, RESET]),
            _ => painted.push_str(part),
        }
    }
    painted
}

/// Errors in colour, line by line: the message stands out, locations are dim.
fn paint(text: &str, colour: bool) -> String {
    if !colour {
        return text.into();
    }
    let mut painted = String::with_capacity(text.len() * 2);
    for line in text.lines() {
        let start = line.trim_start();
        let code = if start.starts_with("error") {
            "\u{1b}[1;31m"
        } else if start.starts_with("warning") {
            "\u{1b}[1;33m"
        } else if start.starts_with("-->") {
            "\u{1b}[34m"
        } else if start.starts_with("help:") {
            "\u{1b}[32m"
        } else if start.starts_with("| ") && start.ends_with('^') {
            "\u{1b}[31m"
        } else {
            ""
        };
        painted.extend([code, line, if code.is_empty() { "" } else { RESET }, "\n"]);
    }
    painted
}

/// `1234567` as `1,234,567`.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `3 waits`, `1 wait`.
pub(super) fn plural(value: u64, noun: &str) -> String {
    let hisses = noun.ends_with('s') || noun.ends_with("ch");
    let s = match (value, hisses) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {noun}{s}", count(value))
}

/// Bytes with a unit of 1024.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(super) fn bytes(value: u64) -> String {
    let mut scaled = value as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if scaled < 1024.0 {
            return format!("{} {unit}", three(scaled));
        }
        scaled /= 1024.0;
    }
    format!("{} TiB", three(scaled))
}

/// Seconds with a unit.
pub(super) fn seconds(value: f64) -> String {
    let (scaled, unit) = if value >= 1.0 {
        (value, "s")
    } else if value >= 1e-3 {
        (value * 1e3, "ms")
    } else {
        (value * 1e6, "µs")
    };
    format!("{} {unit}", three(scaled))
}

/// Three significant digits, without a tail of zeros after whole numbers.
fn three(value: f64) -> String {
    let text = if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    };
    match text.split_once('.') {
        Some((whole, tail)) if tail.bytes().all(|b| b == b'0') => whole.into(),
        _ => text,
    }
}

/// A borderless table, indented by two; columns in `right` are aligned to the right.
pub(super) fn table(header: &[&str], rows: Vec<Vec<String>>, right: &[usize]) -> String {
    use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    if !header.is_empty() {
        table.set_header(header.iter().copied());
    }
    for row in rows {
        table.add_row(row);
    }
    for column in right {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<String> = table
        .to_string()
        .lines()
        .map(|line| format!(" {line}").trim_end().to_string())
        .collect();
    lines.join("\n")
}
