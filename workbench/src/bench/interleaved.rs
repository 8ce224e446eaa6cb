//! Interleaved sampling: each candidate once per round, each round in another order. So none always follows the same
//! other, and none always gets the clock that recovered while the GPU was idle.

use super::meter::{self, Reading};
use super::stats::{self, Spread};
use counterflow_runtime::Communicator;
use counterflow_runtime::Error;
use counterflow_runtime::driver::Event;
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A candidate.
pub(super) struct Contender<'a> {
    /// Launches once on that set of operands.
    pub launch: Box<dyn Fn(usize) -> Result<(), Error> + 'a>,
    /// True if the ranks start its samples together.
    pub together: bool,
}

/// A candidate's back-to-back run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Sustained {
    /// Seconds a launch.
    pub seconds: f64,
    /// Spread of each whole second of the second half. None if that is shorter than a second.
    pub windows: Option<Spread>,
    /// The GPU's state meanwhile.
    pub reading: Option<Reading>,
}

/// The largest of the ranks' values: common decisions must not depend on one rank's clock.
pub(super) struct Exchange(Mutex<Vec<f64>>);

impl Exchange {
    pub(super) fn new(world: usize) -> Exchange {
        Exchange(Mutex::new(vec![0.0; world]))
    }

    pub(super) fn most(&self, rank: &Communicator, value: f64) -> Result<f64, Error> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lock()[rank.rank() as usize] = value;
        rank.barrier()?;
        let most = lock().iter().copied().fold(f64::NEG_INFINITY, f64::max);
        rank.barrier()?;
        Ok(most)
    }
}

/// The sampling on one rank.
pub(super) struct Interleaved<'a> {
    pub rank: &'a Communicator,
    pub exchange: &'a Exchange,
    pub contenders: &'a [Contender<'a>],
    /// Sets of operands, used in rotation.
    pub sets: usize,
    pub next: Cell<usize>,
}

/// A sample on the GPU: its start and end.
type Sample = (Event, Event);

