//! The ledger: what each rank launches, in order. A rank writes a launch before it enqueues anything, so a launch that
//! differs from a peer's is refused before it runs, and no rank waits for another to find that out.
//!
//! A kernel has nothing to compare. Each rank launches under its turn, so the order of its entries is that of its kernels in
//! its stream, also where threads launch at once, and a graph's launches have their entries before the graph is launched.
//! Ranks of a process write under one lock: of two that differ in a launch, the one that comes second sees the first, ends
//! the communicator for that, and enqueues nothing. Processes write, then make that known, then read: one of the two at
//! least sees the other. So a kernel that waits for a launch which differs is told by the host when that launch is made,
//! and looks for it once in a millisecond; every rank gets both sides. What the ledger cannot tell is a launch that is never
//! made: that is the waits' time limit, and the end of a rank that leaves.
//!
//! It is a ring of entries of a fixed size, so that it can lie in memory that processes share. The rank that comes first
//! to a launch writes its entry, and those that come later compare theirs.

use crate::undo::{Fix, undone};
use std::fmt;

/// Launches that a rank may be ahead of the slowest one. A stream holds about a thousand.
pub(super) const AHEAD: u64 = 4096;
/// An entry in words of 64 bits.
pub(super) const WORDS: usize = 8 + 4 * LISTED;
/// Heap tensors that an entry lists one by one. Those beyond are compared by one number.
const LISTED: usize = 6;

/// The start of a name, in a fixed number of bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name<const BYTES: usize> {
    bytes: [u8; BYTES],
    len: u8,
}

impl<const BYTES: usize> Name<BYTES> {
    fn of(name: &str) -> Self {
        let mut len = name.len().min(BYTES).min(usize::from(u8::MAX));
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; BYTES];
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Name {
            bytes,
            len: len as u8,
        }
    }
}

impl<const BYTES: usize> Name<BYTES> {
    /// The words of its bytes.
    fn words(&self) -> impl Iterator<Item = u64> {
        let words = self.bytes.as_chunks().0.iter();
        words.map(|word| u64::from_le_bytes(*word))
    }

    /// From these.
    fn from_words(words: &[u64], len: u64) -> Self {
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        let len = len.min(BYTES as u64) as u8;
        Name { bytes, len }
    }
}

impl<const BYTES: usize> fmt::Display for Name<BYTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or("?"))
    }
}

/// One launch of a rank, in all that must be the same on every rank.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    kernel: Name<32>,
    /// The kernel's number in the communicator: kernels are numbered as they are loaded.
    number: u32,
    plan: u64,
    m: u32,
    /// The first tensors in the heap, and where.
    heap: [(Name<16>, u64); LISTED],
    tensors: u32,
    /// All tensors in the heap, in one number.
    digest: u64,
}

impl Entry {
    /// A launch of that kernel, without tensors in the heap so far.
    pub fn new(kernel: &str, number: u32, plan: u64, m: u32) -> Entry {
        Entry {
            kernel: Name::of(kernel),
            number,
            plan,
            m,
            heap: [(Name::of(""), 0); LISTED],
            tensors: 0,
            digest: 0xcbf2_9ce4_8422_2325,
        }
    }

    /// For memory that processes share.
    pub(super) fn words(&self) -> [u64; WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let mut words = [0; WORDS];
        words[0] = pair(self.number, self.m);
        words[1] = self.plan;
        words[2] = self.digest;
        words[3] = pair(self.tensors, u32::from(self.kernel.len));
        let heap = self.heap.iter().flat_map(|(name, offset)| {
            let rest = [u64::from(name.len), *offset];
            name.words().chain(rest)
        });
        let names = self.kernel.words().chain(heap);
        words[4..]
            .iter_mut()
            .zip(names)
            .for_each(|(to, word)| *to = word);
        words
    }

