//! Chooses the variant for a shape: the one measured there, one measured nearby if the model agrees, or the model's
//! favourite.

use super::choices::{combinations, moves};
use super::rank::{Ranking, Reordered, lowered, time};
use super::table::{Key, Tuned, Winner};
use crate::error::Error;
use crate::warps::warps;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::{Written, lower};
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{PartitionId, Program};
use counterflow_codegen::shape::{Geometry, Shape};
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use std::collections::{BTreeMap, HashMap};

/// Factor by which the model may predict a winner that was measured nearby to be slower than its favourite. Its
/// favourites take 1.008 of the fastest measured time in the mean, and at most 1.05 except in 13 of 321 runs.
const TRUST: f64 = 1.03;

/// A variant, and why it was chosen.
///
/// [`select`] has an example.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// All choices settled.
    pub variant: Variant,
    /// True if it won a measurement, there or nearby. Otherwise the model chose it.
    pub measured: bool,
}

/// The variant of `program` for that shape on a GPU of that name. Choices that `base` settles stay. The others are
/// those
///
/// 1. of the winner for a shape with the same work: the same columns and depth, and rows that fill as many tiles and
///    chunks of every shard;
/// 2. otherwise of a winner nearby, if the model predicts that it is no slower than its own favourite, within the
///    model's error. Tiles that filled whole waves where they won may need one more wave here;
/// 3. otherwise of the model's favourite.
///
/// Several winners are taken in this order:
///
/// - the same element type before the other 16-bit type;
/// - the same kind of scales before other kinds that are applied after the product;
/// - if `base` has amaxes, or makes scales of outputs, winners with them before those without;
/// - winners of an earlier table in `tables` before those of a later one;
/// - the nearest shape first.
///
/// Illegal winners are skipped. The variant that is chosen was verified on both levels.
///
/// ```
/// use counterflow::tuned::{self, Choice, Tuned};
/// use counterflow::{Machine, Shape, Variant, schedules::ag_gemm};
///
/// let tables = [Tuned::of_user()?, Tuned::embedded()?]; // the user's winners count first
/// let shape = Shape::new(8192, 2560, 8192);
/// let (base, machine) = (Variant::new(4), Machine::h200());
/// let Choice { variant, measured } = tuned::select(&tables, "NVIDIA H200", &ag_gemm(), &base, &shape, &machine)?;
/// println!("{variant}, {}", if measured { "measured" } else { "by the model" });
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// # Errors
/// Why every variant is rejected.
pub fn select(
    tables: &[Tuned],
    gpu: &str,
    program: &Program,
    base: &Variant,
    shape: &Shape,
    machine: &Machine,
) -> Result<Choice, Error> {
    select_of(tables, gpu, program, base, (shape, machine), &|_| Ok(()))
}

