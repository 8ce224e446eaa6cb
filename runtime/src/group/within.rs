//! A group's ranks as ranks of the world: its errors name ranks by their numbers in the group, and say whose they are.

use super::verdict::Verdict;
use crate::error::Error;
use std::fmt;

/// A group that a split made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Within {
    color: u32,
    /// The rank of the world that each of its ranks is.
    ranks: Vec<u32>,
}

/// So many ranks are named.
const NAMED: usize = 16;

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.ranks.iter().take(NAMED).map(u32::to_string);
        let more = if self.ranks.len() > NAMED {
            ", …"
        } else {
            ""
        };
        let own = match self.ranks.len() {
            1 => "rank 0 is rank".to_owned(),
            count => format!("ranks 0 to {} are ranks", count - 1),
        };
        write!(
            f,
            "in the group of color {}, whose {own} {}{more} of the world",
            self.color,
            named.collect::<Vec<_>>().join(", ")
        )
    }
}

impl Within {
    /// The group of those ranks of a communicator, which is a group itself or not.
    pub fn new(color: u32, ranks: &[u32], of: Option<&Within>) -> Within {
        let world = |rank: &u32| of.map_or(*rank, |of| of.ranks[*rank as usize]);
        Within {
            color,
            ranks: ranks.iter().map(world).collect(),
        }
    }

    fn told(&self, what: String) -> String {
        let own = self.to_string();
        match what.contains(&own) {
            true => what,
            false => format!("{what} ({own})"),
        }
    }

    /// A cause of this group, for who reads it.
    pub fn cause(&self, cause: Verdict) -> Verdict {
        match cause {
            Verdict::Stalled(mut stall) => {
                stall.group.get_or_insert_with(|| self.to_string());
                Verdict::Stalled(stall)
            }
            Verdict::Differs(what) => Verdict::Differs(self.told(what)),
            Verdict::Aborted(what) => Verdict::Aborted(self.told(what)),
        }
    }

    /// Renames the ranks that an error names.
    pub fn error(&self, error: Error) -> Error {
        match error {
            Error::Mismatch { what, help } => Error::Mismatch {
                what: self.told(what),
                help,
            },
            Error::Usage { what, legal } => Error::Usage {
                what: self.told(what),
                legal,
            },
            Error::Aborted { what, help } => Error::Aborted {
                what: self.told(what),
                help,
            },
            Error::TooLarge { what, help } => Error::TooLarge {
                what: self.told(what),
                help,
            },
            Error::Stalled(mut stall) => {
                stall.group.get_or_insert_with(|| self.to_string());
                Error::Stalled(stall)
            }
            Error::Rejected(_)
            | Error::Environment { .. }
            | Error::Wrong { .. }
            | Error::NoDevice { .. }
            | Error::NotYet { .. }
            | Error::Toolkit { .. }
            | Error::Compile(_)
            | Error::Driver { .. }
            | Error::Rendezvous { .. }
            | Error::File { .. } => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_a_group_names_ranks_of_the_world() {
        let group = Within::new(3, &[1, 4, 5], None);
        let within = Within::new(0, &[2, 1], Some(&group));
        let told = "in the group of color 0, whose ranks 0 to 1 are ranks 5, 4 of the world";
        assert_eq!(within.to_string(), told);
        let once = within.cause(Verdict::Aborted("rank 1 panicked".into()));
        assert_eq!(once, Verdict::Aborted(format!("rank 1 panicked ({told})")));
        assert_eq!(within.cause(once.clone()), once, "said once");
        let alone = Within::new(7, &[2], None).to_string();
        assert_eq!(
            alone,
            "in the group of color 7, whose rank 0 is rank 2 of the world"
        );
    }
}
