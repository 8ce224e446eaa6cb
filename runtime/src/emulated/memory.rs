//! The memory of an emulated machine: allocations by address. An address is never used twice.

use crate::error::Error;
use crate::shared::Segment;
use counterflow_emulator::open::{Fault, Memory};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes between allocations, so that what runs over the end of one does not meet the next.
const GAP: u64 = 1 << 16;

/// Freed allocations that an error can tell from memory that never was.
const REMEMBERED: usize = 4096;
/// So many bytes and more come from the system as they are touched, and are zero.
const LAZY: usize = 40 << 20;

/// An allocation: the first `len` of these bytes. Those behind are zero.
#[derive(Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    len: usize,
    /// Other processes have it, too: then it is here instead.
    shared: Option<Arc<Segment>>,
}

/// Zeros, unless this process may not have so many bytes.
fn zeros(len: usize) -> Result<Vec<u8>, Error> {
    // A vector of zeros is not touched, but ends the process where there is no room; so the room is asked for before.
    let mut room = Vec::<u8>::new();
    let found = room.try_reserve_exact(len);
    // Else the compiler may leave it out.
    std::hint::black_box(&room);
    drop(room);
    found.map_err(|why| Error::TooLarge {
        what: format!("{len} bytes of an emulated GPU's memory: {why}"),
        help: "free memory of this process, or let it have more (`ulimit -v`)".into(),
    })?;
    Ok(vec![0; len])
}

impl Block {
    fn zeros(len: usize) -> Result<Block, Error> {
        Ok(Block {
            bytes: zeros(len)?,
            len,
            shared: None,
        })
    }

    /// Most of what a heap maps is never touched, so it is neither cleared nor moved.
    fn grow(&mut self, len: usize) -> Result<(), Error> {
        const PAGE: usize = 4096;
        if len > self.bytes.len() && self.shared.is_none() {
            // Twice the room if there is so much, so that it seldom moves.
            let more = zeros(len.next_power_of_two().max(LAZY));
            let mut more = more.or_else(|_| zeros(len))?;
            let old = self.bytes[..self.len].chunks(PAGE);
            for (old, new) in old.zip(more.chunks_mut(PAGE)) {
                if old.iter().any(|byte| *byte != 0) {
                    new[..old.len()].copy_from_slice(old);
                }
            }
            self.bytes = more;
        }
        self.len = len;
        Ok(())
    }
}

/// Allocations by their first address.
#[derive(Debug, Default)]
pub(super) struct Allocations {
    live: BTreeMap<u64, Block>,
    /// Ends of freed ones.
    freed: BTreeMap<u64, u64>,
    next: u64,
    /// The most bytes at a time.
    #[cfg(test)]
    most: u64,
}

impl Allocations {
    /// Addresses without memory.
    pub fn reserve(&mut self, bytes: u64) -> u64 {
        let at = self.next.next_multiple_of(GAP) + GAP;
        self.next = at + bytes;
        at
    }

    /// Zeroed memory.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if this process may not have so much.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, Error> {
        let block = Block::zeros(bytes as usize)?;
        let at = self.reserve(bytes);
        self.live.insert(at, block);
        #[cfg(test)]
        {
            self.most = self.most.max(self.taken());
        }
        Ok(at)
    }

    /// Bytes that are given out.
    #[cfg(test)]
    fn taken(&self) -> u64 {
        self.live.values().map(|block| block.len as u64).sum()
    }

    /// Bytes that are given out, and the most at a time since this was asked last.
    #[cfg(test)]
    pub fn taken_at_most(&mut self) -> [u64; 2] {
        let taken = self.taken();
        [taken, std::mem::replace(&mut self.most, taken).max(taken)]
    }

    /// Zeroed memory at reserved addresses, up to that size.
    ///
    /// # Errors
    /// As [`Allocations::allocate`]; it is as before then.
    pub fn grow(&mut self, at: u64, bytes: u64) -> Result<(), Error> {
        self.live.entry(at).or_default().grow(bytes as usize)
    }

    /// Memory that processes share, at reserved addresses: its first bytes.
    pub fn share(&mut self, at: u64, segment: &Arc<Segment>, len: u64) {
        let block = Block {
            bytes: Vec::new(),
            len: len as usize,
            shared: Some(segment.clone()),
        };
        self.live.insert(at, block);
    }

    fn find(&self, at: u64, len: u64) -> Result<(u64, usize), Fault> {
        let found = self.live.range(..=at).next_back();
        let end = at.saturating_add(len);
        match found {
            Some((start, block)) if end <= start + block.len as u64 => {
                Ok((*start, (at - start) as usize))
            }
            _ => Err(self.why(at, len)),
        }
    }

    fn why(&self, at: u64, len: u64) -> Fault {
        let freed = self.freed.range(..=at).next_back();
        let what = match freed.filter(|(_, end)| at < **end) {
            Some(_) => "memory that was freed".to_owned(),
            None => match self.live.range(..=at).next_back() {
                Some((start, block)) => format!(
                    "byte {} of an allocation of {}",
                    at - start + len,
                    block.len
                ),
                None => "no memory".to_owned(),
            },
        };
        Fault(format!("an access of {len} bytes reaches {what}"))
    }
}

