//! Kernels without a schedule whose launches exchange data among ranks and wait for each other: an allocation of the heap
//! on every rank, a place in the ledger, and reports of waits that give up. For this project's crates: what such a kernel
//! does is not proved.

use crate::communicator::Communicator;
use crate::cuda::{BLOCKING, Watch, blocking};
use crate::driver::Address;
use crate::error::Error;
use crate::group::{Allocation, Entry, Named, Needs, Placed, Scratch};
use crate::held::HeapUse;
use crate::op::{Running, Step, Together, Workspace};
use crate::pending::Pending;
use crate::retire;
use crate::slots;
use counterflow_emitter::WATCH_BYTES;
use counterflow_emulator::open::{self, Twin, TwinLaunch};
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
        let names = slots::names(kernel.name, rank.world());
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

    /// Tells the other ranks, who come to build it, that this one cannot, and why. Gives the error.
    pub fn refuse(rank: &Communicator, error: Error) -> Error {
        rank.refuses(error)
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
        let together = Together {
            rank: self.rank(),
            name: &self.0.name,
            entry: self.0.entry(rows),
            slots: self.0.slots().map(|slots| &**slots),
            ctas,
            kept: self.0.clone(),
        };
        step.together(Some(together), work)
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
}

impl Inner {
    /// Entry of a launch in the ledger. None of one rank, for which nobody waits.
    fn entry(&self, rows: u32) -> Option<Entry> {
        let slots = self.slots()?;
        let entry = Entry::new(&self.name, self.placed.number, self.identity, rows);
        Some(entry.at("rows", slots.offset()))
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Graph, Stream};
    use crate::emulated::{self, Machine};
    use crate::op::Caller;
    use counterflow_emulator::open::{Awaited, Fault, Memory, Stepped};
    use std::time::Duration;

    /// Adds one to a cell of each peer, and waits until all peers have added to its own. Behind the cell is what had arrived
    /// before this launch.
    #[derive(Debug)]
    struct Meets {
        rank: u64,
        world: u64,
        slots: (u64, u64),
    }

    impl Meets {
        fn cell(&self, rank: u64) -> u64 {
            self.slots.0 + rank * self.slots.1
        }
    }

    fn word(memory: &dyn Memory, at: u64) -> Result<u64, Fault> {
        let bytes = memory.bytes(at, 8)?;
        Ok(u64::from_le_bytes(std::array::from_fn(|i| bytes[i])))
    }

    impl Twin for Meets {
        fn take(&self, step: u64, waits: bool, memory: &mut dyn Memory) -> Result<Stepped, Fault> {
            let own = self.cell(self.rank);
            if step < self.world {
                let cell = self.cell(step);
                if step != self.rank {
                    let count = word(memory, cell)? + 1;
                    memory.write(cell, &count.to_le_bytes())?;
                }
                return Ok(Stepped::Next);
            }
            let (seen, wanted) = (word(memory, own)?, word(memory, own + 8)? + self.world - 1);
            if seen < wanted && waits {
                let (what, index) = (1 - self.rank as u32 % 2, 7);
                return Ok(Stepped::Waits(Awaited {
                    what,
                    index,
                    seen,
                    wanted,
                }));
            }
            memory.write(own + 8, &wanted.to_le_bytes())?;
            Ok(Stepped::Last)
        }
    }

    fn ranks(world: u32, limit: Duration) -> Vec<Communicator> {
        let machine = Machine::new(world as usize, 0, u64::MAX);
        let gpus = (0..world).map(|gpu| emulated::Gpu::of(&machine, gpu).into());
        Communicator::of(gpus.collect(), Some(8 << 20), limit).expect("ranks")
    }

    fn built(rank: &Communicator) -> Result<Exchange, Error> {
        rank.reserve(4 << 20)?;
        let kernel = Kernel {
            name: "meets",
            about: "as all do".into(),
            bytes: 16,
        };
        let before = rank.heap_use().used;
        let (built, ()) = Exchange::build(rank, &kernel, || Ok(()))?;
        let taken = rank.heap_use().used - before;
        assert_eq!(kernel.workspace(rank.world()).heap, taken);
        Ok(built)
    }

    #[allow(unsafe_code, reason = "a door")]
    fn launch<'a>(
        exchange: &'a Exchange,
        on: impl Into<Caller<'a>>,
        rows: u32,
    ) -> Result<Pending, Error> {
        let rank = exchange.rank();
        let work = |running: &Running<'_>| {
            let (first, stride) = exchange.slots().expect("several ranks");
            let twin = Meets {
                rank: rank.rank().into(),
                world: rank.world().into(),
                slots: (first.get(), stride),
            };
            exchange.run_twin(running, Arc::new(twin))
        };
        let step = rank.step(on);
        // SAFETY: no kernel is launched.
        unsafe { exchange.launch(step, (rows, 1), work) }
    }

    #[test]
    fn a_rank_that_never_launches_is_named_and_the_rest_drains() {
        let told = Communicator::each(&ranks(2, Duration::from_millis(300)), |rank| {
            let exchange = built(rank)?;
            if rank.rank() == 1 {
                while rank.alive().is_ok() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return Ok(rank.alive().expect_err("it ended"));
            }
            launch(&exchange, rank, 3)?;
            launch(&exchange, rank, 2)?;
            Ok(rank.synchronize().expect_err("nobody comes"))
        });
        for error in told.unwrap_or_else(|error| panic!("{error}")) {
            assert_eq!(error.kind(), "stalled", "{error}");
            let text = error.to_string();
            for part in ["rank 0 waited too long", "rows of rank 1", "meets"] {
                assert!(text.contains(part), "{text}");
            }
        }
    }

    #[test]
    fn captured_launches_take_turns_with_others_and_differences_are_told() {
        for world in [2, 3] {
            let met = Communicator::each(&ranks(world, Duration::from_secs(60)), |rank| {
                let exchange = built(rank)?;
                let stream: Stream = rank.gpu().stream()?;
                Graph::record(&stream)?;
                let recorded = [3, 1].map(|rows| launch(&exchange, &stream, rows));
                let graph = Graph::recorded(&stream)?;
                for recorded in recorded {
                    assert_eq!(recorded?.wait().expect_err("nothing runs").kind(), "usage");
                }
                let ours = rank.capture(|recording| launch(&exchange, recording, 5).map(drop))?;
                for round in 0..20 {
                    graph.launch(&stream)?;
                    launch(&exchange, rank, 1 + round)?;
                    launch(&exchange, &stream, 2)?;
                    ours.launch(rank)?;
                }
                rank.synchronize()?;
                let (first, stride) = exchange.slots().expect("several ranks");
                let own = first.plus(u64::from(rank.rank()) * stride);
                let cells: Vec<u64> = crate::driver::read(rank.own_stream(), own, 2)?;
                rank.barrier()?;
                Ok(cells)
            });
            let met = met.unwrap_or_else(|error| panic!("{error}"));
            let each = 20 * 5 * (u64::from(world) - 1);
            assert_eq!(met, vec![vec![each; 2]; world as usize]);
        }
        let told = Communicator::each(&ranks(2, Duration::from_secs(60)), |rank| {
            let exchange = built(rank)?;
            launch(&exchange, rank, 2 + rank.rank())?;
            rank.synchronize()
        });
        let error = told.expect_err("they differ");
        assert_eq!(error.kind(), "mismatch", "{error}");
    }
}
