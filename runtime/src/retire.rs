//! Objects that were dropped while work that uses them may still run. A drop only puts one on a list: nothing waits there. It is
//! given up once every stream that may use it has come past the point at which the list was first looked at.

use crate::driver::{Event, Gpu, Stream, is_past};
use crate::error::Error;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::debug;

/// Things that were dropped, each with a mark once there is one.
#[derive(Debug)]
pub(crate) struct Retired<M, T>(Vec<(Option<M>, T)>);

impl<M, T> Retired<M, T> {
    /// None.
    pub const fn new() -> Self {
        Retired(Vec::new())
    }

    /// Puts one there.
    pub fn push(&mut self, thing: T) {
        self.0.push((None, thing));
    }

    /// All of them.
    pub fn things(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, thing)| thing)
    }

    /// True if nothing is on the list.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Marks those without a mark, and takes out those whose mark was passed. What cannot be marked now stays.
    pub fn sweep(
        &mut self,
        mut mark: impl FnMut(&T) -> Option<M>,
        mut passed: impl FnMut(&M) -> bool,
    ) -> Vec<T> {
        let mut gone = Vec::new();
        for (mut known, thing) in std::mem::take(&mut self.0) {
            if known.is_none() {
                known = mark(&thing);
            }
            match &known {
                Some(known) if passed(known) => gone.push(thing),
                _ => self.0.push((known, thing)),
            }
        }
        gone
    }
}

/// A point in the streams of several ranks.
#[derive(Debug)]
pub(crate) struct Mark(Vec<Event>);

impl Mark {
    /// After everything that is in these streams now. Streams without work need no event.
    ///
    /// # Errors
    /// What the driver refuses, for a stream that records a graph among others.
    pub fn of<'a>(streams: impl IntoIterator<Item = (&'a Gpu, &'a Stream)>) -> Result<Mark, Error> {
        let mut events = Vec::new();
        for (gpu, stream) in streams {
            if stream.is_capturing() {
                return Err(Error::Usage {
                    what: "a mark in a stream that records a graph".into(),
                    legal: "end the recording first".into(),
                });
            }
            // A context that is dead does nothing any more.
            if is_past(stream) {
                continue;
            }
            let event = gpu.event()?;
            event.record_again(stream)?;
            events.push(event);
        }
        Ok(Mark(events))
    }

    /// True if all streams came past it. A dead context has.
    pub fn passed(&self) -> bool {
        self.0.iter().all(|event| event.is_past())
    }
}

/// Something that a stream's work needs: a kernel's code, a communicator's memory.
struct Needed {
    gpu: Gpu,
    stream: Stream,
    thing: Box<dyn Any + Send>,
}

/// Memory that a graph of the program keeps.
#[derive(Debug)]
pub(crate) struct Kept {
    gpu: Gpu,
    /// The rank's own stream.
    stream: Stream,
    things: Arc<dyn Any + Send + Sync>,
}

impl Kept {
    pub fn new(gpu: &Gpu, stream: &Stream, things: Arc<dyn Any + Send + Sync>) -> Kept {
        Kept {
            gpu: gpu.clone(),
            stream: stream.clone(),
            things,
        }
    }
}

/// Memory of graphs that are gone. The callback that fills this may make no call of CUDA.
static RELEASED: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// A graph is gone that kept this. Calls nothing: the next [`sweep`] does.
pub(crate) fn released(kept: Kept) {
    let mut released = RELEASED.lock().unwrap_or_else(PoisonError::into_inner);
    released.push(kept);
}

static NEEDED: Mutex<Retired<Mark, Needed>> = Mutex::new(Retired::new());

/// Drops that once the stream's work so far is done: now, or when this or [`sweep`] is called again. Does not wait.
pub(crate) fn later(gpu: &Gpu, stream: &Stream, thing: impl Any + Send) {
    let needed = Needed {
        gpu: gpu.clone(),
        stream: stream.clone(),
        thing: Box::new(thing),
    };
    NEEDED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(needed);
    sweep();
}

