//! The emulator's `agree.cu`: a rank writes its launch to every peer, and then looks at what the peers wrote.

use super::bytes::{Fault, Memory, put, word};
use super::watch::{Cause, GaveUp, Watch};

/// Number of launches that a rank may be ahead of a peer before they are compared only together with those that
/// follow.
pub const AHEAD: u64 = 64;
/// One number of three.
fn mixed(digest: u64, tag: u64, count: u64) -> u64 {
    let mix = (digest ^ tag).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mix = (mix ^ (mix >> 32) ^ count).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mix ^ (mix >> 32)
}

/// The low half of a number.
fn low(number: u64) -> u64 {
    number & 0xffff_ffff
}

/// Bytes before the slots.
const COUNTS: u64 = 128;
const SLOT: u64 = 16;

/// A launch of a rank, to be compared with the peers'.
#[derive(Clone, Copy, Debug)]
pub struct Compare {
    /// The rank.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// Address of rank 0's board.
    pub boards: u64,
    /// Bytes to the next rank's.
    pub stride: u64,
    /// Address at which the host sees how far this rank is.
    pub far: u64,
    /// Tag of the launch.
    pub tag: u64,
    /// Number of the launch at this rank's host. None: a replay of which no host knows.
    pub launched: Option<u64>,
    /// Place and limit for giving up.
    pub watch: Watch,
}

impl Compare {
    /// Bytes that it needs in every rank's slot of the heap, zero at first.
    pub const fn bytes(world: u32) -> u64 {
        COUNTS + world as u64 * AHEAD * SLOT
    }

    /// Address of what a peer wrote of a launch in that place.
    fn slot(&self, home: u32, by: u32, place: u64) -> u64 {
        let at = u64::from(by) * AHEAD + place % AHEAD;
        self.boards + u64::from(home) * self.stride + COUNTS + at * SLOT
    }

    /// Does it, and says if a peer launches something else.
    pub(super) fn act(&self, memory: &mut impl Memory, now: u64) -> Result<Option<GaveUp>, Fault> {
        let own = self.boards + u64::from(self.rank) * self.stride;
        let (replays, digest) = (word(memory, own + 8)?, word(memory, own + 16)?);
        let launches = match self.launched {
            Some(launch) => launch,
            None => word(memory, own)?,
        };
        let place = launches + replays;
        let after = launches + u64::from(self.launched.is_some());
        let wanted = ((place + 1) << 32) | low(mixed(digest, self.tag, after));
        put(memory, own, after)?;
        if self.launched.is_none() {
            put(memory, own + 8, replays + 1)?;
            put(memory, own + 16, mixed(digest, self.tag, place))?;
        }
        put(memory, self.far, place + 1)?;
        let peers = || (0..self.world).filter(|peer| *peer != self.rank);
        for peer in peers() {
            let there = self.slot(peer, self.rank, place);
            put(memory, there + 8, self.tag)?;
            put(memory, there, wanted)?;
        }
        for peer in peers() {
            let here = self.slot(self.rank, peer, place);
            let mark = word(memory, here)?;
            if mark >> 32 != wanted >> 32 || mark == wanted {
                continue;
            }
            let theirs = word(memory, here + 8)?;
            // Replayed or launched by a host after the same replays, or the replays before differ.
            let alike = |after: u64| low(mark) == low(mixed(digest, theirs, after));
            let earlier = !alike(launches) && !alike(launches + 1);
            for rank in 0..u64::from(self.world) {
                memory.write(self.watch.abort + rank * self.stride, &1u32.to_le_bytes())?;
            }
            return Ok(Some(GaveUp {
                id: self.watch.id,
                cause: Cause::Differs,
                kernel: self.watch.kernel,
                rank: self.rank,
                role: earlier.into(),
                counter: peer,
                cell: place as u32,
                seen: theirs,
                wanted: self.tag,
                time: now,
            }));
        }
        Ok(None)
    }
}
