//! The constants of tiles, and how they are computed: in words, at the top of the text.

use super::Text;
use crate::sm90::cta::Mode;
use crate::tiling::Operand;
use crate::warp::{BLOCK_ROWS, Part, Pipeline};

impl Text<'_> {
    /// What is common to all tiles, in words.
    pub(super) fn how_tiles_are_computed(&self) -> String {
        let pipeline = self.pipeline;
        let multiplies = !pipeline.tiling().operands().is_empty();
        let tiles = pipeline.tiles().into_iter().map(|tile| {
            let depth = match multiplies {
                true => format!("x{}", tile.k),
                false => String::new(),
            };
            format!("{}x{}{depth}", tile.rows, tile.columns)
        });
        format!(
            "{}  {}  tiles {}{}{}  {} stages",
            pipeline.types(),
            pipeline.kernel.variant.layout.name(),
            tiles.collect::<Vec<_>>().join(" and "),
            match pipeline.cta.mode() {
                Mode::PingPong => " ping-pong",
                Mode::Cooperative => "",
            },
            match (pipeline.cta.cluster(), pipeline.cta.split()) {
                ((1, 1), 1) => String::new(),
                ((1, 1), split) => format!("  split {split}"),
                ((down, across), 1) => format!("  cluster {down}x{across}"),
                ((down, across), split) => format!("  cluster {down}x{across}  split {split}"),
            },
            pipeline.rings[0].slots
        )
    }

    /// What has the same size in all tiles.
    pub(super) fn constants_of_tiles(&mut self) {
        let pipeline = self.pipeline;
        let tile = pipeline.tile();
        self.line(format!(
            "typedef {} T;  // of {}",
            pipeline.dtype(),
            match pipeline.dtype().is_fp8() {
                true if pipeline.types() != pipeline.dtype().name() => "first operands",
                true => "operands",
                false => "operands and results",
            }
        ));
        let multiplies = !pipeline.tiling().operands().is_empty();
        let depth = match multiplies {
            true => format!(", TILE_K = {}", tile.k),
            false => String::new(),
        };
        let columns = self.widths().join(", ");
        self.line(format!(
            "constexpr u32 TILE_M = {}, {columns}{depth};",
            tile.rows
        ));
        let blocks = pipeline.cta.blocks();
        // What is on the instruction's M side.
        let on_m = if pipeline.tiling().swapped() {
            self.line("// Columns of the tile are on the instruction's M side, its rows on the N side: accumulators hold it transposed.");
            "columns"
        } else {
            "rows"
        };
        self.line(match pipeline.cta.mode() {
            Mode::PingPong => {
                "constexpr u32 CONSUMERS = 2;  // warpgroups, which take tiles in ping-pong".into()
            }
            Mode::Cooperative => format!(
                "constexpr u32 CONSUMERS = 2;  // warpgroups, {} {on_m} each",
                blocks * BLOCK_ROWS
            ),
        });
        if blocks > 1 {
            self.line(format!(
                "constexpr u32 BLOCKS = {blocks};  // of 64 {on_m}, which a consumer multiplies"
            ));
        }
        if pipeline.cta.multicast_group() > 1 {
            let (columns, along) = if pipeline.cta.cluster().0 > 1 {
                (true, "rows")
            } else {
                (false, "columns")
            };
            let shared = of_operands(pipeline).into_iter();
            let shared = shared.filter(|(operand, _)| operand.columns == columns);
            let shared = shared.map(|(_, part)| part.name.as_str());
            let shared = shared.collect::<Vec<_>>().join(" and ");
            self.line(format!(
                "constexpr u32 CLUSTER = {};  // CTAs along {along} that load {shared} together",
                pipeline.cta.multicast_group()
            ));
        }
        if pipeline.cta.split() > 1 {
            let of = if pipeline.cta.multicast_group() > 1 {
                "groups of them in a cluster, which split the K of their tiles"
            } else {
                "CTAs of a cluster, which split the K of each tile"
            };
            self.line(format!(
                "constexpr u32 SPLIT = {};  // {of}",
                pipeline.cta.split()
            ));
        }
    }

    /// Columns of the tiles of each loop, each with its name.
    fn widths(&self) -> Vec<String> {
        let mut widths = Vec::new();
        for (at, tiling) in self.pipeline.cta.tilings().iter().enumerate() {
            let name = self.pipeline.tile_columns(at);
            let width = format!("{name} = {}", tiling.tile().columns);
            if !widths.contains(&width) {
                widths.push(width);
            }
        }
        widths
    }

    /// What CTAs that share a tile's steps send each other.
    pub(super) fn constants_of_partials(&mut self) {
        // Of a subtile the part of what is on the instruction's N side.
        let (on_m, subtile_n) = match self.pipeline.tiling().swapped() {
            true => ("columns", "SUBTILE_M"),
            false => ("rows", "SUBTILE_N"),
        };
        self.line(format!(
            "constexpr u32 SPLIT_PARTIAL_THREADS = 128;  // of a consumer: those that have {on_m} of the tile"
        ));
        let blocks = match self.pipeline.cta.blocks() {
            1 => "",
            _ => "BLOCKS * ",
        };
        self.line(format!(
            "constexpr u32 SPLIT_PARTIAL_SUBTILE_BYTES = {blocks}{subtile_n} * 2 * SPLIT_PARTIAL_THREADS;  // of a subtile's accumulators"
        ));
    }
}

/// The operands of all loops, each part of a stage once.
pub(super) fn of_operands(pipeline: &Pipeline) -> Vec<(&Operand, &Part)> {
    let mut found: Vec<(&Operand, &Part)> = Vec::new();
    for (tiling, of) in pipeline.cta.tilings().iter().enumerate() {
        for (at, operand) in of.operands().iter().enumerate() {
            let part = pipeline.rings[0].part(tiling, at);
            if !found.iter().any(|(_, known)| *known == part) {
                found.push((operand, part));
            }
        }
    }
    found
}
