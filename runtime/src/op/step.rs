//! Kernels of a program's own as a launch of a rank: in the order of its launches, with memory that stays as long.

use super::argument::{Extent, Home};
use super::given::{Argument, Open, lenders};
use super::part::Part;
use super::spare::{self, Parts};
use crate::attempt::Attempt;
use crate::caller::{Caller, Order, Place, captured, in_order};
use crate::communicator::Communicator;
use crate::driver::{self, Address, Element, Stream};
use crate::error::Error;
use crate::group::{Allocation, Entry};
use crate::own::Work;
use crate::pending::Pending;
use crate::recording::Keeps;
use counterflow_codegen::dtype::Dtype;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;

/// As many as most steps have parts.
type Few<T> = SmallVec<[T; 8]>;

/// Kernels of a program's own that are put together as a launch. Nothing is enqueued before [`Step::launch`].
///
/// ```
/// use counterflow::op::{Part, Running};
/// use counterflow::{Communicator, Error};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let (x, mut y) = (rank.zeros::<f32>([1, 4])?, rank.zeros::<f32>([1, 4])?);
/// x.write(&[1.0, 2.0, 3.0, 4.0])?;
/// let step = rank.step(rank).keep(std::sync::Arc::new("for a graph")).part(Part::of::<f32>(4).read("x"), &x);
/// let mut step = step; // `add` gives the part's number
/// assert_eq!(step.add(Part::of::<f32>(4).written("y"), &mut y), 1);
/// let twice = |running: &Running<'_>| -> Result<(), Error> {
///     let x: Vec<f32> = running.read(0, 4)?;
///     running.write(1, &x.iter().map(|x| 2.0 * x).collect::<Vec<_>>())
/// };
/// // SAFETY: no kernel is launched.
/// unsafe { step.launch(twice)? }.wait()?;
/// assert_eq!(y.read()?, [2.0, 4.0, 6.0, 8.0]);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is enqueued before `launch`"]
pub struct Step<'a> {
    rank: &'a Communicator,
    caller: Caller<'a>,
    parts: Parts<'a>,
    kept: SmallVec<[Arc<dyn Any + Send + Sync>; 2]>,
}

/// A step while it is enqueued.
///
/// ```
/// use counterflow::{Error, op::Running};
///
/// /// Twice what part 0 has, into part 1.
/// fn twice(running: &Running<'_>) -> Result<(), Error> {
///     // Kernels are launched with these.
///     println!("in {:?}, from {:?}", running.stream(), running.address(0));
///     let x: Vec<f32> = running.read(0, 4)?; // what an emulated rank does instead
///     running.write(1, &x.iter().map(|x| 2.0 * x).collect::<Vec<_>>())
/// }
/// ```
#[derive(Debug)]
pub struct Running<'a> {
    stream: &'a Stream,
    parts: &'a [(Part, Address)],
}

/// A step whose kernel waits for the peers' kernels.
#[derive(Debug)]
pub(crate) struct Together<'a> {
    /// The rank that it was built for.
    pub rank: &'a Communicator,
    pub name: &'a str,
    /// Entry in the ledger. None of a world of one rank.
    pub entry: Option<Entry>,
    /// Its part of the heap, on every rank.
    pub slots: Option<&'a Allocation>,
    /// CTAs that run at once.
    pub ctas: u32,
    /// Owner of all of it, for graphs.
    pub kept: Arc<dyn Any + Send + Sync>,
}

impl Communicator {
    /// Kernels of the program's own, in the order of a stream, of this rank's launches, or in a graph.
    ///
    /// ```
    /// # use counterflow::Communicator;
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let step = rank.step(&rank.gpu().stream()?);
    /// // SAFETY: nothing is enqueued.
    /// unsafe { step.launch(|_| Ok(()))? }.wait()?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn step<'a>(&'a self, on: impl Into<Caller<'a>>) -> Step<'a> {
        Step {
            rank: self,
            caller: on.into(),
            parts: spare::take_parts(),
            kept: SmallVec::new(),
        }
    }
}

impl<'a> Step<'a> {
    /// Memory that the kernels use: `&` what they read, `&mut` what they write.
    pub fn part(mut self, part: Part, memory: impl Into<Argument<'a>>) -> Self {
        self.add(part, memory);
        self
    }

    /// Adds a part, and gives its number.
    pub fn add(&mut self, part: Part, memory: impl Into<Argument<'a>>) -> usize {
        self.parts.push((part, memory.into()));
        self.parts.len() - 1
    }

