//! Hopper: how its tensor cores, its warps and its shared memory compute a kernel's tiles. What is decided here is decided
//! nowhere else; [`cta`] is the door.

mod asked;
mod cta;
pub mod early;
mod registers;
mod rules;
mod smem;
mod wgmma;

pub(crate) use cta::staging_rows;
pub use cta::{Cta, Place, Role, Warp, cta};
pub use rules::Level;
pub(crate) use rules::placed;
pub use smem::{Lifetime, Region};
pub use wgmma::{BLOCK_ROWS, CONSUMERS, Mode, Wgmma};

/// Rows of a part of an operand's box that is loaded by itself: whole 128-byte swizzle atoms of 8. A load takes about 20 ns
/// whatever its rows, and a row outside the tensor 2 ns: measured, 200x8192x8192 in strips of 8, nine in its last tiles, was
/// 25 % slower than 256x8192x8192.
pub const STRIP_ROWS: u32 = 32;
/// Columns of a staging buffer on its way to a peer: one 128-byte swizzle atom of 16-bit elements.
pub const BOX_COLUMNS: u32 = 64;
