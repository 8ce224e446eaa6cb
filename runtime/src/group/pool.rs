//! Scratch that the kernels of a communicator share, and the credits that say when it is free.
//!
//! A launch may write scratch when its last readers in the launches before are done. The verifier proves for each kernel
//! that every access of a launch comes before the grant of the credit, wherever rows lie, and that every write waits for
//! all credits that were granted before (`launches` in codegen). So launches of two kernels may follow each other in the
//! same memory if both count in the same cells: a grant of either then counts for both. Two kernels share a place only if
//! their writers wait for the same ranks: for the owner alone, or for everyone because ranks read each other's scratch.

use super::heap::{Allocation, Heap, Room};
use crate::error::Error;
use crate::held::Owner;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Bytes of a cell.
const LINE: u64 = 128;
/// Scratch tensors that a kernel shares, of either kind. More of one kernel have memory and credits of their own.
const SHARED: usize = 4;
/// Shared places of a communicator.
pub(crate) const PLACES: usize = 2 * SHARED;

/// Readers whose credits a writer of scratch waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Readers {
    /// Only its owner reads it.
    Owner,
    /// Other ranks read it there.
    Everyone,
}

/// A scratch tensor of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Scratch {
    pub name: Arc<str>,
    pub bytes: u64,
    /// None without a credit that could be shared.
    pub readers: Option<Readers>,
}

/// Memory of the heap that a kernel needs. All ranks need the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Needs {
    pub kernel: Arc<str>,
    /// The largest launch, and the identity of its plan: schedule, choices, types, sizes.
    pub most: Arc<str>,
    pub plan: u64,
    /// Counter cells of a rank, those of all its credits among them.
    pub cells: u32,
    pub scratch: Vec<Scratch>,
}

/// Places that a kernel got.
#[derive(Debug)]
pub(crate) struct Placed {
    /// The kernel's number in the communicator.
    pub number: u32,
    /// Offset of cell 0 in a slot.
    pub base: u64,
    /// The kernel's own cells, and which is the first. None of a kernel that counts nothing.
    pub cells: Option<Allocation>,
    pub first: u32,
    /// The memory of each scratch tensor, and the first cell of its credit if others share it: one a rank.
    pub scratch: Vec<(Arc<Allocation>, Option<u32>)>,
}

impl Placed {
    /// Places of a kernel that needs nothing of the heap. No rank tells the others of it, so its number is none of
    /// theirs.
    pub fn alone() -> Placed {
        static NEXT: AtomicU32 = AtomicU32::new(1 << 31);
        Placed {
            number: NEXT.fetch_add(1, Ordering::Relaxed) | 1 << 31,
            base: 0,
            cells: None,
            first: 0,
            scratch: Vec::new(),
        }
    }
}

/// Memory that the kernels of a communicator share.
#[derive(Debug)]
pub(super) struct Pool {
    kernels: u32,
    /// Offset of the shared credits in a slot.
    credits: u64,
    world: u32,
    /// The memory of each shared place.
    places: Vec<Weak<Allocation>>,
}

/// Bytes of the shared credits of so many ranks.
pub(super) fn credit_bytes(world: u32) -> u64 {
    2 * SHARED as u64 * u64::from(world) * LINE
}

/// The shared place of each scratch tensor of a kernel, if it has one: below [`PLACES`].
pub(crate) fn places(scratch: &[Scratch]) -> Vec<Option<usize>> {
    let mut next = [0, SHARED];
    let end = [SHARED, PLACES];
    let place = |scratch: &Scratch| {
        let kind = match scratch.readers? {
            Readers::Owner => 0,
            Readers::Everyone => 1,
        };
        next[kind] += 1;
        Some(next[kind] - 1).filter(|place| *place < end[kind])
    };
    scratch.iter().map(place).collect()
}

impl Pool {
    /// Nothing yet, with credits there.
    pub fn new(credits: u64, world: u32) -> Pool {
        Pool {
            kernels: 0,
            credits,
            world,
            places: (0..PLACES).map(|_| Weak::new()).collect(),
        }
    }

    /// Places a kernel. Its cells are near the shared credits, so that it can name both from one base; if there is no
    /// room, it shares nothing.
    pub fn place(
        &mut self,
        heap: &Arc<Heap>,
        needs: &Needs,
        patience: Duration,
    ) -> Result<Placed, Error> {
        let name = format!("counters of {}", needs.kernel);
        let bytes = u64::from(needs.cells) * LINE;
        let mut places = places(&needs.scratch);
        let near = match places.iter().any(Option::is_some) {
            true => match heap.allocate((&name, Owner::Ops), bytes, Room::Cells, patience) {
                Ok(cells) => Some(cells),
                Err(Error::TooLarge { .. }) => None,
                Err(error) => return Err(error),
            },
            false => None,
        };
        let (cells, base) = match near {
            Some(cells) => (cells, self.credits),
            None => {
                places.fill(None);
                let cells = heap.allocate((&name, Owner::Ops), bytes, Room::Heap, patience)?;
                let base = cells.offset();
                (cells, base)
            }
        };
        let known = needs.scratch.iter().zip(&places).map(|(wanted, place)| {
            let known = place.and_then(|place| self.places[place].upgrade());
            known.filter(|known| known.bytes() >= wanted.bytes)
        });
        // Held until all have looked: a process may have dropped what others still have.
        let known: Vec<_> = known.collect();
        let here: Vec<bool> = known.iter().map(Option::is_some).collect();
        let everywhere = heap.on_all(&here)?;
        let mut scratch = Vec::new();
        for (((wanted, place), known), everywhere) in
            needs.scratch.iter().zip(places).zip(known).zip(everywhere)
        {
            let memory = match known.filter(|_| everywhere) {
                Some(known) => known,
                None => {
                    let (name, bytes) = ((&*wanted.name, Owner::Ops), wanted.bytes);
                    Arc::new(heap.allocate(name, bytes, Room::Heap, patience)?)
                }
            };
            if let Some(place) = place {
                self.places[place] = Arc::downgrade(&memory);
            }
            scratch.push((memory, place.map(|place| place as u32 * self.world)));
        }
        self.kernels += 1;
        Ok(Placed {
            number: self.kernels - 1,
            base,
            first: ((cells.offset() - base) / LINE) as u32,
            cells: Some(cells),
            scratch,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(readers: Option<Readers>) -> Scratch {
        Scratch {
            name: "partial".into(),
            bytes: 1,
            readers,
        }
    }

    #[test]
    fn scratch_is_shared_by_its_order_and_by_whose_credits_its_writers_wait_for() {
        let owner = || scratch(Some(Readers::Owner));
        let everyone = || scratch(Some(Readers::Everyone));
        assert_eq!(
            places(&[owner(), scratch(None), everyone(), owner()]),
            [Some(0), None, Some(SHARED), Some(1)]
        );
        // A kernel that is read by others never meets one whose writers wait for the owner alone.
        assert_ne!(places(&[owner()]), places(&[everyone()]));
        let many: Vec<_> = (0..=SHARED).map(|_| owner()).collect();
        assert_eq!(places(&many).last(), Some(&None));
    }
}