/// Drops what is no longer needed, of all communicators.
pub(crate) fn sweep() {
    let gone = std::mem::take(&mut *RELEASED.lock().unwrap_or_else(PoisonError::into_inner));
    for Kept {
        gpu,
        stream,
        things,
    } in gone
    {
        // From here on after its replays, too.
        match gpu.aside(|| stream.comes_after_replays()) {
            Ok(true) => {}
            Ok(false) => {
                // A thread enqueues there now. Nobody waits for it in a drop.
                released(Kept {
                    gpu,
                    stream,
                    things,
                });
                continue;
            }
            Err(error) => {
                debug!(%error, "a rank's stream does not come after the replays of a graph that is gone");
            }
        }
        let needed = Needed {
            gpu,
            stream,
            thing: Box::new(things),
        };
        let mut all = NEEDED.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(needed);
    }
    let gone = {
        let mut needed = NEEDED.lock().unwrap_or_else(PoisonError::into_inner);
        needed.sweep(
            |needed| {
                let mark = || Mark::of([(&needed.gpu, &needed.stream)]).ok();
                needed.gpu.aside(mark)
            },
            Mark::passed,
        )
    };
    // Not under the lock: a drop may put other things on the list.
    for Needed { gpu, stream, thing } in gone {
        gpu.aside(move || drop((thing, stream)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Communicator;
    use crate::emulated::{self, Machine};
    use crate::schedules::{Sender, gather};
    use half::bf16;
    use std::cell::Cell;

    use std::time::{Duration, Instant};

    #[test]
    fn what_is_dropped_stays_until_its_mark_is_passed() {
        // A stream as two numbers: how much is in it, and how much of it is done.
        let (enqueued, done) = (Cell::new(3), Cell::new(1));
        let mut retired = Retired::new();
        let sweep = |retired: &mut Retired<u32, &'static str>| {
            retired.sweep(|_| Some(enqueued.get()), |mark| *mark <= done.get())
        };
        retired.push("x");
        assert!(sweep(&mut retired).is_empty(), "two launches still run");
        enqueued.set(5);
        retired.push("y");
        done.set(3);
        assert_eq!(sweep(&mut retired), ["x"], "later launches do not use it");
        assert!(!retired.is_empty());
        done.set(5);
        assert_eq!(sweep(&mut retired), ["y"]);
        assert!(retired.is_empty());
    }

    /// A drop waits for nobody, and may be within what the other thread waits for.
    #[test]
    fn what_a_graph_kept_stays_while_another_thread_enqueues() {
        let rank = Communicator::emulated(1).expect("a rank").remove(0);
        let rank = Arc::new(rank);
        let current = rank.gpu().current().expect("a GPU");
        rank.open_lane(current).expect("opened");
        let entering = rank.own_stream().enter().expect("nobody is in");
        let (thing, start) = (Arc::new("kept"), Instant::now());
        std::thread::scope(|scope| {
            let dropped = scope.spawn(|| {
                released(Kept::new(rank.gpu(), rank.own_stream(), thing.clone()));
                sweep();
            });
            dropped.join().expect("no panic");
        });
        assert!(start.elapsed() < Duration::from_secs(5), "a drop waited");
        assert_eq!(Arc::strong_count(&thing), 2, "it is still there");
        drop(entering);
        while Arc::strong_count(&thing) > 1 && start.elapsed() < Duration::from_secs(5) {
            sweep();
        }
        assert_eq!(Arc::strong_count(&thing), 1, "it is gone");
    }

    #[test]
    fn what_cannot_be_marked_stays() {
        let mut retired: Retired<(), _> = Retired::new();
        retired.push("x");
        assert!(retired.sweep(|_| None, |()| true).is_empty());
        assert_eq!(retired.sweep(|_| Some(()), |()| true), ["x"]);
    }

    /// On GPUs, the context goes like that: `tests/hardware/drops` looks.
    #[test]
    fn an_emulated_machine_goes_with_its_last_communicator() {
        let machine = Machine::new(2, 0, u64::MAX);
        let left = Arc::downgrade(&machine);
        let gpus = (0..2).map(|gpu| emulated::Gpu::of(&machine, gpu).into());
        let limit = Duration::from_secs(60);
        let ranks = Communicator::of(gpus.collect(), Some(8 << 20), limit).expect("ranks");
        drop(machine);
        let done = Communicator::each(&ranks, |rank| {
            rank.reserve(4 << 20)?;
            let build = |sender| {
                let program = gather(sender);
                rank.op(&program).up_to(8, 8, 8).first_options().build()
            };
            let (op, copied) = (build(Sender::Ctas(4))?, build(Sender::CopyEngine)?);
            let x = rank.allocate::<bf16>("x", [8, 8])?;
            let w = rank.zeros::<bf16>([8, 8])?;
            let mut y = rank.zeros::<bf16>([8, 8])?;
            let graph = rank.capture(|s| {
                let launch = op.on(s).tensor("x", &x).tensor("w", &w);
                launch.tensor("y", &mut y).launch().map(drop)
            })?;
            graph.launch(&rank.gpu().stream()?)?;
            let launch = copied.on(rank).tensor("x", &x).tensor("w", &w);
            launch.tensor("y", &mut y).launch()?.wait()?;
            rank.barrier()
        });
        done.map(drop).expect("launches");
        assert!(left.upgrade().is_some());
        drop(ranks);
        // Its streams may take a moment to say that they are empty.
        let start = Instant::now();
        while left.upgrade().is_some() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
            sweep();
        }
        assert!(left.upgrade().is_none(), "somebody still has the machine");
    }
}
