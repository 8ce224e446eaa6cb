//! Traces: the events of kernels compiled with [`Probes::trace`](crate::jit::Probes), and the operations that a call
//! puts on a stream.

use super::driver::check;
use super::memory::{fill, read};
use super::{Address, Function};
use crate::error::Error;
use counterflow_emitter::TRACE_ROOM;
use cudarc::driver::{CudaStream, sys};
use std::ffi::CStr;
use std::ptr;

/// The prelude's `TraceEvent`, in words of 32 bits.
const WORDS: usize = 6;

/// Events that one thread of a traced kernel wrote.
///
/// ```
/// use counterflow::cuda::{Sighting, Sightings};
///
/// /// From a thread's first event to its last, in nanoseconds.
/// fn span(of: &Sightings) -> u64 {
///     let time = |event: Option<&Sighting>| event.map_or(0, |event| event.time);
///     println!("CTA {}, lane {}: {} events, {} lost", of.block, of.lane, of.events.len(), of.lost);
///     time(of.events.last()) - time(of.events.first())
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sightings {
    /// Index of the CTA.
    pub block: u32,
    /// Index of the thread in its CTA: the four warps of one thread each come first, then the warpgroups.
    pub lane: u32,
    /// Events of the thread, in order.
    pub events: Vec<Sighting>,
    /// Later events, for which there was no room.
    pub lost: u32,
}

/// An event in one thread of a traced kernel.
///
/// [`Sightings`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sighting {
    /// Nanoseconds on its GPU's clock.
    pub time: u64,
    /// Number of the probe in the kernel's text.
    pub site: u32,
    /// The item, or the cell of a wait.
    pub number: u32,
    /// Place of a signal: bytes from the first cell in slot 0 of the symmetric heap to its counter.
    pub place: u64,
}

impl Function {
    /// The events of the last launch, if there was one since the last call, thread by thread. Waits for the stream.
    ///
    /// # Errors
    /// [`Error::Usage`] if the kernel was compiled without [`Probes::trace`](crate::jit::Probes).
    pub fn trace(&self, stream: &CudaStream) -> Result<Vec<Sightings>, Error> {
        let [ctas, lanes, room] = TRACE_ROOM.map(|number| number as usize);
        let (counts_at, counts_bytes) = self.global(c"trace_counts")?;
        let (events_at, events_bytes) = self.global(c"trace_events")?;
        if counts_bytes != ctas * lanes * 4 || events_bytes != ctas * lanes * room * WORDS * 4 {
            return Err(Error::Usage {
                what: format!(
                    "{} has room for events of another version's shape",
                    self.name()
                ),
                legal: "compile it with this version".into(),
            });
        }
        let counts = read::<u32>(stream, counts_at, ctas * lanes)?;
        let mut traced = Vec::new();
        for (place, count) in counts
            .into_iter()
            .enumerate()
            .filter(|(_, count)| *count > 0)
        {
            let kept = (count as usize).min(room);
            let from = Address(events_at.0 + (place * room * WORDS * 4) as u64);
            let words = read::<u32>(stream, from, kept * WORDS)?;
            let wide = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
            let events = words.chunks_exact(WORDS).map(|words| Sighting {
                time: wide(words[0], words[1]),
                site: words[2],
                number: words[3],
                place: wide(words[4], words[5]),
            });
            traced.push(Sightings {
                block: (place / lanes) as u32,
                lane: (place % lanes) as u32,
                events: events.collect(),
                lost: count - kept as u32,
            });
        }
        fill(stream, counts_at, 0, counts_bytes as u64)?;
        Ok(traced)
    }

    /// A variable of the module, and its size.
    fn global(&self, name: &CStr) -> Result<(Address, usize), Error> {
        self.bind()?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the module is loaded, the name ends in zero, both places are ours.
        let code = unsafe {
            sys::cuModuleGetGlobal_v2(
                &raw mut address,
                &raw mut bytes,
                self.module(),
                name.as_ptr(),
            )
        };
        if code != sys::CUresult::CUDA_SUCCESS {
            return Err(Error::Usage {
                what: format!("{} has no {}", self.name(), name.to_string_lossy()),
                legal: "a kernel from a compiler with_probes(trace)".into(),
            });
        }
        Ok((Address(address), bytes))
    }
}

/// The operations that a call puts on a stream.
///
/// [`enqueued`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Enqueued {
    /// Kernels.
    pub kernels: usize,
    /// Copies, fills and other operations.
    pub others: usize,
}

/// The operations that `call` would put on the stream. They are captured and dropped; nothing runs.
///
/// ```no_run
/// use counterflow::Communicator;
/// use counterflow::cuda::{Enqueued, enqueued};
///
/// let rank = &Communicator::local(1)?[0];
/// let stream = rank.gpu().cuda()?.stream()?;
/// let told = enqueued(&stream, || Ok(()))?;
/// assert_eq!(told, Enqueued { kernels: 0, others: 0 });
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// # Errors
/// Those of `call`; what cannot be captured.
pub fn enqueued(
    stream: &CudaStream,
    call: impl FnOnce() -> Result<(), Error>,
) -> Result<Enqueued, Error> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is alive; nothing else uses it meanwhile but `call`.
    check("capture a call", unsafe {
        sys::cuStreamBeginCapture_v2(stream.cu_stream(), mode)
    })?;
    let called = call();
    let mut graph = ptr::null_mut();
    // SAFETY: the capture was begun above, also where the call failed.
    let ended = unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) };
    called?;
    check("capture a call", ended)?;
    let mut count = 0;
    // SAFETY: with no place for them, only their number is given.
    let code = unsafe { sys::cuGraphGetNodes(graph, ptr::null_mut(), &raw mut count) };
    let mut nodes = vec![ptr::null_mut(); count];
    let counted = check("look at a captured call", code).and_then(|()| {
        if nodes.is_empty() {
            return Ok(Enqueued::default());
        }
        // SAFETY: there is a place for each.
        let code = unsafe { sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) };
        check("look at a captured call", code)?;
        let mut enqueued = Enqueued::default();
        for node in nodes.iter().take(count) {
            let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
            // SAFETY: the node is the graph's, the place is ours.
            let code = unsafe { sys::cuGraphNodeGetType(*node, &raw mut kind) };
            check("look at a captured call", code)?;
            if kind == sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL {
                enqueued.kernels += 1;
            } else {
                enqueued.others += 1;
            }
        }
        Ok(enqueued)
    });
    // SAFETY: the graph is ours and never instantiated.
    unsafe { sys::cuGraphDestroy(graph) };
    counted
}
