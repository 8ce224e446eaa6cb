//! Runs all warps of a few ranks on a small case, and says what goes wrong.
//!
//! The case has three ranks, or as many as the schedule needs to be legal and to run every statement
//! ([`launches::launches`]). Where items branch, there are further cases: what any item of the kernel's own world does, some
//! item of a case does ([`combinations::further`]).
//! Its shards, tiles and chunks are ragged, so that every kind of edge occurs. It has several launches, so that what one
//! leaves behind is seen; those
//! of a kernel that signals differ in M, and run twice: with all ranks in step, and with a fast and a slow one. Between
//! launches the caller fills and takes every tensor that others reach. Where warpgroups stagger the epilogues of a tile
//! there are more cases, of fewer steps. Control does not depend on timing, and orderings are tracked by what each agent
//! has seen complete, not by when things happened; so one run finds a missing order whatever the timing of a real one
//! would be.
//!
//! Checked: every barrier's phase is waited for as it comes; no slot is touched before its last user is done with it, as
//! far as the barriers between them order memory;
//! ordinary accesses and the async proxy are fenced from each other; groups are waited for before what they moved is
//! announced or reused; every product, subtile and store is of the rows, columns and depth it should be, of the
//! value the schedule stores, and outputs are covered; rows that a stage still holds of an earlier step, since none of
//! their partial box exists, are in no row or column that is stored; a dependent launch awaits earlier launches ahead of every
//! access of global memory and before it ends; counters order what other ranks, the host's copies and the callers do; no
//! signal is held back over a wait that another rank must answer; boxes stay within their shard, and are such that TMA takes them (`legal`); no one waits for ever.
//!
//! Each access of memory that is handed over is held to the tile level as well, by how many conflicting accesses are
//! before it ([`Case::before`]). The tile level gives a range per role and block: the least and the most over all accesses
//! of that role to that block. The number is exact where a role touches a block once.
//!
//! Lanes of a warp are modelled where all of them make its accesses, of every rank's memory at once (`lanes`). Not modelled: those
//! of other warps (`SyncWarp`), values and registers (`MmaFence`), swizzles and descriptors, bank
//! conflicts, and time.
//!
//! Files, each of which needs only those before it: `visited`, `launches`, `combinations` and `case` are what is tried; `step`, `flatten`, `host` and
//! `programs` what each agent does; `filled`, `held`, `lanes`, `seen` and `simulator` the state of a run; `deeds` and `trace` the words; `memory`, `content`,
//! `values`, `legal` and `execute` what a step does and must keep to; `covered` what all steps did together; `ranks` and `pace` when it is taken; `outdated` a run for tests.
//!
//! [`Case::before`]: case::Case::before
//! [`Case::waits`]: case::Case::waits
//! [`Case::announced`]: case::Case::announced

mod amaxes;
mod case;
mod combinations;
mod computed_scales;
mod content;
mod covered;
mod deeds;
mod execute;
mod filled;
mod flatten;
mod fragment;
mod held;
mod host;
mod lanes;
mod launches;
mod legal;
mod memory;
#[cfg(all(feature = "undo", debug_assertions))]
mod outdated;
mod pace;
mod programs;
mod promoted;
mod ranks;
mod seen;
mod simulator;
mod step;
mod trace;
mod values;
mod visited;

use crate::diag::Diagnostics;
use crate::sm90::cta::dependent_launch;
use crate::undo::{Fix, undone};
use crate::warp::Pipeline;
use case::Case;
use launches::Launches;
use pace::Pace;
use programs::Programs;

pub(crate) use launches::Refused;
#[cfg(all(feature = "undo", debug_assertions))]
pub(crate) use outdated::outdated;

/// Runs a pipeline.
///
/// # Errors
/// What is wrong with it, or why it could not be run.
pub(crate) fn run(pipeline: &Pipeline) -> Result<(), Refused> {
    if pipeline.dependent_launch && !dependent_launch::possible(&pipeline.kernel) {
        return Err(Refused::Wrong(
            trace::dependent_launch(&pipeline.kernel).into(),
        ));
    }
    let launches = launches::launches(pipeline)?;
    let further = combinations::further(pipeline, &launches)?;
    every_case(pipeline, launches).map_err(Refused::Wrong)?;
    further
        .into_iter()
        .try_for_each(|launches| one_case(&Case::new(pipeline, launches)))
        .map_err(Refused::Wrong)
}

/// Runs a pipeline in its case and in those of fewer steps, up to the first thing that goes wrong.
fn every_case(pipeline: &Pipeline, launches: Launches) -> Result<(), Diagnostics> {
    let world = launches.kernel.variant.world;
    one_case(&Case::new(pipeline, launches))?;
    let most = match pipeline.cta.staggered() {
        // Stages hold all of a short tile: then a warpgroup that ends it first could be through with the next one, too,
        // before the other one has looked.
        true => pipeline.rings[0].slots,
        // In a product of one step, no arrival of a later step says what its loader waited for.
        false => u32::from(pipeline.cta.computes() && !pipeline.kernel.counters.is_empty()),
    };
    for steps in 1..=most {
        let launches = launches::of_ranks(pipeline, world, Some(steps))?;
        one_case(&Case::new(pipeline, launches))?;
    }
    Ok(())
}

/// Runs a pipeline in a world of so many ranks.
///
/// # Errors
/// What is wrong with it, or with the schedule in that world.
#[cfg(all(feature = "undo", debug_assertions))]
pub(crate) fn in_world(pipeline: &Pipeline, world: u32) -> Result<(), Diagnostics> {
    let launches = launches::legal(pipeline, world)?;
    one_case(&Case::new(pipeline, launches))
}

/// Runs a case at each pace.
fn one_case(case: &Case<'_>) -> Result<(), Diagnostics> {
    // Without counters ranks have nothing to do with each other.
    let one = case.pipeline.kernel.counters.is_empty() || undone(Fix::WarpOrder);
    let paces = match one {
        true => &[Pace::Late][..],
        false => &[Pace::Late, Pace::Ahead],
    };
    legal::maps(case).map_err(|found| *found)?;
    let programs = Programs::new(case).map_err(|found| *found)?;
    paces
        .iter()
        .try_for_each(|pace| pace::run(case, &programs, *pace).map_err(|found| *found))?;
    Ok(())
}
