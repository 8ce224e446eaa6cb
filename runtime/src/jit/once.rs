//! Threads of a process that want the same kernel: one compiles it, the others take it from the cache.

use super::cache::Key;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What is being compiled.
static KEYS: Mutex<Vec<Key>> = Mutex::new(Vec::new());
static ENDED: Condvar = Condvar::new();

/// A thread's compilation of a key, which no other thread compiles meanwhile.
pub(super) struct Turn(Key);

fn keys() -> MutexGuard<'static, Vec<Key>> {
    KEYS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Turn {
    /// Waits until no other thread compiles it. The wait ends when that one's call of the compiler does.
    pub fn of(key: Key) -> Turn {
        let all = ENDED.wait_while(keys(), |all| all.contains(&key));
        all.unwrap_or_else(PoisonError::into_inner).push(key);
        Turn(key)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        keys().retain(|key| *key != self.0);
        ENDED.notify_all();
    }
}
