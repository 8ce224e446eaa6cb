//! Where a launch ends in its rank's stream.
//!
//! An event marks it. Most programs never ask, so it is recorded when somebody does: later than the launch, behind what the
//! stream got meanwhile. That only makes it later, as long as all of that waits for nobody. So a launch gets its event at
//! last before the rank's next launch, which waits for peers, and at once where the stream may hold others' work.

use crate::driver::{Current, Event, Stream};
use crate::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a launch.
#[derive(Debug, Default)]
pub(crate) struct Done(Mutex<Option<Arc<Event>>>);

impl Done {
    /// Its event, if somebody asked before.
    pub fn known(&self) -> Option<Arc<Event>> {
        lock(&self.0).clone()
    }

    /// Its event. The launch is in that stream.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn event(&self, current: Current<'_>, own: &Stream) -> Result<Arc<Event>, Error> {
        let mut event = lock(&self.0);
        if let Some(known) = &*event {
            return Ok(known.clone());
        }
        let made = Arc::new(current.order(own)?);
        Ok(event.insert(made).clone())
    }
}

/// The end of a rank's latest launch.
#[derive(Debug, Default)]
pub(crate) struct Latest(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// While somebody can ask for it.
    done: Weak<Done>,
    /// Whether the stream may hold others' work.
    joined: bool,
}

impl Latest {
    /// The rank's stream is about to get more that may wait for others.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn settle(&self, current: Current<'_>, own: &Stream) -> Result<(), Error> {
        let done = lock(&self.0).done.upgrade();
        done.map_or(Ok(()), |done| done.event(current, own).map(drop))
    }

    /// From now on the rank's stream may get others' work at any time.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn join(&self, current: Current<'_>, own: &Stream) -> Result<(), Error> {
        lock(&self.0).joined = true;
        self.settle(current, own)
    }

    /// A launch is in the rank's stream. `asked`: somebody needs its event at once.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn enqueued(
        &self,
        current: Current<'_>,
        own: &Stream,
        asked: bool,
    ) -> Result<Arc<Done>, Error> {
        let mut state = lock(&self.0);
        if asked || state.joined {
            let event = Arc::new(current.order(own)?);
            return Ok(Arc::new(Done(Mutex::new(Some(event)))));
        }
        let done = Arc::default();
        state.done = Arc::downgrade(&done);
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Communicator;
    use crate::op::Op;
    use crate::pending::Pending;
    use crate::schedules::{Sender, gather};
    use crate::tensor::Tensor;
    use crate::user_buffer::UserBuffer;
    use half::bf16;
    use std::time::{Duration, Instant};

    /// A rank with launches that each wait for the peer's of the same number.
    struct Ready<'a> {
        rank: &'a Communicator,
        op: Op,
        x: UserBuffer<bf16>,
        w: Tensor<bf16>,
        y: Tensor<bf16>,
    }

    impl Ready<'_> {
        fn new(rank: &Communicator) -> Result<Ready<'_>, Error> {
            rank.reserve(4 << 20)?;
            let program = gather(Sender::Ctas(4));
            Ok(Ready {
                rank,
                op: rank.op(&program).up_to(8, 8, 8).first_options().build()?,
                x: rank.allocate("x", [8, 8])?,
                w: rank.zeros([8, 8])?,
                y: rank.zeros([8, 8])?,
            })
        }

        fn launch(&mut self) -> Result<Pending, Error> {
            let launch = self.op.on(self.rank).tensor("x", &self.x);
            let launch = launch.tensor("w", &self.w);
            launch.tensor("y", &mut self.y).launch()
        }
    }

    /// The first launch of two ranks is done although rank 0's stream then gets something that waits for rank 1's second
    /// one, or rank 1's for rank 0's: `behind` enqueues it, given the stream of the other.
    fn first_is_done(behind: impl Fn(&mut Ready<'_>, &Stream) -> Result<(), Error> + Sync) {
        let ranks = Communicator::emulated(2).expect("ranks");
        let other = ranks[1].stream();
        let done = Communicator::each(&ranks, |rank| {
            let mut ready = Ready::new(rank)?;
            rank.barrier()?;
            if rank.rank() == 0 {
                let (first, start) = (ready.launch()?, Instant::now());
                rank.barrier()?;
                behind(&mut ready, other)?;
                first.wait()?;
                assert!(first.is_done()?);
                assert!(start.elapsed() < Duration::from_secs(20));
                return rank.barrier();
            }
            ready.launch()?;
            // It waits for a launch that rank 0 does not make.
            ready.launch()?;
            rank.barrier()?;
            rank.barrier()
        });
        done.map(drop).expect("the first is done");
        ranks[0].abort("it is over");
    }

    #[test]
    fn a_launch_is_done_before_a_later_one_whose_peer_has_yet_to_come() {
        let ranks = Communicator::emulated(2).expect("ranks");
        let done = Communicator::each(&ranks, |rank| {
            let mut ready = Ready::new(rank)?;
            rank.barrier()?;
            if rank.rank() == 0 {
                let first = ready.launch()?;
                let again = first.clone();
                ready.launch()?;
                first.wait()?;
                assert!(again.is_done()?);
                rank.barrier()?;
            } else {
                ready.launch()?;
                // Only when rank 0 has seen the end of its first one.
                rank.barrier()?;
                ready.launch()?;
            }
            rank.synchronize()
        });
        done.map(drop).expect("nobody waits for ever");
    }

    #[test]
    fn a_launch_is_done_before_what_others_put_into_its_stream() {
        first_is_done(|ready, other| ready.rank.stream().wait(&Event::record(other)?));
    }

    #[test]
    fn a_launch_is_done_before_what_comes_of_memory_that_is_handed_to_others() {
        first_is_done(|ready, other| {
            let elsewhere = ready.rank.gpu().stream()?;
            let given = ready.w.to_dlpack(&elsewhere)?;
            elsewhere.wait(&Event::record(other)?)?;
            // The rank's stream waits for it.
            drop(given);
            Ok(())
        });
    }

    #[test]
    fn only_who_asks_pays_for_an_event() {
        let ranks = Communicator::emulated(1).expect("a rank");
        let rank = &ranks[0];
        let mut ready = Ready::new(rank).expect("ready");
        let event = |done: &Pending| done.known().is_some();
        let first = ready.launch().expect("a launch");
        assert!(!event(&first));
        let second = ready.launch().expect("a launch");
        assert!(event(&first), "another launch comes behind it");
        assert!(!event(&second));
        assert!(second.wait().is_ok() && event(&second));
        let third = ready.launch().expect("a launch");
        rank.stream();
        assert!(event(&third), "others may use the stream");
        assert!(event(&ready.launch().expect("a launch")));
    }
}
