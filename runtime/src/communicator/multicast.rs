//! NVLink multicast of a communicator's heap.

use super::Communicator;
use crate::driver::Address;
use crate::error::Error;
use crate::group::Request;
use crate::multicast::{Multicast, MulticastState};

impl Communicator {
    /// Asks for NVLink multicast of the heap, by which one store reaches every rank's memory: see `docs/multicast.md` before
    /// you do. Collective. Each communicator begins without, also one of a split.
    ///
    /// It is on, or off, on all ranks alike. It is off where the program was built without the feature `multicast`, a variable
    /// forbids it, ranks share a GPU, a GPU has none, or the driver refuses any step on any rank: all ranks are told why.
    /// No published result of counterflow was made with it.
    ///
    /// ```
    /// use counterflow::{Communicator, Multicast, MulticastState};
    ///
    /// let ranks = Communicator::emulated(2)?;
    /// let states = Communicator::each(&ranks, |rank| rank.multicast(Multicast::Auto))?;
    /// for state in states {
    ///     match state {
    ///         MulticastState::On { bytes } => println!("a store reaches {bytes} bytes of every rank"),
    ///         MulticastState::Off { why, help } => println!("{why}: {help}"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// With [`Multicast::On`], why it is off: [`Error::Usage`], [`Error::Environment`], [`Error::Driver`]. [`Error::Usage`] for
    /// [`Multicast::Off`] where it is on. [`Error::Mismatch`], [`Error::Stalled`].
    pub fn multicast(&self, wanted: Multicast) -> Result<MulticastState, Error> {
        self.meet(&Request::Multicast(wanted))?;
        Ok(self.multicast_state())
    }

    /// Rejects a kernel that needs it where it is off: such a kernel runs nowhere else.
    pub(crate) fn must_have_multicast(&self, kernel: &str) -> Result<(), Error> {
        match self.multicast_state() {
            MulticastState::On { .. } => Ok(()),
            MulticastState::Off { why, help } => Err(Error::Usage {
                what: format!("{kernel}, which stores to every rank at once or sums there: {why}"),
                legal: help,
            }),
        }
    }

    /// Address at which a store reaches every rank's slot of the heap at that offset, and so many bytes behind it.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason why no multicast reaches them.
    pub(crate) fn everywhere(&self, offset: u64, bytes: u64) -> Result<Address, Error> {
        self.group.everywhere(offset, bytes)
    }

    /// The part of the heap that multicast reaches now. `reserve` may change it.
    ///
    /// ```
    /// use counterflow::{Communicator, MulticastState};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// assert!(matches!(rank.multicast_state(), MulticastState::Off { .. })); // nobody asked
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn multicast_state(&self) -> MulticastState {
        self.group.multicast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_built_without_it_is_told_so_on_every_rank() {
        let ranks = Communicator::emulated(3).expect("ranks");
        let asked =
            Communicator::each(&ranks, |rank| rank.multicast(Multicast::Auto)).expect("it goes on");
        for (state, rank) in asked.iter().zip(&ranks) {
            assert!(
                matches!(state, MulticastState::Off { why, .. } if why.contains("built without it"))
            );
            assert_eq!(rank.multicast_state(), *state);
        }
        let kinds = Communicator::each(&ranks, |rank| {
            let refused = rank.multicast(Multicast::On).expect_err("refused");
            rank.barrier()?;
            Ok(refused.kind())
        });
        assert_eq!(kinds.expect("they go on"), ["usage"; 3]);
        let mixed = Communicator::each(&ranks, |rank| {
            let wanted = [Multicast::Auto, Multicast::Off][usize::from(rank.rank() == 1)];
            let refused = rank.multicast(wanted).expect_err("they differ");
            assert!(
                refused
                    .to_string()
                    .contains("rank 1 asks for multicast: Off"),
                "{refused}"
            );
            Ok(refused.kind())
        });
        assert_eq!(mixed.expect("they go on"), ["mismatch"; 3]);
    }
}
