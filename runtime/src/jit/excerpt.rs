//! The compiler's errors, with the schedule's line and the generated lines.
//!
//! Text for the compiler carries `#line` directives, so the log names places in the schedule. The generated lines of
//! such a place are found by counting lines as the compiler does. They are shown without the directives, numbered as in
//! the text that people read.

use super::source::Source;
use crate::error::{CompileError, Excerpt};

/// Generated lines shown on each side.
const AROUND: usize = 3;
/// The most errors shown with their lines. The log has all.
const SHOWN: usize = 4;

impl CompileError {
    pub(super) fn new(source: &Source<'_>, log: String) -> CompileError {
        let lines = lines(source);
        let said: Vec<&str> = log.lines().collect();
        let excerpts = (0..said.len())
            .filter_map(|index| Some((index, error_line(said[index])?)))
            .take(SHOWN)
            .map(|(index, (file, line, message))| {
                // All lines of a statement have the same place. The compiler quotes the one it means.
                let quoted = said.get(index + 1).map_or("", |quoted| quoted.trim());
                let here = |at: &usize| lines[*at].file == file && lines[*at].line == line;
                let places = || (0..lines.len()).filter(here);
                let at = places()
                    .find(|at| lines[*at].text.trim() == quoted)
                    .or_else(|| places().next());
                let shown = at.map_or(&[][..], |at| {
                    let text = lines[at].of;
                    let [from, to] = [at.saturating_sub(AROUND), at + AROUND + 1];
                    let near = &lines[from..to.min(lines.len())];
                    let first = near.iter().position(|line| line.of == text).unwrap_or(0);
                    let count = near[first..].iter().take_while(|line| line.of == text);
                    &near[first..first + count.count()]
                });
                Excerpt {
                    file: file.into(),
                    line,
                    message: message.into(),
                    generated: shown
                        .iter()
                        .map(|line| (line.number, line.text.to_owned()))
                        .collect(),
                    at: at.map(|at| lines[at].number),
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

/// A line of the text or of what it includes.
struct Line<'a> {
    /// Index of the text: 0, or that of an included one.
    of: usize,
    /// Name that the compiler gives the file.
    file: String,
    /// Line in that file, as the compiler counts.
    line: u32,
    /// Line in the text without `#line` directives.
    number: usize,
    text: &'a str,
}

/// All lines but the directives.
fn lines<'a>(source: &Source<'a>) -> Vec<Line<'a>> {
    let own = (format!("{}.cu", source.name), source.text);
    let headers = source.headers.iter();
    let texts = std::iter::once(own)
        .chain(headers.map(|(name, text)| ((*name).to_owned(), *text)))
        .enumerate();
    let mut all = Vec::new();
    for (of, (mut file, text)) in texts {
        let (mut line, mut number) = (0, 0);
        for text in text.lines() {
            line += 1;
            if let Some((next, name)) = directive(text) {
                line = next - 1;
                file = name.unwrap_or(file);
            } else {
                number += 1;
                all.push(Line {
                    of,
                    file: file.clone(),
                    line,
                    number,
                    text,
                });
            }
        }
    }
    all
}

/// `#line 12 "file"` or `#line 12`.
fn directive(text: &str) -> Option<(u32, Option<String>)> {
    let rest = text.trim_start().strip_prefix("#line ")?.trim();
    let (number, name) = rest
        .split_once(' ')
        .map_or((rest, None), |(number, name)| (number, Some(name)));
    let name = name.map(|name| {
        let name = name.trim().trim_matches('"');
        name.replace("\\\"", "\"").replace("\\\\", "\\")
    });
    Some((number.parse().ok().filter(|number| *number > 0)?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "int a;\n#line 41 \"src/ag.rs\"\nwait(x);\n#line 41 \"src/ag.rs\"\ncopy(y);\n#line 4 \"k.cu\"\nlast();\n";

    fn source() -> Source<'static> {
        Source::new("k", TEXT).with(&[("p.cuh", "one();\ntwo();\n")])
    }

    #[test]
    fn places_are_counted_as_the_compiler_does() {
        let lines = lines(&source());
        let lines: Vec<_> = lines
            .iter()
            .map(|line| (line.file.as_str(), line.line, line.number))
            .collect();
        assert_eq!(
            lines,
            [
                ("k.cu", 1, 1),
                ("src/ag.rs", 41, 2),
                ("src/ag.rs", 41, 3),
                ("k.cu", 4, 4),
                ("p.cuh", 1, 1),
                ("p.cuh", 2, 2)
            ]
        );
        let name = directive("#line 7 \"a\\\\b\\\"c.rs\"")
            .expect("a directive")
            .1;
        assert_eq!(name.as_deref(), Some("a\\b\"c.rs"));
    }

    #[test]
    fn an_error_shows_the_schedules_line_and_the_generated_ones() {
        let log = "src/ag.rs(41): error: identifier \"copy\" is undefined\n  copy(y);\n  ^\n\n1 error detected\n";
        let error = CompileError::new(&source(), log.into());
        let [excerpt] = &error.excerpts[..] else {
            panic!("{error:?}")
        };
        assert_eq!(
            (excerpt.file.as_str(), excerpt.line, excerpt.at),
            ("src/ag.rs", 41, Some(3))
        );
        let told = error.to_string();
        assert!(
            told.contains("src/ag.rs:41: identifier \"copy\" is undefined\n"),
            "{told}"
        );
        assert!(
            told.contains("     2 | wait(x);\n>    3 | copy(y);\n     4 | last();\n"),
            "{told}"
        );
        assert!(
            told.contains("1 error detected") && !told.contains("#line"),
            "{told}"
        );
    }

    #[test]
    fn an_error_in_what_is_included_shows_that() {
        let log = "p.cuh(2): error: expected a \";\"\n";
        let error = CompileError::new(&source(), log.into());
        assert_eq!(error.excerpts[0].generated.len(), 2);
        assert!(error.to_string().contains(">    2 | two();"), "{error}");
    }

    #[test]
    fn an_error_without_a_place_still_has_the_log() {
        let error = CompileError::new(&Source::new("k", TEXT), "ptxas fatal: no\n".into());
        assert!(error.excerpts.is_empty() && error.to_string().ends_with("ptxas fatal: no"));
    }
}
