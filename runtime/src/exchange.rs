//! Kernels without a schedule whose launches exchange data among ranks and wait for each other: an allocation of the heap
//! on every rank, a place in the ledger, and reports of waits that give up. For this project's crates: what such a kernel
//! does is not proved.

use crate::communicator::Communicator;
use crate::cuda::{BLOCKING, Watch, blocking};
use crate::driver::Address;
use crate::error::Error;
use crate::group::{Allocation, Awaited, Entry, Named, Names, Needs, Placed, Scratch};
use crate::held::HeapUse;
use crate::op::{Running, Step, Workspace};
use crate::pending::Pending;
use crate::retire;
use counterflow_codegen::cuda::WATCH_BYTES;
use counterflow_codegen::interp::open::{self, Twin, TwinLaunch};
use std::sync::Arc;

/// A kernel that all ranks loaded, with its part of the heap.
#[derive(Debug)]
pub struct Exchange(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rank: Arc<Communicator>,
    name: String,
    identity: u64,
    placed: Arc<Placed>,
    watch: Watch,
    named: Option<Named>,
}

/// What a kernel needs.
#[derive(Clone, Debug)]
pub struct Kernel<'a> {
    /// Its name.
    pub name: &'a str,
    /// All that must be the same on every rank: sizes, types, choices.
    pub about: String,
    /// Bytes of the heap on each rank, zeroed at first.
    pub bytes: u64,
}

/// A number for a text.
fn identity(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Kernel<'_> {
    /// The memory that it takes.
    pub fn workspace(&self, world: u32) -> Workspace {
        // Its counters take no cell, and yet the least allocation.
        let heap = HeapUse::by(0) + HeapUse::by(self.bytes);
        Workspace::apart(if world > 1 { heap } else { 0 })
    }
}

impl Exchange {
    /// Loads it by `load`, and agrees on it with the other ranks. Collective, unless there is one rank. Launches may begin
    /// as soon as it returns: what allocates does so in `load`.
    ///
    /// # Errors
    /// Those of `load`, which all ranks get; [`Error::Mismatch`] if ranks load different kernels; a heap that is full;
    /// [`Error::Environment`] where launches block.
    pub fn build<T>(
        rank: &Communicator,
        kernel: &Kernel<'_>,
        load: impl FnOnce() -> Result<T, Error>,
    ) -> Result<(Exchange, T), Error> {
        let alone = rank.world() == 1;
        let may_wait = || match !alone && !rank.gpu().is_emulated() && blocking() {
            true => Err(Error::Environment {
                variable: BLOCKING,
                what: format!(
                    "{BLOCKING} is set: a launch of {} blocks until its peers launch, and their launches in this process wait for it",
                    kernel.name
                ),
                help: format!("unset {BLOCKING}, or launch a world of one rank"),
            }),
            false => Ok(()),
        };
        let loaded = may_wait().and_then(|()| load()).and_then(|loaded| {
            let compares = (!alone).then(|| rank.loads_compares(None));
            compares.unwrap_or(Ok(())).map(|()| loaded)
        });
        let loaded = loaded.map_err(|error| match alone {
            true => error,
            false => rank.refuses(error),
        })?;
        let identity = identity(&kernel.about);
        let placed = match alone {
            true => Arc::new(Placed::alone()),
            false => rank.place(Needs {
                kernel: kernel.name.into(),
                most: kernel.about.as_str().into(),
                plan: identity,
                cells: 0,
                scratch: vec![Scratch {
                    name: format!("rows of {}", kernel.name).into(),
                    bytes: kernel.bytes,
                    readers: None,
                }],
            })?,
        };
        let waits = (0..rank.world()).map(|peer| Awaited {
            name: format!("rows of rank {peer}"),
            first: 0,
            at: None,
        });
        let names = Names {
            kernel: kernel.name.into(),
            roles: vec!["rows".into()],
            waits: waits.collect(),
        };
        let (watch, named) = rank.watch(placed.number, names, rank.timeout(), 0);
        let inner = Inner {
            rank: Arc::new(rank.handle()),
            name: kernel.name.into(),
            identity,
            placed,
            watch,
            named: Some(named),
        };
        Ok((Exchange(Arc::new(inner)), loaded))
    }

