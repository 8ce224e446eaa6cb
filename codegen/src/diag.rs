//! Diagnostics: what is wrong, where, why, and what would be right. The only place that formats errors.

use crate::program::Loc;
use std::fmt;

/// The rule a diagnostic is about. Each is decided in one place; [`crate::verify`] documents when.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// The program is not a schedule: a name, a place or a loop that has no meaning where it stands.
    Language,
    /// A shape, world size, dtype, layout or choice that is not legal.
    Shape,
    /// Every wait is met (DESIGN guarantee 1).
    Progress,
    /// Every access is ordered after the ones it conflicts with (guarantee 2).
    Race,
    /// Every output element is written once, every contribution summed once (guarantee 3).
    Coverage,
    /// Nothing of one launch is overwritten before its last reader is done, nor arrives after its end (guarantee 4).
    Reuse,
    /// A counter cell's signals can be told apart by launch (guarantee 4).
    Attribution,
    /// Ranks, slots, cells and tiles stay inside (guarantee 5).
    Bounds,
    /// Shared memory, barriers and CTAs fit (guarantee 5).
    Resources,
    /// More bytes cross a link than need to: a warning (guarantee 6).
    Volume,
    /// A launch is predicted to take longer than it would if loops ran apart: a warning.
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

    /// Its name in messages and switches.
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
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// Which rule it is about.
    pub rule: Rule,
    /// What is wrong, in one sentence, with the values.
    pub message: String,
    /// Where.
    pub at: Option<Loc>,
    /// The story: what happened, in order, each with its place.
    pub notes: Vec<Note>,
    /// What would be right.
    pub hint: Option<String>,
}

/// A step of a diagnostic's story.
#[derive(Clone, Debug)]
pub struct Note {
    /// What happened.
    pub text: String,
    /// Where.
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

    /// With one more step of the story.
    #[must_use]
    pub fn note(mut self, at: impl Into<Option<Loc>>, text: impl Into<String>) -> Self {
        self.notes.push(Note {
            text: text.into(),
            at: at.into(),
        });
        self
    }

    /// With what would be right.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Its message with its file and line: for a table, where the story has no room.
    pub fn brief(&self) -> String {
        let at = self.at.map(|at| format!(", {}:{}", at.file(), at.line()));
        self.message.clone() + &at.unwrap_or_default()
    }

    /// Its text; `place` says how a location is shown (a snapshot shows none).
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

/// Findings, at least one. What a stage returns when it refuses.
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

    /// As findings about what the compiler made of a schedule that keeps every rule: `what` failed, and the schedule is
    /// not to blame.
    #[must_use]
    pub fn ours(self, what: &str) -> Diagnostics {
        let ours = |mut found: Diagnostic| {
            found.message = format!("this is our bug: {}", found.message);
            let mended = found.hint.take();
            let mended = mended.map(|hint| format!("for whoever mends it: {hint}"));
            found
                .notes
                .extend(mended.map(|text| Note { text, at: None }));
            found
                .note(
                    None,
                    "the schedule keeps every rule; what we made of it for the warps of a CTA does not",
                )
                .hint(format!(
                    "please report this text with the schedule's source, for {what}; other choices (`--set`) may have a kernel"
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