    /// Keeps `thing` alive as long as a graph that records the step.
    pub fn keep(mut self, thing: Arc<dyn Any + Send + Sync>) -> Self {
        self.kept.push(thing);
        self
    }

    /// Enqueues what `work` enqueues in the stream that it is given. It waits for no peer. In a stream that the program
    /// captures it becomes part of the program's graph, as a launch does.
    ///
    /// # Safety
    /// `work` enqueues only kernels that use no other memory than the parts', no more elements of it than each part says,
    /// write only those that are written, and wait for nobody.
    ///
    /// # Errors
    /// [`Error::Usage`], before anything is enqueued, for memory of another type, size, rank or GPU than a part needs, for
    /// an output given by `&`, for memory that overlaps where it is written, and for a stream of another GPU; what `work`
    /// ends with. A call of the rank within `work` that would wait for the turn that this step has is [`Error::Usage`].
    #[allow(unsafe_code, reason = "a door: what it is told cannot be checked")]
    pub unsafe fn launch(
        self,
        work: impl FnOnce(&Running<'_>) -> Result<(), Error>,
    ) -> Result<Pending, Error> {
        self.together(None, work)
    }

    /// As [`Step::launch`], of a kernel that may wait for the peers' launches of it.
    pub(crate) fn together(
        self,
        with: Option<Together<'_>>,
        work: impl FnOnce(&Running<'_>) -> Result<(), Error>,
    ) -> Result<Pending, Error> {
        let rank = self.rank;
        rank.alive()?;
        let order = self.caller.clone().order(rank);
        let Some(together) = &with else {
            return self.enqueue(&order, &Attempt::new(rank), None, work);
        };
        if !together.rank.is(rank) {
            return Err(Error::Usage {
                what: format!(
                    "a launch on rank {} of what another rank built",
                    rank.rank()
                ),
                legal: "each rank launches what it built".into(),
            });
        }
        let now = !order.records() && together.entry.is_some();
        let (attempt, name) = (Attempt::new(rank), together.name);
        let launched = self.enqueue(&order, &attempt, with, work);
        attempt.told(now, name, launched)
    }

    fn enqueue(
        self,
        order: &Order<'_>,
        attempt: &Attempt<'_>,
        with: Option<Together<'_>>,
        work: impl FnOnce(&Running<'_>) -> Result<(), Error>,
    ) -> Result<Pending, Error> {
        let Step {
            rank,
            caller: _,
            mut parts,
            mut kept,
        } = self;
        let entry = with.as_ref().and_then(|together| together.entry);
        kept.extend(with.as_ref().map(|together| together.kept.clone()));
        let rank = rank.shared();
        let current = rank.gpu().current()?;
        let place = order.place(rank, current)?;
        let own = rank.own_stream();
        let (records, outside) = match place {
            Place::Own => (false, None),
            Place::Outside(stream) => (false, Some(stream)),
            Place::Recording(_) | Place::Captured(_) => (true, None),
        };
        // A strict capture of this thread's forbids what is enqueued beside it.
        let _mode = records.then(|| rank.gpu().relaxed());
        let users = outside.unwrap_or(own);
        let mut theirs: Vec<Stream> = Vec::new();
        for (part, argument) in &parts {
            check(rank, part, argument, (records, entry.is_some()))?;
            if let Some(stream) = argument.stream(rank)
                && !stream.is(users)
                && !theirs.iter().any(|known| known.is(&stream))
            {
                if current.is_capturing(&stream) {
                    return Err(Error::Usage {
                        what: format!("the stream of {} records a graph", part.name),
                        legal: "end the recording first".into(),
                    });
                }
                theirs.push(stream);
            }
        }
        let _turn = rank.turn(current)?;
        let streams = (!records).then_some(own).into_iter();
        let streams = streams.chain(outside).chain(&theirs);
        let lenders = lenders(rank, parts.iter().map(|(_, argument)| argument), &streams)?;
        let passage = rank.passes(streams, entry.is_some().into())?;
        for stream in &theirs {
            current.wait(users, &current.order(stream)?)?;
        }
        let mut opened: Few<Open<'_>> = Few::new();
        let mut ranges: Few<(Part, Address)> = Few::new();
        for (part, argument) in &mut parts {
            let open = argument.open(users)?;
            open.ready(rank.rank())?;
            ranges.push((*part, Address::of(open.start())));
            opened.push(open);
        }
        apart(&ranges)?;
        if let Some(slots) = with.as_ref().and_then(|together| together.slots) {
            slots.ready(rank.rank())?;
            if records {
                // Replays come after what was enqueued in the rank's stream for them.
                drop(own.enter()?);
            }
        }
        rank.own().counts(Work::Step);
        let running = |stream| Running {
            stream,
            parts: &ranges,
        };
        if let Place::Captured(stream) = place {
            return captured(rank, current, stream, entry.as_ref(), |graph, begins| {
                // Before anything is captured that uses it.
                let memory = opened.iter().filter_map(Open::kept);
                memory.chain(kept).for_each(|thing| graph.keep(thing));
                attempt.enters();
                begins.begin()?;
                work(&running(stream))
            });
        }
        if let Place::Recording(recording) = place {
            let memory = opened.iter().filter_map(Open::kept);
            memory.chain(kept).for_each(|thing| recording.keep(thing));
            work(&running(recording.records_in()))?;
            if let Some(together) = &with {
                recording.add((entry, together.ctas), []);
            }
            return Ok(Pending::recorded(rank));
        }
        let work = || {
            let (Some(entry), Some(together)) = (entry, with) else {
                // The program's own code may do whatever takes long.
                return own.around(|| work(&running(own)));
            };
            let launch = attempt.write(&entry)?;
            let _entering = own.enter()?;
            let _order = rank.order(current, launch..=launch, together.ctas)?;
            attempt.compare(launch, &entry)?;
            work(&running(own))
        };
        let done = in_order(rank, current, (passage, lenders), outside, &theirs, work);
        // Its kernels may let the next launch come before their end, and what they write is not in the list.
        rank.own().unfinished().unknown();
        let done = done?;
        // The work is enqueued: what uses or frees another library's memory later comes after it.
        drop(opened);
        spare::keep_parts(parts);
        Ok(done)
    }
}

/// Rejects memory that is not what a part needs.
fn check(
    rank: &Communicator,
    part: &Part,
    argument: &Argument<'_>,
    (records, waits): (bool, bool),
) -> Result<(), Error> {
    let given = argument.given(|| part.name.into(), rank, (records, waits))?;
    let refuse = |what: String, legal: String| Err(Error::Usage { what, legal });
    if argument.has_scales() {
        let what = format!("{} was given with scales", part.name);
        return refuse(
            what,
            "give codes and scales as a part each: a kernel of yours takes both".into(),
        );
    }
    if let Home::Elsewhere(place) = given.home {
        let what = format!("{} is of {place}", part.name);
        return refuse(what, format!("give memory of rank {}", rank.rank()));
    }
    if given.dtype != part.dtype {
        let told = |dtype: Option<Dtype>| dtype.map_or("other numbers", Dtype::name);
        let what = format!("{} has elements of {}", part.name, told(given.dtype));
        return refuse(what, format!("give {}", told(part.dtype)));
    }
    let elements = match given.extent {
        Extent::Shaped([rows, columns]) => rows * columns,
        Extent::Flat(elements) => elements,
    };
    if elements < part.elements {
        let what = format!("{} has {elements} elements", part.name);
        return refuse(what, format!("give {} at least", part.elements));
    }
    if part.written && !given.writable {
        let what = format!(
            "{} is written, and was given by `&` or may only be read",
            part.name
        );
        return refuse(what, "give memory that may be written by `&mut`".into());
    }
    Ok(())
}

/// Rejects memory that starts where vectors cannot, and memory that is written and read at once.
fn apart(ranges: &[(Part, Address)]) -> Result<(), Error> {
    for (at, (part, start)) in ranges.iter().enumerate() {
        let start = start.get();
        let align = match part.elements > 1 {
            true if part.by_elements => part.each as u64,
            true => 16,
            false => 4,
        };
        if !start.is_multiple_of(align) {
            return Err(Error::Usage {
                what: format!(
                    "{} starts at an address that is not a multiple of {align}",
                    part.name
                ),
                legal: format!("start it at a multiple of {align} bytes"),
            });
        }
        for (other, from) in &ranges[at + 1..] {
            let from = from.get();
            let (first, end) = (
                start.max(from),
                (start + part.bytes()).min(from + other.bytes()),
            );
            if first < end && (part.written || other.written) {
                return Err(Error::Usage {
                    what: format!(
                        "{} and {} overlap, and one is written",
                        part.name, other.name
                    ),
                    legal: "give memory that does not overlap".into(),
                });
            }
        }
    }
    Ok(())
}

impl Running<'_> {
    /// The stream that the work goes to.
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// Address of a part, by its number.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn address(&self, part: usize) -> Address {
        self.parts[part].1
    }

    /// The first elements of a part, after everything earlier in the stream: for what emulated ranks do on the host.
    ///
    /// # Errors
    /// [`Error::Usage`] for more than the part has, and if the stream records a graph; what the driver refuses.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn read<T: Element>(&self, part: usize, elements: usize) -> Result<Vec<T>, Error> {
        self.has::<T>(part, elements)?;
        driver::read(self.stream, self.address(part), elements)
    }

