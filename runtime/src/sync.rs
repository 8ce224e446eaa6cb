//! What the host's protocols are made of. The crate `interleavings` compiles the same protocols with its own in their
//! place, and tries all orders in which threads can take their steps.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Condvar, Mutex, PoisonError};
