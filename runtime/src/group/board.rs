//! The memory that the processes of a communicator share beside its heap: how it ends, how far each rank is, what kernels
//! record, and the ledger.

use super::roll::Counts;
use super::verdict::Verdict;
use crate::cuda::Told;
use crate::shared::Segment;
use counterflow_codegen::shape::MAX_WORLD;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Zero, or one more than the rank whose verdict counts: the first that was written.
const FIRST: u64 = 0;
/// The word that tells kernels to give up.
pub(super) const WORD: u64 = 128;
/// Offset of the words of each rank.
const RANKS: u64 = 4 << 10;
const RANK: u64 = 1 << 10;
const LAUNCHED: u64 = 0;
const LEFT: u64 = 128;
/// A bit for each rank that left and that this one is through with.
const THROUGH: u64 = 192;
const _: () = assert!(MAX_WORLD <= 128 && THROUGH + 16 <= WROTE);
const WROTE: u64 = 256;
const COMPARED: u64 = 384;
const RECORD: u64 = 512;
/// Offset of a rank's progress in what GPUs compare.
const FAR: u64 = 896;
const _: () = assert!(RECORD + Told::BYTES as u64 <= FAR && FAR < RANK);
/// Each rank's verdict, behind all of these: its length, and its text.
const VERDICT: u64 = 8 << 10;
const TEXT: u64 = 64;
/// Offset of a rank's refusal, which stands behind its verdict: its length, and its text.
const REFUSED: u64 = VERDICT - (1 << 10);
const MOST_TEXT: usize = (REFUSED - TEXT) as usize;
const MOST_REFUSED: usize = (VERDICT - REFUSED - TEXT) as usize;

/// Memory that processes share, by its words.
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

    /// Offset of the ledger: bytes of everything before it.
    pub fn ledger(world: u32) -> u64 {
        verdict_of(world, world)
    }

    /// Bytes at the start that kernels read and write: those before the verdicts.
    pub fn for_kernels(world: u32) -> u64 {
        verdict_of(0, world)
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    fn of(&self, rank: u32, what: u64) -> &AtomicU64 {
        self.segment.word(RANKS + u64::from(rank) * RANK + what)
    }

    /// Offset at which a rank's kernels write their record.
    pub fn record(rank: u32) -> u64 {
        RANKS + u64::from(rank) * RANK + RECORD
    }

    /// Offset at which a rank's kernels write how far it is.
    pub fn far(rank: u32) -> u64 {
        RANKS + u64::from(rank) * RANK + FAR
    }

    /// Number of launches that a rank has written into the ledger.
    pub fn wrote(&self, rank: u32) -> &AtomicU64 {
        self.of(rank, WROTE)
    }

    /// Number of launches that a rank has compared with its peers'.
    pub fn compared(&self, rank: u32) -> &AtomicU64 {
        self.of(rank, COMPARED)
    }

    /// Word and bit by which a rank says that it is through with another.
    fn through(&self, rank: u32, with: u32) -> (&AtomicU64, u64) {
        let word = self.of(rank, THROUGH + u64::from(with) / 64 * 8);
        (word, 1 << (with % 64))
    }

    /// True if nothing of a rank uses what another one had, which left.
    pub fn is_through(&self, rank: u32, with: u32) -> bool {
        let (word, bit) = self.through(rank, with);
        word.load(Ordering::Acquire) & bit != 0
    }

    /// Says that.
    pub fn gets_through(&self, rank: u32, with: u32) {
        let (word, bit) = self.through(rank, with);
        word.fetch_or(bit, Ordering::AcqRel);
    }

    /// The verdict, if there is one.
    pub fn verdict(&self) -> Option<Verdict> {
        let first = self.segment.word(FIRST).load(Ordering::Acquire);
        let rank = u32::try_from(first.checked_sub(1)?).ok();
        let rank = rank.filter(|rank| *rank < self.world);
        Some(rank.and_then(|rank| self.said(rank)).unwrap_or_else(|| {
            Verdict::Aborted("the communicator ended, and its memory no longer says why".into())
        }))
    }

    /// Verdict that a rank wrote.
    fn said(&self, rank: u32) -> Option<Verdict> {
        let at = verdict_of(rank, self.world);
        let length = self.segment.word(at).load(Ordering::Acquire) as usize;
        let mut text = vec![0; length.min(MOST_TEXT)];
        self.segment.read(at + TEXT, &mut text);
        serde_json::from_slice(&text).ok()
    }

    /// Says what a rank was refused. Empty: nothing any more. One at a time of each rank.
    pub fn refuses(&self, rank: u32, what: &str) {
        let at = verdict_of(rank, self.world) + REFUSED;
        let mut end = what.len().min(MOST_REFUSED);
        while !what.is_char_boundary(end) {
            end -= 1;
        }
        // Who reads meanwhile reads nothing.
        self.segment.word(at).store(0, Ordering::Release);
        self.segment.write(at + TEXT, &what.as_bytes()[..end]);
        self.segment.word(at).store(end as u64, Ordering::Release);
    }

    /// The refusal of a rank that has not launched since.
    pub fn refused(&self, rank: u32) -> Option<String> {
        let at = verdict_of(rank, self.world) + REFUSED;
        let length = self.segment.word(at).load(Ordering::Acquire) as usize;
        let mut text = vec![0; length.min(MOST_REFUSED)];
        self.segment.read(at + TEXT, &mut text);
        let text = String::from_utf8_lossy(&text).into_owned();
        Some(text).filter(|text| !text.is_empty())
    }

    /// Says for a rank why the communicator ends, unless a process has said so before. Gives what all ranks read: the
    /// first cause. One at a time of each rank.
    pub fn say(&self, rank: u32, verdict: &Verdict) -> Verdict {
        if let Some(first) = self.verdict() {
            return first;
        }
        // It counts once it is there whole: who is stopped or killed on the way has said nothing.
        let text = told(verdict);
        let at = verdict_of(rank, self.world);
        self.segment.write(at + TEXT, &text);
        let length = self.segment.word(at);
        length.store(text.len() as u64, Ordering::Release);
        let first = self.segment.word(FIRST);
        // Whoever comes second takes what the first said.
        let _ = first.compare_exchange(0, u64::from(rank) + 1, Ordering::AcqRel, Ordering::Acquire);
        self.verdict().unwrap_or_else(|| verdict.clone())
    }
}

