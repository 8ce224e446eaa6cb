//! Memory that another library allocated as buffers of the heap, and what of it is refused.

use crate::fine;
use crate::gpus::{both_ways, loopback};
use crate::op::{Operands, SIZE, built, right};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, schedules};
use cudarc::driver::sys;
use std::sync::OnceLock;

/// What another library does: memory of its own, at addresses of its own.
pub struct Theirs {
    pub address: u64,
    bytes: usize,
    handle: sys::CUmemGenericAllocationHandle,
}

fn driver(code: sys::CUresult) {
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

const PAGE: usize = 2 << 20;

impl Theirs {
    /// On that GPU, with a file descriptor for other processes or without.
    pub fn new(rank: &Communicator, bytes: usize, exportable: bool) -> Result<Theirs, Error> {
        use sys::CUmemAllocationHandleType as Handle;
        rank.gpu().cuda()?.bind()?;
        let bytes = bytes.next_multiple_of(PAGE);
        let location = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: rank.gpu().ordinal() as i32,
        };
        let wanted = sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: match exportable {
                true => Handle::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                false => Handle::CU_MEM_HANDLE_TYPE_NONE,
            },
            location,
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        };
        let access = sys::CUmemAccessDesc {
            location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let (mut handle, mut address) = (0, 0);
        // SAFETY: every place is ours, every struct is filled, and nobody else has the addresses.
        unsafe {
            driver(sys::cuMemCreate(
                &raw mut handle,
                bytes,
                &raw const wanted,
                0,
            ));
            driver(sys::cuMemAddressReserve(
                &raw mut address,
                bytes,
                PAGE,
                0,
                0,
            ));
            driver(sys::cuMemMap(address, bytes, 0, handle, 0));
            driver(sys::cuMemSetAccess(address, bytes, &raw const access, 1));
        }
        Ok(Theirs {
            address,
            bytes,
            handle,
        })
    }
}

/// The library frees it whenever it likes.
impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: it is theirs, and nobody uses it by this address any more.
        unsafe {
            driver(sys::cuMemUnmap(self.address, self.bytes));
            driver(sys::cuMemAddressFree(self.address, self.bytes));
            driver(sys::cuMemRelease(self.handle));
        }
    }
}

/// Launches that gather into memory of another library, which frees it before the last of them.
pub fn gathers(rank: &Communicator) -> Result<String, Error> {
    const ROUNDS: usize = 20;
    let [m, side] = SIZE;
    let op = built(rank, &schedules::ag_gemm())?;
    let Operands { w, mut y, .. } = Operands::new(rank)?;
    let rows = m.next_multiple_of(rank.world() as usize);
    let theirs = Theirs::new(rank, rows * side * size_of::<bf16>(), true)?;
    // SAFETY: nobody else uses it.
    let x = unsafe { rank.adopt::<bf16>("theirs", theirs.address, [rows, side])? };
    let mut theirs = Some(theirs);
    rank.synchronize().and_then(|()| rank.barrier())?;
    for round in 0..ROUNDS {
        x.rows(0..m)?.write(&Operands::given(rank, m))?;
        y.fill(0xff)?;
        rank.synchronize().and_then(|()| rank.barrier())?;
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).launch()?.wait()?;
        right(&y.read()?, m);
        if round == ROUNDS / 2 {
            theirs = None;
        }
        rank.barrier()?;
    }
    drop((theirs, x));
    // The heap goes on as before.
    let after = rank.allocate::<u8>("after", [PAGE])?;
    after.fill(1)?;
    rank.barrier()?;
    Ok(format!(
        "{ROUNDS} launches right in memory of another library"
    ))
}

#[test]
fn launches_gather_into_memory_of_another_library() {
    for world in both_ways(1).chain(both_ways(2)).chain(both_ways(4)) {
        let told = fine(Communicator::each(&world.ranks, gathers));
        println!("  {}: {}", told[0], world.told());
    }
}

#[test]
fn memory_that_peers_cannot_have_is_refused_with_the_reason() {
    let Some(world) = loopback(2) else { return };
    let shared = OnceLock::new();
    fine(Communicator::each(&world.ranks, |rank| {
        rank.reserve(8 << 20)?;
        let theirs = Theirs::new(rank, 2 * PAGE, true)?;
        let alone = Theirs::new(rank, 2 * PAGE, false)?;
        let ordinary = rank.zeros::<u8>([2 * PAGE])?;
        let host = [0u8; 64];
        let refused = |address: u64, bytes: usize, why: &str| {
            // SAFETY: nobody else uses it.
            let told = unsafe { rank.adopt::<u8>("theirs", address, [bytes]) };
            let told = told.expect_err("refused");
            assert_eq!(told.kind(), "usage", "{told}");
            assert!(told.to_string().contains(why), "{told}");
        };
        let no_vmm = "that the driver's virtual memory management did not make";
        refused(ordinary.address().get(), 2 * PAGE, no_vmm);
        refused(host.as_ptr() as u64, 64, no_vmm);
        refused(alone.address, 2 * PAGE, "without a POSIX file descriptor");
        refused(theirs.address + 512, PAGE, "starts 512 bytes inside");
        refused(theirs.address, PAGE, "of an allocation of");
        // One rank's is refused to both.
        let address = [theirs.address, ordinary.address().get()][rank.rank() as usize];
        refused(address, 2 * PAGE, "rank 1: memory at");
        let both = *shared.get_or_init(|| theirs.address);
        refused(
            both,
            2 * PAGE,
            "one allocation that ranks 0 and 1 both lend",
        );
        // SAFETY: nobody else uses it.
        let x = unsafe { rank.adopt::<u8>("theirs", theirs.address, [2 * PAGE])? };
        x.write_on(1 - rank.rank(), &vec![7; 2 * PAGE])?;
        rank.synchronize().and_then(|()| rank.barrier())?;
        assert!(x.read()?.iter().all(|byte| *byte == 7));
        rank.barrier()
    }));
    println!(
        "  memory that peers cannot have is refused: {}",
        world.told()
    );
}
