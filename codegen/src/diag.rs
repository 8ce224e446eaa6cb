//! Diagnostics: what is wrong, where, why, and how to correct it. The only place that formats errors.

use crate::program::Loc;
use std::fmt;

/// The rule that a diagnostic is about. Each is checked in one place; [`crate::verify`] documents when.
///
/// ```
/// use counterflow_codegen::diag::Rule;
///
/// assert!(Rule::ALL.contains(&Rule::Race));
/// assert_eq!(Rule::Race.name(), "race");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// The program is not a schedule: a name, place or loop has no meaning where it is.
    Language,
    /// A shape, world size, dtype, layout or choice is illegal.
    Shape,
    /// Every wait ends (guarantee 1).
    Progress,
    /// Every access is ordered after the ones it conflicts with (guarantee 2).
    Race,
    /// Every output element is written once, every contribution summed once (guarantee 3).
    Coverage,
    /// Nothing of one launch is overwritten before its last reader is done, nor arrives after its end (guarantee 4).
    Reuse,
    /// A counter cell's signals can be told apart by launch (guarantee 4).
    Attribution,
    /// Ranks, slots, cells and tiles stay within bounds (guarantee 5).
    Bounds,
    /// Shared memory, barriers and CTAs fit (guarantee 5).
    Resources,
    /// More bytes cross a link than necessary: a warning (guarantee 6).
    Volume,
    /// A launch is predicted to be slower than with its loops on separate CTAs: a warning.
    Time,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 11] = [
        Rule::Language,
        Rule::Shape,
        Rule::Progress,
        Rule::Race,
        Rule::Coverage,
        Rule::Reuse,
        Rule::Attribution,
        Rule::Bounds,
        Rule::Resources,
        Rule::Volume,
        Rule::Time,
    ];

    /// Name of the rule in messages and switches.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Language => "language",
            Rule::Shape => "shape",
            Rule::Progress => "progress",
            Rule::Race => "race",
            Rule::Coverage => "coverage",
            Rule::Reuse => "reuse",
            Rule::Attribution => "attribution",
            Rule::Bounds => "bounds",
            Rule::Resources => "resources",
            Rule::Volume => "volume",
            Rule::Time => "time",
        }
    }
}

/// One finding.
///
/// ```
/// use counterflow_codegen::diag::{Diagnostic, Rule};
///
/// let found = Diagnostic::new(Rule::Shape, None, "the world is 0")
///     .note(None, "asked by the command line")
///     .hint("a world has 1 to 128 ranks");
/// assert_eq!(found.to_string(), "\
/// error[shape]: the world is 0
///   = asked by the command line
///   help: a world has 1 to 128 ranks
/// ");
/// assert_eq!(found.brief(), "the world is 0"); // for a table
/// assert_eq!(found.text(&|at| at.to_string()), found.to_string()); // with places as one likes
/// ```
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// The rule that it breaks.
    pub rule: Rule,
    /// The fault in one sentence, with its values.
    pub message: String,
    /// Place in the user's source.
    pub at: Option<Loc>,
    /// The trace: what happened, in order, each with its place.
    pub notes: Vec<Note>,
    /// Advice on how to correct it.
    pub hint: Option<String>,
}

/// A step of a diagnostic's trace.
#[derive(Clone, Debug)]
pub struct Note {
    /// The event in one sentence.
    pub text: String,
    /// Place in the user's source.
    pub at: Option<Loc>,
}

impl Diagnostic {
    /// A finding at `at`.
    pub fn new(rule: Rule, at: impl Into<Option<Loc>>, message: impl Into<String>) -> Self {
        Diagnostic {
            rule,
            message: message.into(),
            at: at.into(),
            notes: Vec::new(),
            hint: None,
        }
    }

    /// With one more step of the trace.
    #[must_use]
    pub fn note(mut self, at: impl Into<Option<Loc>>, text: impl Into<String>) -> Self {
        self.notes.push(Note {
            text: text.into(),
            at: at.into(),
        });
        self
    }

    /// With how to correct it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Message with its file and line, for a table that cannot show the trace.
    pub fn brief(&self) -> String {
        let at = self.at.map(|at| format!(", {}:{}", at.file(), at.line()));
        self.message.clone() + &at.unwrap_or_default()
    }

