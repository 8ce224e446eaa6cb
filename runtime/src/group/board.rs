//! The memory that the processes of a communicator share beside its heap: how it ends, how far each rank is, what kernels
//! record, and the ledger.

use super::roll::Counts;
use super::verdict::Verdict;
use crate::cuda::Told;
use crate::shared::Segment;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Whether there is a verdict: one of the states below.
const STATE: u64 = 0;
const NONE: u64 = 0;
const BEING_WRITTEN: u64 = 1;
const WRITTEN: u64 = 2;
/// The word that tells kernels to give up.
pub(super) const WORD: u64 = 128;
/// The verdict's length, and the verdict.
const LENGTH: u64 = 256;
const TEXT: u64 = 4096;
const MOST_TEXT: usize = 12 << 10;
/// What is of each rank.
const RANKS: u64 = 16 << 10;
const RANK: u64 = 1 << 10;
const LAUNCHED: u64 = 0;
const LEFT: u64 = 128;
const WROTE: u64 = 256;
const COMPARED: u64 = 384;
const RECORD: u64 = 512;
const _: () = assert!(RECORD + Told::BYTES as u64 <= RANK);

/// That memory.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    segment: Arc<Segment>,
    world: u32,
}

impl Board {
    /// In that segment.
    pub fn new(segment: Arc<Segment>, world: u32) -> Board {
        Board { segment, world }
    }

    /// Where the ledger begins: how many bytes all the rest has.
    pub fn ledger(world: u32) -> u64 {
        (RANKS + u64::from(world) * RANK).next_multiple_of(4096)
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    fn of(&self, rank: u32, what: u64) -> &AtomicU64 {
        self.segment.word(RANKS + u64::from(rank) * RANK + what)
    }

    /// Where a rank's kernels write their record.
    pub fn record(rank: u32) -> u64 {
        RANKS + u64::from(rank) * RANK + RECORD
    }

    /// How many launches a rank has written into the ledger.
    pub fn wrote(&self, rank: u32) -> &AtomicU64 {
        self.of(rank, WROTE)
    }

    /// How many of them it has compared with its peers'.
    pub fn compared(&self, rank: u32) -> &AtomicU64 {
        self.of(rank, COMPARED)
    }

    /// The verdict, if there is one.
    pub fn verdict(&self) -> Option<Verdict> {
        if self.segment.word(STATE).load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        let length = self.segment.word(LENGTH).load(Ordering::Acquire) as usize;
        let mut text = vec![0; length.min(MOST_TEXT)];
        self.segment.read(TEXT, &mut text);
        let verdict = std::str::from_utf8(&text)
            .ok()
            .and_then(|text| toml::from_str(text).ok());
        Some(verdict.unwrap_or_else(unsaid))
    }

    /// Says why the communicator ends, unless a process has said so before. Gives the first cause.
    pub fn say(&self, verdict: &Verdict) -> Verdict {
        /// Writing takes microseconds.
        const PATIENCE: Duration = Duration::from_millis(200);
        let state = self.segment.word(STATE);
        let first =
            state.compare_exchange(NONE, BEING_WRITTEN, Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            let text = told(verdict);
            self.segment.write(TEXT, text.as_bytes());
            self.segment
                .word(LENGTH)
                .store(text.len() as u64, Ordering::Release);
            state.store(WRITTEN, Ordering::Release);
            return verdict.clone();
        }
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(first) = self.verdict() {
                return first;
            }
            if Instant::now() > until {
                return unsaid();
            }
            sleep(Duration::from_micros(50));
        }
    }
}

fn unsaid() -> Verdict {
    Verdict::Aborted("a rank's process ended while it said why the communicator ends".into())
}

/// A verdict as text that has room.
fn told(verdict: &Verdict) -> String {
    let text = toml::to_string(verdict).unwrap_or_default();
    if (1..=MOST_TEXT).contains(&text.len()) {
        return text;
    }
    let short: String = crate::error::Error::from(verdict.clone())
        .to_string()
        .chars()
        .take(MOST_TEXT / 8)
        .collect();
    toml::to_string(&Verdict::Aborted(short)).unwrap_or_default()
}

impl Counts for Board {
    fn world(&self) -> usize {
        self.world as usize
    }

    fn launched(&self, rank: usize) -> &AtomicU64 {
        self.of(rank as u32, LAUNCHED)
    }

    fn left(&self, rank: usize) -> &AtomicU64 {
        self.of(rank as u32, LEFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Cause;
    use crate::error::Stall;

    fn board() -> Board {
        let segment = Segment::create("test", Board::ledger(4)).expect("made");
        Board::new(Arc::new(segment), 4)
    }

    #[test]
    fn the_first_verdict_stays_whatever_it_is() {
        let stall = Stall {
            rank: 3,
            role: "gemm".into(),
            waited_on: "ready \"x\"\n".into(),
            index: Some(7),
            seen: Some(1),
            wanted: i64::MAX as u64,
            at: Some("schedule.rs:12".into()),
            enqueued: vec![1, 2, 3, 4],
            ..Stall::default()
        };
        let all = [
            Verdict::Stalled(stall),
            Verdict::Differs("the ranks differ".into()),
            Verdict::Aborted("rank 1 ended early".into()),
        ];
        for first in &all {
            let board = board();
            assert_eq!(board.verdict(), None);
            assert_eq!(board.say(first), *first);
            assert_eq!(board.verdict().as_ref(), Some(first));
            assert_eq!(board.say(&all[1]), *first);
        }
    }

    #[test]
    fn who_was_told_waits_for_the_record_of_who_told_it() {
        use super::super::abort::End;
        let board = board();
        let end = End::apart(board.clone(), 2, 4, crate::driver::Address::of(0));
        let record = |told: Told| {
            let mut bytes = vec![0; Told::BYTES];
            told.record(&mut bytes);
            board.segment().write(Board::record(told.rank), &bytes);
        };
        record(Told::of(Cause::ToldByPeer, 2, 8));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sleep(Duration::from_millis(100));
                record(Told::of(Cause::TimeLimit, 1, 7));
            });
            let told = end.alive().expect_err("it ended").to_string();
            assert!(told.starts_with("rank 1 waited too long"), "{told}");
        });
    }

    #[test]
    fn a_verdict_without_room_is_cut_and_one_that_never_comes_is_not_waited_for() {
        let long = board();
        long.say(&Verdict::Aborted("ä".repeat(MOST_TEXT)));
        assert!(matches!(long.verdict(), Some(Verdict::Aborted(text)) if text.starts_with("ää")));
        let dead = board();
        dead.segment
            .word(STATE)
            .store(BEING_WRITTEN, Ordering::Release);
        assert_eq!(dead.verdict(), None);
        assert_eq!(dead.say(&Verdict::Aborted("x".into())), unsaid());
    }
}
