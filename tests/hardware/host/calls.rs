//! The driver's calls of which launches are made, without anything of ours around them.

use super::{QUEUED, Times, stream, timed};
use counterflow::cuda::{Arguments, LaunchConfig, Module};
use counterflow::jit::{Compiler, Source, Target};
use counterflow::{Communicator, Error, UserBuffer};
use cudarc::driver::sys;

/// A kernel that does nothing, launched as `ag_gemm` is: as many CTAs, threads, bytes of parameters and bytes of shared
/// memory.
pub const EMPTY: Source<'_> = Source::new(
    "empty",
    "struct Parameters { char bytes[928]; };
extern \"C\" __global__ void empty(const __grid_constant__ Parameters parameters) {}",
);
const BYTES: usize = 928;
const SHARED: u32 = 200 << 10;
const THREADS: u32 = 384;

fn ok(code: sys::CUresult) -> Result<(), Error> {
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    Ok(())
}

/// The rows of the table that are calls of the driver.
pub fn driver(rank: &Communicator) -> Result<Vec<(&'static str, Times)>, Error> {
    let gpu = rank.gpu().cuda()?;
    let compiled = Compiler::find()?.compile(&EMPTY, Target::Sm90a)?;
    let empty = Module::load(gpu, &compiled)?.function("empty", SHARED)?;
    let mut parameters = Arguments::new();
    parameters.bytes(&[0; BYTES]);
    let (one, other) = (stream(rank)?, stream(rank)?);
    let event = gpu.context().new_event(None).expect("an event");
    // Streams store to and wait for mapped memory only, not that of a pool.
    let memory: UserBuffer<u8> = rank.allocate("cells", [4096])?;
    let address = memory.address().get();
    let (a, b) = (one.cu_stream(), other.cu_stream());
    let grid = LaunchConfig::of(rank.gpu().sms() / rank.world(), THREADS);
    // SAFETY: the kernel accesses nothing.
    let launch = |on| unsafe { empty.launch(on, grid, &parameters) };

    one.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
        .expect("recording");
    launch(&one)?;
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream records, and the place is ours.
    ok(unsafe { sys::cuStreamEndCapture(a, &raw mut graph) })?;
    let mut replayed = std::ptr::null_mut();
    // SAFETY: the graph was just made.
    ok(unsafe { sys::cuGraphInstantiateWithFlags(&raw mut replayed, graph, 0) })?;
    one.synchronize().expect("done");
    other.synchronize().expect("done");
    rank.barrier()?;

    let mut rows = Vec::new();
    let mut row = |name, call: &mut dyn FnMut() -> Result<(), Error>| {
        let times = timed(rank, QUEUED, call);
        // What is timed is in streams that the rank's own does not wait for.
        one.synchronize().expect("done");
        other.synchronize().expect("done");
        rows.push((name, times?));
        Ok::<_, Error>(())
    };
    row("driver: which context is current", &mut || {
        let mut context = std::ptr::null_mut();
        // SAFETY: the place is ours.
        ok(unsafe { sys::cuCtxGetCurrent(&raw mut context) })
    })?;
    row("driver: whether a stream records", &mut || {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive and the place is ours.
        ok(unsafe { sys::cuStreamIsCapturing(a, &raw mut status) })
    })?;
    row("driver: make an event and destroy it", &mut || {
        let mut made = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the place is ours.
        ok(unsafe { sys::cuEventCreate(&raw mut made, flags) })?;
        // SAFETY: it was just made, and nobody has it.
        ok(unsafe { sys::cuEventDestroy_v2(made) })
    })?;
    row("driver: record an event", &mut || {
        // SAFETY: both are alive.
        ok(unsafe { sys::cuEventRecord(event.cu_event(), a) })
    })?;
    row("driver: let a stream wait for it", &mut || {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT as u32;
        // SAFETY: both are alive.
        ok(unsafe { sys::cuStreamWaitEvent(b, event.cu_event(), flags) })
    })?;
    row("driver: both, behind a kernel", &mut || {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT as u32;
        // SAFETY: all are alive.
        unsafe {
            ok(sys::cuEventRecord(event.cu_event(), a))?;
            ok(sys::cuStreamWaitEvent(b, event.cu_event(), flags))
        }
    })?;
    row("driver: launch of an empty kernel", &mut || launch(&one))?;
    row("driver: the same, between two streams", &mut || {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT as u32;
        let (before, wait) = (event.cu_event(), sys::cuStreamWaitEvent);
        // SAFETY: all are alive, and an event may be recorded again once a stream was told to wait for it.
        unsafe {
            ok(sys::cuEventRecord(before, b))?;
            ok(wait(a, before, flags))?;
            launch(&one)?;
            ok(sys::cuEventRecord(before, a))?;
            ok(wait(b, before, flags))
        }
    })?;
    row("driver: a store by the stream", &mut || {
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: the stream is alive, and the memory has that place.
        ok(unsafe { sys::cuStreamWriteValue64_v2(a, address, 1, flags) })
    })?;
    row("driver: a wait of the stream that is over", &mut || {
        let flags = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: the stream is alive, and the memory has that place.
        ok(unsafe { sys::cuStreamWaitValue64_v2(a, address, 0, flags) })
    })?;
    row("driver: a copy within the GPU", &mut || {
        // SAFETY: the memory has both ranges.
        ok(unsafe { sys::cuMemcpyDtoDAsync_v2(address, address + 2048, 1024, a) })
    })?;
    row("driver: replay of a graph of one kernel", &mut || {
        // SAFETY: the graph and the stream are alive.
        ok(unsafe { sys::cuGraphLaunch(replayed, a) })
    })?;
    // SAFETY: both are ours, and their work is done.
    unsafe {
        ok(sys::cuGraphExecDestroy(replayed))?;
        ok(sys::cuGraphDestroy(graph))?;
    }
    Ok(rows)
}
