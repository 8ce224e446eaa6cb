//! All interleavings of a small case.
//!
//! A depth-first search over every choice of the next worker. It skips a state if it has seen one with the same
//! positions of all workers (workers of one agent are interchangeable) and the same record of memory. Nothing else
//! decides what may still fail: a cell's value is the sum of the signals so far, which the positions determine; and an
//! item's clock depends on the signals that must precede the end of its waits, not on their order. Workers claim as
//! soon as they can: a claim accesses nothing, so its time is no choice.
//!
//! There is no partial-order reduction, on purpose. The verifier argues that one run decides progress and that clocks
//! decide races in any order ([`counterflow_codegen::verify`]). This search relies on neither, so it can test both.

use super::emulator::Emulator;
use super::failure::{Failure, FailureKind};
use super::setup::{Setup, of_series};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::verify::Checked;
use counterflow_codegen::verify::Series;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};

/// The result of a search.
///
/// ```
/// use counterflow_emulator::{self as interp, Explored};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let Explored { states, complete } = interp::explore(&series, &[&plan], 1, 10_000)?;
/// println!("{states} states, {}", if complete { "all" } else { "and more" });
/// let unchecked = interp::provoke_all(series.kernel(), &[vec![&*plan]], 1, 10_000)?;
/// assert_eq!(unchecked.states, states);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explored {
    /// Distinct states.
    pub states: u64,
    /// True if these are all states. Otherwise the limit was reached.
    pub complete: bool,
}

/// Searches all interleavings of launches of a series with `workers` workers per role, up to `limit` states.
///
/// # Errors
/// A plan of another series, or the first failure, with the schedule that leads to it.
pub fn explore(
    series: &Series,
    launches: &[&Checked<Plan>],
    workers: u32,
    limit: u64,
) -> Result<Explored, Failure> {
    let plans = of_series(series, launches)?;
    provoke_all(series.kernel(), &plans, workers, limit)
}

/// As [`explore`], for unchecked kernels and plans; see [`crate::provoke`].
///
/// # Errors
/// The first failure, with the schedule that leads to it.
///
/// # Panics
/// As [`crate::provoke`].
pub fn provoke_all(
    kernel: &Kernel,
    launches: &[Vec<&Plan>],
    workers: u32,
    limit: u64,
) -> Result<Explored, Failure> {
    let setup = Setup::new(kernel, launches);
    let emulator = Emulator::new(&setup, |_| workers, false);
    let mut seen = HashSet::from([digest(&emulator)]);
    // Each level: a state and how many of its turns have been taken.
    let mut path: Vec<(Emulator<'_>, usize)> = vec![(emulator, 0)];
    let mut complete = true;
    while let Some((emulator, tried)) = path.last_mut() {
        let Some(&turn) = emulator.ready.get(*tried) else {
            if emulator.ready.is_empty() && !emulator.done() {
                let kind = emulator.deadlock();
                return Err(failed(kind, &path));
            }
            path.pop();
            continue;
        };
        *tried += 1;
        let mut next = emulator.clone();
        if let Err(kind) = next.take(turn, &mut |_, _| {}) {
            return Err(failed(kind, &path));
        }
        if seen.insert(digest(&next)) {
            if seen.len() as u64 > limit {
                complete = false;
                break;
            }
            path.push((next, 0));
        }
    }
    Ok(Explored {
        states: seen.len() as u64,
        complete,
    })
}

fn failed(kind: Box<FailureKind>, path: &[(Emulator<'_>, usize)]) -> Failure {
    let taken = path.iter().filter(|(_, tried)| *tried > 0);
    let schedule = taken.map(|(emulator, tried)| {
        let at = emulator.ready.get(tried - 1).or(emulator.ready.last());
        at.map(|turn| emulator.site_of(*turn))
    });
    Failure {
        kind,
        seed: 0,
        steps: path.len() as u64,
        schedule: schedule.into_iter().flatten().collect(),
    }
}

/// 128 bits: with 2^24 states two of them collide with a chance below 2^-80.
fn digest(emulator: &Emulator<'_>) -> (u64, u64) {
    let mut both = (DefaultHasher::new(), DefaultHasher::new());
    both.1.write_u8(1);
    emulator.digest(&mut both.0);
    emulator.digest(&mut both.1);
    (both.0.finish(), both.1.finish())
}
