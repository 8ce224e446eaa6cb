//! The driver's calls of a launch once more, without anything of ours around them.

use super::driver::{Call, Read, asked};
use super::stream;
use counterflow::cuda::{Arguments, Function, LaunchConfig, Module};
use counterflow::jit::{Compiler, Source, Target};
use counterflow::{Communicator, Error, UserBuffer};
use cudarc::driver::sys;
use std::ptr;

/// A kernel that does nothing, with as many bytes of parameters as `ag_gemm` has.
pub const EMPTY: Source<'_> = Source::new(
    "empty",
    "struct Parameters { char bytes[928]; };
extern \"C\" __global__ void empty(const __grid_constant__ Parameters parameters) {}",
);
const BYTES: usize = 928;
/// The most bytes of shared memory of a CTA, and threads of `ag_gemm`.
const SHARED: u32 = 227 << 10;
const THREADS: u32 = 384;
/// Cells of 8 bytes: as many as a stream's operations have at once.
const CELLS: usize = 256;

fn ok(code: sys::CUresult) {
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

/// What stands in for a launch's own where a call cannot be made twice: a kernel that does nothing, a graph of it, and
/// cells that nobody waits for.
pub struct Raw {
    function: sys::CUfunction,
    graph: sys::CUgraphExec,
    cells: UserBuffer<u64>,
    _kernel: Function,
}

impl Raw {
    /// For a rank.
    pub fn new(rank: &Communicator) -> Result<Raw, Error> {
        let gpu = rank.gpu().cuda()?;
        let compiled = Compiler::find()?.compile(&EMPTY, Target::Sm90a)?;
        let kernel = Module::load(gpu, &compiled)?.function("empty", SHARED)?;
        let stream = stream(rank)?;
        let mut arguments = Arguments::new();
        arguments.bytes(&[0; BYTES]);
        let grid = LaunchConfig::of(rank.gpu().sms() / rank.world(), THREADS);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(mode).expect("recording");
        // SAFETY: the kernel accesses nothing.
        let (launched, calls) = asked(|| unsafe { kernel.launch(&stream, grid, &arguments) });
        launched?;
        let launch = calls.iter().find(|call| call.name == "cuLaunchKernelEx");
        let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream records, both places are ours, and the graph was just made.
        unsafe {
            ok(sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph));
            ok(sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
            ok(sys::cuGraphDestroy(graph));
        }
        Ok(Raw {
            function: launch.expect("a launch").given[1] as sys::CUfunction,
            graph: exec,
            // Streams store to and wait for mapped memory only, not that of a pool.
            cells: rank.allocate("cells", [CELLS])?,
            _kernel: kernel,
        })
    }

    /// That call again: the same function with the same streams, events, sizes and flags. Launches are of the empty
    /// kernel, in the same grid, and operations on cells that nobody waits for.
    pub fn again<'a>(&'a self, call: &Call) -> Box<dyn FnMut() + 'a> {
        let [a, b, c, ..] = call.given;
        match (call.name.as_str(), &call.read) {
            ("cuCtxGetCurrent", _) => Box::new(|| {
                let mut context = ptr::null_mut();
                // SAFETY: the place is ours.
                ok(unsafe { sys::cuCtxGetCurrent(&raw mut context) });
            }),
            ("cuCtxSetCurrent", _) => {
                // SAFETY: the context lives as long as the rank.
                Box::new(move || ok(unsafe { sys::cuCtxSetCurrent(a as sys::CUcontext) }))
            }
            ("cuStreamIsCapturing", _) => Box::new(move || {
                let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
                // SAFETY: the stream lives as long as who launched on it, and the place is ours.
                ok(unsafe { sys::cuStreamIsCapturing(a as sys::CUstream, &raw mut status) });
            }),
            ("cuStreamGetPriority", _) => Box::new(move || {
                let mut priority = 0;
                // SAFETY: as above.
                ok(unsafe { sys::cuStreamGetPriority(a as sys::CUstream, &raw mut priority) });
            }),
            // SAFETY: events are kept for the next launch, and streams live as long as who launched on them.
            ("cuEventRecord", _) => Box::new(move || {
                ok(unsafe { sys::cuEventRecord(a as sys::CUevent, b as sys::CUstream) });
            }),
            ("cuStreamWaitEvent", _) => Box::new(move || {
                let (stream, event) = (a as sys::CUstream, b as sys::CUevent);
                // SAFETY: as above.
                ok(unsafe { sys::cuStreamWaitEvent(stream, event, c as u32) });
            }),
            ("cuEventQuery", _) => Box::new(move || {
                // SAFETY: as above. Any answer will do.
                let _ = unsafe { sys::cuEventQuery(a as sys::CUevent) };
            }),
            ("cuGraphLaunch", _) => Box::new(move || {
                // SAFETY: the graph is ours, and the stream lives as above.
                ok(unsafe { sys::cuGraphLaunch(self.graph, b as sys::CUstream) });
            }),
            ("cuLaunchKernelEx", Read::Launch(config, attributes, _)) => {
                let parameters = vec![vec![0; BYTES / 8]];
                // SAFETY: the kernel takes so many bytes and accesses nothing.
                Box::new(unsafe { launches(self.function, *config, attributes, parameters) })
            }
            ("cuStreamBatchMemOp_v2", Read::Operations(operations)) => {
                assert!(operations.len() <= CELLS);
                let mut operations = operations.clone();
                for (at, operation) in operations.iter_mut().enumerate() {
                    operation.writeValue.address = self.cells.address().get() + at as u64 * 8;
                    operation.writeValue.__bindgen_anon_1.value64 = 0;
                }
                Box::new(move || {
                    let (count, first) = (operations.len() as u32, operations.as_mut_ptr());
                    // SAFETY: as many operations, on cells of ours; a wait for zero or more is over.
                    ok(unsafe { sys::cuStreamBatchMemOp_v2(a as sys::CUstream, count, first, 0) });
                })
            }
            ("cuMemcpyBatchAsync_v2", Read::Copy([to, from, bytes], how)) => {
                let (mut to, mut from, mut bytes) = (*to, *from, *bytes as usize);
                let (mut how, mut first, stream) = (*how, 0, call.given[7] as sys::CUstream);
                Box::new(move || {
                    let (to, from, bytes) = (&raw mut to, &raw mut from, &raw mut bytes);
                    let (how, first) = (&raw mut how, &raw mut first);
                    // SAFETY: one copy, as the launch made it, of tensors that are still there.
                    ok(unsafe {
                        sys::cuMemcpyBatchAsync_v2(to, from, bytes, 1, how, first, 1, stream)
                    });
                })
            }
            ("cuMemcpy3DBatchAsync_v2", Read::Lines(lines)) => {
                let (mut lines, stream) = (*lines, call.given[3] as sys::CUstream);
                Box::new(move || {
                    // SAFETY: as above.
                    ok(unsafe { sys::cuMemcpy3DBatchAsync_v2(1, &raw mut lines, 0, stream) });
                })
            }
            (name, _) => panic!("{name} is new in a launch: say how to call it again"),
        }
    }
}

