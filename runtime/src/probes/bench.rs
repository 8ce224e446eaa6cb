//! What all probes of a rank share: its stream, its kernels, its clock.

use crate::communicator::Communicator;
use crate::cuda::Probes;
use crate::driver::{Event, Stream};
use crate::error::Error;

/// Runs of each probe; the median counts.
const RUNS: usize = 5;

pub(super) struct Bench<'a> {
    pub rank: &'a Communicator,
    pub probes: &'a Probes,
    /// Apart from the rank's own: probes run beside its launches.
    pub stream: Stream,
}

impl<'a> Bench<'a> {
    pub fn new(rank: &'a Communicator, probes: &'a Probes) -> Result<Bench<'a>, Error> {
        Ok(Bench {
            rank,
            probes,
            stream: rank.gpu().stream()?,
        })
    }

    /// The median of seconds between the start and the end of `run`, on the GPU's clock. It is given the number of the run;
    /// the first one is not timed. `ready` comes before each, and is not timed.
    pub fn seconds(
        &self,
        ready: impl Fn() -> Result<(), Error>,
        run: impl Fn(usize) -> Result<(), Error>,
    ) -> Result<f64, Error> {
        let mut each = Vec::new();
        for at in 0..=RUNS {
            ready()?;
            let start = Event::record(&self.stream)?;
            run(at)?;
            let end = Event::record(&self.stream)?;
            end.wait()?;
            each.push(end.since(&start)?.as_secs_f64());
        }
        let timed = &mut each[1..];
        timed.sort_by(f64::total_cmp);
        Ok(timed[RUNS / 2])
    }
}