impl Interleaved<'_> {
    fn launch(&self, contender: &Contender<'_>) -> Result<(), Error> {
        let set = self.next.get();
        self.next.set((set + 1) % self.sets);
        (contender.launch)(set)
    }

    /// Enqueues one candidate's sample. The lead before it is not timed: it hides the host's time for the first launch,
    /// and makes ranks that launch together start together.
    fn sample(&self, contender: &Contender<'_>, launches: u32) -> Result<Sample, Error> {
        let lead = if contender.together {
            self.rank.synchronize()?;
            self.rank.barrier()?;
            2
        } else {
            1
        };
        for _ in 0..lead {
            self.launch(contender)?;
        }
        let start = Event::record(self.rank.stream())?;
        for _ in 0..launches {
            self.launch(contender)?;
        }
        Ok((start, Event::record(self.rank.stream())?))
    }

    /// One round, from candidate `first` on: seconds per launch of each.
    fn round(&self, first: usize, launches: &[u32]) -> Result<Vec<f64>, Error> {
        let count = self.contenders.len();
        let mut taken: Vec<Option<Sample>> = (0..count).map(|_| None).collect();
        for turn in 0..count {
            let which = (first + turn) % count;
            taken[which] = Some(self.sample(&self.contenders[which], launches[which])?);
        }
        self.rank.synchronize()?;
        let seconds = taken.iter().flatten().zip(launches);
        seconds
            .map(|((start, end), launches)| {
                Ok(end.since(start)?.as_secs_f64() / f64::from(*launches))
            })
            .collect()
    }

    /// Launches per sample of each candidate. All ranks get the same numbers.
    pub(super) fn launches(&self) -> Result<Vec<u32>, Error> {
        let few = vec![2; self.contenders.len()];
        self.round(0, &few)?;
        let seconds = self.round(0, &few)?;
        let counts = seconds.iter().zip(self.contenders);
        counts
            .map(|(seconds, contender)| {
                // Ranks start slightly apart once per sample.
                let least = if contender.together { 5 } else { 1 };
                let seconds = self.exchange.most(self.rank, *seconds)?;
                Ok(stats::launches(seconds, least))
            })
            .collect()
    }

    /// Runs rounds until the clock is steady: for `seconds`, in which a GPU notices that it draws too much power, and
    /// then until three in a row agree within 1 %, at most twice as long. Gives the seconds of a round by the host's
    /// clock, on the slowest rank.
    pub(super) fn settle(&self, launches: &[u32], seconds: f64) -> Result<f64, Error> {
        let (mut before, mut same, mut round) = (0.0, 0, 0);
        let begin = Instant::now();
        loop {
            let now: f64 = self.round(round, launches)?.iter().sum();
            let change = (now - before).abs() / now.max(1e-9);
            let change = self.exchange.most(self.rank, change)?;
            let elapsed = begin.elapsed().as_secs_f64();
            let elapsed = self.exchange.most(self.rank, elapsed)?;
            same = if change < 0.01 { same + 1 } else { 0 };
            (before, round) = (now, round + 1);
            if elapsed >= 2.0 * seconds || (elapsed >= seconds && same >= 3) {
                return Ok(elapsed / round as f64);
            }
        }
    }

    /// The samples of each candidate, in seconds per launch.
    pub(super) fn samples(&self, launches: &[u32], count: usize) -> Result<Vec<Vec<f64>>, Error> {
        let mut all = vec![Vec::with_capacity(count); self.contenders.len()];
        for round in 0..count {
            let seconds = self.round(round, launches)?;
            for (all, seconds) in all.iter_mut().zip(seconds) {
                all.push(seconds);
            }
        }
        Ok(all)
    }

    /// Each candidate alone, back to back: seconds per launch, and the GPU's state meanwhile.
    pub(super) fn sustained(&self, seconds: f64, each: &[f64]) -> Result<Vec<Sustained>, Error> {
        // The first candidate must not profit from a cool chip, so a quarter of the time runs before it.
        let lead = self.contenders.first().zip(each.first());
        if let Some((contender, each)) = lead {
            self.row(contender, seconds / 4.0, *each)?;
        }
        let all = self.contenders.iter().zip(each);
        all.map(|(contender, each)| {
            let (took, reading) =
                meter::watch(self.rank.gpu(), || self.row(contender, seconds, *each));
            let (seconds, windows) = took?;
            Ok(Sustained {
                seconds,
                windows: (!windows.is_empty()).then(|| Spread::of(&windows)),
                reading,
            })
        })
        .collect()
    }

    /// One candidate back to back for about this long: seconds per launch, also for each second of the second half.
    fn row(
        &self,
        contender: &Contender<'_>,
        seconds: f64,
        each: f64,
    ) -> Result<(f64, Vec<f64>), Error> {
        /// Launches that are enqueued at once, in seconds.
        const GROUP: f64 = 0.02;
        let each = self.exchange.most(self.rank, each)?.max(1e-6);
        let group = (GROUP / each).ceil().clamp(1.0, 256.0) as u32;
        let groups = (seconds / (each * f64::from(group))).ceil().max(1.0) as u32;
        self.rank.synchronize()?;
        self.rank.barrier()?;
        let start = Event::record(self.rank.stream())?;
        let mut ends: Vec<Event> = Vec::new();
        for done in 0..groups as usize {
            for _ in 0..group {
                self.launch(contender)?;
            }
            ends.push(Event::record(self.rank.stream())?);
            // Two groups are in flight at any time, so that neither the GPU nor the host waits for the other.
            if let Some(before) = done.checked_sub(1) {
                ends[before].wait()?;
            }
        }
        self.rank.synchronize()?;
        let ends = ends.iter().map(|end| Ok(end.since(&start)?.as_secs_f64()));
        let ends = ends.collect::<Result<Vec<_>, Error>>()?;
        let took = ends.last().copied().unwrap_or(0.0);
        Ok((
            took / f64::from(group * groups),
            stats::windows(&ends, group),
        ))
    }
}
