//! The other ranks of a communicator whose ranks are processes: what they ask for, what they have dropped, and whether
//! they live.

use super::abort::End;
use super::signs::Signs;
use super::verdict::Verdict;
use crate::error::{Error, Stall};
use crate::own::Own;
use crate::rendezvous::Deadline;
use crate::shared::{Links, Lost, Parcel};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

/// Between two looks while others are waited for.
const PAUSE: Duration = Duration::from_micros(50);

/// The connections to them.
#[derive(Debug)]
pub(crate) struct Peers {
    rank: u32,
    world: u32,
    links: Mutex<Links>,
    end: Arc<End>,
    limit: Duration,
    /// Signs of life, which a thread of their own reads.
    signs: Arc<Signs>,
}

/// Ranges of the heap that a rank has dropped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Dropped {
    /// Ranges of the heap that this rank's stream has come past.
    pub passed: Vec<Range<u64>>,
    /// Not yet of these.
    pub used: Vec<Range<u64>>,
    /// True if it has waited for room as long as it may.
    pub late: bool,
}

/// Common action of all ranks on what they dropped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Agreed {
    /// Ranges of the heap that are free now.
    pub free: Vec<Range<u64>>,
    /// True if others will be once streams have come past them, and there is time.
    pub more: bool,
}

impl Dropped {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.late)];
        bytes.extend((self.passed.len() as u64).to_le_bytes());
        for range in self.passed.iter().chain(&self.used) {
            bytes.extend(range.start.to_le_bytes());
            bytes.extend(range.end.to_le_bytes());
        }
        bytes
    }

    fn of(bytes: &[u8]) -> Option<Dropped> {
        let (late, bytes) = bytes.split_first()?;
        let (words, []) = bytes.as_chunks::<8>() else {
            return None;
        };
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (passed, words) = words.split_first()?;
        let (pairs, []) = words.as_chunks::<2>() else {
            return None;
        };
        let ranges = pairs.iter().map(|[start, end]| *start..*end);
        let passed = usize::try_from(*passed).ok()?;
        Some(Dropped {
            passed: ranges.clone().take(passed).collect(),
            used: ranges.skip(passed).collect(),
            late: *late != 0,
        })
    }
}

/// Free is what every rank has dropped and come past. All ranks find the same.
fn agreed(all: &[Dropped]) -> Agreed {
    let key = |range: &Range<u64>| (range.start, range.end);
    let in_all = |of: fn(&Dropped) -> Vec<Range<u64>>| {
        let sets = all
            .iter()
            .map(|one| of(one).iter().map(key).collect::<BTreeSet<_>>());
        sets.reduce(|one, other| &one & &other).unwrap_or_default()
    };
    let free = in_all(|one| one.passed.clone());
    let dropped = in_all(|one| [&one.passed[..], &one.used].concat());
    Agreed {
        more: dropped.len() > free.len() && !all.iter().any(|one| one.late),
        free: free.into_iter().map(|(start, end)| start..end).collect(),
    }
}

impl Peers {
    /// Over these connections. A thread sees which of them are closed: a process that ends without leaving ends the
    /// communicator.
    pub fn new(links: Links, end: &Arc<End>, limit: Duration) -> Result<Peers, Error> {
        let (rank, world) = (links.rank(), links.world());
        let refused = |error: std::io::Error| Error::TooLarge {
            what: format!("a thread that sees whether the peers of rank {rank} live: {error}"),
            help: "end what uses so many threads or file descriptors".into(),
        };
        let sockets = links.sockets().map_err(refused)?;
        let signs = Signs::new((rank, world), end, limit).map_err(refused)?;
        let signs = Arc::new(signs);
        let watched = signs.clone();
        let thread = std::thread::Builder::new().name(format!("peers of rank {rank}"));
        thread
            .spawn(move || watched.watch(sockets))
            .map_err(refused)?;
        Ok(Peers {
            rank,
            world,
            links: Mutex::new(links),
            end: end.clone(),
            limit,
            signs,
        })
    }

    /// This rank's user has it, with this stream.
    pub fn seated(&self, own: &Arc<Own>) {
        self.signs.seated(own);
    }

    /// This rank's communicator was dropped.
    pub fn left(&self) {
        self.signs.left();
    }