    /// Text of the report. `place` formats a location (a snapshot shows none).
    pub fn text(&self, place: &impl Fn(Loc) -> String) -> String {
        let mut text = format!("error[{}]: {}\n", self.rule.name(), self.message);
        if matches!(self.rule, Rule::Volume | Rule::Time) {
            text = text.replacen("error", "warning", 1);
        }
        let mut show = |prefix: &str, at: Option<Loc>| {
            if let Some(shown) = at.map(place).filter(|shown| !shown.is_empty()) {
                text.push_str(&format!("{prefix}--> {shown}\n"));
            }
        };
        show("  ", self.at);
        for note in &self.notes {
            text.push_str(&format!("  = {}\n", note.text));
            if let Some(shown) = note.at.map(place).filter(|shown| !shown.is_empty()) {
                text.push_str(&format!("    --> {shown}\n"));
            }
        }
        if let Some(hint) = &self.hint {
            text.push_str(&format!("  help: {hint}\n"));
        }
        text
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&|at| at.to_string()))
    }
}

impl std::error::Error for Diagnostic {}

/// One or more findings: what a stage returns when it rejects its input.
///
/// ```
/// use counterflow_codegen::diag::{Diagnostic, Diagnostics, Rule};
/// use counterflow_codegen::{lower::lower, variant::Variant};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
///
/// let found: Diagnostics = lower(&example::ag_gemm(), &Variant::new(0)).unwrap_err();
/// assert_eq!(found.first().rule, Rule::Shape);
/// found.iter().for_each(|one| println!("{one}"));
///
/// // What a stage of one's own returns.
/// fn checked(rows: u32) -> Result<u32, Diagnostics> {
///     let odd = Diagnostic::new(Rule::Shape, None, format!("{rows} rows")).hint("an even number");
///     Diagnostics::check(if rows % 2 == 0 { Vec::new() } else { vec![odd] }, rows)
/// }
/// assert!(checked(3).unwrap_err().ours("a test").to_string().contains("for the maintainers: 3 rows"));
/// ```
#[derive(Clone, Debug)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// `Ok(value)` if nothing was found, otherwise the findings.
    ///
    /// # Errors
    /// The findings, if there are any.
    pub fn check<T>(found: Vec<Diagnostic>, value: T) -> Result<T, Diagnostics> {
        if found.is_empty() {
            Ok(value)
        } else {
            Err(Diagnostics(found))
        }
    }

    /// Reports these findings as a compiler bug: `what` failed, although the schedule keeps every rule. What the warps did
    /// is a note
    /// for those who mend it.
    #[must_use]
    pub fn ours(self, what: &str) -> Diagnostics {
        let ours = |found: Diagnostic| {
            let fault = match found.rule {
                Rule::Progress => "the kernel may wait for ever at this statement",
                Rule::Race | Rule::Reuse | Rule::Attribution => {
                    "the kernel does not keep the order of this statement"
                }
                Rule::Coverage => "the kernel does not compute the elements of this statement",
                Rule::Bounds => "the kernel reaches beyond the shard of this statement",
                Rule::Language | Rule::Shape | Rule::Resources | Rule::Volume | Rule::Time => {
                    "there is no kernel for this statement"
                }
            };
            let mended = found.hint.map(|hint| format!("mended by: {hint}"));
            let inside = [format!("for the maintainers: {}", found.message)];
            let notes = inside.into_iter().chain(mended);
            let notes = notes.map(|text| Note { text, at: None });
            Diagnostic {
                message: format!("this is our bug: {fault}"),
                notes: notes.chain(found.notes).collect(),
                hint: None,
                ..found
            }
            .note(
                None,
                "the schedule keeps every rule, but the warp program compiled from it does not",
            )
            .hint(format!(
                "please report this text with the schedule's source, for {what}; other choices (`OpBuilder::set`, or `--set` of the tool) may have a kernel"
            ))
        };
        Diagnostics(self.0.into_iter().map(ours).collect())
    }

    /// The findings.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.0.iter()
    }

    /// The first finding.
    pub fn first(&self) -> &Diagnostic {
        &self.0[0]
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Self {
        Diagnostics(vec![diagnostic])
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}
