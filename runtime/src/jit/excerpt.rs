//! What the compiler refused, with the schedule's line and the generated lines it came from.
//!
//! Text for compiling carries `#line` directives, so the log names places in the schedule. The generated lines behind
//! such a place are found again by counting lines the way the compiler does.

use super::Source;
use std::fmt;

/// Generated lines shown on each side.
const AROUND: usize = 3;
/// Errors shown with their lines; the log has all.
const SHOWN: usize = 4;

/// The compiler refused a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompileError {
    /// What the source is called.
    pub name: String,
    /// The first errors, with their places.
    pub excerpts: Vec<Excerpt>,
    /// All the compiler said.
    pub log: String,
}

/// One error with its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Excerpt {
    /// The file the error is in: the schedule's, or the generated text where that names no other.
    pub file: String,
    /// The line in that file.
    pub line: u32,
    /// What is wrong.
    pub message: String,
    /// The generated lines around it, with their numbers in the generated text.
    pub generated: Vec<(usize, String)>,
    /// Which of them it is.
    pub at: Option<usize>,
}

impl CompileError {
    pub(super) fn new(source: &Source<'_>, log: String) -> CompileError {
        let places = places(source);
        let lines: Vec<&str> = source.text.lines().collect();
        let excerpts = log
            .lines()
            .filter_map(error_line)
            .take(SHOWN)
            .map(|(file, line, message)| {
                let at = places.iter().position(|place| *place == (file, line));
                let shown = at.map_or(0..0, |at| {
                    at.saturating_sub(AROUND)..(at + AROUND + 1).min(lines.len())
                });
                Excerpt {
                    file: file.into(),
                    line,
                    message: message.into(),
                    generated: shown
                        .map(|index| (index + 1, lines[index].to_owned()))
                        .collect(),
                    at: at.map(|at| at + 1),
                }
            })
            .collect();
        CompileError {
            name: source.name.into(),
            excerpts,
            log,
        }
    }
}

/// `file(12): error: what` or `file(12): error #20: what`.
fn error_line(line: &str) -> Option<(&str, u32, &str)> {
    let (place, rest) = line.split_once("): ")?;
    let (file, number) = place.rsplit_once('(')?;
    let rest = rest.strip_prefix("catastrophic ").unwrap_or(rest);
    let message = rest.strip_prefix("error")?.split_once(": ")?.1;
    Some((file, number.parse().ok()?, message))
}

/// What the compiler calls each generated line: file and line.
fn places<'a>(source: &Source<'a>) -> Vec<(&'a str, u32)> {
    let generated = format!("{}.cu", source.name);
    // Borrowed from the source where it says `#line`, and from here where it does not: leaked once an error.
    let mut file: &'a str = Box::leak(generated.into_boxed_str());
    let mut line = 0;
    source
        .text
        .lines()
        .map(|text| {
            line += 1;
            let place = (file, line);
            if let Some((number, name)) = directive(text) {
                line = number - 1;
                file = name.unwrap_or(file);
            }
            place
        })
        .collect()
}

/// `#line 12 "file"` or `#line 12`.
fn directive(text: &str) -> Option<(u32, Option<&str>)> {
    let rest = text.trim_start().strip_prefix("#line ")?.trim();
    let (number, name) = rest
        .split_once(' ')
        .map_or((rest, None), |(number, name)| (number, Some(name)));
    let name = name.map(|name| name.trim().trim_matches('"'));
    Some((number.parse().ok().filter(|number| *number > 0)?, name))
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the compiler refuses the CUDA text of {}", self.name)?;
        for excerpt in &self.excerpts {
            writeln!(f, "{}:{}: {}", excerpt.file, excerpt.line, excerpt.message)?;
            for (number, line) in &excerpt.generated {
                let mark = if excerpt.at == Some(*number) {
                    '>'
                } else {
                    ' '
                };
                writeln!(f, "{mark}{number:5} | {line}")?;
            }
        }
        write!(f, "the compiler's log:\n{}", self.log.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "int a;\n#line 41 \"src/ag.rs\"\nwait(x);\ncopy(y);\n#line 7\nlast();\n";

    #[test]
    fn places_are_counted_as_the_compiler_does() {
        let places = places(&Source::new("k", TEXT));
        assert_eq!(
            places,
            [
                ("k.cu", 1),
                ("k.cu", 2),
                ("src/ag.rs", 41),
                ("src/ag.rs", 42),
                ("src/ag.rs", 43),
                ("src/ag.rs", 7)
            ]
        );
    }

    #[test]
    fn an_error_shows_the_schedules_line_and_the_generated_ones() {
        let log = "src/ag.rs(42): error: identifier \"copy\" is undefined\n  copy(y);\n  ^\n\n1 error detected\n";
        let error = CompileError::new(&Source::new("k", TEXT), log.into());
        let [excerpt] = &error.excerpts[..] else {
            panic!("{error:?}")
        };
        assert_eq!(
            (excerpt.file.as_str(), excerpt.line, excerpt.at),
            ("src/ag.rs", 42, Some(4))
        );
        let told = error.to_string();
        assert!(
            told.contains("src/ag.rs:42: identifier \"copy\" is undefined\n"),
            "{told}"
        );
        assert!(told.contains(">    4 | copy(y);"), "{told}");
        assert!(told.contains("1 error detected"), "{told}");
    }

    #[test]
    fn an_error_without_a_place_still_has_the_log() {
        let error = CompileError::new(&Source::new("k", TEXT), "ptxas fatal: no\n".into());
        assert!(error.excerpts.is_empty() && error.to_string().ends_with("ptxas fatal: no"));
    }
}
