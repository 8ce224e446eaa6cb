//! The times of all candidates of a product on a rank.

use super::interleaved::{Contender, Interleaved};
use super::meter;
use super::stats::{self, Spread};
use super::task::{Measured, Task};
use counterflow_runtime::{Communicator, Error};
use std::cell::Cell;
use std::time::Instant;

/// Times all contenders, on so many sets of operands, from what was begun then. Collective.
pub(super) fn timed(
    rank: &Communicator,
    task: &Task<'_>,
    (begin, sets): (Instant, usize),
    contenders: &[Contender<'_>],
    measured: Measured,
) -> Result<Measured, Error> {
    let interleaved = Interleaved {
        rank,
        exchange: task.exchange,
        contenders,
        sets,
        next: Cell::new(0),
    };
    let launches = interleaved.launches()?;
    let left = |budget: f64| -> Result<f64, Error> {
        let spent = begin.elapsed().as_secs_f64();
        Ok(budget - task.exchange.most(rank, spent)?)
    };
    let warm = match task.budget {
        Some(budget) => stats::settling(left(budget)?, task.warm),
        None => task.warm,
    };
    let round = interleaved.settle(&launches, warm)?;
    let samples = match task.budget {
        Some(budget) => stats::affordable(left(budget)?, round, task.samples),
        None => task.samples,
    };
    let (seconds, reading) = meter::watch(rank.gpu(), || interleaved.samples(&launches, samples));
    let seconds = seconds?;
    let sustained = match task.sustained {
        Some(long) => {
            let each = seconds.iter().map(|samples| Spread::of(samples).median);
            interleaved.sustained(long, &each.collect::<Vec<_>>())?
        }
        None => Vec::new(),
    };
    rank.synchronize()?;
    // No rank frees memory while a peer's kernel may still use it.
    rank.barrier()?;
    Ok(Measured {
        seconds,
        launches,
        reading,
        sustained,
        ..measured
    })
}
