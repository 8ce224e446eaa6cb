//! Locks and atomics of the host's protocols. The crate `interleavings` compiles the same protocols with its own in their
//! place, and tries all orders in which threads can take their steps.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Condvar, Mutex, PoisonError};