    /// The rank.
    pub fn rank(&self) -> &Communicator {
        &self.0.rank
    }

    /// CTAs that a launch may have: all of them run at once.
    pub fn most_ctas(&self) -> u32 {
        self.rank().share(false)
    }

    /// The part of the heap on rank 0, and bytes to the next rank's. None of one rank.
    pub fn slots(&self) -> Option<(Address, u64)> {
        let slots = self.0.slots()?;
        Some((slots.on(0), self.rank().stride()))
    }

    /// The prelude's `Watch`, as a kernel takes it.
    pub fn watch(&self) -> [u8; WATCH_BYTES] {
        self.0.watch.bytes()
    }

    /// Enqueues a launch of so many rows, by which ranks compare it: all make it. It has so many CTAs.
    ///
    /// # Safety
    /// As [`Step::launch`], but that kernels may also use [`Exchange::slots`] on every rank, and wait for the peers' launches
    /// of the same number, if every wait ends by the prelude's `gives_up`.
    ///
    /// # Errors
    /// As [`Step::launch`]; [`Error::Mismatch`] if a peer launches something else; [`Error::Stalled`] if an earlier launch
    /// gave up.
    #[allow(unsafe_code, reason = "a door: what it is told cannot be checked")]
    pub unsafe fn launch(
        &self,
        step: Step<'_>,
        (rows, ctas): (u32, u32),
        work: impl FnOnce(&Running<'_>) -> Result<(), Error>,
    ) -> Result<Pending, Error> {
        step.together(Some((self, rows, ctas)), work)
    }

    /// Runs the twin of the launch, on an emulated GPU.
    ///
    /// # Errors
    /// [`Error::NoDevice`] on a GPU.
    pub fn run_twin(&self, running: &Running<'_>, twin: Arc<dyn Twin>) -> Result<(), Error> {
        let Inner { rank, watch, .. } = &*self.0;
        running.stream().twin(TwinLaunch {
            twin,
            rank: rank.rank(),
            world: rank.world(),
            stride: rank.stride(),
            watch: open::Watch {
                id: watch.record.get(),
                kernel: watch.kernel,
                abort: watch.abort.get(),
                host: Some(watch.host.get()),
                limit: watch.timeout_ns,
            },
        })
    }

    /// Name of the kernel.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// Entry of a launch in the ledger. None of one rank, for which nobody waits.
    pub(crate) fn entry(&self, rows: u32) -> Option<Entry> {
        let Inner {
            name,
            identity,
            placed,
            ..
        } = &*self.0;
        let slots = self.0.slots()?;
        let entry = Entry::new(name, placed.number, *identity, rows);
        Some(entry.at("rows", slots.offset()))
    }

    /// Lets a launch of this rank find the heap's part cleared on every rank.
    pub(crate) fn ready(&self) -> Result<(), Error> {
        let slots = self.0.slots();
        slots.map_or(Ok(()), |slots| slots.ready(self.rank().rank()))
    }

    /// Owner of all of it, for graphs.
    pub(crate) fn kept(&self) -> Arc<dyn std::any::Any + Send + Sync> {
        self.0.clone()
    }
}

impl Inner {
    fn slots(&self) -> Option<&Arc<Allocation>> {
        self.placed.scratch.first().map(|(slots, _)| slots)
    }
}

/// Launches may still run: the names of what they wait for stay until they are done.
impl Drop for Inner {
    fn drop(&mut self) {
        let (gpu, stream) = (self.rank.gpu(), self.rank.own_stream());
        retire::later(gpu, stream, self.named.take());
    }
}
