//! Tags of launches that the GPUs compare: which launch a tag stands for, which is all that a GPU reports of a difference.

use super::ledger::{AHEAD, Entry};
use std::collections::{BTreeMap, VecDeque};

/// The launches of a rank whose tags are known.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// The latest ones of the host. A rank's host is at most so far ahead of the slowest peer.
    launched: VecDeque<Entry>,
    /// Launches of graphs that may be replayed, and the number of graphs that have each.
    replayed: BTreeMap<u64, (Entry, u32)>,
}

impl Compared {
    /// The host launches it.
    pub fn launches(&mut self, entry: &Entry) {
        if self.launched.len() as u64 == AHEAD {
            self.launched.pop_front();
        }
        self.launched.push_back(*entry);
    }

    /// A graph has it, until [`Compared::forgets`].
    pub fn replays(&mut self, entry: &Entry) {
        self.replayed.entry(entry.tag()).or_insert((*entry, 0)).1 += 1;
    }

    /// A graph is gone that had the launch with that tag.
    pub fn forgets(&mut self, tag: u64) {
        if let Some((_, graphs)) = self.replayed.get_mut(&tag) {
            *graphs -= 1;
            if *graphs == 0 {
                self.replayed.remove(&tag);
            }
        }
    }

    /// The launch with that tag.
    pub fn find(&self, tag: u64) -> Option<Entry> {
        let replayed = self.replayed.get(&tag).map(|(entry, _)| *entry);
        let mut launched = self.launched.iter().rev();
        replayed.or_else(|| launched.find(|entry| entry.tag() == tag).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_of_the_host_are_known_until_none_can_be_compared_any_more_and_replays_as_long_as_their_graphs()
     {
        let entry = |plan: u64| Entry::new("k", 0, plan, 1);
        let mut compared = Compared::default();
        for _ in 0..2 {
            compared.replays(&entry(1));
        }
        for plan in 0..3 * AHEAD {
            compared.launches(&entry(2 + plan));
        }
        assert_eq!(compared.launched.len() as u64, AHEAD, "no more than that");
        let known = |compared: &Compared, plan: u64| compared.find(entry(plan).tag());
        assert_eq!(known(&compared, 2 + 2 * AHEAD), Some(entry(2 + 2 * AHEAD)));
        assert_eq!(known(&compared, 1 + 2 * AHEAD), None);
        compared.forgets(entry(1).tag());
        assert_eq!(known(&compared, 1), Some(entry(1)));
        compared.forgets(entry(1).tag());
        assert_eq!(known(&compared, 1), None);
        assert!(compared.replayed.is_empty());
    }
}
