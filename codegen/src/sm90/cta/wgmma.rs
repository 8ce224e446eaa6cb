//! A tile on the tensor cores: which of its sides is on the instruction's M side, and what each warpgroup has of it.
//!
//! The instruction multiplies blocks of 64 on its M side by any multiple of 8, up to 256, on its N side. Where a tile's
//! rows are whole blocks of 64, they are on the M side. Where they are not, its columns are: the tile is *swapped* (swap AB), and
//! no row is multiplied that it does not have. Then `w` is the instruction's first operand and `x` its second, and
//! accumulators hold the tile transposed.

use crate::dtype::Dtype;
use crate::kernel::GemmKind;
use crate::tiling::Tile;

/// Rows of one multiply of a warpgroup on its M side, and of a block of an operand that is MN-major: one 128-byte
/// swizzle atom of 16-bit elements.
pub const BLOCK_ROWS: u32 = 64;
/// Depth of one multiply: 32 bytes of either operand.
pub const fn instruction_k(element: Dtype) -> u32 {
    32 / element.bytes()
}
/// Warpgroups that multiply.
pub const CONSUMERS: u32 = 2;
/// Number that the N side is a multiple of: rows of an atom of every swizzle.
pub(super) const ATOM_ROWS: u32 = 8;
/// Rows of a part of an operand's box that is loaded by itself: whole 128-byte swizzle atoms of 8. A load takes about 20 ns
/// whatever its rows, and a row outside the tensor 2 ns: measured, 200x8192x8192 in partial boxes of 8, nine in its last tiles, was
/// 25 % slower than 256x8192x8192.
pub const PARTIAL_BOX_ROWS: u32 = 32;
/// Accumulators of a thread, at most: what shares a tile of a product alone has registers for addresses, too.
pub(super) const MOST_ACCUMULATORS: u32 = 200;
/// Either side, at most: a box of TMA has no more rows, and the instruction's N side no more.
pub(super) const MOST: u32 = 256;

/// Warpgroups that multiply a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// All warpgroups that multiply share it: half of its M side each.
    Cooperative,
    /// The warpgroups work in ping-pong: one rounds and hands over its tile while the other one multiplies.
    PingPong,
}

impl Mode {
    /// Warpgroups that multiply one tile.
    pub const fn warpgroups(self) -> u32 {
        match self {
            Mode::Cooperative => CONSUMERS,
            Mode::PingPong => 1,
        }
    }
}

/// A tile, and how warpgroups multiply it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wgmma {
    /// The tile.
    pub tile: Tile,
    /// Products of it that are accumulated at once.
    pub products: u32,
    /// Mode in which warpgroups share it.
    pub mode: Mode,
}

impl Wgmma {
    /// So many products of the author's tile of so many rows and columns. A warpgroup multiplies blocks of 64: one alone is
    /// not shared.
    pub const fn new(kind: &GemmKind, (rows, columns): (u32, u32), products: u32) -> Wgmma {
        let tile = Tile {
            rows,
            columns,
            k: kind.k,
        };
        let shared = Wgmma {
            tile,
            products,
            mode: Mode::Cooperative,
        };
        if kind.ping_pong || shared.sides().0 <= BLOCK_ROWS {
            Wgmma {
                mode: Mode::PingPong,
                ..shared
            }
        } else {
            shared
        }
    }

    /// True if the tile's columns are on the instruction's M side, and its rows on the N side.
    pub const fn swap_ab(&self) -> bool {
        !self.tile.rows.is_multiple_of(BLOCK_ROWS)
    }

    /// Elements on the instruction's M side, and on its N side.
    pub const fn sides(&self) -> (u32, u32) {
        if self.swap_ab() {
            (self.tile.columns, self.tile.rows)
        } else {
            (self.tile.rows, self.tile.columns)
        }
    }

    /// Blocks of 64 of the M side that a warpgroup multiplies.
    pub const fn blocks(&self) -> u32 {
        self.sides().0 / BLOCK_ROWS / self.mode.warpgroups()
    }

    /// Accumulators of a thread.
    pub const fn accumulators(&self) -> u32 {
        self.products * self.blocks() * self.sides().1 / 2
    }

    /// True if one instruction has room on its N side for all products: each then multiplies more of what it reads on the
    /// M side.
    pub const fn has_room_for_all(&self) -> bool {
        self.products * self.sides().1 <= MOST
    }

    /// Hint about a tile that cannot be multiplied at all, whatever room there is for it.
    pub fn refused(&self) -> Option<&'static str> {
        const HINT: &str = "sm90 multiplies 64 (in ping-pong), 128 or 256 rows by a multiple of 16 columns, and any other multiple \
            of 8 rows by 128 or 256 columns, or in ping-pong by a multiple of 64; up to 256 of each";
        let (m, n) = self.sides();
        // Columns come by whole lines of the narrowest swizzle, rows by its atoms.
        let known = if self.swap_ab() {
            n.is_multiple_of(ATOM_ROWS) && m.is_multiple_of(self.mode.warpgroups() * BLOCK_ROWS)
        } else {
            n.is_multiple_of(16)
        };
        (!known || m == 0 || n == 0 || m > MOST || n > MOST).then_some(HINT)
    }
}
