//! Launches of a stream that may still run when the next one begins early.
//!
//! A programmatic dependent launch begins while the one before it runs. Operands that its kernel has as constants it loads at
//! once; all else it touches after the end of everything before it. So such an operand must be written by none of the launches
//! that may still run: those from the last one on that began behind the end of all before it. Their tensors are written down
//! here, and a launch that would load one of them begins late.
//!
//! A launch that begins early also takes SMs while one that waits for peers runs. So it begins late there, unless that one was
//! counted with room for it.

use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// As many ranges as need no memory of their own. A launch that comes behind more begins late.
const MOST: usize = 16;

/// Addresses of a tensor.
pub(crate) type Bytes = Range<u64>;

/// Launches that may still run.
#[derive(Default)]
pub(crate) struct Unfinished(Mutex<State>);

/// Ranges of memory say nothing to who prints a rank's tensor.
impl fmt::Debug for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unfinished").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    written: SmallVec<[Bytes; MOST]>,
    /// True if they write more than is written down.
    more: bool,
    /// CTAs that may come beside a launch that waits for peers. None: no such launch may run.
    room: Option<u32>,
}

/// A launch that is about to be enqueued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    /// True if its kernel and its stream allow that it begins early.
    pub early: bool,
    /// True if that gains only beside a launch that waits for peers.
    pub only_beside: bool,
    pub ctas: u32,
    /// If it waits for peers: the CTAs that were counted for the launch behind it.
    pub room: Option<u32>,
}

impl Unfinished {
    /// True if the launch begins early. It is written down as one that may still run when the next one is enqueued.
    pub fn begins_early(
        &self,
        next: Next,
        mut loaded: impl Iterator<Item = Bytes>,
        written: impl Iterator<Item = Bytes>,
    ) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = state.room.is_none_or(|room| next.ctas <= room);
        let gains = !next.only_beside || state.room.is_some();
        let early =
            next.early && gains && !state.more && fits && !loaded.any(|bytes| state.writes(&bytes));
        match (early, &mut state.room) {
            (true, Some(room)) => *room -= next.ctas,
            (true, None) => {}
            (false, _) => *state = State::default(),
        }
        for bytes in written.filter(|bytes| !bytes.is_empty()) {
            match state.written.len() < MOST {
                true => state.written.push(bytes),
                false => state.more = true,
            }
        }
        state.room = next.room.or(state.room);
        early
    }

    /// What may still run is not known, so the next launch begins late: the driver refused a launch, or work of another kind came
    /// between, such as a step, a replay, a copy or a fill.
    pub fn unknown(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.more = true;
    }
}