    /// Writes the first elements of a part that is written, in the stream's order.
    ///
    /// # Errors
    /// As [`Running::read`], and for a part that is only read.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn write<T: Element>(&self, part: usize, values: &[T]) -> Result<(), Error> {
        self.has::<T>(part, values.len())?;
        let Part { name, written, .. } = self.parts[part].0;
        if !written {
            return Err(Error::Usage {
                what: format!("{name} is only read"),
                legal: "say that it is written".into(),
            });
        }
        driver::write(self.stream, self.address(part), values)
    }

    /// Rejects more elements than a part has.
    fn has<T>(&self, part: usize, elements: usize) -> Result<(), Error> {
        let part = &self.parts[part].0;
        if (elements * size_of::<T>()) as u64 > part.bytes() {
            return Err(Error::Usage {
                what: format!("{elements} elements of {}", part.name),
                legal: format!("{} bytes at most", part.bytes()),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Graph;
    use crate::op::beside::{Local, three};
    use crate::op::captured::{LONG, MOST, Ready, SIDE, ranks};
    use crate::schedules::product;
    use half::bf16;
    use std::sync::mpsc::channel;
    use std::thread::scope;
    use std::time::Duration;

    /// Whatever its code waits for.
    #[test]
    #[allow(unsafe_code, reason = "a step's door")]
    fn a_step_of_one_communicator_holds_no_launch_of_another() {
        let (pair, alone) = three(LONG);
        let mut local = Local::new(&alone);
        let _graph = local.capture(&alone);
        let ((enters, entered), (launches, launched)) = (channel(), channel());
        let stepped = scope(|scope| {
            let rank = &pair[0];
            let step = scope.spawn(move || {
                let work = |_: &Running<'_>| {
                    enters.send(()).expect("somebody listens");
                    let told = launched.recv_timeout(Duration::from_secs(2));
                    told.map_err(|_| Error::Wrong {
                        what: "the other communicator does not launch".into(),
                        help: "none".into(),
                    })
                };
                // SAFETY: nothing is enqueued.
                unsafe { rank.step(rank).launch(work) }.map(drop)
            });
            entered.recv().expect("it has begun");
            local.launch(alone.own_stream()).expect("a launch");
            // Nobody listens any more if it came too late.
            let _ = launches.send(());
            step.join().expect("no panic")
        });
        stepped.expect("it was told in time");
    }

    #[test]
    #[allow(unsafe_code, reason = "a step's door")]
    fn steps_and_launches_that_wait_for_nobody_are_captured_in_order() {
        let done = Communicator::each(&ranks(2, LONG), |rank| {
            let mut ready = Ready::new(rank)?;
            let program = product((64, 64));
            let op = rank
                .op(&program)
                .up_to(SIDE, SIDE, SIDE)
                .first_options()
                .build()?;
            let (stream, mut z) = (ready.stream.clone(), rank.zeros::<bf16>([SIDE, SIDE])?);
            Graph::record(&stream)?;
            ready.launch(&stream, MOST)?;
            // SAFETY: nothing is enqueued.
            unsafe { rank.step(&stream).launch(|_: &Running<'_>| Ok(()))? };
            let launch = op.on(&stream).tensor("x", &ready.w).tensor("w", &ready.w);
            launch.tensor("y", &mut z).launch()?;
            let graph = Graph::recorded(&stream)?;
            let launch = op.on(rank).tensor("x", &ready.w).tensor("w", &ready.w);
            launch.tensor("y", &mut z).launch()?;
            let wanted = z.read()?;
            for _ in 0..3 {
                z.fill(0)?;
                graph.launch(&stream)?;
                assert_eq!(z.read()?, wanted);
            }
            rank.synchronize()?;
            rank.barrier()
        });
        done.map(drop).expect("fine");
    }
}
