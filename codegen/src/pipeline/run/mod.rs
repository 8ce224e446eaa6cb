//! Runs all warps of a few ranks on a small case, and says what goes wrong.
//!
//! The case has three ranks, or as many as the schedule is legal for ([`launches::world`]). Its chunks, tiles and pieces
//! are ragged, so that every kind of edge occurs. It has several launches, so that what one leaves behind is seen; those
//! of a kernel that signals differ in M, and run twice: with all ranks in step, and with a fast and a slow one. Between
//! launches the caller fills and takes every tensor that others reach. Where warpgroups end a tile one after another
//! there are more cases, of fewer steps. Control does not depend on timing, and orderings are tracked by what each agent
//! has seen complete, not by when things happened; so one run finds a missing order whatever the timing of a real one
//! would be.
//!
//! Checked: every barrier's phase is waited for as it comes; no slot is touched before its last user is done with it;
//! ordinary accesses and the async proxy are fenced from each other; groups are waited for before what they moved is
//! announced or reused; every product, panel and store is of the rows, columns and depth it should be, of the
//! value the schedule stores, and outputs are covered; rows that a stage still holds of an earlier step, since none of
//! their strip exists, are in no row or column that is stored; what comes early awaits the launches before ahead of every
//! access of global memory and before it ends; counters order what other ranks, the host's copies and the callers do; no
//! signal is held back over a wait that another rank must answer; boxes stay within their chunk; no one waits for ever.
//!
//! Each access of memory that is handed over is held to the tile level as well, by how many conflicting accesses are
//! before it ([`Case::before`]). The tile level gives a range per role and block: the least and the most over all accesses
//! of that role to that block. The number is exact where a role touches a block once.
//!
//! Not modelled: lanes of a warp (`SyncWarp`), values and registers (`MmaFence`), swizzles and descriptors, bank
//! conflicts, and time.
//!
//! [`Case::before`]: case::Case::before

mod case;
mod content;
mod execute;
mod flatten;
mod host;
mod launches;
mod memory;
mod seen;
mod step;
mod story;
mod values;

use super::Pipeline;
use crate::diag::{Diagnostic, Diagnostics};
use crate::early;
use crate::undo::{Fix, undone};
use execute::Pace;

/// Why a pipeline is refused.
pub(crate) enum Refused {
    /// It is legal in none of the worlds that the case may have: nothing was tried.
    NoCase(Diagnostics),
    /// What goes wrong first.
    Wrong(Diagnostics),
}

/// Runs a pipeline.
///
/// # Errors
/// What is wrong with it, or why it could not be run.
pub(crate) fn run(pipeline: &Pipeline) -> Result<(), Refused> {
    if pipeline.early && !early::possible(&pipeline.kernel) {
        return Err(Refused::Wrong(story::comes_early().into()));
    }
    let world = launches::world(pipeline).map_err(Refused::NoCase)?;
    Diagnostics::check(findings(pipeline, world), ()).map_err(Refused::Wrong)
}

/// What is wrong with a pipeline in a case of so many ranks: the first thing that goes wrong.
fn findings(pipeline: &Pipeline, world: u32) -> Vec<Diagnostic> {
    // Stages hold all of a short tile: then a warpgroup that ends it first could be through with the next one, too, before the
    // other one has looked.
    let short = if pipeline.staggered {
        pipeline.rings[0].slots
    } else {
        0
    };
    let cases = [None].into_iter().chain((1..=short).map(Some));
    let mut found = cases.map(|steps| match case::Case::new(pipeline, world, steps) {
        Ok(case) => {
            // Without counters ranks have nothing to do with each other.
            let one = pipeline.kernel.counters.is_empty() || undone(Fix::WarpOrder);
            let paces = if one {
                &[Pace::Late][..]
            } else {
                &[Pace::Late, Pace::Ahead]
            };
            let mut found = paces.iter().filter_map(|pace| execute::run(&case, *pace));
            found.next().into_iter().collect()
        }
        Err(found) => found.iter().cloned().collect::<Vec<_>>(),
    });
    found.find(|found| !found.is_empty()).unwrap_or_default()
}
