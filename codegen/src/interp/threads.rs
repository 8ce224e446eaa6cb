//! The only threads of this crate: the rows of a product, divided between the cores.
//!
//! One thread computes a row, in one order, so the result does not depend on the number of threads.

use std::num::NonZero;
use std::thread;

/// Multiply-adds that are worth a thread: about half a millisecond.
const WORTH: u64 = 1 << 22;

/// Rows for each thread, of a product of `rows` rows with `each` multiply-adds in a row; at least 1.
pub(super) fn share(rows: usize, each: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let worth = (rows as u64).saturating_mul(each as u64) / WORTH;
    let threads = cores.min(usize::try_from(worth).unwrap_or(cores));
    rows.div_ceil(threads.max(1)).max(1)
}

/// Does `work` for every share, each on a thread of its own. The first is the caller's.
pub(super) fn on_each<T: Send>(
    shares: impl IntoIterator<Item = T>,
    work: impl Fn(usize, T) + Sync,
) {
    let mut shares = shares.into_iter().enumerate();
    let first = shares.next();
    thread::scope(|scope| {
        for (index, share) in shares {
            let work = &work;
            scope.spawn(move || work(index, share));
        }
        if let Some((index, share)) = first {
            work(index, share);
        }
    });
}
