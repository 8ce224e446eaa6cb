//! One range of addresses for all GPUs: slot r is rank r's memory, so a peer's address is a multiple of the stride
//! away.
//!
//! The range is fixed. Physical memory is mapped to it piece by piece, on every rank alike, and no address ever moves.

use super::driver::check;
use super::{Address, Gpu};
use crate::error::Error;
use cudarc::driver::sys;
use std::sync::Arc;

/// Slots side by side, one a rank.
#[derive(Debug)]
pub(crate) struct Slots {
    base: u64,
    stride: u64,
    granularity: u64,
    /// How many bytes of every slot have memory.
    backed: u64,
    owners: Vec<Arc<Gpu>>,
    /// What is mapped: address and bytes.
    pieces: Vec<(u64, u64)>,
}

impl Slots {
    /// A range of one slot per owner, `stride` bytes apart, without memory.
    pub(crate) fn new(owners: Vec<Arc<Gpu>>, stride: u64) -> Result<Slots, Error> {
        for one in &owners {
            for other in &owners {
                one.must_reach(other)?;
            }
        }
        let mut granularity = 2 << 20;
        for owner in &owners {
            owner.bind()?;
            let mut own = 0;
            let wanted = property(owner);
            // SAFETY: both structs are alive and filled.
            let code = unsafe {
                sys::cuMemGetAllocationGranularity(
                    &raw mut own,
                    &raw const wanted,
                    sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
                )
            };
            check("ask for the size of pages", code)?;
            granularity = granularity.max(own as u64);
        }
        let stride = stride
            .checked_next_multiple_of(granularity)
            .filter(|stride| stride.checked_mul(owners.len() as u64).is_some())
            .ok_or_else(|| too_large(stride))?;
        let mut base = 0;
        // SAFETY: the address's place is ours; no memory is touched.
        let code = unsafe {
            sys::cuMemAddressReserve(
                &raw mut base,
                (stride * owners.len() as u64) as usize,
                granularity as usize,
                0,
                0,
            )
        };
        check(
            format_args!(
                "reserve addresses for {} slots of {stride} bytes",
                owners.len()
            ),
            code,
        )?;
        Ok(Slots {
            base,
            stride,
            granularity,
            backed: 0,
            owners,
            pieces: Vec::new(),
        })
    }

    pub(crate) fn stride(&self) -> u64 {
        self.stride
    }

    pub(crate) fn backed(&self) -> u64 {
        self.backed
    }

    /// The address in a rank's slot.
    pub(crate) fn address(&self, rank: u32, offset: u64) -> Address {
        Address(self.base + u64::from(rank) * self.stride + offset)
    }

    /// Maps memory to the first `bytes` of every slot. It holds anything: whoever gives it out clears it in the order of
    /// a stream, since nothing here may wait for a GPU. On an error nothing has changed.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        let wanted = bytes.checked_next_multiple_of(self.granularity);
        let wanted = wanted.unwrap_or(u64::MAX);
        if wanted <= self.backed {
            return Ok(());
        }
        if wanted > self.stride {
            return Err(Error::TooLarge {
                what: format!("{bytes} bytes a rank, in slots of {}", self.stride),
                help: "make the communicator with larger slots: addresses are cheap, only `reserve` takes memory".into(),
            });
        }
        let before = self.pieces.len();
        for rank in 0..self.owners.len() {
            if let Err(error) = self.piece(rank, wanted - self.backed) {
                for (address, bytes) in self.pieces.drain(before..) {
                    unmap(address, bytes);
                }
                return Err(error);
            }
        }
        self.backed = wanted;
        Ok(())
    }

    fn piece(&mut self, rank: usize, bytes: u64) -> Result<(), Error> {
        let owner = &self.owners[rank];
        owner.bind()?;
        let what = || format!("{bytes} bytes of GPU {}", owner.ordinal());
        let wanted = property(owner);
        let mut handle = 0;
        // SAFETY: both places are ours, and the struct is filled.
        check(what(), unsafe {
            sys::cuMemCreate(&raw mut handle, bytes as usize, &raw const wanted, 0)
        })?;
        let address = self.base + rank as u64 * self.stride + self.backed;
        // SAFETY: the addresses are reserved, unmapped, and aligned to the granularity.
        let mapped = unsafe { sys::cuMemMap(address, bytes as usize, 0, handle, 0) };
        // SAFETY: the handle is ours; a mapping keeps the memory alive without it.
        let released = unsafe { sys::cuMemRelease(handle) };
        check(what(), mapped)?;
        self.pieces.push((address, bytes));
        check(what(), released)?;
        let access: Vec<sys::CUmemAccessDesc> = devices(&self.owners)
            .into_iter()
            .map(|id| sys::CUmemAccessDesc {
                location: location(id),
                flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            })
            .collect();
        // SAFETY: the range was just mapped, and the list has as many entries as is said.
        check(what(), unsafe {
            sys::cuMemSetAccess(address, bytes as usize, access.as_ptr(), access.len())
        })
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for (address, bytes) in self.pieces.drain(..) {
            unmap(address, bytes);
        }
        // SAFETY: nothing is mapped in the range any more, and it is ours. A dead context's answer changes nothing.
        unsafe {
            sys::cuMemAddressFree(self.base, (self.stride * self.owners.len() as u64) as usize)
        };
    }
}

/// The error of slots beyond all addresses.
pub(crate) fn too_large(slot: u64) -> Error {
    Error::TooLarge {
        what: format!("slots of {slot} bytes"),
        help: "give each rank fewer bytes of addresses: all slots lie one after another".into(),
    }
}

fn unmap(address: u64, bytes: u64) {
    // SAFETY: exactly this range was mapped; users of the heap hold it alive.
    unsafe { sys::cuMemUnmap(address, bytes as usize) };
}

/// Each GPU once: in a loopback several ranks share one.
fn devices(owners: &[Arc<Gpu>]) -> Vec<i32> {
    let mut ids: Vec<i32> = owners.iter().map(|gpu| gpu.ordinal() as i32).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn location(id: i32) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id,
    }
}

fn property(owner: &Gpu) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        // So that it can be shared with other processes.
        requestedHandleTypes:
            sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: location(owner.ordinal() as i32),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