/// A launch's own kernel again, with the same parameters.
///
/// # Safety
/// All ranks launch it as often, in one order of all their launches, while what the launch was given is still there.
pub unsafe fn same(call: &Call) -> impl FnMut() + use<> {
    let Read::Launch(config, attributes, parameters) = &call.read else {
        panic!("{} is no launch", call.name);
    };
    let function = call.given[1] as sys::CUfunction;
    // SAFETY: they are the parameters that it was given; the rest is the caller's promise.
    unsafe { launches(function, *config, attributes, parameters.clone()) }
}

/// Launches that kernel.
///
/// # Safety
/// It takes these parameters, and whatever it does with them is fine.
unsafe fn launches(
    function: sys::CUfunction,
    mut config: sys::CUlaunchConfig,
    attributes: &[sys::CUlaunchAttribute],
    mut parameters: Vec<Vec<u64>>,
) -> impl FnMut() + use<> {
    let mut attributes = attributes.to_vec();
    let mut places: Vec<_> = parameters
        .iter_mut()
        .map(|words| words.as_mut_ptr().cast())
        .collect();
    move || {
        config.attrs = attributes.as_mut_ptr();
        let _kept = &parameters;
        // SAFETY: the caller's promise; all places are ours.
        ok(unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function,
                places.as_mut_ptr(),
                ptr::null_mut(),
            )
        });
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: it is ours, and its work is done.
        ok(unsafe { sys::cuGraphExecDestroy(self.graph) });
    }
}