    /// From such words.
    pub(super) fn of(words: [u64; WORDS]) -> Entry {
        let half = |word: u64| (word as u32, (word >> 32) as u32);
        let ((number, m), (tensors, len)) = (half(words[0]), half(words[3]));
        Entry {
            kernel: Name::from_words(&words[4..8], u64::from(len)),
            number,
            plan: words[1],
            m,
            heap: std::array::from_fn(|at| {
                let words = &words[8 + 4 * at..][..4];
                (Name::from_words(&words[..2], words[2]), words[3])
            }),
            tensors,
            digest: words[2],
        }
    }

    /// The start of the kernel's name.
    pub fn kernel(&self) -> String {
        self.kernel.to_string()
    }

    /// All of it in one number, for what has no room for more.
    pub fn tag(&self) -> u64 {
        self.words()
            .into_iter()
            .fold(0xcbf2_9ce4_8422_2325, |tag, word| {
                (tag ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29)
            })
    }

    /// Adds a tensor of the heap to the entry.
    #[must_use]
    pub fn at(mut self, tensor: &str, offset: u64) -> Entry {
        if let Some(place) = self.heap.get_mut(self.tensors as usize) {
            *place = (Name::of(tensor), offset);
        }
        self.tensors += 1;
        let bytes = tensor.bytes().chain(offset.to_le_bytes());
        self.digest = bytes.fold(self.digest, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        self
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry {
            kernel,
            number,
            plan,
            m,
            heap,
            tensors,
            digest,
        } = self;
        write!(
            f,
            "{kernel} (kernel {number}), plan {plan:016x} of {m} rows"
        )?;
        for (tensor, offset) in heap.iter().take(*tensors as usize) {
            write!(f, ", {tensor} at {offset}")?;
        }
        if *tensors as usize > LISTED {
            write!(f, ", {tensors} tensors in all ({digest:016x})")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reason that an entry is not in the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// A peer's entry for the same launch differs.
    Differs(Box<Difference>),
    /// The rank is too many launches behind.
    Behind(Behind),
}

/// A rank that is too many launches behind another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Behind {
    pub rank: u32,
    /// Number of launches that it has made.
    pub made: u64,
    /// The other's next one, and how many this rank must have made before it.
    pub next: u64,
    pub wanted: u64,
}

/// Two entries for one launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Difference {
    /// Number of the launch in the communicator, counted from 0.
    pub(super) launch: u64,
    pub(super) first: (u32, Entry),
    pub(super) second: (u32, Entry),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference {
            launch,
            first: (one, theirs),
            second: (other, ours),
        } = self;
        write!(
            f,
            "the ranks differ in launch {launch}: rank {one} launches {theirs}; rank {other} launches {ours}"
        )
    }
}

/// The launches of all ranks of a communicator.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Number of launches that each rank has written.
    written: Vec<u64>,
    /// The entry of a launch and who wrote it, at the launch's number modulo the length.
    ring: Vec<Option<(u32, Entry)>>,
}

impl Ledger {
    /// Nothing launched yet.
    pub fn new(world: u32) -> Ledger {
        Ledger {
            written: vec![0; world as usize],
            ring: Vec::new(),
        }
    }

    /// The number of a rank's next launch.
    pub fn next(&self, rank: u32) -> u64 {
        self.written[rank as usize]
    }

