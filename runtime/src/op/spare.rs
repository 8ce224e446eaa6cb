//! The list of what a launch or a step is given. A thread keeps the memory of one from launch to launch, so that a launch allocates
//! none, and is small: its builder's methods move it, each once more.

use super::given::Argument;
use super::part::Part;
use counterflow_codegen::program::TensorId;
use std::cell::Cell;

/// Tensors of a launch, and the memory that it is given for them. Covariant: a program may give a launch tensors that it borrows for
/// less time than the op.
pub(super) type Given<'a> = Vec<(TensorId, Argument<'a>)>;

/// What a step is given.
pub(super) type Parts<'a> = Vec<(Part, Argument<'a>)>;

thread_local! {
    /// An empty list that no launch of the thread has.
    static SPARE: Cell<Given<'static>> = const { Cell::new(Vec::new()) };
    /// An empty list that no step of the thread has.
    static PARTS: Cell<Parts<'static>> = const { Cell::new(Vec::new()) };
}

/// An empty list, in the memory of an earlier one of the thread.
pub(super) fn take<'a>() -> Given<'a> {
    // A thread that ends has none any more.
    SPARE.try_with(Cell::take).unwrap_or_default()
}

/// Keeps a list's memory for the thread's next launch.
pub(super) fn keep(given: Given<'_>) {
    // As above.
    let _ = SPARE.try_with(|spare| spare.set(emptied(given)));
}

/// An empty list for a step, in the memory of an earlier one of the thread.
pub(super) fn take_parts<'a>() -> Parts<'a> {
    PARTS.try_with(Cell::take).unwrap_or_default()
}

/// Keeps a list's memory for the thread's next step.
pub(super) fn keep_parts(parts: Parts<'_>) {
    let _ = PARTS.try_with(|spare| spare.set(emptied(parts)));
}

/// Nothing, in the same memory, for arguments of another lifetime: a test of allocations holds that it stays there.
fn emptied<K>(mut list: Vec<(K, Argument<'_>)>) -> Vec<(K, Argument<'static>)> {
    list.clear();
    list.into_iter().map_while(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_next_list_has_the_memory_of_the_one_before() {
        let mut given = take();
        given.reserve(8);
        let (at, room) = (given.as_ptr().addr(), given.capacity());
        keep(given);
        let again = take();
        assert_eq!((again.as_ptr().addr(), again.capacity()), (at, room));
        assert_eq!(take().capacity(), 0, "another launch meanwhile has its own");
    }
}
