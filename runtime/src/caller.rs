//! The caller's order of launches: a stream, or the rank's own.

mod order;

pub(crate) use order::{Order, Place};

use crate::begins::Begins;
use crate::communicator::Communicator;
use crate::driver::{Current, Lane, Stream, Turn};
use crate::error::Error;
use crate::group::{Entry, Passage};
use crate::pending::Pending;
use crate::recording::{Keeps, Recording};
use crate::retire::{self, Kept};
use cudarc::driver::CudaStream;
use std::any::Any;
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

/// Order that a launch joins: that of a stream, of a rank itself, or of a graph that is recorded. A stream that the
/// program captures makes the launch a part of the program's graph. Where a thread records the rank's own order, launches that
/// it makes there join that graph: what counts is when they are made, and not when they were begun.
///
/// ```
/// use counterflow::op::Caller;
/// use counterflow::{Communicator, Error, Op, Pending, Tensor, prelude::bf16, schedules::GemmOp};
///
/// /// On a stream, on a rank, or into a graph.
/// fn square<'a>(
///     op: &Op<GemmOp<'static>>,
///     on: impl Into<Caller<'a>>,
///     x: &Tensor<bf16>,
///     y: &mut Tensor<bf16>,
/// ) -> Result<Pending, Error> {
///     let on: Caller = on.into();
///     op.on(on).x(x).w(x).y(y).launch()
/// }
///
/// let rank = &Communicator::emulated(1)?[0];
/// let op = rank.op_of::<GemmOp>().first_options().up_to(64, 64, 64).build()?;
/// let (x, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
/// square(&op, rank, &x, &mut y)?;
/// square(&op, &rank.gpu().stream()?, &x, &mut y)?;
/// let graph = rank.capture(|recording| square(&op, recording, &x, &mut y).map(drop))?;
/// graph.launch(rank)?.wait()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Caller<'a>(Kind<'a>);

#[derive(Clone, Debug)]
enum Kind<'a> {
    Rank(&'a Communicator),
    Stream(Stream),
    Recording(&'a Recording),
}

impl<'a> From<&'a Communicator> for Caller<'a> {
    fn from(rank: &'a Communicator) -> Self {
        Caller(Kind::Rank(rank))
    }
}

impl<'a> From<&'a Recording> for Caller<'a> {
    fn from(recording: &'a Recording) -> Self {
        Caller(Kind::Recording(recording))
    }
}

impl From<&Stream> for Caller<'_> {
    fn from(stream: &Stream) -> Self {
        Caller(Kind::Stream(stream.clone()))
    }
}

impl From<&Arc<CudaStream>> for Caller<'_> {
    fn from(stream: &Arc<CudaStream>) -> Self {
        Caller(Kind::Stream(stream.clone().into()))
    }
}

/// Enqueues `work` in the rank's stream: after what is in the outside stream, and before what comes later there and in
/// `theirs`. The rank's stream comes after `theirs` already. `passages` are the rank's own and those of ancestors that lend
/// memory. The caller has the rank's turn. `work` enters the rank's stream itself, after the last wait of the host. Where it
/// fails, a part of it may be enqueued, so all of that is ordered, too.
pub(crate) fn in_order(
    rank: &Arc<Communicator>,
    current: Current<'_>,
    (passage, lenders): (Passage<'_>, Vec<Passage<'_>>),
    outside: Option<&Stream>,
    theirs: &[Stream],
    work: impl FnOnce() -> Result<(), Error>,
) -> Result<Pending, Error> {
    if let Some(stream) = outside {
        current.wait(rank.own_stream(), &current.order(stream)?)?;
    }
    let worked = work();
    let ordered = || {
        let asked = outside.is_some() || !theirs.is_empty();
        let latest = rank.own().latest();
        let done = latest.enqueued(current, rank.own_stream(), asked)?;
        let known = done.known();
        if let Some(event) = &known {
            for stream in outside.into_iter().chain(theirs) {
                current.wait(stream, event)?;
            }
        }
        let launch = passage.launch;
        for lender in lenders {
            lender.ends(known.clone());
        }
        passage.ends(known);
        Ok(Pending::new(rank, done, launch))
    };
    let ordered = ordered();
    worked.and(ordered)
}

