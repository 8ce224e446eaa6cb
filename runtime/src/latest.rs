//! What this process worked out lately, by all that was asked.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// Answers by the hash of what was asked, at most `KEPT`, those asked for last at the end.
#[derive(Debug)]
pub(crate) struct Latest<T, const KEPT: usize>(VecDeque<(blake3::Hash, Arc<OnceLock<T>>)>);

impl<T, const KEPT: usize> Latest<T, KEPT> {
    pub const fn new() -> Latest<T, KEPT> {
        Latest(VecDeque::new())
    }

    /// The place of an answer, which is empty until somebody finds it.
    pub fn place(&mut self, key: blake3::Hash) -> Arc<OnceLock<T>> {
        let known = self.0.iter().position(|(known, _)| *known == key);
        let known = known.and_then(|at| self.0.remove(at));
        if known.is_none() && self.0.len() == KEPT {
            self.0.pop_front();
        }
        let place = known.map(|(_, place)| place).unwrap_or_default();
        self.0.push_back((key, place.clone()));
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_last_is_kept() {
        const KEPT: usize = 8;
        let mut latest = Latest::<(), KEPT>::new();
        let key = |number: usize| blake3::hash(&number.to_le_bytes());
        let first = latest.place(key(0));
        (1..KEPT).for_each(|number| drop(latest.place(key(number))));
        assert!(Arc::ptr_eq(&first, &latest.place(key(0))));
        // The one that nobody asked for again goes.
        drop(latest.place(key(KEPT)));
        assert!(Arc::ptr_eq(&first, &latest.place(key(0))));
        assert_eq!(latest.0.len(), KEPT);
        assert!(!latest.0.iter().any(|(known, _)| *known == key(1)));
    }
}
