//! `doctor`: whether this machine is ready, line by line, and what to do about what is not.
//!
//! `ask` gathers [`facts`], `checks` judges them, this prints. Nothing of the machine changes: no context is opened, no
//! file written, no setting made.

mod ask;
mod boards;
mod checks;
mod facts;
mod finding;

use super::outcome::{GOOD, REJECTED};
use super::render::{self, Console};
use checks::Check;
use facts::Facts;
use finding::{Finding, Grade};
use serde_json::{Map, Value as Json, json};

pub(crate) use ask::hangs;

pub(super) fn doctor(console: &mut Console<'_>) -> u8 {
    let bar = console.bar(1, "asking the driver");
    let facts = ask::facts();
    drop(bar);
    tell(&facts, console)
}

/// Prints what the checks find, and gives the exit code: [`GOOD`] unless something is bad.
fn tell(facts: &Facts, console: &mut Console<'_>) -> u8 {
    let each = checks::ALL.iter();
    let each: Vec<(&Check, Vec<Finding>)> =
        each.map(|check| (check, (check.judge)(facts))).collect();
    let of = |grade| {
        let with = |found: &[Finding]| found.iter().any(|finding| finding.grade == grade);
        let names = each.iter().filter(|(_, found)| with(found));
        names.map(|(check, _)| check.name).collect::<Vec<_>>()
    };
    let (bad, notes) = (of(Grade::Bad), of(Grade::Note));
    let unknown = each.iter().filter(|(_, found)| found.is_empty());
    let unknown: Vec<_> = unknown.map(|(check, _)| check.name).collect();
    let matrix = checks::matrix(facts);
    let code = if bad.is_empty() { GOOD } else { REJECTED };

    console.say(page(&each));
    if matrix.len() > 1 {
        console.say(links(facts, &matrix));
    }
    console.say(match (&bad[..], &notes[..]) {
        ([], []) => "**all good**".to_owned(),
        ([], notes) => format!("**all good**; notes: {}", notes.join(", ")),
        (bad, []) => format!("**not good**: {}", bad.join(", ")),
        (bad, notes) => format!(
            "**not good**: {}; notes: {}",
            bad.join(", "),
            notes.join(", ")
        ),
    });
    if !unknown.is_empty() {
        console.say(format!(
            "not checked, as nothing is known of them: {}",
            unknown.join(", ")
        ));
    }

    let json = |(check, found): &(&Check, Vec<Finding>)| {
        let name = check.name;
        let lines = found.iter().map(move |Finding { grade, says, help }| {
            json!({ "check": name, "grade": grade.name(), "says": says, "help": help })
        });
        lines.collect::<Vec<_>>()
    };
    console.object(Map::from_iter([
        ("verb".into(), "doctor".into()),
        ("findings".into(), each.iter().flat_map(json).collect()),
        ("links".into(), json!(matrix)),
        ("not_checked".into(), json!(unknown)),
        ("ok".into(), Json::Bool(bad.is_empty())),
        ("exit".into(), code.into()),
    ]));
    code
}

/// A line for each finding, and below it what to do.
fn page(each: &[(&Check, Vec<Finding>)]) -> String {
    let mut rows = Vec::new();
    for (check, found) in each {
        for Finding { grade, says, help } in found {
            rows.push(vec![grade.name().into(), check.name.into(), says.clone()]);
            if let Some(help) = help {
                rows.push(vec![String::new(), String::new(), format!("help: {help}")]);
            }
        }
    }
    // Marks of emphasis come after the columns are aligned.
    let table = render::table(&[], rows, &[]);
    let bold = |line: &str| match line.split_once(Grade::Bad.name()) {
        Some((margin, rest)) if margin.trim().is_empty() && rest.starts_with(' ') => {
            format!("{margin}**{}**{rest}", Grade::Bad.name())
        }
        _ => line.to_owned(),
    };
    let lines: Vec<String> = table.lines().map(bold).collect();
    lines.join("\n")
}

/// The matrix of links, as `nvidia-smi topo -m` has it.
fn links(facts: &Facts, matrix: &[Vec<Option<usize>>]) -> String {
    let names = facts.boards().into_iter();
    let names: Vec<String> = names.map(|(name, _)| format!("GPU {name}")).collect();
    let cell = |links: &Option<usize>| match links {
        None => "-".to_owned(),
        Some(0) => "none".to_owned(),
        Some(links) => format!("NV{links}"),
    };
    let rows = names.iter().zip(matrix).map(|(name, row)| {
        std::iter::once(name.clone())
            .chain(row.iter().map(cell))
            .collect()
    });
    let header: Vec<&str> = std::iter::once("NVLink")
        .chain(names.iter().map(String::as_str))
        .collect();
    render::table(&header, rows.collect(), &[])
}
