//! Rows that ranks write into each other's memory, where data is its own signal: what kernels without a schedule share, on GPUs and
//! on emulated ranks. For this project's crates.

use crate::group::{Awaited, Names};
use counterflow_emulator::open::{self, Fault, Memory};

/// The name under which a text includes [`TEXT`].
pub const HEADER: &str = "slots.cuh";

/// How rows are sent and awaited. It comes behind [`WATCH`](counterflow_emitter::WATCH).
pub const TEXT: &str = include_str!("slots.cuh");

/// Buffers that launches write by turns.
const TURNS: u64 = 2;

/// Bytes of the heap for a kernel on each rank, each of whose peers sends it so many bytes at most.
pub fn bytes(world: u32, each: u64) -> u64 {
    TURNS * u64::from(world - 1) * each
}

/// A rank's part of the exchange, as a twin needs it.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    /// The rank.
    pub rank: u64,
    /// Number of ranks.
    pub world: u64,
    /// Address of rank 0's, and bytes to the next rank's. None of a world of one rank.
    pub first: Option<(u64, u64)>,
    /// Bytes of a sender's rows.
    pub each: u64,
}

/// Two elements as they travel.
fn inverted(word: u32) -> u32 {
    match word {
        u32::MAX => !0x7fff_7fff,
        word => !word,
    }
}

/// Words in memory.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u32::from_le_bytes(*word))
}

impl Slots {
    /// Address of one sender's rows in a rank's buffer.
    fn rows_from(&self, home: u64, sender: u64, launch: u32) -> Option<u64> {
        let (first, stride) = self.first?;
        let turn = u64::from(launch) % TURNS * (self.world - 1);
        let at = turn + sender - u64::from(sender > home);
        Some(first + home * stride + at * self.each)
    }

    /// The other ranks.
    pub fn peers(&self) -> impl Iterator<Item = u64> + use<> {
        let rank = self.rank;
        (0..self.world).filter(move |peer| *peer != rank)
    }

    /// Sends a peer those words, so many bytes behind the first of this rank's rows.
    ///
    /// # Errors
    /// If the memory refuses an access.
    pub fn send(
        &self,
        peer: u64,
        (behind, launch): (u64, u32),
        own: &[u8],
        memory: &mut dyn Memory,
    ) -> Result<(), Fault> {
        let sent: Vec<u8> = words(own)
            .flat_map(|word| inverted(word).to_le_bytes())
            .collect();
        match self.rows_from(peer, self.rank, launch) {
            Some(rows) => memory.write(rows + behind, &sent),
            None => Ok(()),
        }
    }

    /// The words of a peer, so many bytes behind the first of its rows, or how many of how many have come. Nothing waits unless
    /// `waits` says so.
    ///
    /// # Errors
    /// If the memory refuses an access.
    pub fn come(
        &self,
        peer: u64,
        (behind, launch): (u64, u32),
        (bytes, waits): (u64, bool),
        memory: &dyn Memory,
    ) -> Result<Result<Vec<u8>, [u64; 2]>, Fault> {
        let Some(rows) = self.rows_from(self.rank, peer, launch) else {
            return Ok(Ok(Vec::new()));
        };
        let come = memory.bytes(rows + behind, bytes)?;
        let (seen, wanted) = (words(&come).filter(|word| *word != 0).count(), bytes / 4);
        Ok(match seen as u64 {
            seen if seen < wanted && waits => Err([seen, wanted]),
            _ => Ok(words(&come)
                .flat_map(|word| (!word).to_le_bytes())
                .collect()),
        })
    }

    /// Makes zero what was taken.
    ///
    /// # Errors
    /// If the memory refuses an access.
    pub fn clear(
        &self,
        peer: u64,
        (behind, launch): (u64, u32),
        bytes: u64,
        memory: &mut dyn Memory,
    ) -> Result<(), Fault> {
        match self.rows_from(self.rank, peer, launch) {
            Some(rows) => memory.write(rows + behind, &vec![0; bytes as usize]),
            None => Ok(()),
        }
    }

    /// What a step waits for: a row of a peer, of which so many words have come.
    pub fn awaits(peer: u64, row: u64, [seen, wanted]: [u64; 2]) -> open::Awaited {
        open::Awaited {
            what: peer as u32,
            index: row as u32,
            seen,
            wanted,
        }
    }
}

/// The count of launches at that address.
///
/// # Errors
/// If the memory refuses an access.
pub fn launches_before(at: u64, memory: &dyn Memory) -> Result<u32, Fault> {
    let bytes = memory.bytes(at, 4)?;
    Ok(words(&bytes).next().unwrap_or(0))
}

/// Names for the stall records of such a kernel.
pub(crate) fn names(kernel: &str, world: u32) -> Names {
    let waits = (0..world).map(|peer| Awaited {
        name: format!("rows of rank {peer}"),
        first: 0,
        at: None,
    });
    Names {
        kernel: kernel.into(),
        roles: vec!["rows".into()],
        waits: waits.collect(),
    }
}
