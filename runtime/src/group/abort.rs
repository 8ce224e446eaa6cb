//! End of a communicator, for one cause, the first: every rank gets it from every call from then on.
//!
//! A cause comes from a kernel, whose record says who waited too long for what; or from the host: a rank ended early, a
//! stream's wait lasted too long, somebody asked for the end. Kernels learn of the host's causes by a word in host
//! memory. They look at it about once in a millisecond while they wait, and then let everything drain.

use super::board::{self, Board};
use super::compared::Compared;
use super::ledger::Entry;
use super::refused::Refused;
use super::roll::{Gone, Roll};
use super::verdict::Verdict;
use super::within::Within;
use crate::cuda::{Cause, Told};
use crate::driver::{Address, Gpu, Pinned, Record};
use crate::error::{Error, Stall};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tracing::{debug, error};

/// The names of a kernel's roles and waits, by their numbers in records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Names {
    pub kernel: String,
    pub roles: Vec<String>,
    pub waits: Vec<Awaited>,
}

/// Cells that a role can wait for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Awaited {
    pub name: String,
    /// Index of a record's first cell.
    pub first: u32,
    /// Place in the schedule that waits for it.
    pub at: Option<String>,
}

/// End of a communicator, and its reason.
#[derive(Debug)]
pub(crate) struct End {
    verdict: Mutex<Option<Verdict>>,
    /// Not zero once it has: for kernels.
    word: Pinned<u32>,
    roll: Roll,
    refused: Refused,
    ranks: Vec<Rank>,
    /// If the ranks are processes: what they share, and which this one is.
    shared: Option<(Board, u32)>,
    /// If it is a group of a split: which ranks it has.
    group: OnceLock<Within>,
    /// True if its end is the outcome of a trial.
    trial: AtomicBool,
}

/// Names of a kernel that are known until this is dropped.
#[derive(Debug)]
pub(crate) struct Named {
    end: Weak<End>,
    rank: u32,
    kernel: u32,
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some(end) = self.end.upgrade() {
            // A record that nobody has looked at yet still has its names.
            let _ = end.verdict();
            lock(&end.ranks[self.rank as usize].kernels).remove(&self.kernel);
        }
    }
}

/// A launch of a graph that may be replayed: its name is known until this is dropped.
#[derive(Debug)]
pub(crate) struct Replayed {
    end: Weak<End>,
    rank: u32,
    tag: u64,
}

impl Drop for Replayed {
    fn drop(&mut self) {
        if let Some(end) = self.end.upgrade() {
            // As above.
            let _ = end.verdict();
            lock(&end.ranks[self.rank as usize].compared).forgets(self.tag);
        }
    }
}

