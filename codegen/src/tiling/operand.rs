//! The operands of a product: how a tile of one lies in a stage, and what brings it there.

use crate::dtype::Dtype;
use crate::program::TensorId;

/// The dimension of an operand that is contiguous in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Major {
    /// K.
    K,
    /// The rows or columns of the product.
    Mn,
}

/// One operand of a product, or of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    /// The tensor.
    pub tensor: TensorId,
    /// True if it has the tile's columns, and not its rows.
    pub columns: bool,
    /// Element type.
    pub element: Dtype,
    /// The contiguous dimension.
    pub major: Major,
    /// Boxes that bring a tile of it into a stage.
    pub boxes: Boxes,
    /// CTAs of a cluster that load a part of it each, into all of them; 1: each for itself.
    pub multicast: u32,
    /// Bytes of a tile of it in a stage.
    pub bytes: u32,
}

/// The boxes of TMA that a CTA loads of an operand's tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boxes {
    /// Number of boxes.
    pub count: u32,
    /// Rows of each.
    pub rows: u32,
    /// Depth of each.
    pub k: u32,
    /// True if those of them, or of a box's parts, that have no row which exists are left out.
    pub partial: bool,
}
