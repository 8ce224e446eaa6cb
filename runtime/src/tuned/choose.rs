//! The variant for a shape: what was measured there, what was measured nearby as far as the model agrees, or the
//! model's favourite.

use super::choices::{combinations, moves};
use super::rank::{Ranking, predicted};
use super::table::{Key, Tuned, Winner};
use crate::error::Error;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{PartitionId, Program};
use counterflow_codegen::shape::{Geometry, Shape};
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use std::collections::BTreeMap;

/// How much longer than its favourite the model may say that a winner takes, where it was not measured itself:
/// its favourites take 1.008 of the fastest that was measured in the mean, and at most 1.05 but for 13 of 321 runs.
const TRUST: f64 = 1.03;

/// A variant, and why it was taken.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// All choices settled.
    pub variant: Variant,
    /// Whether it won a measurement, there or nearby; otherwise the model says so.
    pub measured: bool,
}

/// The variant of `program` for that shape on a GPU of that name: what `base` settles stays. What it leaves open is as
///
/// 1. what won where the GPU does the same: the same columns and depth, and rows that fill as many tiles and pieces of
///    every chunk;
/// 2. else as what won nearby, if the model does not know better: if it says that it takes no longer than its own
///    favourite, but for what the model may be wrong by. Tiles that filled whole waves where they won may just
///    overflow one here;
/// 3. else as the model's favourite.
///
/// Of several winners those of the type itself count before those of the other 16-bit type, then those of the first of
/// `tables`, then the nearest. What is not legal for that shape is passed over, and what is chosen was verified on both
/// levels.
///
/// # Errors
/// What every variant is refused for.
pub fn select(
    tables: &[Tuned],
    gpu: &str,
    program: &Program,
    base: &Variant,
    shape: &Shape,
    machine: &Machine,
) -> Result<Choice, Error> {
    let key = Key::new(gpu, program, base);
    let size = [shape.m, shape.n, shape.k];
    // Who moves nothing does the same on every rank: one is looked at.
    let world = if moves(program) { base.world } else { 1 };
    let seen = |variant: &Variant| Variant {
        world,
        ..variant.clone()
    };
    let keys = [Some(key.clone()), key.twin()];
    let near = keys.iter().flatten();
    let near = near.flat_map(|key| tables.iter().flat_map(|table| table.near(key, size)));
    let won = near.filter_map(|winner| {
        let variant = agreed(winner, program, base)?;
        let (kernel, plan) = planned(program, &seen(&variant), shape, machine).ok()?;
        Some((winner, variant, kernel, plan))
    });
    let won: Vec<_> = won.collect();
    let proven = |variant: &Variant| {
        let (kernel, _) = planned(program, variant, shape, machine)?;
        verify::warps(&kernel)?;
        Ok::<_, Error>(())
    };
    for (winner, variant, kernel, _) in &won {
        if measured_there(winner, kernel, shape) && proven(variant).is_ok() {
            return Ok(Choice {
                variant: variant.clone(),
                measured: true,
            });
        }
    }
    let mut meaningless = None;
    let mut variants = Vec::new();
    let mut kernels = Vec::new();
    for variant in combinations(program, base, &BTreeMap::new()) {
        match lowered(program, &seen(&variant)) {
            Ok(kernel) => {
                variants.push(variant);
                kernels.push(kernel);
            }
            Err(error) => {
                meaningless.get_or_insert(error);
            }
        }
    }
    let mut refused = None;
    let mut ranking = Ranking::new(&kernels, shape, machine);
    let favourite = ranking.next();
    if let Some(favourite) = &favourite {
        for (_, variant, kernel, plan) in &won {
            let agrees = predicted(kernel, plan, machine) <= TRUST * favourite.seconds;
            if agrees && proven(variant).is_ok() {
                return Ok(Choice {
                    variant: variant.clone(),
                    measured: true,
                });
            }
        }
    }
    // The warp level takes longest to check: down the list until one passes.
    for ranked in favourite.into_iter().chain(&mut ranking) {
        let variant = &variants[ranked.which];
        match proven(variant) {
            Ok(()) => {
                return Ok(Choice {
                    variant: variant.clone(),
                    measured: false,
                });
            }
            Err(error) => {
                refused.get_or_insert(error);
            }
        }
    }
    // What has a meaning and does not fit says more than what has none.
    let refused = refused.or(ranking.refused()).or(meaningless);
    Err(refused.unwrap_or_else(|| Error::Usage {
        what: format!("{} has no variant", program.name),
        legal: "a choice offers at least one option".into(),
    }))
}

/// `base` with the winner's choices, if the schedule still offers them and `base` settles none otherwise.
fn agreed(winner: &Winner, program: &Program, base: &Variant) -> Option<Variant> {
    let settings = winner.settings(program)?;
    let agrees = |(name, setting)| settings.get(name).is_none_or(|known| known == setting);
    let mut variant = base.clone();
    base.choices.iter().all(agrees).then(|| {
        variant.choices.extend(settings);
        variant
    })
}

/// Whether the kernel does for that shape what it did when it won: the same columns and depth, and as many items of
/// every partition in every chunk.
fn measured_there(winner: &Winner, kernel: &Kernel, shape: &Shape) -> bool {
    let then = Shape {
        m: winner.m,
        n: winner.n,
        k: winner.k,
        ..shape.clone()
    };
    let items = |shape: &Shape| {
        let geometry = Geometry::new(kernel, shape).ok()?;
        let partitions = (0..kernel.partitions.len()).map(|index| PartitionId(index as u16));
        let grids = partitions.flat_map(|partition| {
            let chunks = 0..geometry.partition_chunks(partition);
            let geometry = &geometry;
            chunks.map(move |chunk| geometry.grid(partition, Some(chunk)))
        });
        Some(grids.collect::<Vec<_>>())
    };
    (winner.n, winner.k) == (shape.n, shape.k) && items(&then) == items(shape)
}

/// A variant up to the checked kernel.
fn lowered(program: &Program, variant: &Variant) -> Result<Checked<Kernel>, Error> {
    Ok(verify::kernel(lower::lower(program, variant)?)?)
}

/// A variant up to the checked plan.
fn planned(
    program: &Program,
    variant: &Variant,
    shape: &Shape,
    machine: &Machine,
) -> Result<(Checked<Kernel>, Checked<Plan>), Error> {
    let kernel = lowered(program, variant)?;
    let plan = verify::plan(&kernel, shape, machine)?;
    Ok((kernel, plan))
}