/// As [`select`], of those variants that `admits` accepts.
///
/// # Errors
/// Why every variant is rejected, or not admitted.
pub(crate) fn select_of(
    tables: &[Tuned],
    gpu: &str,
    program: &Program,
    base: &Variant,
    (shape, machine): (&Shape, &Machine),
    admits: &dyn Fn(&Checked<Kernel>) -> Result<(), Error>,
) -> Result<Choice, Error> {
    let key = Key::new(gpu, program, base);
    let size = [shape.m, shape.n, shape.k];
    // Without communication every rank does the same, so one is checked.
    let world = if moves(program) { base.world } else { 1 };
    let seen = |variant: &Variant| Variant {
        world,
        ..variant.clone()
    };
    let written = Written::new(program, &seen(base))?;
    // Its plan was verified already, unless one rank stood for all.
    let proven = |variant: &Variant| {
        let kernel = verify::kernel(lower(program, variant)?)?;
        if world != base.world {
            verify::plan(&kernel, shape, machine)?;
        }
        warps(&kernel)?;
        Ok::<_, Error>(())
    };
    let measured = |variant| {
        Ok(Choice {
            variant,
            measured: true,
        })
    };
    let keys = [vec![key.clone()], key.twins()].concat();
    let near = keys.iter();
    let near = near.flat_map(|key| tables.iter().flat_map(|table| table.near(key, size)));
    let mut won = Vec::new();
    for winner in near {
        let Some(variant) = agreed(winner, program, base) else {
            continue;
        };
        let Ok(kernel) = lowered(&written, &variant) else {
            continue;
        };
        if admits(&kernel).is_err() {
            continue;
        }
        let there = measured_there(winner, &kernel, shape);
        if there && verify::plan(&kernel, shape, machine).is_ok() && proven(&variant).is_ok() {
            return measured(variant);
        }
        won.push((variant, kernel));
    }
    let (mut meaningless, mut unfit) = (None, None);
    let variants = combinations(program, base, &BTreeMap::new());
    let mut ranking = Ranking::of_variants((&written, &variants), shape, machine);
    // Each kernel goes before the next one comes: thousands at a time are memory that no cache holds.
    for alike in groups(&written, &variants, base) {
        match lowered(&written, &variants[alike[0].0]) {
            Ok(kernel) => match admits(&kernel) {
                Ok(()) => ranking.add(&kernel, &alike),
                Err(error) => _ = unfit.get_or_insert(error),
            },
            Err(error) => {
                meaningless.get_or_insert(error);
            }
        }
    }
    let mut refused = None;
    // Nearby winners that have a plan, with their times, the first one last.
    let times = won.into_iter().filter_map(|(variant, kernel)| {
        let plan = Plan::new(&kernel, shape, machine).ok()?;
        let seconds = time(&kernel, &plan, machine);
        Some((variant, kernel, seconds))
    });
    let mut won: Vec<_> = times.collect();
    won.reverse();
    let fits = |(variant, kernel, _): &(Variant, Checked<Kernel>, f64)| {
        verify::plan(kernel, shape, machine).is_ok() && proven(variant).is_ok()
    };
    // The warp level takes longest to check, so go down the list until one passes: the favourite. What does not pass is none to
    // compare winners with, but one that is as fast as that needs no other.
    for ranked in &mut ranking {
        let agrees = |(_, _, seconds): &(_, _, f64)| *seconds <= TRUST * ranked.seconds;
        while let Some(first) = won.pop_if(|first| agrees(first)) {
            if fits(&first) {
                return measured(first.0);
            }
        }
        let variant = &variants[ranked.which];
        match proven(variant) {
            Ok(()) => {
                let mut agreeing = won.into_iter().rev().filter(agrees);
                return match agreeing.find(fits) {
                    Some((variant, ..)) => measured(variant),
                    None => Ok(Choice {
                        variant: variant.clone(),
                        measured: false,
                    }),
                };
            }
            Err(error) => {
                refused.get_or_insert(error);
            }
        }
    }
    // An error that something does not fit says more than one that it has no meaning.
    let refused = refused.or(ranking.refused()).or(unfit).or(meaningless);
    Err(refused.unwrap_or_else(|| Error::Usage {
        what: format!("{} has no variant", program.name),
        legal: "give every choice at least one option".into(),
    }))
}

/// The variants in groups whose kernels differ in the order of tiles alone, each variant with its orders. Groups are in the order of
/// their first variants.
fn groups(written: &Written, variants: &[Variant], base: &Variant) -> Vec<Vec<Reordered>> {
    let orders: Vec<&String> = variants.first().map_or_else(Vec::new, |first| {
        let open = first.choices.keys();
        let open = open.filter(|name| !base.choices.contains_key(*name));
        open.filter(|name| written.orders_only(name)).collect()
    });
    let mut places = HashMap::new();
    let mut all: Vec<Vec<_>> = Vec::new();
    for (which, variant) in variants.iter().enumerate() {
        let others = variant.choices.iter();
        let others = others.filter(|(name, _)| !orders.contains(name));
        let others: Vec<_> = others.map(|(_, setting)| setting).collect();
        let place = *places.entry(others).or_insert(all.len());
        if place == all.len() {
            all.push(Vec::new());
        }
        all[place].push((which, written.orders(&variant.choices)));
    }
    all
}

/// `base` with the winner's choices, if the schedule still has these options and `base` settles none of them otherwise.
fn agreed(winner: &Winner, program: &Program, base: &Variant) -> Option<Variant> {
    let settings = winner.settings(program)?;
    let agrees = |(name, setting)| settings.get(name).is_none_or(|known| known == setting);
    let mut variant = base.clone();
    base.choices.iter().all(agrees).then(|| {
        variant.choices.extend(settings);
        variant
    })
}

/// True if the kernel has the same work for that shape as when it won: the same columns and depth, and as many items of
/// every partition in every shard.
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
            let shards = 0..geometry.partition_shards(partition);
            let geometry = &geometry;
            shards.map(move |shard| geometry.grid(partition, Some(shard)))
        });
        Some(grids.collect::<Vec<_>>())
    };
    (winner.n, winner.k) == (shape.n, shape.k) && items(&then) == items(shape)
}
