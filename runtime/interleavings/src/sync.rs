//! Locks and atomics of the protocols, as loom has them.

use crate::undo::{Fix, undone};

pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
pub(crate) use loom::sync::{Condvar, Mutex};
pub(crate) use std::sync::PoisonError;

pub(crate) fn fence(order: Ordering) {
    if !undone(Fix::Fence) {
        loom::sync::atomic::fence(order);
    }
}