/// State of a rank.
#[derive(Debug)]
struct Rank {
    record: Record,
    /// One more than the place of the latest launch that its GPU has compared, replays counted.
    far: Pinned<u64>,
    /// Kernels that the communicator loaded, by their numbers in it.
    kernels: Mutex<BTreeMap<u32, Names>>,
    /// Launches that the GPUs compare.
    compared: Mutex<Compared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl End {
    /// Of ranks on these GPUs.
    pub(crate) fn new(gpus: &[Gpu]) -> Result<End, Error> {
        let records = gpus
            .iter()
            .map(|gpu| Ok((Record::new(gpu)?, Pinned::new(gpu)?)));
        let records = records.collect::<Result<Vec<_>, Error>>()?;
        let first = gpus.first().ok_or_else(|| Error::Usage {
            what: "a communicator without ranks".into(),
            legal: "at least one".into(),
        })?;
        let roll = Roll::new(gpus.len());
        let refused = Refused::new(gpus.len());
        Ok(End::of(Pinned::new(first)?, records, roll, refused))
    }

    /// Of ranks that are processes, for one of them. Its GPU has the board at that address.
    pub(crate) fn apart(board: Board, rank: u32, world: u32, at: Address) -> End {
        let shared = |offset| (board.segment().clone(), offset, at.plus(offset));
        let records = (0..world).map(|rank| {
            let far = Pinned::shared(shared(Board::far(rank)));
            (Record::shared(shared(Board::record(rank))), far)
        });
        let word = Pinned::shared(shared(board::WORD));
        let roll = Roll::on(board.clone());
        End {
            shared: Some((board.clone(), rank)),
            ..End::of(word, records.collect(), roll, Refused::on(board, world))
        }
    }

    fn of(
        word: Pinned<u32>,
        records: Vec<(Record, Pinned<u64>)>,
        roll: Roll,
        refused: Refused,
    ) -> End {
        let ranks = records.into_iter().map(|(record, far)| Rank {
            record,
            far,
            kernels: Mutex::default(),
            compared: Mutex::default(),
        });
        let ranks: Vec<Rank> = ranks.collect();
        End {
            verdict: Mutex::default(),
            word,
            roll,
            refused,
            ranks,
            shared: None,
            group: OnceLock::new(),
            trial: AtomicBool::new(false),
        }
    }

    /// Of ranks without GPUs.
    #[cfg(test)]
    pub(crate) fn plain(world: usize) -> End {
        End::of(
            Pinned::plain(),
            (0..world)
                .map(|_| (Pinned::plain(), Pinned::plain()))
                .collect(),
            Roll::new(world),
            Refused::new(world),
        )
    }

    /// Writes a rank's record, as its kernel would.
    #[cfg(test)]
    pub(crate) fn record(&self, rank: u32, told: Told) {
        self.ranks[rank as usize].record.set(told);
    }

    /// Addresses of the record of a rank's kernels, and of the word by which the host ends the communicator.
    pub(crate) fn addresses(&self, rank: u32) -> [Address; 2] {
        [
            self.ranks[rank as usize].record.address(),
            self.word.address(),
        ]
    }

    /// Says what records of a rank's kernel with that number mean, until the result is dropped.
    pub(crate) fn name(end: &Arc<End>, (rank, kernel): (u32, u32), names: Names) -> Named {
        lock(&end.ranks[rank as usize].kernels).insert(kernel, names);
        Named {
            end: Arc::downgrade(end),
            rank,
            kernel,
        }
    }

    /// Address at which a rank's GPU says how far it is.
    pub(crate) fn far(&self, rank: u32) -> Address {
        self.ranks[rank as usize].far.address()
    }

    /// A rank left, and nothing of it runs any more. Ends the communicator if a peer's GPU has begun a launch that the rank's
    /// has not: a replay, which no host counts.
    pub(crate) fn misses_replays(&self, gone: u32) {
        let far = |rank: &Rank| rank.far.get();
        let made = far(&self.ranks[gone as usize]).max(self.launched(gone));
        let peers = self.ranks.iter().map(far).enumerate();
        let ahead = peers
            .filter(|(_, peer)| *peer > made)
            .max_by_key(|(_, peer)| *peer);
        if let Some((peer, begun)) = ahead {
            let how = self.how_left(gone);
            self.end(Verdict::Aborted(format!(
                "rank {gone} ended early: {how} after {made} launches, replays counted, and rank {peer} has begun {begun}"
            )));
        }
    }

    /// Notes that a rank's host lets its GPU compare a launch.
    pub(crate) fn compares(&self, rank: u32, entry: &Entry) {
        lock(&self.ranks[rank as usize].compared).launches(entry);
    }

    /// Notes that a rank's GPU compares a launch whenever a graph is replayed, for as long as the result is there.
    pub(crate) fn replays(end: &Arc<End>, rank: u32, entry: &Entry) -> Replayed {
        lock(&end.ranks[rank as usize].compared).replays(entry);
        Replayed {
            end: Arc::downgrade(end),
            rank,
            tag: entry.tag(),
        }
    }

    /// Two launches that differ, as a GPU found out. A process knows its own, which the peers' most often are, too.
    fn differing(&self, told: &Told) -> String {
        let knows = self.shared.as_ref().map_or(told.rank, |(_, own)| *own);
        let known = |rank: u32, tag: u64| {
            let ranks = [rank, knows]
                .into_iter()
                .filter_map(|rank| self.ranks.get(rank as usize));
            let mut found = ranks.filter_map(|rank| lock(&rank.compared).find(tag));
            let entry = found.next().map(|entry| entry.to_string());
            entry.unwrap_or_else(|| format!("something else ({tag:016x})"))
        };
        let Told {
            rank,
            what: peer,
            index: place,
            seen,
            wanted,
            role: earlier,
            ..
        } = *told;
        if earlier != 0 {
            return format!(
                "the ranks differ at or before launch {place} on their GPUs, replays counted: ranks {peer} and {rank} replay other launches there, or in another order"
            );
        }
        let (theirs, ours) = (known(peer, seen), known(rank, wanted));
        match seen == wanted {
            false => format!(
                "the ranks differ in launch {place} on their GPUs, replays counted: rank {peer} launches {theirs}; rank {rank} launches {ours}"
            ),
            true => format!(
                "the ranks differ in launch {place} on their GPUs, replays counted: of ranks {peer} and {rank} one replays {ours}, and the other launches it from its host"
            ),
        }
    }

    /// Ends the communicator for this cause, unless it has ended before. Gives the first cause.
    pub(crate) fn end(&self, cause: Verdict) -> Verdict {
        let mut verdict = lock(&self.verdict);
        let ended = verdict.is_some();
        let known = verdict.take().or_else(|| self.said());
        let first = match known.or_else(|| self.recorded()) {
            Some(first) => first,
            None => self.with_refusals(cause),
        };
        let first = self.say(first);
        if !ended {
            self.log(&first);
        }
        *verdict = Some(first.clone());
        // The cause is there before anybody can act on it.
        self.word.set(1);
        first
    }

    /// Reason that the communicator ended, if it has.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let mut verdict = lock(&self.verdict);
        if let Some(known) = &*verdict {
            return Some(known.clone());
        }
        let first = self.said().or_else(|| self.recorded())?;
        let first = self.say(first);
        self.log(&first);
        *verdict = Some(first.clone());
        self.word.set(1);
        Some(first)
    }

