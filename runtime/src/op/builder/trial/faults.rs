//! Faults of trials that a test makes on its thread. Outside tests there are none, and asking costs nothing.

use crate::error::Error;
use std::time::Duration;

/// A fault of one rank's trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// It launches nothing, so its peers' kernels wait for it.
    Silent,
    /// It fails while its peers go on.
    Fails,
    /// It loads no candidate.
    Refuses,
    /// It has memory for one set of tensors.
    Full,
}

/// Time that a kernel waits for a peer in a trial that is to stall.
#[cfg(test)]
const SOON: Duration = Duration::from_millis(300);

#[cfg(test)]
thread_local! {
    static FAULT: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
    static SHORT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Makes a fault on this thread.
#[cfg(test)]
pub(super) fn make(fault: Option<Fault>) {
    FAULT.set(fault);
}

/// Lets this thread's kernels give up soon, or not.
#[cfg(test)]
pub(super) fn give_up_soon(soon: bool) {
    SHORT.set(soon);
}

/// True if this thread's trial has that fault.
#[cfg(test)]
pub(super) fn is(fault: Fault) -> bool {
    FAULT.get() == Some(fault)
}

/// True if this thread's trial has that fault: never.
#[cfg(not(test))]
pub(super) const fn is(_: Fault) -> bool {
    false
}

/// Time that a kernel waits for a peer, if a test says so.
#[cfg(test)]
pub(super) fn patience() -> Option<Duration> {
    SHORT.get().then_some(SOON)
}

/// Time that a kernel waits for a peer, if a test says so: none does.
#[cfg(not(test))]
pub(super) const fn patience() -> Option<Duration> {
    None
}

/// Fails where a test wants that fault.
pub(super) fn fails(fault: Fault) -> Result<(), Error> {
    match is(fault) {
        false => Ok(()),
        true => Err(Error::Usage {
            what: "a trial that is to fail".into(),
            legal: "none".into(),
        }),
    }
}
