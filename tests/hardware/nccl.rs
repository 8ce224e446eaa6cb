//! NCCL in the same process, on the same GPUs. It is bound at run time, and never with multicast.

use crate::adopted::Theirs;
use crate::beside::done;
use crate::gpus::{World, here, loopback, turn, world};
use crate::op::{Operands, SIZE, built, right};
use crate::queues::apart;
use crate::{fine, nvidia};
use counterflow::cuda::{CudaSlice, CudaStream, address_of};
use counterflow::prelude::bf16;
use counterflow::{Communicator, schedules};
use counterflow_runtime::multicast;
use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

const ROUNDS: usize = 30;
const NCCL: &str = "libnccl.so.2";
/// As its header has them.
const BF16: c_int = 9;
const SUM: c_int = 0;
/// The first version that has windows of memory that others map: 2.29.
const WINDOWS: c_int = 22_900;

type Init = unsafe extern "C" fn(*mut *mut c_void, c_int, *const c_int) -> c_int;
type AllReduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    *mut c_void,
    *mut c_void,
) -> c_int;
type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
type Told = unsafe extern "C" fn(c_int) -> *const c_char;

/// NCCL with a communicator of its own over the first GPUs.
struct Nccl {
    opened: Library,
    comms: Vec<*mut c_void>,
}

// SAFETY: each of its communicators is used by one thread.
unsafe impl Sync for Nccl {}

impl Nccl {
    fn new(opened: Library, gpus: u32) -> Nccl {
        let ordinals: Vec<c_int> = (0..gpus as c_int).collect();
        let mut nccl = Nccl {
            opened,
            comms: vec![std::ptr::null_mut(); gpus as usize],
        };
        let init: Init = nccl.function(c"ncclCommInitAll");
        let place = nccl.comms.as_mut_ptr();
        // SAFETY: there is a place for each communicator and a number for each GPU.
        let status = unsafe { init(place, gpus as c_int, ordinals.as_ptr()) };
        nccl.fine(status);
        nccl
    }

    fn function<T: Copy>(&self, name: &CStr) -> T {
        // SAFETY: the types are those of NCCL's manual.
        *unsafe { self.opened.get::<T>(name.to_bytes_with_nul()) }.expect("NCCL has it")
    }

    fn fine(&self, status: c_int) {
        let told: Told = self.function(c"ncclGetErrorString");
        // SAFETY: it is a string that stays.
        let text = unsafe { CStr::from_ptr(told(status)) };
        assert_eq!(status, 0, "NCCL: {}", text.to_string_lossy());
    }

    fn version(&self) -> c_int {
        let version: Version = self.function(c"ncclGetVersion");
        let mut number = 0;
        // SAFETY: the place is ours.
        self.fine(unsafe { version(&raw mut number) });
        number
    }

    /// Sums bf16 numbers over its GPUs, in the order of the stream.
    fn sum(&self, gpu: u32, from: u64, to: u64, count: usize, stream: &CudaStream) {
        let sum: AllReduce = self.function(c"ncclAllReduce");
        let (comm, stream) = (self.comms[gpu as usize], stream.cu_stream().cast());
        // SAFETY: both places have so many numbers until the stream is done, and the stream is of that GPU.
        let status = unsafe { sum(from as _, to as _, count, BF16, SUM, comm, stream) };
        self.fine(status);
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let destroy: Destroy = self.function(c"ncclCommDestroy");
        for comm in &self.comms {
            // SAFETY: its work is done.
            let status = unsafe { destroy(*comm) };
            self.fine(status);
        }
    }
}

/// Ranks on one GPU beside a communicator of NCCL's for that GPU alone, or a GPU for each rank and one of NCCL's over all.
/// NCCL sums what a launch gave, between launches; where it waits for nobody, also at the same time.
fn beside_nccl(world: &World, nccl: &Nccl) {
    let gpus = nccl.comms.len();
    fine(Communicator::each(&world.ranks, |rank| {
        let [m, side] = SIZE;
        let op = built(rank, &schedules::ag_gemm())?;
        let Operands { x, w, mut y } = Operands::new(rank)?;
        x.write(&Operands::given(rank, m))?;
        let (own, gpu) = (rank.gpu().cuda()?, rank.gpu().ordinal());
        let (callers, aside): (Arc<CudaStream>, _) = (own.stream()?, own.stream()?);
        let mut summed: CudaSlice<bf16> = done(callers.alloc_zeros(m * side));
        let (mut both, one) = (
            done(aside.alloc_zeros::<bf16>(m * side)),
            done(aside.clone_htod(&vec![bf16::ONE; m * side])),
        );
        // A GPU's communicator has one user.
        let uses = gpus > 1 || rank.rank() == 0;
        let alone = gpus == 1;
        for stream in [&callers, &aside] {
            done(stream.synchronize());
        }
        rank.synchronize()?;
        rank.barrier()?;
        for _ in 0..ROUNDS {
            let launch = op.on(&callers).tensor("x", &x).tensor("w", &w);
            launch.tensor("y", &mut y).launch()?;
            own.bind()?;
            if uses {
                let to = address_of(&summed, &callers).get();
                nccl.sum(gpu, y.address().get(), to, m * side, &callers);
            }
            if uses && alone {
                let addresses = [&one, &both].map(|slice| address_of(slice, &aside).get());
                nccl.sum(gpu, addresses[0], addresses[1], m * side, &aside);
            }
        }
        rank.synchronize()?;
        done(callers.synchronize());
        done(aside.synchronize());
        right(&y.read()?, m);
        if uses {
            let times = bf16::from_f32(gpus as f32);
            let wanted: Vec<bf16> = y.read()?.into_iter().map(|value| value * times).collect();
            assert!(
                done(callers.clone_dtoh(&summed)) == wanted,
                "NCCL's sums of ours"
            );
            done(callers.memset_zeros(&mut summed));
        }
        if uses && alone {
            let read = done(aside.clone_dtoh(&both));
            assert!(read.iter().all(|value| *value == bf16::ONE), "NCCL's aside");
            done(aside.memset_zeros(&mut both));
        }
        done(callers.synchronize());
        done(aside.synchronize());
        rank.barrier()
    }));
    println!(
        "  beside NCCL over {gpus} GPUs: {ROUNDS} launches right, {}",
        world.told()
    );
}