    /// Writes a rank's next launch and gives its number, or says why it must not run.
    pub fn write(&mut self, rank: u32, entry: &Entry) -> Result<u64, Refused> {
        let launch = self.written[rank as usize];
        let mut ranks = (0..).zip(&self.written);
        if let Some((rank, made)) = ranks.find(|(_, written)| **written + AHEAD <= launch) {
            return Err(Refused::Behind(Behind {
                rank,
                made: *made,
                next: launch,
                wanted: launch - AHEAD + 1,
            }));
        }
        if self.ring.is_empty() {
            self.ring = vec![None; AHEAD as usize];
        }
        let known = self.written.iter().any(|written| *written > launch);
        let place = &mut self.ring[(launch % AHEAD) as usize];
        match place {
            Some(first) if known && first.1 != *entry && !undone(Fix::Ledger) => {
                return Err(Refused::Differs(Box::new(Difference {
                    launch,
                    first: *first,
                    second: (rank, *entry),
                })));
            }
            Some(_) if known => {}
            Some(_) | None => *place = Some((rank, *entry)),
        }
        self.written[rank as usize] += 1;
        Ok(launch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a() -> Entry {
        Entry::new("ag_gemm", 0, 0xa, 512).at("x", 4096)
    }

    fn b() -> Entry {
        Entry::new("gemm_rs", 1, 0xb, 512).at("partial", 8192)
    }

    fn told(refused: Result<u64, Refused>) -> String {
        match refused {
            Err(Refused::Differs(difference)) => difference.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ranks_that_launch_the_same_go_on_in_any_order() {
        let mut ledger = Ledger::new(2);
        for (rank, entry, launch) in [
            (0, a(), 0),
            (0, b(), 1),
            (1, a(), 0),
            (0, a(), 2),
            (1, b(), 1),
        ] {
            assert_eq!(ledger.write(rank, &entry), Ok(launch));
        }
        assert_eq!(ledger.written, [3, 2]);
    }

    #[test]
    fn another_order_is_refused_with_both_sides() {
        let mut ledger = Ledger::new(2);
        assert_eq!(ledger.write(0, &a()), Ok(0));
        assert_eq!(
            told(ledger.write(1, &b())),
            "the ranks differ in launch 0: rank 0 launches ag_gemm (kernel 0), plan 000000000000000a of 512 rows, x at 4096; \
             rank 1 launches gemm_rs (kernel 1), plan 000000000000000b of 512 rows, partial at 8192"
        );
        // Nothing was written for it: the launch did not happen.
        assert_eq!(ledger.written, [1, 0]);
    }

    #[test]
    fn a_later_launch_of_other_values_is_refused() {
        let others = [
            Entry::new("ag_gemm", 0, 0xc, 384).at("x", 4096),
            Entry::new("ag_gemm", 0, 0xa, 512).at("x", 5120),
            Entry::new("ag_gemm", 2, 0xa, 512).at("x", 4096),
            Entry::new("ag_gemm", 0, 0xa, 512).at("y", 4096),
        ];
        for other in others {
            let mut ledger = Ledger::new(3);
            for _ in 0..2 {
                (0..3).for_each(|rank| assert!(ledger.write(rank, &a()).is_ok()));
            }
            assert_eq!(ledger.write(2, &a()), Ok(2));
            assert_eq!(ledger.write(1, &a()), Ok(2));
            let text = told(ledger.write(0, &other));
            assert!(
                text.contains("launch 2: rank 2") && text.contains("rank 0 launches"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_tensor_beyond_those_listed_counts_too() {
        let many = |last| {
            (0..LISTED as u64)
                .fold(a(), |entry, at| entry.at("t", at))
                .at("u", last)
        };
        let mut ledger = Ledger::new(2);
        assert_eq!(ledger.write(0, &many(1)), Ok(0));
        assert!(told(ledger.write(1, &many(2))).contains("8 tensors in all"));
    }

    #[test]
    fn the_ring_is_reused_and_never_overwrites_what_a_rank_has_yet_to_compare() {
        let mut ledger = Ledger::new(2);
        let entry = |launch: u64| Entry::new("k", 0, launch, 1);
        for launch in 0..AHEAD {
            assert_eq!(ledger.write(0, &entry(launch)), Ok(launch));
        }
        let behind = Behind {
            rank: 1,
            made: 0,
            next: AHEAD,
            wanted: 1,
        };
        assert_eq!(ledger.write(0, &entry(AHEAD)), Err(Refused::Behind(behind)));
        for launch in 0..2 * AHEAD {
            assert_eq!(ledger.write(1, &entry(launch)), Ok(launch));
            assert_eq!(ledger.write(0, &entry(launch + AHEAD)), Ok(launch + AHEAD));
        }
    }

    #[test]
    fn a_name_is_cut_between_letters() {
        assert_eq!(Name::<4>::of("aäöü").to_string(), "aä");
        assert_eq!(Name::<4>::of("ab").to_string(), "ab");
    }
}