impl State {
    fn writes(&self, bytes: &Bytes) -> bool {
        let meets = |one: &Bytes| one.start < bytes.end && bytes.start < one.end;
        self.written.iter().any(meets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Communicator;
    use crate::error::Error;
    use crate::op::Part;
    use std::iter::{empty, once};

    const W: Bytes = 100..200;
    const Y: Bytes = 300..400;

    fn next(ctas: u32) -> Next {
        Next {
            early: true,
            only_beside: false,
            ctas,
            room: None,
        }
    }

    /// A launch that loads `w` early and writes `y`.
    fn product(stream: &Unfinished, w: Bytes, y: Bytes) -> bool {
        stream.begins_early(next(80), once(w), once(y))
    }

    #[test]
    fn a_constant_that_an_unfinished_launch_writes_is_awaited() {
        let stream = Unfinished::default();
        assert!(product(&stream, W, Y));
        // The launch after the next one: the first may still run.
        assert!(product(&stream, W, 400..500));
        assert!(!product(&stream, 390..391, 500..600));
        // That one began behind the end of all before it, so they have ended.
        assert!(product(&stream, Y, W));
        assert!(!product(&stream, 500..501, Y));
    }

    #[test]
    fn a_launch_that_may_not_begin_early_ends_all_before_it() {
        let stream = Unfinished::default();
        assert!(product(&stream, W, Y));
        let late = Next {
            early: false,
            ..next(80)
        };
        assert!(!stream.begins_early(late, once(W), once(500..600)));
        assert!(product(&stream, Y, W));
        assert!(!product(&stream, 599..700, Y));
    }

    #[test]
    fn tensors_side_by_side_and_empty_ones_do_not_meet() {
        let stream = Unfinished::default();
        assert!(product(&stream, W, 200..300));
        assert!(product(&stream, 300..400, 150..150));
        assert!(product(&stream, W, Y));
    }

    #[test]
    fn behind_more_tensors_than_are_written_down_a_launch_begins_late() {
        let stream = Unfinished::default();
        let many = (0..=MOST as u64).map(|at| 1000 * at..1000 * at + 1);
        assert!(stream.begins_early(next(80), once(500..600), many));
        assert!(!product(&stream, 500..600, Y));
        assert!(product(&stream, 500..600, W));
    }

    #[test]
    fn behind_work_of_another_kind_a_launch_begins_late() -> Result<(), Error> {
        let rank = &Communicator::emulated(1)?[0];
        rank.reserve(4 << 20)?;
        let stream = rank.own().unfinished();
        let (w, from) = (rank.zeros::<f32>([64])?, rank.zeros::<f32>([64])?);
        let buffer = rank.allocate::<f32>("x", [64])?;
        let graph = rank.capture_own(|| w.fill(0))?;
        let step = || {
            let step = rank.step(rank).part(Part::of::<f32>(64).read("w"), &w);
            step.together(None, |_| Ok(())).map(drop)
        };
        let refused = || {
            let fails = Error::Wrong {
                what: "the driver is out of order".into(),
                help: "none".into(),
            };
            let launched = rank.step(rank).together(None, |_| Err(fails));
            launched.expect_err("refused");
            Ok(())
        };
        type Work<'a> = (&'a str, &'a dyn Fn() -> Result<(), Error>);
        let all: [Work<'_>; 9] = [
            ("a step", &step),
            ("a step that failed", &refused),
            ("a replay", &|| graph.launch(rank).map(drop)),
            ("a copy", &|| w.copy_from(&from)),
            ("a fill", &|| w.fill(0)),
            ("a write", &|| w.write(&[0.0; 64])),
            ("a buffer's fill", &|| buffer.fill(0)),
            ("a buffer's write", &|| buffer.write(&[0.0; 64])),
            ("an allocation", &|| rank.zeros::<f32>([64]).map(drop)),
        ];
        for (what, work) in all {
            let late = Next {
                early: false,
                ..next(80)
            };
            stream.begins_early(late, empty(), empty());
            assert!(product(stream, W, Y), "without {what}");
            work()?;
            assert!(!product(stream, W, Y), "behind {what}");
        }
        Ok(())
    }

    #[test]
    fn a_launch_behind_one_that_waits_for_peers_takes_no_more_sms_than_were_counted() {
        let (x, none) = (|| once(500..600), || std::iter::empty());
        let waiting = |room| Next {
            early: false,
            room: Some(room),
            ..next(16)
        };
        for (room, ctas, early) in [(80, 80, true), (79, 80, false), (0, 1, false)] {
            let stream = Unfinished::default();
            assert!(!stream.begins_early(waiting(room), none(), x()));
            assert_eq!(stream.begins_early(next(ctas), once(W), once(Y)), early);
        }
        // A third launch finds no room left.
        let stream = Unfinished::default();
        stream.begins_early(waiting(100), none(), x());
        assert!(product(&stream, W, Y));
        assert!(!product(&stream, W, Y));
        assert!(product(&stream, W, 700..800));
    }

    #[test]
    fn a_launch_that_gains_only_beside_one_that_waits_for_peers_begins_late_behind_others() {
        let few = Next {
            only_beside: true,
            ..next(20)
        };
        let waiting = Next {
            early: false,
            room: Some(20),
            ..next(16)
        };
        let stream = Unfinished::default();
        assert!(!stream.begins_early(few, once(W), once(Y)));
        assert!(!stream.begins_early(waiting, empty(), empty()));
        assert!(stream.begins_early(few, once(W), once(Y)));
        assert!(!stream.begins_early(few, once(W), once(Y)));
        assert!(!stream.begins_early(few, once(W), once(Y)));
    }
}