/// Offset of a rank's verdict.
fn verdict_of(rank: u32, world: u32) -> u64 {
    let start = (RANKS + u64::from(world) * RANK).next_multiple_of(4096);
    start + u64::from(rank) * VERDICT
}

/// A verdict as text that has room, with its names and sentences cut where it has not.
fn told(verdict: &Verdict) -> Vec<u8> {
    let mut most = MOST_TEXT;
    loop {
        let text = serde_json::to_vec(&verdict.cut(most)).unwrap_or_default();
        if text.len() <= MOST_TEXT || most == 0 {
            return text;
        }
        most /= 2;
    }
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
    use std::thread::sleep;
    use std::time::Duration;

    fn board() -> Board {
        let (segment, _) = Segment::create("test", Board::ledger(4)).expect("made");
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
            wanted: u64::MAX,
            at: Some("schedule.rs:12".into()),
            enqueued: vec![1, 2, 3, 4],
            ..Stall::default()
        };
        let all = [
            Verdict::from(stall),
            Verdict::Differs("the ranks differ".into()),
            Verdict::Aborted("rank 1 ended early".into()),
        ];
        for first in &all {
            let board = board();
            assert_eq!(board.verdict(), None);
            assert_eq!(board.say(3, first), *first);
            assert_eq!(board.verdict().as_ref(), Some(first));
            assert_eq!(board.say(0, &all[1]), *first);
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
    fn a_verdict_without_room_is_cut_for_all_ranks_alike() {
        let long = Stall {
            rank: 2,
            role: "ä\n".repeat(MOST_TEXT),
            waited_on: "x".repeat(MOST_TEXT),
            at: Some("y".repeat(MOST_TEXT)),
            wanted: 5,
            ..Stall::default()
        };
        let board = board();
        let first = board.say(2, &Verdict::from(long));
        assert_eq!(board.verdict(), Some(first.clone()));
        assert_eq!(
            board.say(1, &Verdict::Aborted("x".into())),
            first,
            "the first"
        );
        let Verdict::Stalled(told) = first else {
            panic!("{first:?}")
        };
        assert!(told.role.starts_with("ä\nä") && told.role.ends_with('…'));
        assert_eq!((told.rank, told.wanted), (2, 5));
    }

    #[test]
    fn who_is_stopped_while_it_writes_has_said_nothing() {
        let board = board();
        let at = verdict_of(1, 4);
        board.segment.write(at + TEXT, b"{\"Abor");
        assert_eq!(board.verdict(), None);
        let other = Verdict::Aborted("rank 1 does not answer".into());
        assert_eq!(board.say(0, &other), other);
        // Memory that a peer spoiled is no verdict of anybody's, and nothing panics.
        board.segment.word(FIRST).store(9, Ordering::Release);
        assert!(matches!(board.verdict(), Some(Verdict::Aborted(_))));
    }
}
