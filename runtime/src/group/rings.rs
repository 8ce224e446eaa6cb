//! The ledger of processes: a ring of entries for each rank, in memory that all of them have. A rank writes a launch,
//! makes that known, and then compares it with every peer's entry that is known. So of two ranks that launch different
//! things at least one sees the other's.

use super::board::Board;
use super::ledger::{AHEAD, Behind, Difference, Entry, Refused, WORDS};
use std::sync::atomic::{Ordering, fence};

const ENTRY: u64 = WORDS as u64 * 8;
const RING: u64 = AHEAD * ENTRY;

/// All ranks' entries, for one of them.
#[derive(Debug)]
pub(super) struct Rings {
    board: Board,
    world: u32,
}

impl Rings {
    /// Size of the memory in bytes, with the part before the ledger.
    pub fn bytes(world: u32) -> u64 {
        Board::ledger(world) + u64::from(world) * RING
    }

    pub fn new(board: Board, world: u32) -> Rings {
        Rings { board, world }
    }

    fn place(&self, rank: u32, launch: u64, word: usize) -> &std::sync::atomic::AtomicU64 {
        let ring = Board::ledger(self.world) + u64::from(rank) * RING;
        let at = ring + launch % AHEAD * ENTRY + word as u64 * 8;
        self.board.segment().word(at)
    }

    /// The number of a rank's next launch.
    pub fn next(&self, rank: u32) -> u64 {
        self.board.wrote(rank).load(Ordering::Acquire)
    }

    /// Writes a rank's next launch and gives its number, or says why it must not run. One at a time of each rank.
    pub fn write(&self, rank: u32, entry: &Entry) -> Result<u64, Refused> {
        let launch = self.next(rank);
        for peer in 0..self.world {
            // What a peer has yet to compare is not written over.
            let made = self.board.compared(peer).load(Ordering::Acquire);
            if made + AHEAD <= launch {
                return Err(Refused::Behind(Behind {
                    rank: peer,
                    made,
                    next: launch,
                    wanted: launch - AHEAD + 1,
                }));
            }
        }
        for (at, word) in entry.words().into_iter().enumerate() {
            self.place(rank, launch, at).store(word, Ordering::Relaxed);
        }
        self.board.wrote(rank).store(launch + 1, Ordering::Release);
        // One of two ranks must see the other: both write before this, and read after it.
        fence(Ordering::SeqCst);
        for peer in (0..self.world).filter(|peer| *peer != rank) {
            if self.board.wrote(peer).load(Ordering::Acquire) <= launch {
                continue;
            }
            let theirs = Entry::of(std::array::from_fn(|at| {
                self.place(peer, launch, at).load(Ordering::Relaxed)
            }));
            if theirs != *entry {
                return Err(Refused::Differs(Box::new(Difference {
                    launch,
                    first: (peer, theirs),
                    second: (rank, *entry),
                })));
            }
        }
        self.board
            .compared(rank)
            .store(launch + 1, Ordering::Release);
        Ok(launch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Segment;
    use std::sync::Arc;

    fn rings(world: u32) -> Rings {
        let (segment, _) = Segment::create("test", Rings::bytes(world)).expect("made");
        Rings::new(Board::new(Arc::new(segment), world), world)
    }

    #[test]
    fn an_entry_comes_back_from_its_words() {
        let many = (0..9).fold(
            Entry::new("an_op_with_a_long_name_beyond_32_bytes", 3, 5, 7),
            |entry, at| entry.at("täglich", at * 1024),
        );
        assert_eq!(Entry::of(many.words()), many);
        assert_eq!(Entry::of(many.words()).to_string(), many.to_string());
    }

    #[test]
    fn the_same_is_written_in_any_order_and_a_difference_is_seen() {
        let rings = rings(2);
        let entry = |plan| Entry::new("k", 0, plan, 1).at("x", 1024);
        for (rank, launch) in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)] {
            assert_eq!(rings.write(rank, &entry(launch)), Ok(launch));
        }
        match rings.write(0, &entry(7)) {
            Err(Refused::Differs(difference)) => {
                let told = difference.to_string();
                assert!(
                    told.starts_with("the ranks differ in launch 2: rank 1 launches k"),
                    "{told}"
                );
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nobody_writes_over_what_a_peer_has_yet_to_compare() {
        let rings = rings(2);
        let entry = |plan| Entry::new("k", 0, plan, 1);
        for launch in 0..AHEAD {
            assert_eq!(rings.write(0, &entry(launch)), Ok(launch));
        }
        assert!(
            matches!(rings.write(0, &entry(AHEAD)), Err(Refused::Behind(behind)) if behind.rank == 1)
        );
        for launch in 0..2 * AHEAD {
            assert_eq!(rings.write(1, &entry(launch)), Ok(launch));
            assert_eq!(rings.write(0, &entry(launch + AHEAD)), Ok(launch + AHEAD));
        }
    }
}
