//! The sizes of one launch.

use counterflow_codegen::shape::Shape;

/// The sizes of a launch, as far as it states them. What it leaves open is as large as the op was built for.
///
/// ```
/// use counterflow::op::Sizes;
///
/// let rows: Sizes = 40.into(); // 40 rows, and all columns and all depth
/// assert_eq!(rows, Sizes::default().rows(40));
/// let tokens = Sizes::default().depth(1000); // a gradient's depth is the number of tokens
/// assert_ne!(rows, tokens);
/// assert_ne!(rows.columns(128), rows.beside(128)); // of the product, or rows that move beside it
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sizes {
    rows: Option<usize>,
    columns: Option<usize>,
    depth: Option<usize>,
    beside: Option<usize>,
}

impl Sizes {
    /// With so many rows over all ranks.
    #[must_use]
    pub fn rows(mut self, m: usize) -> Sizes {
        self.rows = Some(m);
        self
    }

    /// With so many columns on a rank.
    #[must_use]
    pub fn columns(mut self, n: usize) -> Sizes {
        self.columns = Some(n);
        self
    }

    /// With that depth on a rank.
    #[must_use]
    pub fn depth(mut self, k: usize) -> Sizes {
        self.depth = Some(k);
        self
    }

    /// With so many rows over all ranks of what moves beside the product: of each tensor whose rows are neither the product's nor its
    /// depth.
    #[must_use]
    pub fn beside(mut self, rows: usize) -> Sizes {
        self.beside = Some(rows);
        self
    }

    /// The rows beside the product, if they are stated.
    pub(super) fn rows_beside(self) -> Option<u32> {
        let rows = self.beside?;
        Some(u32::try_from(rows).unwrap_or(u32::MAX))
    }

    /// The rows, columns and depth of a launch of an op for launches of up to `most`. Sizes beyond 32 bits become the largest
    /// number, which no op is built for.
    pub(super) fn of(self, most: &Shape) -> [u32; 3] {
        let size = |stated: Option<usize>, most: u32| match stated {
            Some(size) => u32::try_from(size).unwrap_or(u32::MAX),
            None => most,
        };
        [
            size(self.rows, most.m),
            size(self.columns, most.n),
            size(self.depth, most.k),
        ]
    }
}

impl From<usize> for Sizes {
    fn from(rows: usize) -> Sizes {
        Sizes::default().rows(rows)
    }
}
