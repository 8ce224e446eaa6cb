//! Memory of other libraries in the slots: it was made by the driver's virtual memory management, so it can have further
//! addresses, and other processes can have it. It lies at the ends of the slots, the last that came first.

use super::super::Gpu;
use super::super::driver::check;
use super::super::handle::Handle;
use super::super::later::Location;
use super::{Slots, not_offered, unmap};
use crate::error::Error;
use crate::shared::{Handed, Handles};
use cudarc::driver::sys;
use std::ops::Range;

/// One rank's memory of another library, which lives for as long as this.
#[derive(Debug)]
pub(crate) struct Lent(Handle);

/// Facts about some memory before it is taken.
#[derive(Clone, Debug)]
struct Found {
    /// The mapping that the address is in.
    range: Range<u64>,
    /// True if one allocation is behind all of it.
    whole: bool,
    on_gpu: Option<i32>,
    exportable: bool,
}

/// The refusal of memory that peers cannot have.
pub(crate) fn not_lendable(what: impl Into<String>) -> Error {
    Error::Usage {
        what: what.into(),
        legal: "adopt memory of the rank's GPU that was made by `cuMemCreate` with a POSIX file descriptor, as \
                `ncclMemAlloc` makes it, or `allocate` some and copy"
            .into(),
    }
}

/// Rejects memory that is not all of one allocation of that GPU's that others can have.
fn judged(found: &Found, wanted: &Range<u64>, gpu: i32, page: u64) -> Result<u64, Error> {
    let refuse = |what: String| Err(not_lendable(what));
    match found.on_gpu {
        Some(on) if on == gpu => {}
        Some(on) => return refuse(format!("memory of GPU {on}, and the rank is on GPU {gpu}")),
        None => return refuse("memory of the host".into()),
    }
    if !found.exportable {
        return refuse("memory that was made without a POSIX file descriptor".into());
    }
    if found.range.start != wanted.start {
        let inside = wanted.start - found.range.start;
        return refuse(format!(
            "memory that starts {inside} bytes inside of its allocation"
        ));
    }
    if !found.whole {
        return refuse("memory of several allocations".into());
    }
    let (held, bytes) = (
        found.range.end - found.range.start,
        wanted.end - wanted.start,
    );
    if !held.is_multiple_of(page) || bytes.next_multiple_of(page) != held {
        return refuse(format!(
            "{bytes} bytes of an allocation of {held}, where all of it is mapped in multiples of {page}"
        ));
    }
    Ok(held)
}

/// Bytes that each rank of this process has lent, by what each has: all have as much, and enough. All processes find
/// the same.
fn as_much(held: &[u64], ranks: usize, wanted: u64, page: u64) -> Result<u64, Error> {
    let needed = wanted.checked_next_multiple_of(page).filter(|_| wanted > 0);
    let fits = |held: &u64| Some(*held) == needed;
    match needed {
        Some(needed) if held.len() == ranks && held.iter().all(fits) => Ok(needed),
        Some(_) | None => Err(not_lendable(format!(
            "{wanted} bytes a rank in allocations of {held:?} bytes of {ranks} ranks, where all of it is mapped in multiples of {page}"
        ))),
    }
}

/// The first two of these that are the same.
fn twice<T>(each: &[T], same: impl Fn(&T, &T) -> bool) -> Option<(usize, usize)> {
    let pairs = (1..each.len()).flat_map(|later| (0..later).map(move |first| (first, later)));
    let mut pairs = pairs.filter(|(first, later)| same(&each[*first], &each[*later]));
    pairs.next()
}

