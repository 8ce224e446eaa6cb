//! End of a launch in its rank's stream.
//!
//! An event marks it. Most programs never ask, so it is recorded when somebody does: later than the launch, behind what the
//! stream got meanwhile. That only makes it later, as long as all of that waits for nobody. So a launch gets its event at
//! last before the rank's next launch, which waits for peers, and at once where the stream may hold others' work.

use crate::driver::{Current, Event, Stream};
use crate::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a launch.
#[derive(Debug, Default)]
pub(crate) struct Done(Mutex<Mark>);

#[derive(Debug, Default)]
enum Mark {
    /// Nobody has asked.
    #[default]
    None,
    At(Arc<Event>),
    /// The end could not be marked when it had to be, for this reason.
    Lost(String),
}

impl Done {
    /// Event of the launch's end, if somebody asked before.
    pub fn known(&self) -> Option<Arc<Event>> {
        match &*lock(&self.0) {
            Mark::At(event) => Some(event.clone()),
            Mark::None | Mark::Lost(_) => None,
        }
    }

    /// Event of the launch's end. The launch is in that stream.
    ///
    /// # Errors
    /// What the driver refuses, or refused when the end had to be marked.
    pub fn event(&self, current: Current<'_>, own: &Stream) -> Result<Arc<Event>, Error> {
        let mut mark = lock(&self.0);
        match &*mark {
            Mark::At(known) => Ok(known.clone()),
            Mark::Lost(why) => Err(lost(why)),
            Mark::None => {
                let made = Arc::new(current.order(own)?);
                *mark = Mark::At(made.clone());
                Ok(made)
            }
        }
    }
}

/// Nobody can know any more when a launch has ended.
fn lost(why: &str) -> Error {
    Error::Driver {
        what: "mark the end of a launch in the rank's stream, before others got that".into(),
        code: why.into(),
        help: "wait for the communicator (`synchronize`) instead".into(),
    }
}

/// The end of a rank's latest launch.
#[derive(Debug, Default)]
pub(crate) struct Latest(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// End of the latest launch. Nobody can ask for it once nobody else has it.
    done: Arc<Done>,
    /// True if the stream may hold others' work.
    joined: bool,
}

impl State {
    /// End of the latest launch, if somebody can ask for it.
    fn asked(&self) -> Option<&Arc<Done>> {
        Some(&self.done).filter(|done| Arc::strong_count(done) > 1)
    }
}

/// Each of these under the rank's turn: then no launch is in the stream that is not known here.
impl Latest {
    /// The rank's stream is about to get more that may wait for others.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn settle(&self, current: Current<'_>, own: &Stream) -> Result<(), Error> {
        let state = lock(&self.0);
        let asked = state.asked();
        asked.map_or(Ok(()), |done| done.event(current, own).map(drop))
    }

    /// From now on the rank's stream may get others' work at any time.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn join(&self, current: Current<'_>, own: &Stream) -> Result<(), Error> {
        lock(&self.0).joined = true;
        self.settle(current, own)
    }

    /// The latest launch could not be marked, and others get the stream: whoever asks for its end is told.
    pub fn lost(&self, why: &Error) {
        let mut state = lock(&self.0);
        // The next launch has nothing to mark.
        let done = std::mem::take(&mut state.done);
        let mut mark = lock(&done.0);
        if let Mark::None = *mark {
            *mark = Mark::Lost(why.to_string());
        }
        state.joined = true;
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
        let mark = match asked || state.joined {
            true => Mark::At(Arc::new(current.order(own)?)),
            false => Mark::None,
        };
        // Most callers have dropped the handle of the launch before: then its memory is taken again.
        match Arc::get_mut(&mut state.done) {
            Some(unused) => *unused = Done(Mutex::new(mark)),
            None => state.done = Arc::new(Done(Mutex::new(mark))),
        }
        Ok(state.done.clone())
    }
}
