//! Measured choice: where no winner is known nearby, building an op times a few candidates on the GPUs at hand.
//!
//! The candidates differ in what the model is least sure of: tiles, how warpgroups share them, and schedules of a family. All
//! ranks measure the same ones at the same time, and the time of the slowest rank counts. What wins is kept in the user's table
//! of winners, so it is measured once.

mod contenders;
mod effort;
mod times;

pub(crate) use contenders::{Contender, contenders};
pub(crate) use effort::Effort;
pub(crate) use times::{GaveUp, Times, Tried, agreed, read, text};

use crate::error::Error;
use std::fmt;
use std::time::Duration;

/// The environment variable that says how much is measured.
const VARIABLE: &str = "COUNTERFLOW_TUNE";

/// Effort that [`OpBuilder::build`](crate::OpBuilder::build) spends on measurements where no winner is known nearby. If nobody says
/// anything, it is [`Tuning::Quick`] for ranks with a GPU each, on which no other communicator of the process is, and [`Tuning::Off`] for
/// others.
///
/// ```
/// use counterflow::{Communicator, schedules::AgGemmOp, tuning::Tuning};
///
/// Communicator::each(&Communicator::emulated(2)?, |rank| {
///     rank.reserve(8 << 20)?;
///     let builder = rank.op_of::<AgGemmOp>().tuning(Tuning::Off).up_to(64, 64, 32);
///     println!("{}", builder.build()?.variant()); // the model's choice
///     Ok(())
/// })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tuning {
    /// Nothing: the model chooses, and the same in every run.
    Off,
    /// Up to 8 candidates for about 150 ms of GPU time an op and bucket: the best of each kind of tile, then others. Compiling comes
    /// on top. Each is launched 7 times at least, so of launches that take milliseconds there are fewer candidates, and beyond
    /// 10 ms none: the model chooses.
    Quick,
    /// Up to 32 candidates, for about 2 s.
    Full,
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tuning::Off => "off",
            Tuning::Quick => "quick",
            Tuning::Full => "full",
        })
    }
}

impl Tuning {
    /// Reads the environment variable `COUNTERFLOW_TUNE`; `None` if it is not set.
    ///
    /// ```
    /// use counterflow::tuning::Tuning;
    ///
    /// let tuning = Tuning::from_env()?.unwrap_or(Tuning::Quick); // what an op does that is told nothing
    /// println!("{tuning}");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for another word than `off`, `quick` and `full`.
    pub fn from_env() -> Result<Option<Tuning>, Error> {
        let said = std::env::var_os(VARIABLE).filter(|said| !said.is_empty());
        let said = said.map(|said| said.to_string_lossy().into_owned());
        said.map(|said| Tuning::named(&said)).transpose()
    }

    fn named(said: &str) -> Result<Tuning, Error> {
        let mut all = [Tuning::Off, Tuning::Quick, Tuning::Full].into_iter();
        let named = all.find(|tuning| tuning.to_string() == said);
        named.ok_or_else(|| Error::Usage {
            what: format!("{VARIABLE}={said}"),
            legal: "off, quick or full".into(),
        })
    }

    /// The most candidates, of an op's bucket and of a sweep's product.
    ///
    /// ```
    /// use counterflow::tuning::Tuning;
    ///
    /// assert!(Tuning::Off.most() == 0 && Tuning::Quick.most() < Tuning::Full.most());
    /// ```
    pub fn most(self) -> usize {
        match self {
            Tuning::Off => 0,
            Tuning::Quick => 8,
            Tuning::Full => 32,
        }
    }

    /// Effort of an op whose builder was told nothing, by what the environment says. GPUs that ranks share have no speed worth
    /// knowing.
    pub(crate) fn unless_asked(said: Option<Tuning>, sharing: bool) -> Tuning {
        said.unwrap_or(match sharing {
            true => Tuning::Off,
            false => Tuning::Quick,
        })
    }

    /// Seconds of GPU time, beyond which candidates are launched only as often as a median needs.
    pub(crate) fn budget(self) -> f64 {
        match self {
            Tuning::Off => 0.0,
            Tuning::Quick => 0.15,
            Tuning::Full => 2.0,
        }
    }

    /// Time that a candidate waits for a peer at most: what all launches may take, and a second for hosts that are late.
    pub(crate) fn patience(self) -> Duration {
        Duration::from_secs(1) + Duration::from_secs_f64(self.budget())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_measure_unless_somebody_says_otherwise_or_ranks_share_a_gpu() {
        assert_eq!(Tuning::unless_asked(None, false), Tuning::Quick);
        assert_eq!(Tuning::unless_asked(None, true), Tuning::Off);
        for sharing in [false, true] {
            for said in [Tuning::Off, Tuning::Quick, Tuning::Full] {
                assert_eq!(Tuning::unless_asked(Some(said), sharing), said);
            }
        }
    }

    #[test]
    fn words_are_those_of_the_variable() {
        for tuning in [Tuning::Off, Tuning::Quick, Tuning::Full] {
            assert_eq!(Tuning::named(&tuning.to_string()).expect("a word"), tuning);
        }
        let error = Tuning::named("fast").expect_err("no such word");
        assert_eq!(error.to_string(), "COUNTERFLOW_TUNE=fast");
        assert_eq!(error.help(), Some("off, quick or full"));
    }
}
