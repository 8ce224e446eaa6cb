//! Times of steps: each is that of the slowest rank.
#![allow(unsafe_code)]

use crate::Options;
use counterflow::driver::Event;
use counterflow::{Communicator, Error};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Numbers that the ranks tell each other, by rank.
pub type Told = Mutex<Vec<Vec<f64>>>;

/// Clock of a rank. Every rank makes the same calls.
pub struct Clock<'a> {
    /// All ranks, whatever groups they are in.
    pub world: &'a Communicator,
    /// The rank whose stream is timed.
    pub rank: &'a Communicator,
    pub told: &'a Told,
    pub options: &'a Options,
}

impl Clock<'_> {
    /// The largest of each number over ranks.
    pub fn most(&self, own: Vec<f64>) -> Result<Vec<f64>, Error> {
        let told = || self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told()[self.world.rank() as usize] = own;
        self.world.barrier()?;
        let most = {
            let all = told();
            let length = all.iter().map(Vec::len).min().unwrap_or(0);
            // Not a number is the most there is.
            let larger = |a: f64, b: f64| if a >= b || a.is_nan() { a } else { b };
            let of = |at: usize| all.iter().map(move |of| of[at]).fold(0.0, larger);
            (0..length).map(of).collect()
        };
        self.world.barrier()?;
        Ok(most)
    }

    fn mark(&self) -> Result<Event, Error> {
        let mut made = None;
        // Others are not given the stream, so that launches there begin as early as they do in a program of layers alone.
        let step = self.rank.step(self.rank);
        // SAFETY: no kernel is launched.
        unsafe {
            step.launch(|running| {
                made = Some(Event::record(running.stream())?);
                Ok(())
            })?;
        }
        made.ok_or_else(|| Error::Usage {
            what: "an event that was not recorded".into(),
            legal: "report it".into(),
        })
    }

    /// Median, p10 and p90 of a step's time in milliseconds, after some that warm up: between events on the GPU, one step behind the
    /// other, without a wait of the host.
    pub fn steps(&self, mut run: impl FnMut() -> Result<(), Error>) -> Result<[f64; 3], Error> {
        self.rank.synchronize()?;
        self.world.barrier()?;
        run()?;
        self.rank.synchronize()?;
        let begun = Instant::now();
        for _ in 0..3 {
            run()?;
        }
        self.rank.synchronize()?;
        let one = self.most(vec![begun.elapsed().as_secs_f64() / 3.0])?[0];
        // The same number on each rank: steps wait for the peers'.
        let warm = (self.options.warm / one.max(1e-5)) as usize;
        for _ in 0..warm.clamp(3, 3000) {
            run()?;
        }
        let mut events = Vec::new();
        for _ in 0..self.options.samples {
            let begun = self.mark()?;
            run()?;
            events.push((begun, self.mark()?));
        }
        self.rank.synchronize()?;
        let times = events.iter().map(|(begun, ended)| ended.since(begun));
        let times = times.map(|time| Ok(1e3 * time?.as_secs_f64()));
        Ok(spread(self.most(times.collect::<Result<_, Error>>()?)?))
    }

    /// The same of the host's time to enqueue a step, where it never waits for room.
    pub fn host(&self, mut run: impl FnMut() -> Result<(), Error>) -> Result<[f64; 3], Error> {
        let mut times = Vec::new();
        for _ in 0..self.options.samples {
            self.rank.synchronize()?;
            self.world.barrier()?;
            let begun = Instant::now();
            run()?;
            times.push(1e3 * begun.elapsed().as_secs_f64());
        }
        self.rank.synchronize()?;
        Ok(spread(self.most(times)?))
    }
}

/// Median, p10, p90.
fn spread(mut of: Vec<f64>) -> [f64; 3] {
    of.sort_by(f64::total_cmp);
    let n = of.len();
    if n == 0 {
        return [f64::NAN; 3];
    }
    let middle = (of[(n - 1) / 2] + of[n / 2]) / 2.0;
    [middle, of[n / 10], of[n * 9 / 10]]
}