    fn log(&self, first: &Verdict) {
        let cause = Error::from(first.clone());
        match self.trial.load(Ordering::Relaxed) {
            true => debug!(%cause, "trial ended"),
            false => error!(%cause, "communicator ended"),
        }
    }

    /// Notes that its end is the outcome of a trial, which is no failure.
    pub(super) fn is_trial(&self) {
        self.trial.store(true, Ordering::Relaxed);
    }

    /// Verdict of another process, if one has one.
    fn said(&self) -> Option<Verdict> {
        self.shared.as_ref().and_then(|(board, _)| board.verdict())
    }

    /// Notes that it is of a group with these ranks.
    pub(super) fn within(&self, group: Within) {
        let _ = self.group.set(group);
    }

    /// Ranks of its group, if it is of one.
    pub(super) fn group(&self) -> Option<&Within> {
        self.group.get()
    }

    /// Tells the other processes. Gives the first cause.
    fn say(&self, first: Verdict) -> Verdict {
        let first = match self.group() {
            Some(group) => group.cause(first),
            None => first,
        };
        match &self.shared {
            Some((board, rank)) => board.say(*rank, &first),
            None => first,
        }
    }

    /// Fails if the communicator has ended.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        self.verdict()
            .map_or(Ok(()), |verdict| Err(Error::from(verdict)))
    }

    /// Counts a launch of a rank that peers wait for, which is about to be enqueued.
    ///
    /// # Errors
    /// If a peer was dropped that has not made this launch.
    pub(crate) fn launches(&self, rank: u32) -> Result<(), Error> {
        match self.roll.launches(rank) {
            None => Ok(()),
            Some(gone) => Err(self.end(self.missed(gone, rank)).into()),
        }
    }

    /// A rank's communicator is dropped, or its part of `each` ended. Ends the communicator for those who wait for what
    /// the rank does not launch, and for all if its thread panics.
    pub(crate) fn leaves(&self, rank: u32, how: Gone) {
        if std::thread::panicking() {
            self.end(Verdict::Aborted(format!("rank {rank} panicked")));
        }
        if let Some(peer) = self.roll.leaves(rank, how) {
            self.end(self.missed(rank, peer));
        }
    }

    /// A rank whose part of `each` had ended is there again.
    pub(crate) fn comes_back(&self, rank: u32) {
        self.roll.comes_back(rank);
    }

    /// Manner in which a rank left, and what it was refused before.
    pub(crate) fn how_left(&self, rank: u32) -> String {
        let refused = self.refused.of(rank);
        let refused = refused.map_or(String::new(), |what| format!(" (it was refused {what})"));
        format!("{}{refused}", self.roll.how(rank))
    }

    /// The cause if `gone` left before it made a launch that `rank` has made, or is about to make.
    pub(crate) fn missed(&self, gone: u32, rank: u32) -> Verdict {
        Verdict::Aborted(format!(
            "rank {gone} ended early: {} after {} launches, and rank {rank} has made {}",
            self.how_left(gone),
            self.launched(gone),
            self.launched(rank)
        ))
    }

    /// A rank was refused a launch that peers may wait for, before anything of it was enqueued.
    pub(crate) fn refuses(&self, rank: u32, what: &str) {
        self.refused.says(rank, what);
    }

    /// A rank launches again.
    pub(crate) fn goes_on(&self, rank: u32) {
        self.refused.goes_on(rank);
    }

    /// Adds the refusals of ranks that somebody may have waited for.
    fn with_refusals(&self, cause: Verdict) -> Verdict {
        match cause {
            Verdict::Stalled(mut stall) => {
                stall.refused = self.refused.all();
                Verdict::Stalled(stall)
            }
            other @ (Verdict::Differs(_) | Verdict::Aborted(_)) => other,
        }
    }

    /// A rank whose communicator was dropped.
    pub(crate) fn gone(&self) -> Option<u32> {
        self.roll.gone()
    }

    /// True if that rank's communicator was dropped.
    pub(crate) fn has_left(&self, rank: u32) -> bool {
        self.roll.has_left(rank)
    }

    /// Completes what a rank that left had enqueued.
    pub(crate) fn leaves_nothing(&self, rank: u32) {
        self.roll.ends(rank);
    }

    /// True if a rank left, with nothing enqueued any more.
    pub(crate) fn is_over(&self, rank: u32) -> bool {
        self.roll.is_over(rank)
    }

    /// True if nothing of a rank uses what another one had, which left. Ranks of one process have all in common.
    pub(crate) fn is_through(&self, rank: u32, with: u32) -> bool {
        let shared = self.shared.as_ref();
        shared.is_none_or(|(board, _)| board.is_through(rank, with))
    }

    /// Says that.
    pub(crate) fn gets_through(&self, rank: u32, with: u32) {
        if let Some((board, _)) = &self.shared {
            board.gets_through(rank, with);
        }
    }

    /// Number of launches that a rank has enqueued for which ranks wait for each other.
    pub(crate) fn launched(&self, rank: u32) -> u64 {
        self.roll.launched(rank)
    }

    /// Number of such launches of each rank.
    pub(crate) fn all_launched(&self) -> Vec<u64> {
        self.roll.all_launched()
    }

    /// The first cause that kernels recorded.
    fn recorded(&self) -> Option<Verdict> {
        /// Writing a record takes microseconds, and a process may have to wait for a core.
        const LATE: Duration = Duration::from_millis(500);
        let look = || first(self.ranks.iter().filter_map(|rank| rank.record.stall()));
        let mut first = look()?;
        let until = Instant::now() + LATE;
        // The record of who gave up in another process may come after those of whom it told. Nothing is given out before.
        while self.shared.is_some() && first.was_told() && Instant::now() < until {
            if let Some(said) = self.said() {
                return Some(said);
            }
            sleep(Duration::from_millis(1));
            first = look().unwrap_or(first);
        }
        Some(match first.cause() {
            Cause::TimeLimit | Cause::Barrier => self.with_refusals(self.stall(&first).into()),
            Cause::Differs => Verdict::Differs(self.differing(&first)),
            Cause::ToldByPeer | Cause::ToldByHost => Verdict::Aborted(format!(
                "rank {} was told to give up, and who told it left no cause",
                first.rank
            )),
        })
    }

    /// A record with its names.
    fn stall(&self, told: &Told) -> Stall {
        // All ranks load the same kernels under the same numbers, and a process knows its own.
        let knows = self.shared.as_ref().map_or(told.rank, |(_, own)| *own);
        let kernels = self.ranks.get(knows as usize).map(|rank| &rank.kernels);
        let names = kernels.and_then(|kernels| lock(kernels).get(&told.kernel).cloned());
        let names = names.unwrap_or_default();
        let role = names.roles.get(told.role as usize).cloned();
        let awaited = names.waits.get(told.what as usize).cloned();
        let awaited = awaited.unwrap_or_else(|| Awaited {
            name: format!("number {}", told.what),
            ..Awaited::default()
        });
        Stall {
            rank: told.rank,
            role: role.unwrap_or_else(|| format!("role {}", told.role)),
            block: Some(told.block),
            kernel: Some(names.kernel.clone()).filter(|name| !name.is_empty()),
            within: told.cause() == Cause::Barrier,
            waited_on: awaited.name,
            index: Some(told.index.saturating_sub(awaited.first)),
            seen: Some(told.seen),
            wanted: told.wanted,
            at: awaited.at,
            group: None,
            stands_in: None,
            enqueued: self.all_launched(),
            refused: Vec::new(),
        }
    }
}

/// The record of the first that gave up of itself, by the GPUs' clocks; else of one that was told to. A rank that was
/// told never is the first.
fn first(told: impl Iterator<Item = Told>) -> Option<Told> {
    told.min_by_key(|told| (told.was_told(), told.time))
}

#[cfg(test)]
mod tests;
