//! Regions of tensors that items touch, and the boxes of memory that they are.
//!
//! An op of a kernel names a [`Region`](crate::kernel::Region): rows, columns or a range of K of a tensor. [`Rectangle`] is that
//! in numbers, over one shard of the tensor's rows or several, in one rank's memory or in every rank's. An item that reads a
//! tensor touches its scales, too: [`StepKind::planes`](crate::unroll::StepKind::planes) lists a rectangle of each.
//!
//! [`Rectangle::boxes`] is the only expansion. A box is a rectangle of one plane, in one shard, in one rank's memory. Races,
//! coverage, both levels of the emulator and copies of the host read boxes. Volume, and the model's workers and switch, need only
//! sizes: [`Rectangle::bytes`]. Credits read the regions of an op, by [`OpKind::regions`](crate::kernel::OpKind::regions). A shard is not a rank:
//! [`Geometry::owner`](crate::shape::Geometry::owner) says who owns it.

mod boxes;
mod planes;

pub use crate::kernel::Access;
pub use boxes::{Owner, Rectangle, Span};
pub use planes::as_lines;
