//! The only threads of this crate: blocks of a product, divided between the cores.
//!
//! One thread computes a block, in one order, and an element's sums do not depend on its block. So the result does not depend
//! on the number of threads.

use std::num::NonZero;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;

/// Multiply-adds that are worth a thread: about half a millisecond.
const WORTH: u64 = 1 << 22;

/// Cores of this process. Asked once: the answer is read from files, and small products would wait for it.
static CORES: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));

/// Threads for so many multiply-adds; at least 1.
pub(super) fn threads(work: u64) -> usize {
    let worth = usize::try_from(work / WORTH).unwrap_or(usize::MAX);
    CORES.min(worth).max(1)
}

/// Does `work` for each, on so many threads: each takes the next one, and has what it makes of its `own`. The caller is one of
/// them.
pub(super) fn on_each<T: Send, S>(
    threads: usize,
    all: impl IntoIterator<Item = T, IntoIter: Send>,
    own: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) + Sync,
) {
    let all = Mutex::new(all.into_iter());
    let next = || all.lock().unwrap_or_else(PoisonError::into_inner).next();
    let until_done = || {
        let mut own = own();
        while let Some(one) = next() {
            work(&mut own, one);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(until_done);
        }
        until_done();
    });
}
