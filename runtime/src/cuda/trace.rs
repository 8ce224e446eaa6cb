//! Traces: the events of kernels compiled with [`Probes::trace`](crate::jit::Probes), and the operations that a call
//! puts on a stream.

use super::driver::check;
use super::memory::{fill, read};
use super::{Address, Function};
use crate::error::Error;
use cudarc::driver::{CudaStream, sys};
use std::ffi::CStr;
use std::ptr;

/// The prelude's `Event`, in words of 32 bits.
const WORDS: usize = 10;
/// The most events that the prelude keeps.
const TRACED: u32 = 1 << 17;

/// An event in one thread of a kernel.
///
/// ```
/// use counterflow::cuda::{Seen, Sighting};
///
/// /// What one CTA saw, thread by thread.
/// fn of(block: u32, mut all: Vec<Sighting>) -> Vec<(u32, Seen)> {
///     all.retain(|sighting| sighting.block == block);
///     all.sort_by_key(|sighting| sighting.thread);
///     all.into_iter().map(|sighting| (sighting.thread, sighting.what)).collect()
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sighting {
    /// Nanoseconds on its GPU's clock.
    pub time: u64,
    /// Its CTA.
    pub block: u32,
    /// Its number in the CTA.
    pub thread: u32,
    /// What it saw.
    pub what: Seen,
}

/// The kinds of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The thread issued a TMA store of a box to this place.
    Store {
        /// Through which map: the same number, the same map.
        map: u32,
        /// First column.
        column: u32,
        /// First row within the chunk.
        row: u32,
        /// Chunk or slot.
        chunk: u32,
        /// Whose memory, if the map has everyone's.
        rank: u32,
    },
    /// All boxes that it issued before are written.
    Stored,
    /// Some of its boxes are in flight.
    Sent,
    /// It waits for a counter that is not complete at this time.
    Late {
        /// Which counter or barrier, by its number in stall records.
        what: u32,
        /// Which of a rank's cells.
        cell: u32,
    },
}

impl Function {
    /// The events since the last call: each thread's in order, mixed with the others'. Waits for the stream.
    ///
    /// # Errors
    /// [`Error::Usage`] if the kernel was compiled without [`Probes::trace`](crate::jit::Probes), or had more events
    /// than are kept.
    pub fn trace(&self, stream: &CudaStream) -> Result<Vec<Sighting>, Error> {
        let (count_at, _) = self.global(c"trace_count")?;
        let (events_at, bytes) = self.global(c"trace_events")?;
        let count = read::<u32>(stream, count_at, 1)?[0];
        if count > TRACED || bytes != TRACED as usize * WORDS * 4 {
            return Err(Error::Usage {
                what: format!("{} had {count} events", self.name()),
                legal: format!("at most {TRACED} are kept: use a smaller shape"),
            });
        }
        let words = read::<u32>(stream, events_at, count as usize * WORDS)?;
        fill(stream, count_at, 0, 4)?;
        Ok(words
            .chunks_exact(WORDS)
            .filter_map(|words| {
                let what = match words[2] {
                    0 => Seen::Store {
                        map: words[9],
                        column: words[5],
                        row: words[6],
                        chunk: words[7],
                        rank: words[8],
                    },
                    1 => Seen::Stored,
                    2 => Seen::Sent,
                    3 => Seen::Late {
                        what: words[5],
                        cell: words[6],
                    },
                    _ => return None,
                };
                Some(Sighting {
                    time: u64::from(words[0]) | u64::from(words[1]) << 32,
                    block: words[3],
                    thread: words[4],
                    what,
                })
            })
            .collect())
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