impl Lent {
    /// Memory at that address of a rank's GPU.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason why peers cannot have it.
    pub(crate) fn of(gpu: &Gpu, address: u64, bytes: u64) -> Result<Lent, Error> {
        gpu.bind()?;
        let Some(mut handle) = Handle::at(address, bytes) else {
            return Err(not_lendable(format!(
                "memory at {address:#x} that the driver's virtual memory management did not make"
            )));
        };
        let (mut start, mut held) = (0, 0);
        // SAFETY: both places are ours.
        let code = unsafe { sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut held, address) };
        check("ask for the extent of memory", code)?;
        let range = start..start + held as u64;
        let properties = handle.properties(gpu)?;
        let fd = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let last = Handle::at(range.end - 1, 1);
        let found = Found {
            whole: last.is_some_and(|last| last.is(&handle)),
            on_gpu: Location::on_gpu(properties.location),
            exportable: properties.requestedHandleTypes.0 & fd.0 != 0,
            range,
        };
        let wanted = address..address.saturating_add(bytes);
        let held = judged(
            &found,
            &wanted,
            gpu.ordinal() as i32,
            gpu.page(Handles::Files)?,
        )?;
        handle.set_bytes(held);
        Ok(Lent(handle))
    }

    /// For another process: by a file descriptor.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn export(&self) -> Result<Handed, Error> {
        self.0.export()
    }
}

impl Slots {
    /// End of the part of every slot that is not memory of other libraries, in bytes.
    pub(crate) fn own_end(&self) -> u64 {
        self.stride - self.lent
    }

    /// True if one mapping is behind that part of every slot. All slots have the same pieces.
    pub(crate) fn is_one_piece(&self, range: &Range<u64>) -> bool {
        let (start, end) = (self.base + range.start, self.base + range.end);
        let mut pieces = self.pieces.iter();
        pieces.any(|(address, bytes)| *address <= start && end <= address + bytes)
    }

    /// Maps what each rank of this process lends for that many bytes; where the others are processes, with their file
    /// descriptors.
    pub(crate) fn adopt(
        &mut self,
        wanted: u64,
        lent: Vec<Lent>,
        peers: Option<Vec<Option<Handed>>>,
    ) -> Result<Range<u64>, Error> {
        let held: Vec<u64> = lent.iter().map(|lent| lent.0.bytes()).collect();
        let bytes = as_much(&held, self.owners.len(), wanted, self.granularity)?;
        if let Some((first, later)) = twice(&lent, |one, other| one.0.is(&other.0)) {
            return Err(not_lendable(format!(
                "one allocation that ranks {first} and {later} both lend"
            )));
        }
        let end = self.own_end();
        let start = end.checked_sub(bytes).map(|at| at - at % self.granularity);
        let Some(start) = start.filter(|start| *start >= self.backed) else {
            return Err(Error::TooLarge {
                what: format!(
                    "{bytes} bytes a rank, in slots of {end} with {} in use",
                    self.backed
                ),
                help: "make the communicator with larger slots: addresses are cheap, and those of adopted memory stay taken until the communicator is gone".into(),
            });
        };
        let before = self.pieces.len();
        let mapped = self.map_lent(start, lent, peers);
        // Nobody else may get addresses that still have memory.
        if mapped.is_ok() || !self.take_back(before) {
            self.lent = self.stride - start;
        }
        mapped.map(|()| start..end)
    }

    fn map_lent(
        &mut self,
        start: u64,
        lent: Vec<Lent>,
        peers: Option<Vec<Option<Handed>>>,
    ) -> Result<(), Error> {
        let (Some(peers), Some(apart)) = (peers, &self.apart) else {
            let mut each = (0..).zip(lent);
            return each.try_for_each(|(rank, lent)| self.map_at(rank, start, &lent.0));
        };
        let own = apart.rank;
        for (rank, fd) in (0..).zip(peers) {
            let Some(mine) = lent.first() else { continue };
            if rank == own {
                self.map_at(rank, start, &mine.0)?;
                continue;
            }
            let fd = fd.ok_or_else(|| not_offered(rank))?;
            let theirs = Handle::import(&self.owners[0], &fd, mine.0.bytes())?;
            self.map_at(rank, start, &theirs)?;
        }
        Ok(())
    }

