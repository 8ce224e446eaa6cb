//! `check --worlds 1..=8 --rows 1..=4096`: checks every shape of a range in every world, class by class.

use super::args::{Numbers, Ranges, Request};
use super::emits::Emits;
use super::outcome::Outcome;
use super::render::{self, Console};
use super::size;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked, Decided};
use counterflow_runtime::Error;
use serde_json::{Map, Value as Json, json};

/// The most steps of all classes of all worlds: some minutes.
const MOST_STEPS: u64 = 1 << 31;

/// The most shapes that are looked up, at a microsecond each.
const MOST_SHAPES: u64 = 1 << 26;

/// One world's verdict.
struct World {
    world: u32,
    decided: Decided,
    /// Reason that no shape of this world is legal.
    refused: Option<Diagnostics>,
    /// Kernel for GPUs, or why there is none.
    emits: Option<Emits>,
}

pub(super) fn check(
    request: &Request,
    ranges: &Ranges,
    console: &mut Console<'_>,
) -> Result<Outcome, Error> {
    let count = |numbers: &Numbers| u64::from(numbers.end() - numbers.start()) + 1;
    let shapes = count(&ranges.worlds) * count(&ranges.rows);
    if shapes > MOST_SHAPES {
        return Err(too_large(format!("{} shapes", render::count(shapes))));
    }
    let bar = console.bar(count(&ranges.worlds), "deciding");
    let mut left = MOST_STEPS;
    let mut worlds = Vec::new();
    for world in ranges.worlds.clone() {
        bar.say(&format!("checking world {world}"));
        let decided = of_world(request, world, &ranges.rows, left)?;
        if let Some(m) = decided.decided.undecided {
            return Err(too_large(format!(
                "more than {} steps up to world {world} with {m} rows",
                render::count(MOST_STEPS)
            )));
        }
        left = left.saturating_sub(decided.decided.steps());
        worlds.push(decided);
        bar.step();
    }
    drop(bar);
    Ok(told(request, ranges, &worlds, console))
}

fn too_large(what: String) -> Error {
    Error::TooLarge {
        what: format!("these ranges have {what}"),
        help: "use narrower --rows or --worlds, or larger chunks and tiles (--set): shapes are checked class by class, and larger items make fewer classes".into(),
    }
}

fn of_world(request: &Request, world: u32, rows: &Numbers, most: u64) -> Result<World, Error> {
    let variant = Variant {
        world,
        ..request.variant.clone()
    };
    let kernel = lower::lower(&request.program, &variant).and_then(verify::kernel);
    let kernel: Checked<Kernel> = match kernel {
        Ok(kernel) => kernel,
        Err(refused) => {
            return Ok(World {
                world,
                decided: Decided::default(),
                refused: Some(refused),
                emits: None,
            });
        }
    };
    let largest = Shape {
        m: *rows.end(),
        ..request.shape.clone()
    };
    size::plan_fits(&kernel, &largest)?;
    let decided = verify::range(
        &kernel,
        &request.shape,
        rows.clone(),
        &request.machine(),
        most,
    );
    let mut world = World {
        world,
        decided,
        refused: None,
        emits: None,
    };
    // Warps of a schedule that is wrong would be found wrong, too.
    if world.first_refused().is_none() {
        world.emits = Some(Emits::of(&kernel));
    }
    Ok(world)
}

impl World {
    /// The first finding and its shape. No shape if it concerns all of them.
    fn first_refused(&self) -> Option<(Option<&Shape>, &Diagnostics)> {
        if let Some(found) = &self.refused {
            return Some((None, found));
        }
        if let Some(found) = &self.decided.between {
            return Some((None, found));
        }
        let class = self.decided.refused().next()?;
        let found = class.verdict.as_ref().err()?;
        Some((Some(&class.first), found))
    }

    fn row(&self) -> Vec<String> {
        let (verdict, first) = match self.first_refused() {
            None => ("safe".into(), "-".into()),
            Some((Some(first), found)) => (
                format!(
                    "{} of {} classes rejected: {}",
                    self.decided.refused().count(),
                    self.decided.classes.len(),
                    found.first().rule.name()
                ),
                first.to_string(),
            ),
            Some((None, found)) => (
                format!("rejected: {}", found.first().rule.name()),
                if self.refused.is_some() {
                    "every shape".into()
                } else {
                    "launches one after another".into()
                },
            ),
        };
        let emits = self.emits.as_ref().map(Emits::row);
        let [_, emits, _] = emits.unwrap_or_else(|| ["", "-", ""].map(String::from));
        vec![
            self.world.to_string(),
            render::count(self.decided.shapes()),
            render::count(self.decided.classes.len() as u64),
            render::count(self.decided.steps()),
            verdict,
            first,
            emits,
        ]
    }

    fn json(&self) -> Json {
        let refused: Vec<Json> = self
            .decided
            .refused()
            .map(|class| {
                let rows: Vec<[u32; 2]> = class
                    .rows
                    .iter()
                    .map(|rows| [*rows.start(), *rows.end()])
                    .collect();
                json!({
                    "m": class.first.m,
                    "rows": rows,
                    "diagnostics": class.verdict.as_ref().err().map(render::diagnostics_json),
                })
            })
            .collect();
        json!({
            "world": self.world,
            "shapes": self.decided.shapes(),
            "classes": self.decided.classes.len(),
            "steps": self.decided.steps(),
            "safe": self.first_refused().is_none(),
            "refused": refused,
            "diagnostics": self.refused.as_ref().or(self.decided.between.as_ref()).map(render::diagnostics_json),
            "kernel": self.emits.as_ref().map(Emits::json),
        })
    }
}

/// The table, the first rejection's trace, and everything as JSON fields.
fn told(
    request: &Request,
    ranges: &Ranges,
    worlds: &[World],
    console: &mut Console<'_>,
) -> Outcome {
    let Ranges { worlds: over, rows } = ranges;
    let refused = worlds.iter().find_map(World::first_refused);
    let without: Option<&Diagnostics> = worlds
        .iter()
        .find_map(|world| world.emits.as_ref()?.refused())
        .filter(|_| request.emit);
    let verdict = if refused.is_none() {
        "is safe"
    } else {
        "is not safe"
    };
    let shape = &request.shape;
    console.say(format!(
        "**{}** {verdict}: every M from {} to {} by {}x{}, in every world from {} to {}",
        request.program.name,
        rows.start(),
        rows.end(),
        shape.n,
        shape.k,
        over.start(),
        over.end()
    ));
    let heads = [
        "world",
        "shapes",
        "classes",
        "steps",
        "verdict",
        "first rejected",
        "kernel",
    ];
    let lines = worlds.iter().map(World::row).collect();
    console.say(render::table(&heads, lines, &[0, 1, 2, 3]));
    let found = refused.map(|(_, found)| found);
    for found in [found, without].into_iter().flatten() {
        console.error(&Error::Rejected(found.clone()));
    }
    let fields = json!({
        "rows": [rows.start(), rows.end()],
        "worlds": worlds.iter().map(World::json).collect::<Vec<_>>(),
    });
    Outcome {
        good: found.is_none() && without.is_none(),
        fields: Map::from_iter([("ranges".into(), fields)]),
    }
}
