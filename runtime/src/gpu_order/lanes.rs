//! Lanes: those that the communicators' ranks on a GPU have in common, and how one opens.

use super::member::{Member, order};
use super::order::Where;
use crate::driver::{Current, Gpu, Lane, Turn};
use crate::error::Error;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The lanes that somebody has: of which GPU, and for which of a communicator's ranks there.
static LANES: Mutex<Vec<(Where, usize, Weak<Lane>)>> = Mutex::new(Vec::new());

/// The lane of a GPU for that one of a communicator's ranks there.
pub(crate) fn lane(gpu: &Gpu, index: usize) -> Arc<Lane> {
    let mut lanes = LANES.lock().unwrap_or_else(PoisonError::into_inner);
    lanes.retain(|(.., lane)| lane.strong_count() > 0);
    let place = Where::from(gpu);
    let mut same = lanes
        .iter()
        .filter(|(at, of, _)| (*at, *of) == (place, index));
    if let Some(lane) = same.find_map(|(.., lane)| lane.upgrade()) {
        return lane;
    }
    let made = Arc::new(Lane::default());
    lanes.push((place, index, Arc::downgrade(&made)));
    made
}

impl Member {
    /// Opens the lane of a rank's launches, since one of them is captured: its events come after all launches there so far.
    /// Its GPU is current.
    ///
    /// # Errors
    /// [`Error::Stalled`] if another thread stays in; what the driver refuses.
    pub fn open_lane(
        &self,
        rank: u32,
        current: Current<'_>,
        limit: Duration,
    ) -> Result<(&Lane, &Turn), Error> {
        let (gpu, index) = &self.ranks[rank as usize];
        let own = &self.streams[rank as usize];
        let lane = own.lane().ok_or_else(|| Error::Usage {
            what: "a captured launch in a stream that is no rank's".into(),
            legal: "report it".into(),
        })?;
        let turn = lane.open(limit, || {
            let others = order().streams(gpu.into(), *index);
            for other in others.iter().filter(|other| !other.is(own)) {
                current.wait(own, &current.order(other)?)?;
            }
            // They are recorded again and again, so nobody else may get them.
            let turn = Turn {
                entered: gpu.event()?,
                replayed: gpu.event()?,
            };
            current.record_again(&turn.entered, own)?;
            current.record_again(&turn.replayed, own)?;
            Ok(turn)
        })?;
        Ok((lane, turn))
    }
}
