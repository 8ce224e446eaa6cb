//! Runs all warps of a few ranks on a small case, and says what goes wrong.
//!
//! The case has ragged chunks, tiles and pieces, so that every kind of edge occurs, and two launches, so that what one
//! leaves behind is seen. Where warpgroups end a tile one after another there are more cases, of fewer steps. Control does not
//! depend on timing, and orderings are tracked by what each agent has seen complete, not by when things happened; so one run
//! finds a missing order whatever the timing of a real one would be.
//!
//! Checked: every barrier's phase is waited for as it comes; no slot is touched before its last user is done with it;
//! ordinary accesses and the async proxy are fenced from each other; groups are waited for before what they moved is
//! announced or reused; every product, panel and store is of the rows, columns and depth it should be, of the
//! value the schedule stores, and outputs are covered; rows that a stage still holds of an earlier step, since none of
//! their strip exists, are in no row or column that is stored; what comes early awaits the launches before ahead of every access
//! of global memory and before it ends; counters order what other ranks do, over two launches; no signal is held back over a wait that
//! another rank must answer; boxes stay within their chunk; no one waits for ever.
//!
//! Not modelled: lanes of a warp (`SyncWarp`), values and registers (`MmaFence`), swizzles and descriptors, bank
//! conflicts, time, and the host's copies: a schedule with a copy engine is run without waiting for what it signals.

mod case;
mod content;
mod execute;
mod flatten;
mod memory;
mod seen;
mod step;
mod story;
mod values;

use super::Pipeline;
use crate::diag::Diagnostic;
use crate::early;

/// What is wrong with a pipeline: the first thing that goes wrong.
pub(crate) fn findings(pipeline: &Pipeline) -> Vec<Diagnostic> {
    if pipeline.early && !early::possible(&pipeline.kernel) {
        return vec![story::comes_early()];
    }
    // Stages hold all of a short tile: then a warpgroup that ends it first could be through with the next one, too, before the
    // other one has looked.
    let short = if pipeline.staggered {
        pipeline.rings[0].slots
    } else {
        0
    };
    let cases = [None].into_iter().chain((1..=short).map(Some));
    let mut found = cases.map(|steps| match case::Case::new(pipeline, steps) {
        Ok(case) => execute::run(&case).into_iter().collect(),
        Err(found) => found.iter().cloned().collect::<Vec<_>>(),
    });
    found.find(|found| !found.is_empty()).unwrap_or_default()
}