/// Records `work` in a stream that the program captures: at each replay it comes after what entered the rank's stream
/// before, and after replays that were launched before, and before what comes later. The graph keeps what `work` lets it.
/// Where ranks wait for each other, `entry` says what is compared at each replay. `work` calls its second argument once
/// nothing can refuse it any more, so that the graph has nothing of what is refused. The caller has the rank's turn.
pub(crate) fn captured(
    rank: &Arc<Communicator>,
    current: Current<'_>,
    stream: &Stream,
    entry: Option<&Entry>,
    work: impl FnOnce(&Captured, &dyn Begins) -> Result<(), Error>,
) -> Result<Pending, Error> {
    let (lane, turn) = rank.open_lane(current)?;
    if entry.is_some() {
        rank.starts_comparing()?;
    }
    let _entering = rank.own_stream().captures()?;
    let capture = current.capture(stream)?;
    let captured = Arc::new(Captured::of(rank));
    // Before anything is recorded that uses it.
    let kept = Kept::new(rank.gpu(), rank.own_stream(), captured.clone());
    capture.once_gone(move || retire::released(kept))?;
    if let Some(entry) = entry {
        captured.keep(rank.names_replays_of(entry));
    }
    let start = Start {
        rank,
        current,
        stream,
        lane,
        turn,
        entry,
        begun: Cell::new(false),
    };
    let worked = work(&captured, &start);
    // Where the driver refused a part, replays have the rest, which comes before what enters later.
    let recorded = worked.is_ok() || start.begun.get();
    let ordered = || {
        if !recorded {
            return Ok(());
        }
        current.record_in_replays(stream, &turn.replayed)?;
        if let [last] = current.capture(stream)?.last() {
            lane.captured(capture.id(), *last);
        }
        Ok(())
    };
    let ordered = ordered();
    worked.and(ordered)?;
    rank.goes_on();
    Ok(Pending::recorded(rank))
}

/// Begin of a captured launch.
#[derive(Debug)]
struct Start<'a> {
    rank: &'a Communicator,
    current: Current<'a>,
    stream: &'a Stream,
    lane: &'a Lane,
    turn: &'a Turn,
    entry: Option<&'a Entry>,
    /// True if the graph may have something of it.
    begun: Cell<bool>,
}

impl Begins for Start<'_> {
    fn begin(&self) -> Result<(), Error> {
        let Start {
            current, stream, ..
        } = *self;
        let capture = current.capture(stream)?;
        if let Some(before) = self.lane.before(capture.id())
            && !capture.last().contains(&before)
        {
            current.come_after(stream, before)?;
        }
        self.begun.set(true);
        current.hold_replays(stream, &self.turn.entered)?;
        current.hold_replays(stream, &self.turn.replayed)?;
        match self.entry {
            Some(entry) => self.rank.compare(stream, entry, None),
            None => Ok(()),
        }
    }
}

/// Objects that a captured launch uses.
#[derive(Debug)]
pub(crate) struct Captured {
    rank: Arc<Communicator>,
    things: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Captured {
    fn of(rank: &Arc<Communicator>) -> Captured {
        rank.own().captures();
        Captured {
            rank: rank.clone(),
            things: Mutex::default(),
        }
    }
}

impl Keeps for Captured {
    fn keep(&self, thing: Arc<dyn Any + Send + Sync>) {
        let mut things = self.things.lock().unwrap_or_else(PoisonError::into_inner);
        things.push(thing);
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        self.rank.own().forgets();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Event, Graph, MemoryOp};
    use crate::emulated::{Gpu, Machine};
    use crate::op::Op;
    use crate::schedules::{Sender, gather, product};
    use crate::tensor::Tensor;
    use crate::user_buffer::UserBuffer;
    use half::bf16;
    use std::time::Duration;

    /// A rank with a launch that waits for its peer and one that does not.
    struct Ready<'a> {
        rank: &'a Arc<Communicator>,
        ops: [Op; 2],
        x: UserBuffer<bf16>,
        w: Tensor<bf16>,
        y: Tensor<bf16>,
        gathered: bool,
    }