    /// Drops that once no peer uses it any more, or the time limit is over. This rank's stream is done.
    pub fn keep(&self, memory: impl Any + Send) {
        self.signs.keep(memory);
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Time that a rank waits for the others.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    pub fn world(&self) -> u32 {
        self.world
    }

    /// Every rank's message, in the order of the ranks. `what` says what this rank does meanwhile.
    ///
    /// # Errors
    /// Why the communicator has ended. It also ends if a rank is gone, or does not come within the limit.
    pub fn gather(&self, what: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let deadline = Deadline::after(self.limit);
        let all = self.exchange(what, mine.to_vec(), Vec::new(), deadline)?;
        Ok(all.into_iter().map(|parcel| parcel.text).collect())
    }

    /// Exchanges file descriptors, without this rank's own.
    pub fn exchange(
        &self,
        what: &str,
        text: Vec<u8>,
        fds: Vec<OwnedFd>,
        deadline: Deadline,
    ) -> Result<Vec<Parcel>, Error> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        self.end.alive()?;
        links.post(&text, fds).inspect_err(|error| {
            // The others wait for it.
            let told = format!("rank {} ended early: it {what}: {error}", self.rank);
            self.end.end(Verdict::Aborted(told));
        })?;
        let own = Parcel {
            text,
            fds: Vec::new(),
        };
        let mut all = BTreeMap::from([(self.rank, own)]);
        loop {
            // Looked at before: a rank that left may have told all before it did.
            let left = |rank: &u32| self.end.has_left(*rank);
            let gone: Vec<u32> = (0..self.world).filter(left).collect();
            let looked = links.look(&mut all);
            if let Ok(true) = looked {
                return Ok(all.into_values().collect());
            }
            self.end.alive()?;
            let missing: Vec<u32> = (0..self.world)
                .filter(|rank| !all.contains_key(rank))
                .collect();
            let verdict = if let Some(gone) = gone.iter().find(|rank| missing.contains(rank)) {
                Verdict::Aborted(format!(
                    "rank {gone} ended early: {} while rank {} {what}",
                    self.end.how_left(*gone),
                    self.rank
                ))
            } else if let Err(lost) = looked {
                let Lost { rank, why } = &lost;
                Verdict::Aborted(match lost.is_closed() {
                    // Since that was looked at: who leaves says so before its connections close.
                    true if self.end.has_left(*rank) => format!(
                        "rank {rank} ended early: {} while rank {} {what}",
                        self.end.how_left(*rank),
                        self.rank
                    ),
                    true => format!(
                        "rank {rank} ended early: its process closed its connections while rank {} {what}",
                        self.rank
                    ),
                    false => format!(
                        "rank {} ended early: it {what} and cannot use its connection to rank {rank}: {why}",
                        self.rank
                    ),
                })
            } else if deadline.is_over() {
                let named: Vec<String> = missing.iter().map(u32::to_string).collect();
                Verdict::from(Stall {
                    rank: self.rank,
                    role: format!("its host {what}"),
                    waited_on: format!("ranks do so (missing: {})", named.join(", ")),
                    seen: Some(all.len() as u64),
                    wanted: u64::from(self.world),
                    ..Stall::default()
                })
            } else {
                sleep(PAUSE);
                continue;
            };
            return Err(self.end.end(verdict).into());
        }
    }

    /// Ends the communicator, because a rank sent something else than it should.
    pub(super) fn misled(&self, rank: u32) -> Error {
        let what = format!("rank {rank} sent something else than this version does");
        self.end.end(Verdict::Differs(what)).into()
    }

    /// Conditions of `here` that hold on every rank. All give as many.
    pub(super) fn on_all(&self, here: &[bool]) -> Result<Vec<bool>, Error> {
        let mine: Vec<u8> = here.iter().map(|holds| u8::from(*holds)).collect();
        let all = self.gather("looks for memory that kernels share", &mine)?;
        let other = all.iter().position(|theirs| theirs.len() != here.len());
        if let Some(rank) = other {
            return Err(self.misled(rank as u32));
        }
        let holds = |at: usize| all.iter().all(|theirs| theirs[at] != 0);
        Ok((0..here.len()).map(holds).collect())
    }

