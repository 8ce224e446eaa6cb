//! `list`: the schedules of this binary and their open choices.

use super::args::{Families, Schedule};
use super::outcome::GOOD;
use super::render::{self, Console};
use counterflow_codegen::program::Program;
use counterflow_runtime::family::{Candidate, Family};
use serde_json::{Map, Value as Json, json};

pub(super) fn list(schedules: &[Schedule], families: &[Families], console: &mut Console<'_>) -> u8 {
    let programs: Vec<Program> = schedules.iter().map(|schedule| schedule()).collect();
    let rows = programs
        .iter()
        .map(|program| {
            let parameters: Vec<String> = program
                .tensors
                .iter()
                .map(|tensor| format!("{}: {}<{}>", tensor.name, tensor.usage.name(), tensor.dtype))
                .collect();
            vec![program.name.clone(), parameters.join(", "), open(program)]
        })
        .collect();
    console.say(render::table(
        &["schedule", "tensors", "choices (the first is the default)"],
        rows,
        &[],
    ));
    let families: Vec<_> = families.iter().map(|family| family()).collect();
    let candidates = |family: &Family| -> Vec<String> {
        family.candidates().iter().map(Candidate::name).collect()
    };
    if !families.is_empty() {
        let rows = families.iter();
        let rows = rows.map(|family| vec![family.name().to_owned(), candidates(family).join(", ")]);
        console.say(render::table(
            &["family", "candidates"],
            rows.collect(),
            &[],
        ));
    }
    let families = families
        .iter()
        .map(|family| json!({ "name": family.name(), "candidates": candidates(family) }));
    let families: Vec<Json> = families.collect();
    let schedules: Vec<Json> = programs
        .iter()
        .map(|program| {
            let choices: Map<String, Json> = program
                .tunables
                .iter()
                .map(|tunable| {
                    let options = tunable.options.iter().map(ToString::to_string);
                    (tunable.name.clone(), options.collect())
                })
                .collect();
            json!({ "name": program.name, "choices": choices })
        })
        .collect();
    console.object(Map::from_iter([
        ("verb".into(), "list".into()),
        ("schedules".into(), schedules.into()),
        ("families".into(), families.into()),
        ("ok".into(), true.into()),
        ("exit".into(), GOOD.into()),
    ]));
    GOOD
}

/// `tiles=128x256|256x128 comm.ctas=4|2|8`
fn open(program: &Program) -> String {
    let choices: Vec<String> = program
        .tunables
        .iter()
        .map(|tunable| {
            let options: Vec<_> = tunable.options.iter().map(ToString::to_string).collect();
            format!("{}={}", tunable.name, options.join("|"))
        })
        .collect();
    choices.join(" ")
}
