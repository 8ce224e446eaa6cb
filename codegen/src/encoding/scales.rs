//! Scales of FP8 operands, as a variant asks for them.

use super::{Along, ScaleBlock};

/// Factors of FP8 operands of products, by which their numbers are those that were quantised. A scale is a tensor of
/// f32 beside its operand.
///
/// ```
/// use counterflow_codegen::variant::Scales;
///
/// assert_eq!(Scales::from_name("whole"), Some(Scales::PerTensor));
/// assert_eq!(Scales::ALL.map(Scales::name), ["whole", "rows", "1d2d", "2d1d", "1d1d"]);
/// let [x, w] = Scales::Blocks1d2d.blocks().expect("scales of blocks");
/// assert_eq!(((x.rows, w.rows), (x.columns, w.columns)), ((1, 128), (128, 128)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scales {
    /// One number for all of an operand. Of one that is gathered, the same on every rank: for one of each rank's shard, all rows of
    /// a shard have its number, with [`Scales::PerRow`].
    PerTensor,
    /// One number for each row of an operand, which has K along it: for each row of the product of `x`, and for each column of
    /// `w`. Those of an operand that is gathered travel with its rows.
    PerRow,
    /// One number for each 1×128 of the first operand, and for each 128×128 of the second: an activation by a weight. K is divided
    /// from its start on, and the last block may be short. Those of an operand that is gathered travel with its rows, of which
    /// ranks have shards of a multiple of 4 (1×128) or of 128 (128×128).
    Blocks1d2d,
    /// One number for each 128×128 of the first operand, and for each 1×128 of the second.
    Blocks2d1d,
    /// One number for each 1×128 of both operands: a weight's gradient, whose K are tokens.
    Blocks1d1d,
}

impl Scales {
    /// Every kind.
    pub const ALL: [Scales; 5] = [
        Scales::PerTensor,
        Scales::PerRow,
        Scales::Blocks1d2d,
        Scales::Blocks2d1d,
        Scales::Blocks1d1d,
    ];

    /// The blocks of either operand that have a number each, if it is of blocks.
    pub const fn blocks(self) -> Option<[ScaleBlock; 2]> {
        match self {
            Scales::PerTensor | Scales::PerRow => None,
            Scales::Blocks1d2d => Some([ScaleBlock::F32_1X128, ScaleBlock::F32_128X128]),
            Scales::Blocks2d1d => Some([ScaleBlock::F32_128X128, ScaleBlock::F32_1X128]),
            Scales::Blocks1d1d => Some([ScaleBlock::F32_1X128, ScaleBlock::F32_1X128]),
        }
    }

    /// Name of the kind of scales.
    pub const fn name(self) -> &'static str {
        match self {
            Scales::PerTensor => "whole",
            Scales::PerRow => "rows",
            Scales::Blocks1d2d => "1d2d",
            Scales::Blocks2d1d => "2d1d",
            Scales::Blocks1d1d => "1d1d",
        }
    }

    /// Elements that share the scale of a product's first or second operand (0 or 1).
    pub(crate) const fn along(self, operand: usize) -> Along {
        match (self, self.blocks()) {
            (_, Some(blocks)) => Along::Blocks(blocks[operand]),
            (Scales::PerTensor, None) => Along::All,
            (_, None) if operand == 0 => Along::Rows,
            (_, None) => Along::Columns,
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Scales> {
        Scales::ALL.into_iter().find(|scales| scales.name() == name)
    }
}
