//! Names of what a program declares: indices into its tables.

macro_rules! id {
    ($(#[$doc:meta] $name:ident),* $(,)?) => {$(
        #[$doc]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub u16);

        impl $name {
            /// Index in the table that it belongs to.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}
id! {
    /// A tensor: a parameter or scratch.
    TensorId,
    /// A partition of a tensor into items.
    PartitionId,
    /// A set of counters.
    CounterId,
}
