//! Trials of candidates: memory for their launches, the kernels, and rounds through all of them.
//!
//! What peers wait for is launched in a communicator of its own, whose kernels give up soon. A trial that stalls, fails or meets
//! another library's or another communicator's kernel ends that one alone. All ranks hear what came of it by the op's communicator,
//! which launches nothing meanwhile.

#[cfg(test)]
#[path = "trial/tests.rs"]
mod tests;

#[path = "trial/compile.rs"]
mod compile;
#[path = "trial/faults.rs"]
mod faults;
#[path = "trial/memory.rs"]
mod memory;

use super::super::typed::Launcher;
use super::OpBuilder;
use super::proofs::Proven;
use crate::communicator::Communicator;
use crate::driver::Event;
use crate::error::Error;
use crate::launch::Loaded;
use crate::tuning::{Effort, GaveUp, Times, Tried, Tuning, agreed, read, text};
use faults::Fault;
use memory::Memory;
use std::time::{Duration, Instant};
use tracing::{debug, info};

/// Candidates of a measurement.
#[derive(Clone, Copy)]
pub(super) struct Contest<'a> {
    pub candidates: &'a [Proven],
    /// Bytes of the heap that the model's choice takes.
    pub least: u64,
    pub tuning: Tuning,
    pub effort: Effort,
    /// True if each rank measures by itself.
    pub alone: bool,
}

/// Limits of a trial's waits.
#[derive(Clone, Copy)]
struct Limits {
    /// Of a kernel, for a peer.
    kernel: Duration,
    /// Of the host, for a round.
    host: Duration,
}

impl Limits {
    fn of(rank: &Communicator, tuning: Tuning) -> Limits {
        let limits = Limits::within(tuning, rank.timeout());
        // An emulated launch takes as long as it takes.
        let kernel = match rank.gpu().is_emulated() {
            true => rank.timeout(),
            false => return limits,
        };
        let kernel = faults::patience().unwrap_or(kernel);
        Limits {
            kernel,
            host: Limits::of_host(tuning, kernel),
        }
    }

    /// Limits beside kernels that wait for a peer no longer than `timeout`. If a trial keeps that peer from running, it gives up
    /// long before.
    fn within(tuning: Tuning, timeout: Duration) -> Limits {
        let kernel = tuning.patience().min(timeout / 4);
        Limits {
            kernel,
            host: Limits::of_host(tuning, kernel).min(timeout / 2),
        }
    }

    fn of_host(tuning: Tuning, kernel: Duration) -> Duration {
        kernel.saturating_mul(2).saturating_add(tuning.patience())
    }
}