/// What cannot be tested is told as a skip, or fails where `REQUIRE_NCCL` is set.
fn skipped(why: &str) {
    let required = std::env::var("REQUIRE_NCCL").unwrap_or_default();
    assert!(
        matches!(&required[..], "" | "0"),
        "{why}, but REQUIRE_NCCL={required}"
    );
    nvidia::skipped(why);
}

/// NCCL sums our buffers in place: one of the heap's own, and one in memory that another library allocated. One that is
/// too old for it is refused.
fn windows(world: &World, nccl: &Nccl) {
    let told = Communicator::each(&world.ranks, |rank| {
        rank.reserve(16 << 20)?;
        // What is first in the heap was reserved before, and NCCL wants what was reserved at once.
        let first = rank.allocate::<u8>("first", [1 << 20])?;
        let x = rank.allocate::<bf16>("x", [1 << 16])?;
        let theirs = Theirs::new(rank, 4 << 20, true)?;
        // SAFETY: nobody else uses it.
        let y = unsafe { rank.adopt::<bf16>("y", theirs.address, [2 << 20])? };
        let gpu = rank.gpu().ordinal();
        let stream = rank.gpu().cuda()?.stream()?;
        for buffer in [&x, &y] {
            // SAFETY: the communicator is NCCL's of this GPU and of every rank's, and outlives the window.
            let window = unsafe { buffer.window(nccl.comms[gpu as usize])? };
            buffer.write(&vec![bf16::ONE; buffer.len()])?;
            rank.synchronize().and_then(|()| rank.barrier())?;
            let at = buffer.address().get();
            nccl.sum(gpu, at, at, buffer.len(), &stream);
            done(stream.synchronize());
            let sum = bf16::from_f32(nccl.comms.len() as f32);
            assert!(buffer.read()?.iter().all(|value| *value == sum), "summed");
            rank.barrier()?;
            drop(window);
        }
        drop((first, x, y));
        rank.barrier()
    });
    let version = nccl.version();
    if version < WINDOWS {
        let refused = told.expect_err("an NCCL that has no such windows");
        assert_eq!(refused.kind(), "toolkit", "{refused}");
        return skipped(&format!("windows of NCCL: {refused}"));
    }
    fine(told);
    println!(
        "  NCCL sums in our windows: 2 launches right, {}",
        world.told()
    );
}

#[test]
#[ignore = "the child process of `a_window_is_refused_where_multicast_is_not_forbidden`, which sets its variables"]
fn without_a_variable() {
    let Some(world) = loopback(1) else { return };
    fine(world.ranks[0].reserve(2 << 20));
    let x = fine(world.ranks[0].allocate::<bf16>("x", [64]));
    // SAFETY: no NCCL is called.
    let told = unsafe { x.window(std::ptr::dangling_mut()) }.expect_err("refused");
    assert_eq!(told.to_string(), "NCCL might use multicast");
}

#[test]
fn a_window_is_refused_where_multicast_is_not_forbidden() {
    if here().is_none() {
        return;
    }
    let _turn = turn();
    const OWN: &str = "NCCL_NVLS_ENABLE";
    let set = multicast::OFF.map(|(name, value)| (name, if name == OWN { "1" } else { value }));
    apart("nccl::without_a_variable", &set);
}

#[test]
#[ignore = "the child process of `launches_and_nccl_share_a_gpu`, which sets its variables"]
fn in_this_setting() {
    let Some(gpus) = here() else { return };
    fine(multicast::must_be_off("NCCL"));
    // SAFETY: NVIDIA's libraries run no code at loading that depends on anything of ours.
    let library = || unsafe { Library::open(Some(NCCL), RTLD_NOW) };
    // One that the loader finds, such as a newer one in `LD_LIBRARY_PATH`, comes before that of a package.
    if library().is_err() {
        fine(counterflow::jit::preload(NCCL));
    }
    if let Err(error) = library() {
        return skipped(&format!("NCCL is not on this machine: {error}"));
    }
    let nccl = Nccl::new(library().expect("it was there"), 1);
    if let Some(both_on_one) = loopback(2) {
        beside_nccl(&both_on_one, &nccl);
    }
    if let Some(one) = loopback(1) {
        windows(&one, &nccl);
    }
    drop(nccl);
    if gpus > 1
        && let Some(apart) = world(2)
    {
        let nccl = Nccl::new(library().expect("it was there"), 2);
        beside_nccl(&apart, &nccl);
        windows(&apart, &nccl);
    }
}

#[test]
fn launches_and_nccl_share_a_gpu() {
    if here().is_some() {
        let _turn = turn();
        apart("nccl::in_this_setting", &multicast::OFF);
    }
}
