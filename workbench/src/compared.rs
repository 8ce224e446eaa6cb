//! Launches compared with a reference: their shapes, their rows in a table, and the reference.

use super::args::Request;
use super::render::{self, Console};
use super::size;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::verify::{Checked, Series};
use counterflow_emulator::{NoReference, Says};
use counterflow_runtime::cpu::Compared;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};

/// A checked plan with fewer rows (ragged if that is legal) for every second launch.
pub(super) fn other_plan(request: &Request, series: &Series) -> Option<Checked<Plan>> {
    let m = request.shape.m;
    if request.launches < 2 {
        return None;
    }
    let ragged = u32::try_from(u64::from(m) * 2 / 3 + 1).ok()?;
    let even = (m / 2).checked_next_multiple_of(request.variant.world.checked_mul(64)?)?;
    [ragged, even]
        .into_iter()
        .filter(|other| *other < m)
        .find_map(|other| {
            let shape = Shape {
                m: other,
                ..request.shape.clone()
            };
            size::plan_fits(series.kernel(), &shape).ok()?;
            series.plan(&shape).ok()
        })
}

pub(super) fn row(launch: usize, plan: &Plan, compared: Option<&Compared>) -> Vec<String> {
    let mut row = vec![(launch + 1).to_string(), plan.shape.to_string()];
    match compared {
        Some(compared) => row.extend([
            render::count(compared.elements),
            format!("{:.2e}", compared.max_error),
            format!("{:.2e}", compared.relative),
            format!("{:.0} %", compared.of_allowed * 100.0),
        ]),
        None => row.extend(["-"; 4].map(String::from)),
    }
    row
}

pub(super) fn object(shape: &Shape, compared: &Result<Compared, NoReference>) -> Json {
    let good = compared.as_ref().ok();
    json!({
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "max_error": good.map(|c| c.max_error),
        "relative_error": good.map(|c| c.relative),
        "of_allowed": good.map(|c| c.of_allowed),
        "elements": good.map(|c| c.elements),
        "compared_with": good.map(|c| {
            let with = c.with.iter();
            let with = with.map(|(name, says)| (name.clone(), says.key().into()));
            Json::Object(with.collect())
        }),
        "not_compared": compared.as_ref().err().map(ToString::to_string),
    })
}

/// Prints what outputs were compared with. Gives whether all were compared.
pub(super) fn with(compared: &[Result<Compared, NoReference>], console: &mut Console<'_>) -> bool {
    let none = compared.iter().enumerate();
    let none = none.filter_map(|(launch, compared)| Some((launch, compared.as_ref().err()?)));
    let mut good = true;
    for (launch, none) in none {
        good = false;
        console.say(format!("**NOT COMPARED**: launch {}, {none}", launch + 1));
    }
    if !good {
        console.say(
            "  nothing says whether its numbers are right; give the program a reference of your own: `.reference(fn)`",
        );
    }
    let mut references: BTreeMap<Says, BTreeSet<&str>> = BTreeMap::new();
    for (name, says) in compared
        .iter()
        .flatten()
        .flat_map(|compared| &compared.with)
    {
        references.entry(*says).or_default().insert(name);
    }
    let parts: Vec<String> = references
        .into_iter()
        .map(|(says, names)| {
            let names: Vec<&str> = names.into_iter().collect();
            format!("{} with {}", names.join(", "), says.phrase())
        })
        .collect();
    if !parts.is_empty() {
        console.say(format!("  compared in f64: {}", parts.join("; ")));
    }
    good
}
