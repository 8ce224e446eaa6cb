//! A rendezvous that the program brings along.

use super::{Rendezvous, failed, must_be_in, must_fit};
use crate::error::Error;
use std::fmt;
use std::time::Duration;

type Gather = dyn Fn(&[u8], Duration) -> Result<Vec<Vec<u8>>, String> + Send + Sync;

/// Ranks that gather by a function of the program's: an all-gather of MPI, or of a store that the job has anyway. Only
/// the job's own processes may reach it: it carries the secrets by which they trust each other.
pub struct Callbacks {
    rank: u32,
    world: u32,
    gather: Box<Gather>,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Callbacks(rank {} of {})", self.rank, self.world)
    }
}

impl Callbacks {
    /// This rank of so many. `gather` takes this rank's message, and gives those of all ranks in order, or says why not.
    /// It should not wait longer than it is told.
    ///
    /// ```
    /// use counterflow_runtime::rendezvous::{Callbacks, Rendezvous};
    /// # use std::time::Duration;
    /// let alone = Callbacks::new(0, 1, |mine, _limit| Ok(vec![mine.to_vec()]))?;
    /// assert_eq!(alone.all_gather(b"here", Duration::from_secs(1))?, [b"here".to_vec()]);
    /// # Ok::<(), counterflow_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for a rank outside the world, and for more than 128 ranks.
    pub fn new(
        rank: u32,
        world: u32,
        gather: impl Fn(&[u8], Duration) -> Result<Vec<Vec<u8>>, String> + Send + Sync + 'static,
    ) -> Result<Callbacks, Error> {
        must_be_in(rank, world)?;
        Ok(Callbacks {
            rank,
            world,
            gather: Box::new(gather),
        })
    }
}

impl Rendezvous for Callbacks {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.world
    }

    fn all_gather(&self, mine: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>, Error> {
        const HELP: &str = "correct the function that the program gave to `Callbacks::new`";
        must_fit(mine)?;
        let all = (self.gather)(mine, limit)
            .map_err(|why| failed(format!("the program's all-gather failed: {why}"), HELP))?;
        let own = all.get(self.rank as usize).map(Vec::as_slice);
        if all.len() != self.world as usize || own != Some(mine) {
            return Err(failed(
                format!(
                    "the program's all-gather gave {} messages for {} ranks, or not this rank's own in its place",
                    all.len(),
                    self.world
                ),
                HELP,
            ));
        }
        all.iter().try_for_each(|message| must_fit(message))?;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_none_are_refused() {
        let limit = Duration::from_secs(1);
        type Gather = fn(&[u8]) -> Result<Vec<Vec<u8>>, String>;
        let told = |gather: Gather| {
            let ranks = Callbacks::new(1, 2, move |mine, _| gather(mine)).expect("legal");
            ranks.all_gather(b"me", limit)
        };
        assert!(told(|mine| Ok(vec![b"you".to_vec(), mine.to_vec()])).is_ok());
        for wrong in [
            told(|mine| Ok(vec![mine.to_vec()])),
            told(|mine| Ok(vec![mine.to_vec(), b"you".to_vec()])),
            told(|_| Err("no store".into())),
        ] {
            assert_eq!(wrong.expect_err("refused").kind(), "rendezvous");
        }
        assert!(Callbacks::new(2, 2, |_, _| Err(String::new())).is_err());
    }
}
