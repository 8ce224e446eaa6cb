//! A tile of a product, and what of it is on which side of the tensor cores' instruction: the one place that decides.
//!
//! The instruction multiplies blocks of 64 on its M side by any multiple of 8, up to 256, on its N side. Where a tile's
//! rows are whole blocks of 64, they are on the M side. Where they are not, its columns are: the tile is *swapped* (swap AB), and
//! no row is multiplied that it does not have. Then `w` is the instruction's first operand and `x` its second, and
//! accumulators hold the tile transposed.
//!
//! What leaves a tile together is a [`Panel`]: all of its M side by a part of its N side, so that every thread that
//! multiplies has some of each.

/// What one multiply of a warpgroup has on its M side, and a block of an operand whose rows are contiguous: one 128-byte
/// swizzle atom of 16-bit elements.
pub const BLOCK_ROWS: u32 = 64;
/// Warpgroups that multiply.
pub const CONSUMERS: u32 = 2;
/// What the N side is a multiple of: rows of an atom of every swizzle.
pub const ATOM_ROWS: u32 = 8;
/// Accumulators of a thread, at most: what shares a tile of a product alone has registers for addresses, too.
pub const MOST_ACCUMULATORS: u32 = 200;
/// Either side, at most: a box of TMA has no more rows, and the instruction's N side no more.
const MOST: u32 = 256;
/// Bytes of a line of the widest swizzle.
const LINE: u32 = 128;

/// The tile one CTA computes at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tile {
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Depth of a step.
    pub k: u32,
}

/// What leaves a tile together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Panel {
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
}

impl Tile {
    /// Whether its columns are on the instruction's M side, and its rows on the N side.
    pub const fn swapped(&self) -> bool {
        !self.rows.is_multiple_of(BLOCK_ROWS)
    }

    /// What is on the instruction's M side, and what on its N side.
    pub const fn sides(&self) -> (u32, u32) {
        if self.swapped() {
            (self.columns, self.rows)
        } else {
            (self.rows, self.columns)
        }
    }

    /// Blocks of 64 of the M side that a warpgroup multiplies.
    pub const fn blocks(&self, in_turn: bool) -> u32 {
        let all = self.sides().0 / BLOCK_ROWS;
        if in_turn { all } else { all / CONSUMERS }
    }

    /// Accumulators of a thread.
    pub const fn accumulators(&self, in_turn: bool) -> u32 {
        self.blocks(in_turn) * self.sides().1 / 2
    }

    /// What keeps a tile from being multiplied at all, whatever room there is for it: a hint.
    pub fn refused(&self, in_turn: bool) -> Option<&'static str> {
        const HINT: &str = "sm90 multiplies 64 (in turn), 128 or 256 rows by a multiple of 16 columns, and any other multiple \
            of 8 rows by 128 or 256 columns, or in turn by a multiple of 64; up to 256 of each";
        let (m, n) = self.sides();
        // Columns come by whole lines of the narrowest swizzle, rows by its atoms.
        let known = if !self.swapped() {
            n.is_multiple_of(16)
        } else if in_turn {
            n.is_multiple_of(ATOM_ROWS) && m.is_multiple_of(BLOCK_ROWS)
        } else {
            n.is_multiple_of(ATOM_ROWS) && m.is_multiple_of(CONSUMERS * BLOCK_ROWS)
        };
        (!known || m == 0 || n == 0 || m > MOST || n > MOST).then_some(HINT)
    }

    /// How many panels it has.
    pub const fn panels(&self, panel: Panel) -> u32 {
        self.rows / panel.rows * (self.columns / panel.columns)
    }

    /// Columns that one box of TMA has of a panel: all, or where the tile is swapped a line of the widest swizzle of
    /// elements of so many bytes. Such *slices* lie one after another.
    pub const fn slice_columns(&self, panel: Panel, bytes: u32) -> u32 {
        if self.swapped() {
            LINE / bytes
        } else {
            panel.columns
        }
    }
}

impl Panel {
    /// Elements of it.
    pub const fn elements(&self) -> u32 {
        self.rows * self.columns
    }
}