impl Memory for Allocations {
    fn bytes(&self, at: u64, len: u64) -> Result<Cow<'_, [u8]>, Fault> {
        let (start, from) = self.find(at, len)?;
        let block = &self.live[&start];
        Ok(match &block.shared {
            None => Cow::Borrowed(&block.bytes[from..from + len as usize]),
            Some(segment) => {
                let mut bytes = vec![0; len as usize];
                segment.read(from as u64, &mut bytes);
                Cow::Owned(bytes)
            }
        })
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        let (start, from) = self.find(at, bytes.len() as u64)?;
        let block = self.live.get_mut(&start);
        let block = block.ok_or_else(|| Fault("no memory".into()))?;
        match &block.shared {
            None => block.bytes[from..from + bytes.len()].copy_from_slice(bytes),
            Some(segment) => segment.write(from as u64, bytes),
        }
        Ok(())
    }

    fn update(
        &mut self,
        at: u64,
        len: u64,
        change: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), Fault> {
        let (start, from) = self.find(at, len)?;
        let block = self.live.get_mut(&start);
        let block = block.ok_or_else(|| Fault("no memory".into()))?;
        match &block.shared {
            None => change(0, &mut block.bytes[from..from + len as usize]),
            Some(segment) => segment.update(from as u64, len as usize, change),
        }
        Ok(())
    }

    fn free(&mut self, at: u64) -> Result<(), Fault> {
        match self.live.remove(&at) {
            Some(block) => {
                self.freed.insert(at, at + block.len as u64);
                if self.freed.len() > REMEMBERED {
                    self.freed.pop_first();
                }
                Ok(())
            }
            None => Err(Fault("memory is freed that is none".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_beyond_an_allocation_and_after_its_end_are_refused() {
        let mut memory = Allocations::default();
        let [a, b] = [100, 8].map(|bytes| memory.allocate(bytes).expect("room"));
        assert!(memory.bytes(a, 100).is_ok() && memory.bytes(b + 4, 4).is_ok());
        let told = |memory: &Allocations, at, len| memory.bytes(at, len).expect_err("refused").0;
        assert_eq!(
            told(&memory, a + 96, 8),
            "an access of 8 bytes reaches byte 104 of an allocation of 100"
        );
        memory.free(a).expect("freed");
        assert_eq!(
            told(&memory, a + 4, 4),
            "an access of 4 bytes reaches memory that was freed"
        );
        assert!(memory.free(a).is_err());
        assert!(
            memory.allocate(100).expect("room") > b,
            "addresses are not used again"
        );
    }

    #[test]
    fn what_grows_keeps_its_bytes_and_the_rest_is_zero() {
        let mut memory = Allocations::default();
        let at = memory.reserve(1 << 30);
        memory.grow(at, 10_000).expect("room");
        memory.write(at + 9_999, &[7]).expect("there");
        assert!(memory.bytes(at + 10_000, 1).is_err());
        for bytes in [50_000, (LAZY as u64) * 2] {
            memory.grow(at, bytes).expect("room");
            let all = memory.bytes(at, bytes).expect("there");
            assert_eq!((all.len() as u64, all[9_999]), (bytes, 7));
            assert!(all[10_000..].iter().all(|byte| *byte == 0));
            assert!(memory.bytes(at, bytes + 1).is_err());
        }
    }

    #[test]
    fn memory_that_the_system_does_not_give_is_refused_and_nothing_is_lost() {
        const MOST: u64 = isize::MAX as u64;
        let mut memory = Allocations::default();
        let at = memory.reserve(1 << 30);
        memory.grow(at, 10_000).expect("room");
        memory.write(at, &[7]).expect("there");
        for bytes in [MOST, MOST - 1, 1 << 60] {
            let refused = [memory.allocate(bytes).map(drop), memory.grow(at, bytes)];
            for error in refused {
                let error = error.expect_err("too much");
                assert_eq!(error.kind(), "too_large");
                assert!(
                    error
                        .to_string()
                        .contains(&format!("{bytes} bytes of an emulated GPU's memory: ")),
                    "{error}"
                );
            }
        }
        assert_eq!(memory.bytes(at, 10_000).expect("there")[0], 7);
        assert!(memory.bytes(at, 10_001).is_err());
    }
}