impl<S: Launcher> OpBuilder<'_, S> {
    /// The times of those candidates that can be loaded, with their places; or why there are none, the same on all ranks. When
    /// the budget is spent, however long launches take, rounds end: the least that give a median come first.
    ///
    /// # Errors
    /// Why the op's communicator has ended. No trial ends it.
    pub(super) fn times(
        &self,
        contest: Contest<'_>,
    ) -> Result<Result<Vec<(usize, Times)>, GaveUp>, Error> {
        let Contest { tuning, alone, .. } = contest;
        let limits = Limits::of(self.rank, tuning);
        // Once before compiling, which may take longer than work on the GPU waits for a peer that comes after it.
        for compiled in [false, true] {
            if compiled {
                self.compiles(contest)?;
            }
            let busy = first_said(self.rank, alone, &busy_after(self.rank, limits.host)?)?;
            if let Some(why) = busy {
                let stalled = false;
                return Ok(Err(GaveUp { why, stalled }));
            }
        }
        let tried = match alone {
            true => self.tried(self.rank, contest, limits),
            false => self.tried_apart(contest, limits),
        };
        self.rank.alive()?;
        let own: Tried = tried.map_err(|error| (error.kind().to_owned(), error.to_string()));
        if alone {
            return Ok(agreed(vec![own]));
        }
        let said = self.rank.shares(&text(&own))?;
        let each = said.iter().zip(0..).map(|(said, rank)| read(said, rank));
        Ok(agreed(each.collect::<Result<_, _>>()?))
    }

    /// Tries candidates in a communicator of their own.
    fn tried_apart(
        &self,
        contest: Contest<'_>,
        limits: Limits,
    ) -> Result<Vec<(usize, Times)>, Error> {
        let trial = self.rank.trial(limits.kernel)?;
        let room = trial.control_bytes() + self.heap_to_measure(contest.candidates);
        let tried = trial.reserve(room);
        let tried = tried.and_then(|()| self.tried(&trial, contest, limits));
        if let Err(error) = &tried {
            // Peers that wait for this rank there hear of it at once.
            trial.ended_early(&error.to_string());
        }
        if !trial.gives_back(limits.host) {
            debug!(rank = self.rank.rank(), "a trial's kernels have yet to end");
        }
        tried
    }

    /// Tries candidates in that communicator.
    fn tried(
        &self,
        rank: &Communicator,
        contest: Contest<'_>,
        limits: Limits,
    ) -> Result<Vec<(usize, Times)>, Error> {
        let Contest {
            candidates,
            least,
            tuning,
            effort,
            alone,
        } = contest;
        let mut memory = Memory::new(rank, candidates, limits.host)?;
        let any = |own| any(rank, alone, own);
        let room = self.rank.heap_use();
        let room = room.reserved.saturating_sub(room.used);
        let (mut loaded, mut why) = (Vec::new(), None);
        for (at, candidate) in candidates.iter().enumerate() {
            let kernels = self.loaded(rank, candidate, "candidates");
            let kernels =
                kernels.and_then(|kernels| faults::fails(Fault::Refuses).map(|()| kernels));
            if let Err(error) = &kernels {
                rank.alive()?;
                info!(rank = rank.rank(), %error, "a candidate is left out");
            }
            // The program reserves what the model's choice takes, unless it asks `workspace`.
            let takes = self.memory(std::slice::from_ref(candidate)).heap;
            let fits = takes <= least || takes.saturating_mul(self.most_buckets()) <= room;
            let own = match (&kernels, fits) {
                (Err(error), _) => Some(error.to_string()),
                (Ok(_), false) => Some(format!(
                    "{takes} bytes of the heap, of which {room} are free"
                )),
                (Ok(_), true) => None,
            };
            let left_out = match first_said(rank, alone, &own) {
                // Another rank refused it while this one was here already, and asks as well now.
                Err(told) if rank.alive().is_ok() => {
                    first_said(rank, alone, &own.or(Some(told.to_string())))
                }
                said => said,
            }?;
            if let (Ok(kernels), None) = (kernels, &left_out) {
                loaded.push((at, kernels));
            }
            why = why.or(left_out);
        }
        if loaded.len() < 2 {
            return Err(Error::Usage {
                what: format!(
                    "fewer than two candidates load and fit into the heap: {}",
                    why.unwrap_or_default()
                ),
                legal: "two to compare".into(),
            });
        }
        faults::fails(Fault::Fails)?;
        // Last, of what memory is left.
        memory.adds_sets(rank)?;
        // An emulated launch takes milliseconds.
        let effort = match rank.gpu().is_emulated() {
            true => Effort {
                launches: 1,
                ..effort
            },
            false => effort,
        };
        let launch = |(at, kernels): &(usize, Vec<Loaded>)| -> Result<(), Error> {
            if faults::is(Fault::Silent) {
                return Ok(());
            }
            let candidate = &candidates[*at];
            let mut stages = candidate.stages.iter().zip(kernels).peekable();
            for tensors in memory.tensors(candidate) {
                let Some((proof, loaded)) = stages.next() else {
                    break;
                };
                // As the op launches them: a product begins while the gather before it waits for peers.
                let next = stages.peek().map(|(proof, next)| (*next, &*proof.largest));
                loaded.launch_before(rank, &proof.largest, &tensors, next)?;
            }
            Ok(())
        };
        let stream = rank.own_stream();
        let seconds = |begun: &Event, ended: Event| {
            rank.waits_at_most(limits.host)?;
            Ok::<_, Error>(ended.since(begun)?.as_secs_f64())
        };
        let mut samples = vec![Vec::new(); loaded.len()];
        let begun = Event::record(stream)?;
        loaded.iter().try_for_each(launch)?;
        let first = seconds(&begun, Event::record(stream)?)?;
        // Ranks begin a round together, and end together. Another candidate is the first in each.
        effort.rounds(tuning.budget(), first, any, |round, launches| {
            let begun = Event::record(stream)?;
            let mut events = Vec::new();
            for turn in 0..loaded.len() {
                let at = (round as usize + turn) % loaded.len();
                // What ranks wait for each other until all have begun is not timed.
                launch(&loaded[at])?;
                let start = Event::record(stream)?;
                (0..launches).try_for_each(|_| launch(&loaded[at]))?;
                events.push((at, start, Event::record(stream)?));
            }
            let spent = seconds(&begun, Event::record(stream)?)?;
            for (at, start, end) in events {
                let each = end.since(&start)?.as_secs_f64() / f64::from(launches);
                samples[at].push(each * 1e6);
            }
            Ok(spent)
        })?;
        let times = samples.into_iter().filter_map(Times::of);
        let places = loaded.iter().map(|(at, _)| *at);
        Ok(places.zip(times).collect())
    }

    /// Number of buckets, at most.
    fn most_buckets(&self) -> u64 {
        self.buckets.len() as u64 + 1
    }
}

/// Work on this rank's GPU that does not end within `limit`. It may wait for a peer, which candidates would keep waiting.
fn busy_after(rank: &Communicator, limit: Duration) -> Result<Option<String>, Error> {
    let start = Instant::now();
    if rank.waits_at_most(limit).is_err() {
        rank.alive()?;
        return Ok(Some("earlier work of a rank does not end".into()));
    }
    let quiet = rank.is_quiet_within(limit.saturating_sub(start.elapsed()))?;
    Ok((!quiet).then(|| "another communicator's launch on one of the GPUs does not end".into()))
}

/// What the first rank of a communicator says that says something, or this one if it asks alone.
pub(super) fn first_said(
    rank: &Communicator,
    alone: bool,
    own: &Option<String>,
) -> Result<Option<String>, Error> {
    if alone {
        return Ok(own.clone());
    }
    let said = rank.shares(&text(own))?;
    let each = said.iter().zip(0..).map(|(said, rank)| read(said, rank));
    let each = each.collect::<Result<Vec<Option<String>>, _>>()?;
    Ok(each.into_iter().flatten().next())
}

/// True if that is so on any rank of a communicator, or on this one if it asks alone.
pub(super) fn any(rank: &Communicator, alone: bool, own: bool) -> Result<bool, Error> {
    if alone {
        return Ok(own);
    }
    let said = rank.shares(&text(&own))?;
    let mut each = said.iter().zip(0..);
    each.try_fold(false, |any, (said, rank)| {
        Ok(any | read::<bool>(said, rank)?)
    })
}