    impl Ready<'_> {
        fn gather(&mut self, on: &Stream) -> Result<Pending, Error> {
            self.gathered = true;
            let launch = self.ops[0].on(on).tensor("x", &self.x);
            launch
                .tensor("w", &self.w)
                .tensor("y", &mut self.y)
                .launch()
        }

        fn product(&mut self, on: &Stream) -> Result<Pending, Error> {
            let launch = self.ops[1].on(on).tensor("x", &self.w);
            launch
                .tensor("w", &self.w)
                .tensor("y", &mut self.y)
                .launch()
        }

        /// Launches with borrowed memory of that stream, and waits for nobody.
        fn borrow(&self, stream: &Stream) -> Result<Pending, Error> {
            let (rank, own) = (self.rank, self.rank.own_stream());
            let passage = rank.passes([own, stream].into_iter(), 0)?;
            let current = rank.gpu().current()?;
            current.wait(own, &current.order(stream)?)?;
            let theirs = std::slice::from_ref(stream);
            in_order(rank, current, (passage, vec![]), None, theirs, || Ok(()))
        }
    }

    type Acts = fn(&mut Ready<'_>, &[Stream; 3]) -> Result<Pending, Error>;

    /// Rank 0 enqueues something, and then rank 1 of the same GPU does: on a stream of nobody's, or on the own streams of
    /// both. What rank 1 is told, and how both end. A rank that was refused what nobody waits for makes `gather` instead.
    fn both(first: Acts, second: Acts) -> (Result<(), String>, [Result<(), String>; 2]) {
        both_within(Duration::from_secs(60), first, second)
    }

    /// Waits in both directions, with a time limit.
    fn both_within(
        limit: Duration,
        first: Acts,
        second: Acts,
    ) -> (Result<(), String>, [Result<(), String>; 2]) {
        let machine = Machine::new(1, 0, u64::MAX);
        let gpus = (0..2).map(|_| Gpu::of(&machine, 0).into());
        let ranks = Communicator::of(gpus.collect(), Some(8 << 20), limit);
        let ranks = ranks.expect("emulated ranks");
        let nobodys = ranks[0].gpu().stream().expect("a stream");
        let streams = [
            nobodys,
            ranks[0].stream().clone(),
            ranks[1].stream().clone(),
        ];
        let told = |error: Error| match &error {
            Error::Stalled(_) => format!("{error}; {}", error.help().unwrap_or_default()),
            _ => error.to_string(),
        };
        let ended = Communicator::each(&ranks, |rank| {
            rank.reserve(4 << 20)?;
            let op = |program| rank.op(program).up_to(8, 8, 8).first_options().build();
            let mut ready = Ready {
                rank: &Arc::new(rank.handle()),
                ops: [op(&gather(Sender::Ctas(4)))?, op(&product((64, 64)))?],
                x: rank.allocate("x", [8, 8])?,
                w: rank.zeros([8, 8])?,
                y: rank.zeros([8, 8])?,
                gathered: false,
            };
            if rank.rank() == 0 {
                first(&mut ready, &streams)?;
            }
            rank.barrier()?;
            if rank.rank() == 0 {
                return Ok((Ok(()), rank.synchronize().map_err(told)));
            }
            let second = second(&mut ready, &streams);
            if !ready.gathered {
                ready.gather(rank.own_stream())?;
            } else if let Err(refused) = second {
                // It leaves without a wait for its stream, where rank 0's launch may stand.
                return Ok((Err(told(refused)), Ok(())));
            }
            Ok((
                second.map(drop).map_err(told),
                rank.synchronize().map_err(told),
            ))
        });
        let [(_, first), (second, last)] =
            <[_; 2]>::try_from(ended.expect("no rank fails")).expect("two ranks");
        (second, [first, last])
    }

    const TOLD: &str = "rank 1 comes behind launch 0 of rank 0 in one stream, and that waits for launch 0 of rank 1";

    #[test]
    fn ranks_of_one_gpu_launch_on_streams_of_their_own() {
        let all: [(Acts, Acts); 3] = [
            (|r, s| r.gather(&s[0]), |r, s| r.gather(&s[2])),
            (|r, s| r.gather(&s[1]), |r, s| r.product(&s[0])),
            // Behind a launch that waits for nobody.
            (
                |r, s| r.product(&s[0]).and_then(|_| r.gather(&s[1])),
                |r, s| r.product(&s[0]),
            ),
        ];
        for (at, (first, second)) in all.into_iter().enumerate() {
            assert_eq!(both(first, second), (Ok(()), [Ok(()), Ok(())]), "{at}");
        }
    }

    #[test]
    fn a_launch_behind_one_that_waits_for_it_is_refused_and_told() {
        let all: [(Acts, Acts); 4] = [
            (|r, s| r.gather(&s[0]), |r, s| r.gather(&s[0])),
            // In the own stream of the other.
            (|r, s| r.gather(&s[1]), |r, s| r.gather(&s[1])),
            (|r, s| r.gather(&s[2]), |r, s| r.gather(&s[2])),
            // Where the other's launch is only waited for.
            (
                |r, s| {
                    let done = r.gather(&s[1])?;
                    done.wait_on(&s[0]).map(|()| done)
                },
                |r, s| r.gather(&s[0]),
            ),
        ];
        // It ends nothing, until rank 1 leaves without the launch that rank 0 waits for.
        let ended = format!(
            "rank 1 ended early: its part of `each` ended (it was refused gather: {TOLD}) after 0 launches, and rank 0 has made 1"
        );
        for (at, (first, second)) in all.into_iter().enumerate() {
            let (told, both) = both(first, second);
            assert_eq!(told, Err(TOLD.into()), "{at}");
            assert_eq!(both, [Err(ended.clone()), Ok(())], "{at}");
        }
    }

    #[test]
    fn what_nobody_waits_for_is_refused_there_and_the_launch_may_go_elsewhere() {
        let all: [(Acts, Acts); 5] = [
            (|r, s| r.gather(&s[0]), |r, s| r.product(&s[0])),
            (|r, s| r.gather(&s[1]), |r, s| r.product(&s[1])),
            // Memory of one stream, lent to both.
            (
                |r, s| r.gather(&s[1]).and_then(|_| r.borrow(&s[0])),
                |r, s| r.borrow(&s[0]),
            ),
            (|r, s| r.gather(&s[0]), |r, s| r.borrow(&s[0])),
            // Behind a launch that waits for nobody, behind one that does.
            (
                |r, s| r.gather(&s[1]).and_then(|_| r.product(&s[0])),
                |r, s| r.product(&s[0]),
            ),
        ];
        for (at, (first, second)) in all.into_iter().enumerate() {
            let ended = (Err(TOLD.into()), [Ok(()), Ok(())]);
            assert_eq!(both(first, second), ended, "{at}");
        }
    }

    #[test]
    fn nothing_is_launched_where_the_ranks_own_stream_records_and_no_graph_in_a_graph() {
        let ranks = Communicator::emulated(1).expect("ranks");
        let rank = &ranks[0];
        rank.reserve(4 << 20).expect("memory");
        let program = product((64, 64));
        let builder = rank.op(&program).up_to(8, 8, 8).first_options();
        let op = builder.build().expect("an op");
        let w = rank.zeros::<bf16>([8, 8]).expect("w");
        let mut y = rank.zeros::<bf16>([8, 8]).expect("y");
        let graph = rank.capture(|s| {
            let launch = op.on(s).tensor("x", &w).tensor("w", &w);
            launch.tensor("y", &mut y).launch().map(drop)
        });
        let graph = graph.expect("a graph");
        let outside = rank.gpu().stream().expect("a stream");
        Graph::record(&outside).expect("recording");
        let told = graph.launch(&outside).expect_err("it records");
        assert_eq!(told.to_string(), "a graph launched in a graph");
        drop(Graph::recorded(&outside).expect("ended"));
        Graph::record(rank.stream()).expect("recording");
        // In whatever order it is asked for.
        for on in [&outside, rank.stream()] {
            let launch = op.on(on).tensor("x", &w).tensor("w", &w);
            let told = [launch.tensor("y", &mut y).launch(), graph.launch(on)];
            for told in told.map(|told| told.expect_err("it records")) {
                assert_eq!(told.kind(), "usage", "{told}");
                let wanted = "a launch while the rank's own stream records a graph";
                assert_eq!(told.to_string(), wanted);
            }
        }
        drop(Graph::recorded(rank.stream()).expect("ended"));
        let replayed = graph.launch(rank).and_then(|done| done.wait());
        replayed.expect("a replay");
    }

    /// Another thread is in the lane, such as one that frees what an older graph kept, while the program replays.
    #[test]
    fn what_enters_comes_after_a_replay_that_was_launched_while_another_thread_was_in() {
        let ranks = Communicator::emulated(1).expect("ranks");
        let rank = &ranks[0];
        rank.reserve(4 << 20).expect("memory");
        let program = product((64, 64));
        let builder = rank.op(&program).up_to(8, 8, 8).first_options();
        let op = builder.build().expect("an op");
        let ones = rank.zeros::<bf16>([8, 8]).expect("ones");
        ones.write(&[bf16::ONE; 64]).expect("written");
        let (mut y, copied) = (
            rank.zeros::<bf16>([8, 8]).expect("y"),
            rank.zeros::<bf16>([8, 8]).expect("a copy"),
        );
        let gpu = rank.gpu();
        let [outside, other] = [(); 2].map(|()| gpu.stream().expect("a stream"));
        Graph::record(&outside).expect("recording");
        let launch = op.on(&outside).tensor("x", &ones).tensor("w", &ones);
        launch.tensor("y", &mut y).launch().expect("captured");
        let graph = Graph::recorded(&outside).expect("a graph");

        let entering = rank.own_stream().enter().expect("nobody is in");
        // The replay runs later than all that does not wait for it.
        let gate = rank.zeros::<u64>([1]).expect("a cell");
        let cell = gate.address();
        let op = |stream: &Stream, op: MemoryOp| {
            let current = gpu.current().expect("a GPU");
            current.memory_ops(stream, &[op]).expect("enqueued");
        };
        op(&outside, MemoryOp::AtLeast { cell, value: 1 });
        std::thread::scope(|scope| {
            scope.spawn(|| graph.launch(&outside).expect("a replay"));
        });
        drop(entering);
        copied.copy_from(&y).expect("a copy");
        std::thread::sleep(Duration::from_millis(100));
        op(&other, MemoryOp::Store { cell, value: 1 });
        let got = copied.read().expect("read");
        assert_eq!(got, [bf16::from_f32(8.0); 64]);
    }

    /// Nobody sees the order that the program makes, so only the time limit ends it. The error says where to look.
    #[test]
    fn an_event_of_the_programs_own_that_lets_two_launches_wait_for_each_other_is_told() {
        let (told, [first, last]) = both_within(
            Duration::from_millis(300),
            |r, s| r.gather(&s[1]),
            |r, s| {
                s[2].wait(&Event::record(&s[1])?)?;
                r.gather(&s[2])
            },
        );
        assert_eq!(told, Ok(()));
        let first = first.expect_err("each waits for the other");
        assert_eq!(last, Err(first.clone()));
        assert!(first.starts_with("rank 0 waited too long: "), "{first}");
        assert!(
            first.contains("launches enqueued, rank by rank: 1, 1; "),
            "{first}"
        );
        assert!(first.contains("an event of the program's own"), "{first}");
    }

    #[test]
    fn of_two_ranks_that_enqueue_at_once_in_one_stream_one_is_refused() {
        let machine = Machine::new(1, 0, u64::MAX);
        let gpus = (0..2).map(|_| Gpu::of(&machine, 0).into());
        let ranks = Communicator::of(gpus.collect(), Some(8 << 20), Duration::from_secs(60));
        let ranks = ranks.expect("emulated ranks");
        let stream = ranks[0].gpu().stream().expect("a stream");
        let passes = |rank: usize| ranks[rank].passes(std::iter::once(&stream), 1);
        // Nothing is in the stream yet.
        let passage = passes(0).expect("nobody is there");
        assert_eq!(passes(1).expect_err("refused").to_string(), TOLD);
        // Rank 0's was not enqueued after all.
        drop(passage);
        passes(1).expect("nobody is there");
    }
}
