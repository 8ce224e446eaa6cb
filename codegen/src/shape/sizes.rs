//! The sizes of a launch, and the largest sizes in a series of launches.

use crate::kernel::{Dim, Kernel};
use std::collections::BTreeMap;
use std::fmt;

/// The sizes of one call, in elements.
///
/// ```
/// use counterflow_codegen::{lower::lower, shape::Shape, variant::Variant};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
///
/// let shape = Shape::new(4096, 2560, 8192) // M over all ranks; N and K of one
///     .dim("z.rows", 1024) // of a tensor that is no part of the product
///     .ld("w", 8256) // rows of `w` are further apart than they are long
///     .up_to(8192); // in a series of launches of up to 8192 rows
/// assert_eq!(shape.to_string(), "4096x2560x8192 z.rows=1024 ld.w=8256 up to 8192 rows");
/// let kernel = lower(&example::ag_gemm(), &Variant::new(2))?;
/// assert_eq!(shape.most(&kernel).m, 8192);
/// let mut sizes = kernel.dims.iter().map(|dim| (&dim.name[..], shape.size(dim)));
/// assert!(sizes.any(|size| size == ("m", 4096)));
/// assert_eq!(Shape::new(0, 2560, 8192).beside_rows(&kernel), None); // nothing that a launch of no rows would have to do
/// assert_eq!(Shape::new(64, 32, 16).covering(&Shape::new(32, 64, 16)), Shape::new(64, 64, 16));
/// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Shape {
    /// Rows of the product over all ranks.
    pub m: u32,
    /// Columns of the product on one rank.
    pub n: u32,
    /// Depth of the product on one rank.
    pub k: u32,
    /// Sizes of further dimensions by name (`z.rows`). Absent rows default to `m`, absent columns to `k`. A plan's
    /// shape names all of them.
    pub dims: BTreeMap<String, u32>,
    /// Leading dimensions by tensor, in elements; absent: the contiguous extent itself.
    pub ld: BTreeMap<String, u32>,
    /// The most rows of a series for this shape. Absent: `m`.
    pub most_m: Option<u32>,
}

impl Shape {
    /// A product of `m` by `n` by `k`.
    pub fn new(m: u32, n: u32, k: u32) -> Self {
        Shape {
            m,
            n,
            k,
            dims: BTreeMap::new(),
            ld: BTreeMap::new(),
            most_m: None,
        }
    }

    /// This shape in a series of launches of up to `m` rows.
    #[must_use]
    pub fn up_to(mut self, m: u32) -> Self {
        self.most_m = Some(m);
        self
    }

    /// The smallest shape of a series that contains both.
    #[must_use]
    pub fn covering(&self, other: &Shape) -> Self {
        let rows = |shape: &Shape| shape.most_m.unwrap_or(shape.m);
        let mut both = Shape::new(
            rows(self).max(rows(other)),
            self.n.max(other.n),
            self.k.max(other.k),
        );
        for (name, size) in self.dims.iter().chain(&other.dims) {
            let most = both.dims.entry(name.clone()).or_insert(*size);
            *most = (*most).max(*size);
        }
        both
    }

    /// The largest shape of a series for this one, every dimension of `kernel` named.
    pub fn most(&self, kernel: &Kernel) -> Self {
        let mut most = self.clone();
        most.m = self.most_m.unwrap_or(self.m);
        most.ld.clear();
        most.named(kernel)
    }

    /// This launch by itself, every dimension of `kernel` named.
    pub(crate) fn named(mut self, kernel: &Kernel) -> Self {
        self.most_m = None;
        for dim in kernel.dims.iter().filter(|dim| dim.is_further()) {
            if !self.dims.contains_key(&dim.name) {
                let size = self.size(dim);
                self.dims.insert(dim.name.clone(), size);
            }
        }
        self
    }

    /// The size of a dimension of some kernel.
    pub fn size(&self, dim: &Dim) -> u32 {
        match &dim.blocks {
            Some(blocks) => self.named_size(&blocks.of).div_ceil(blocks.width),
            None if dim.unit => 1,
            None => self.named_size(&dim.name),
        }
    }

    fn named_size(&self, name: &str) -> u32 {
        match name {
            "m" => self.m,
            "n" => self.n,
            "k" => self.k,
            name => {
                let alike = if name.ends_with("rows") {
                    self.m
                } else {
                    self.k
                };
                self.dims.get(name).copied().unwrap_or(alike)
            }
        }
    }

    /// Gives a dimension a size.
    pub(crate) fn set(&mut self, dim: &Dim, size: u32) {
        match dim.name.as_str() {
            _ if dim.unit || dim.blocks.is_some() => {}
            "m" => self.m = size,
            "n" => self.n = size,
            "k" => self.k = size,
            name => {
                self.dims.insert(name.into(), size);
            }
        }
    }

    /// With the size of a further dimension.
    #[must_use]
    pub fn dim(mut self, name: &str, size: u32) -> Self {
        self.dims.insert(name.into(), size);
        self
    }

    /// With a leading dimension.
    #[must_use]
    pub fn ld(mut self, tensor: &str, elements: u32) -> Self {
        self.ld.insert(tensor.into(), elements);
        self
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.m, self.n, self.k)?;
        for (name, size) in &self.dims {
            write!(f, " {name}={size}")?;
        }
        for (name, size) in &self.ld {
            write!(f, " ld.{name}={size}")?;
        }
        if let Some(most) = self.most_m {
            write!(f, " up to {most} rows")?;
        }
        Ok(())
    }
}
