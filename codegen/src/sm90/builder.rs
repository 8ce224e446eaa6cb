//! What every step of building a pipeline has at hand.

use super::cta::Cta;
use super::waiters::Counters;
use crate::diag::{Diagnostic, Rule};
use crate::kernel::{DimId, Kernel};

use crate::program::{CounterId, Loc, Side};
use crate::tiling::Tiling;
use crate::warp::{Buffer, Comm, Epilogue, Expr, Map, OrderTable, Symbol, TileNumber};

/// State that every step of lowering needs.
pub(super) struct Builder<'a> {
    pub kernel: &'a Kernel,
    pub cta: &'a Cta,
    /// Contents of a stage, if tiles are computed.
    pub stage: Option<Buffer>,
    /// Names that all warps share: what is the same in all loops over tiles.
    pub alike: Alike,
    pub comm: Option<Comm>,
    pub counters: Counters,
    pub maps: Vec<Map>,
    pub orders: Vec<OrderTable>,
    pub epilogues: Vec<Epilogue>,
    pub scale: Vec<(CounterId, Expr)>,
    pub found: Vec<Diagnostic>,
}

/// Sizes that all loops over tiles have in common.
#[derive(Clone, Copy)]
pub(super) struct Alike {
    /// Columns of their tiles' grids, of every shard.
    pub columns: bool,
    /// Steps of their products.
    pub steps: bool,
}

impl Alike {
    pub fn of(kernel: &Kernel, cta: &Cta) -> Alike {
        let one = |size: &dyn Fn(&Tiling) -> Option<DimId>| {
            let mut sizes = cta.tilings().iter().map(size);
            let first = sizes.next();
            sizes.all(|other| Some(other) == first)
        };
        let columns = |tiling: &Tiling| kernel.partitions[tiling.partition().index()].columns;
        let divided = |tiling: &Tiling| kernel.is_sharded_along(tiling.partition(), Side::Columns);
        let divided = cta.tilings().iter().any(divided);
        let mut widths = cta.tilings().iter().map(|tiling| tiling.tile().columns);
        let width = widths.next();
        let as_wide = widths.all(|other| Some(other) == width);
        Alike {
            columns: cta.computes() && !divided && as_wide && one(&|tiling| Some(columns(tiling))),
            steps: cta.computes() && one(&|tiling| depth(kernel, tiling)),
        }
    }
}

/// The K of a loop's products, if it has any.
pub(super) fn depth(kernel: &Kernel, tiling: &Tiling) -> Option<DimId> {
    let x = tiling.operands().first()?;
    Some(kernel.buffers[x.tensor.index()].columns)
}

impl Builder<'_> {
    /// The name of an operand's part of a stage, in the tiles of a loop.
    pub fn staged(&self, tiling: usize, operand: usize) -> &str {
        let stage = self.stage.as_ref().expect("operands pass through stages");
        &stage.parts[stage.part(tiling, operand)].name
    }

    /// A number that is a loop's own, by its tiling, with its name in the text.
    pub fn constant(&self, tiling: usize, of: TileNumber, value: impl Fn(&Tiling) -> u32) -> Expr {
        let (tilings, stage) = (self.cta.tilings(), self.stage.as_ref());
        let stage = stage.expect("tiles pass through stages");
        let own = value(&tilings[tiling]);
        let name = stage.constant(tilings, tiling, of.name(), value);
        Expr::symbol(Symbol::Tile { of, name }, own)
    }

    /// Rows of a loop's tiles.
    pub fn tile_rows(&self, tiling: usize) -> Expr {
        self.constant(tiling, TileNumber::Rows, |tiling| tiling.tile().rows)
    }

    /// Columns of a loop's tiles.
    pub fn tile_columns(&self, tiling: usize) -> Expr {
        self.constant(tiling, TileNumber::Columns, |tiling| tiling.tile().columns)
    }

    /// Bytes from a stored tile's subtile to the next one in a stage.
    pub fn subtile_bytes(&self, tiling: usize) -> Expr {
        let all = self.cta.tilings();
        let own = all[tiling].subtile_bytes();
        if all.iter().all(|other| other.subtile_bytes() == own) {
            return Expr::symbol(Symbol::SubtileBytes, own);
        }
        let subtile = all[tiling].subtile();
        let columns = Expr::symbol(Symbol::SubtileColumns, subtile.columns);
        self.tile_rows(tiling) * columns * all[tiling].widest()
    }

    /// Number of CTAs that share the steps of a tile.
    pub fn split_ctas(&self) -> Expr {
        Expr::symbol(Symbol::Split, self.cta.split())
    }
}

/// Rows or columns of the tiles of a cluster, of one's.
pub(super) fn clustered(size: Expr, ctas: u32) -> Expr {
    if ctas > 1 {
        size * Expr::symbol(Symbol::Cluster, ctas)
    } else {
        size
    }
}

pub(super) fn refuse(
    at: Option<Loc>,
    message: impl Into<String>,
    hint: impl Into<String>,
) -> Diagnostic {
    Diagnostic::new(Rule::Resources, at, message).hint(hint)
}