    /// Takes the last that was adopted from the slots again: another process could not map it.
    pub(crate) fn abandon(&mut self, range: &Range<u64>) {
        let inside = |address: u64| {
            let offset = (address - self.base) % self.stride;
            range.contains(&offset)
        };
        let (gone, kept) = self
            .pieces
            .drain(..)
            .partition(|(address, _)| inside(*address));
        self.pieces = kept;
        let gone: Vec<(u64, u64)> = gone;
        for (address, bytes) in gone {
            unmap(address, bytes);
        }
        self.lent = self.stride - range.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;
    const START: u64 = 64 << 20;

    fn found() -> Found {
        Found {
            range: START..START + 3 * PAGE,
            whole: true,
            on_gpu: Some(1),
            exportable: true,
        }
    }

    fn told(found: &Found, wanted: Range<u64>) -> String {
        let told = judged(found, &wanted, 1, PAGE).expect_err("refused");
        assert_eq!(told.kind(), "usage");
        assert!(
            told.help()
                .is_some_and(|help| help.contains("ncclMemAlloc"))
        );
        told.to_string()
    }

    #[test]
    fn all_of_one_allocation_of_the_ranks_gpu_is_lent() {
        let held = |bytes| judged(&found(), &(START..START + bytes), 1, PAGE);
        assert_eq!(held(3 * PAGE).ok(), Some(3 * PAGE));
        // The allocation was rounded up to pages.
        assert_eq!(held(2 * PAGE + 1).ok(), Some(3 * PAGE));
    }

    #[test]
    fn each_rank_lends_as_much_as_the_buffer_has() {
        let held = |held: &[u64], wanted| as_much(held, 2, wanted, PAGE).map_err(|why| why.kind());
        assert_eq!(held(&[2 * PAGE; 2], PAGE + 1), Ok(2 * PAGE));
        for too_little in [
            &[][..],
            &[PAGE],
            &[PAGE; 3],
            &[PAGE, 2 * PAGE],
            &[3 * PAGE; 2],
        ] {
            assert_eq!(held(too_little, PAGE + 1), Err("usage"), "{too_little:?}");
        }
        assert_eq!(held(&[0; 2], 0), Err("usage"));
        assert_eq!(held(&[PAGE; 2], u64::MAX), Err("usage"));
    }

    #[test]
    fn what_two_ranks_lend_is_found() {
        assert_eq!(twice(&[1, 2, 3], PartialEq::eq), None);
        assert_eq!(twice(&[1, 2, 3, 2], PartialEq::eq), Some((1, 3)));
    }

    #[test]
    fn what_peers_cannot_have_is_refused_with_the_reason() {
        let all = START..START + 3 * PAGE;
        let mut other = found();
        other.on_gpu = Some(0);
        assert_eq!(
            told(&other, all.clone()),
            "memory of GPU 0, and the rank is on GPU 1"
        );
        other.on_gpu = None;
        assert_eq!(told(&other, all.clone()), "memory of the host");
        let mut other = found();
        other.exportable = false;
        let wanted = "memory that was made without a POSIX file descriptor";
        assert_eq!(told(&other, all.clone()), wanted);
        let mut other = found();
        other.whole = false;
        assert_eq!(told(&other, all.clone()), "memory of several allocations");
        let inside = START + 512..all.end;
        let wanted = "memory that starts 512 bytes inside of its allocation";
        assert_eq!(told(&found(), inside), wanted);
        for bytes in [2 * PAGE, 3 * PAGE + 1, 1] {
            let wanted = format!(
                "{bytes} bytes of an allocation of {}, where all of it is mapped in multiples of {PAGE}",
                3 * PAGE
            );
            assert_eq!(told(&found(), START..START + bytes), wanted);
        }
        let mut other = found();
        other.range.end += 4096;
        let wanted = format!("of an allocation of {}", 3 * PAGE + 4096);
        assert!(told(&other, all).contains(&wanted));
    }
}
