//! Kinds of stores: plain, or added to memory.

/// Effect of a store: it replaces or adds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoreMode {
    /// `=`
    Write,
    /// `+=`: an atomic reduce-add, rounding at the destination.
    Add,
}
