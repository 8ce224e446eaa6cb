//! The constants of tiles, and how they are computed: in words, at the top of the text.

use super::Text;
use super::words::next_block;
use counterflow_codegen::sm90::cta::Mode;
use counterflow_codegen::tiling::{Operand, Tiling};
use counterflow_codegen::warp::{BLOCK_ROWS, Part, Pipeline};

impl Text<'_> {
    /// Description of what is common to all tiles.
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
                ((down, across), _) => format!("  cluster {down}x{across}"),
            },
            pipeline.rings[0].slots
        )
    }

    /// Constants of the same size in all tiles.
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
        let tile_of = |at: usize| pipeline.tiling_of(at).tile();
        let rows = self.each(|at| Some((pipeline.tile_rows(at), tile_of(at).rows)));
        let columns = self.each(|at| Some((pipeline.tile_columns(at), tile_of(at).columns)));
        self.line(format!("constexpr u32 {rows}, {columns}{depth};"));
        let blocks = |at: usize| pipeline.cta.blocks(pipeline.tiling_of(at));
        let alike = (0..pipeline.cta.tilings().len()).all(|at| blocks(at) == blocks(0));
        // What is on the instruction's M side.
        let on_m = if pipeline.tiling().swap_ab() {
            self.line("// Columns of the tile are on the instruction's M side, its rows on the N side: accumulators hold it transposed.");
            "columns"
        } else {
            "rows"
        };
        self.line(match pipeline.cta.mode() {
            Mode::PingPong => {
                "constexpr u32 CONSUMERS = 2;  // warpgroups, which take tiles in ping-pong".into()
            }
            Mode::Cooperative if alike => format!(
                "constexpr u32 CONSUMERS = 2;  // warpgroups, {} {on_m} each",
                blocks(0) * BLOCK_ROWS
            ),
            Mode::Cooperative => {
                format!("constexpr u32 CONSUMERS = 2;  // warpgroups, half of a tile's {on_m} each")
            }
        });
        if !alike || blocks(0) > 1 {
            let several = |at: usize| blocks(at) > 1;
            let blocks = self.each(|at| several(at).then(|| (self.blocks_of(at), blocks(at))));
            self.line(format!(
                "constexpr u32 {blocks};  // of 64 {on_m}, which a consumer multiplies"
            ));
        }
        if pipeline.cta.multicast_group() > 1 {
            let (columns, along) = if pipeline.cta.cluster().0 > 1 {
                (true, "rows")
            } else {
                (false, "columns")
            };
            let shared = of_operands(pipeline).into_iter();
            let shared = shared.filter(|(_, operand, _)| operand.columns == columns);
            let shared = shared.map(|(.., part)| part.name.as_str());
            let shared = shared.collect::<Vec<_>>().join(" and ");
            self.line(format!(
                "constexpr u32 CLUSTER = {};  // CTAs along {along} that load {shared} together",
                pipeline.cta.multicast_group()
            ));
        }
        if pipeline.cta.split() > 1 {
            self.line(format!(
                "constexpr u32 SPLIT = {};  // CTAs of a cluster, which split the K of each tile",
                pipeline.cta.split()
            ));
        }
    }

    /// A number of the tiles of each loop, each with its name.
    fn each(&self, of: impl Fn(usize) -> Option<(String, u32)>) -> String {
        let mut all: Vec<String> = Vec::new();
        for (name, value) in (0..self.pipeline.cta.tilings().len()).filter_map(of) {
            let one = format!("{name} = {value}");
            if !all.contains(&one) {
                all.push(one);
            }
        }
        all.join(", ")
    }

    /// The constant that says how many blocks of 64 a consumer multiplies of a loop's tiles, by the loop's tiling.
    fn blocks_of(&self, tiling: usize) -> String {
        let blocks = |tiling: &Tiling| self.pipeline.cta.blocks(tiling);
        self.pipeline.constant(tiling, "BLOCKS", blocks)
    }

    /// Blocks of the loop that is being printed; `None` where there is one block.
    pub(super) fn blocks(&self) -> Option<String> {
        let several = self.pipeline.cta.blocks(self.tiling()) > 1;
        several.then(|| self.blocks_of(self.tiling))
    }

    /// The name of the first of this warp's 16 on the instruction's M side.
    pub(super) fn first_on_m(&self) -> &'static str {
        match self.tiling().swap_ab() {
            true => "first_column",
            false => "first_row",
        }
    }

    /// True if it is the same in all loops over tiles.
    pub(super) fn first_is_alike(&self) -> bool {
        let cta = &self.pipeline.cta;
        let mut blocks = cta.tilings().iter().map(|tiling| cta.blocks(tiling));
        let first = blocks.next();
        // Warpgroups that have tiles of their own begin with their first block.
        cta.ordered() || blocks.all(|other| Some(other) == first)
    }

    /// Names it, in the loop over tiles that is being printed or in front of all.
    pub(super) fn declare_first(&mut self) {
        let (pipeline, name) = (self.pipeline, self.first_on_m());
        // A cooperative tile is halved: what is first on the instruction's M side is the first consumer's.
        let first = match (pipeline.cta.ordered(), self.blocks()) {
            (true, _) => String::new(),
            (false, None) => format!("consumer * {BLOCK_ROWS} + "),
            (false, Some(blocks)) => format!("consumer * {blocks} * {BLOCK_ROWS} + "),
        };
        let whole = match pipeline.cta.staggered() {
            true => "its half of a tile",
            false => "a tile",
        };
        self.line(format!(
            "const u32 {name} = {first}warp % 4 * 16;  // of this warp's 16 in {whole}"
        ));
    }

    /// Distance of a consumer's first block of an operand from the tile's, where it is on the instruction's M side.
    pub(super) fn first_block(&self, tiling: usize, mn_major: bool) -> String {
        let next = next_block(mn_major);
        let cta = &self.pipeline.cta;
        match (cta.mode(), cta.blocks(self.pipeline.tiling_of(tiling))) {
            (Mode::PingPong, _) => String::new(),
            (Mode::Cooperative, 1) => format!(" + consumer * {next}"),
            (Mode::Cooperative, _) => format!(" + consumer * {} * {next}", self.blocks_of(tiling)),
        }
    }

    /// Constants of what CTAs that share a tile's steps send each other.
    pub(super) fn constants_of_partials(&mut self) {
        // Of a subtile the part of what is on the instruction's N side.
        let (on_m, subtile_n) = match self.pipeline.tiling().swap_ab() {
            true => ("columns", "SUBTILE_M"),
            false => ("rows", "SUBTILE_N"),
        };
        self.line(format!(
            "constexpr u32 SPLIT_PARTIAL_THREADS = 128;  // of a consumer: those that have {on_m} of the tile"
        ));
        let blocks = self.blocks().map_or(String::new(), |it| format!("{it} * "));
        self.line(format!(
            "constexpr u32 SPLIT_PARTIAL_SUBTILE_BYTES = {blocks}{subtile_n} * 2 * SPLIT_PARTIAL_THREADS;  // of a subtile's accumulators"
        ));
    }
}

/// The operands of all loops, each part of a stage once, with the tiling of the first loop that has it.
pub(super) fn of_operands(pipeline: &Pipeline) -> Vec<(usize, &Operand, &Part)> {
    let mut found: Vec<(usize, &Operand, &Part)> = Vec::new();
    for (tiling, of) in pipeline.cta.tilings().iter().enumerate() {
        for (at, operand) in of.operands().iter().enumerate() {
            let part = pipeline.rings[0].part(tiling, at);
            if !found.iter().any(|(.., known)| *known == part) {
                found.push((tiling, operand, part));
            }
        }
    }
    found
}