    /// Ranges of the heap that are free now, by what all ranks have dropped.
    pub(super) fn agree(&self, mine: &Dropped) -> Result<Agreed, Error> {
        let all = self.gather("looks for room", &mine.bytes())?;
        let each = all.iter().zip(0..);
        let each = each.map(|(bytes, rank)| Dropped::of(bytes).ok_or_else(|| self.misled(rank)));
        Ok(agreed(&each.collect::<Result<Vec<_>, _>>()?))
    }
}

/// Nobody has the communicator any more, and its work is done.
impl Drop for Peers {
    fn drop(&mut self) {
        // Before the connections close: a peer that sees them closed looks.
        self.end.leaves_nothing(self.rank);
        self.signs.ends();
        let links = self.links.get_mut().unwrap_or_else(PoisonError::into_inner);
        links.close();
    }
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "ranks give lists of ranges, of one too"
)]
mod tests {
    use super::super::board::Board;
    use super::*;
    use crate::driver::Address;
    use crate::rendezvous::Threads;
    use crate::shared::Segment;
    use std::io::Write;

    const LIMIT: Duration = Duration::from_secs(60);

    fn connected() -> [Links; 2] {
        let deadline = Deadline::after(LIMIT);
        let all = std::thread::scope(|scope| {
            let connect = |rank| scope.spawn(move || Links::make(&rank, deadline));
            let each: Vec<_> = Threads::of(2).into_iter().map(connect).collect();
            each.into_iter()
                .map(|one| one.join().expect("no panic").expect("connected"))
                .collect::<Vec<_>>()
        });
        all.try_into().expect("two")
    }

    fn board() -> Board {
        let (segment, _) = Segment::create("test", Board::ledger(2)).expect("made");
        Board::new(Arc::new(segment), 2)
    }

    fn peers(links: Links, board: &Board) -> Peers {
        let end = End::apart(board.clone(), links.rank(), 2, Address::of(0));
        Peers::new(links, &Arc::new(end), LIMIT).expect("peers")
    }

    #[test]
    fn a_peer_that_lives_is_not_said_to_be_gone() {
        let [first, second] = connected();
        let (_, mut to_first) = second.sockets().expect("sockets").remove(0);
        // No message is so long.
        to_first.write_all(&u32::MAX.to_le_bytes()).expect("sent");
        let peers = peers(first, &board());
        let told = peers.gather("is at a barrier", &[]).expect_err("nonsense");
        let told = told.to_string();
        assert!(told.starts_with("rank 0 ended early: it is at a barrier and cannot use its connection to rank 1: a message of 4294967295 bytes"), "{told}");
    }

    #[test]
    fn what_is_too_long_to_say_all_are_told_at_once() {
        let ([first, second], board) = (connected(), board());
        let (first, second) = (peers(first, &board), peers(second, &board));
        let other = std::thread::scope(|scope| {
            let other = scope.spawn(|| second.gather("looks for room", &[]).expect_err("told"));
            let long = vec![0; 2 << 20];
            let own = first.gather("looks for room", &long).expect_err("too long");
            assert_eq!(own.kind(), "too_large");
            other.join().expect("no panic")
        });
        assert_eq!(
            other.to_string(),
            "rank 0 ended early: it looks for room: a message of 2097152 bytes to the other ranks"
        );
    }

    #[test]
    fn free_is_what_all_ranks_have_dropped_and_come_past() {
        let rank = |passed: &[Range<u64>], used: &[Range<u64>], late| Dropped {
            passed: passed.to_vec(),
            used: used.to_vec(),
            late,
        };
        let one = rank(&[8..16, 0..8], &[16..24], false);
        assert_eq!(Dropped::of(&one.bytes()), Some(one.clone()));
        assert_eq!(Dropped::of(&one.bytes()[..20]), None);
        let other = rank(&[0..8, 16..24], &[], false);
        let both = agreed(&[one.clone(), other]);
        assert_eq!(
            both,
            Agreed {
                free: vec![0..8],
                more: true
            }
        );
        // The other holds 8..16 still, so only its drop could free more.
        let holds = rank(&[0..8], &[], false);
        assert_eq!(
            agreed(&[one.clone(), holds]),
            Agreed {
                free: vec![0..8],
                more: false
            }
        );
        let late = rank(&[0..8], &[8..16], true);
        assert!(!agreed(&[one, late]).more);
    }
}
