//! Products: the registers of a tile, and the instructions of a step.

use super::Text;
use super::promotion::SHORT;
use super::words::next_block;
use counterflow_codegen::sm90::cta::instruction_k;
use counterflow_codegen::tiling::{Multiply, Piece};
use counterflow_codegen::warp::{Expr, RingId};

/// N of an instruction, of a tile's: it may multiply several operands, which lie one behind the other.
fn of_instruction(n: &str, multiply: &Multiply) -> String {
    match multiply.on_n.len() {
        1 => n.to_string(),
        several => format!("{several} * {n}"),
    }
}

impl Text<'_> {
    /// The registers of every product of a tile.
    pub(super) fn declare_accumulators(&mut self) {
        let n = self.tile_n();
        let on_m = if self.tiling().swap_ab() {
            "columns"
        } else {
            "rows"
        };
        let (blocks, of) = match self.blocks() {
            Some(blocks) => (format!("[{blocks}]"), "each 64"),
            None => (String::new(), "64"),
        };
        for multiply in self.tiling().multiplies() {
            let (acc, _) = self.accumulators(multiply.first);
            let each = match multiply.on_n.len() {
                1 => "",
                _ => ", product after product",
            };
            let n = of_instruction(&n, &multiply);
            let begins = match self.tiling().promotion() {
                Some(_) => " = {}",
                None => "",
            };
            self.line(format!(
                "float {acc}{blocks}[{n} / 2]{begins};  // this thread's of {of} {on_m}{each}"
            ));
        }
        match self.tiling().promotion() {
            Some(promotion) => self.declare_short(promotion),
            None => self.line("u32 previous = 0;"),
        }
    }

    /// Instructions of a step, or of a piece's part of its K: the number of one, and the loop over them.
    fn steps_of_k(&self, piece: Option<Piece>, depth: u32) -> (String, String) {
        let parts = self.tiling().promotion().map_or(1, |it| it.depth);
        let each = match parts {
            1 => format!("TILE_K / {depth}"),
            parts => format!("TILE_K / {parts} / {depth}"),
        };
        let number = match piece.map_or(0, |piece| piece.depth) {
            0 => "k".into(),
            part => format!("({part} * ({each}) + k)"),
        };
        (number, format!("for (u32 k = 0; k < {each}; ++k)"))
    }

    /// Multiplies a step, or a piece of it.
    pub(super) fn mma(
        &mut self,
        ring: RingId,
        multiply: usize,
        piece: Option<Piece>,
        fresh: &Expr,
    ) {
        let ring = self.pipeline.ring(ring);
        let (tiling, multiplies) = (self.tiling, self.tiling().multiplies());
        // Where one instruction goes on from operand to operand, its descriptor is of the first.
        let parts = |multiply: &Multiply| {
            let (x, w) = self.tiling().sides(multiply.on_m, multiply.on_n[0]);
            [x, w]
        };
        let known: Vec<usize> = multiplies[..multiply].iter().flat_map(parts).collect();
        let [x, w] = parts(&multiplies[multiply]);
        let at = |part: usize| {
            let part = ring
                .buffer
                .as_ref()
                .map_or(part, |it| it.part(tiling, part));
            let name = &ring.parts()[part].name;
            let bytes = self.array_bytes(ring, part);
            let slot = ring.of.name();
            format!("{name}s = wgmma_at<{bytes}>({name}_tile, {slot}.index)")
        };
        let new = [x, w].into_iter().filter(|part| !known.contains(part));
        let new = new.map(at).collect::<Vec<_>>().join(", ");
        let accumulate = match fresh {
            Expr::Const(0) => "k != 0".into(),
            fresh => format!("{} + k != 0", self.expr(fresh)),
        };
        let acc = self.accumulators(multiplies[multiply].first).0;
        let [x, w] = [x, w].map(|part| ring.part(tiling, part).name.clone());
        let rows = self.pipeline.kernel.variant.layout.mn_major();
        let [x_step, w_step] = rows.map(|rows| {
            if rows {
                "WGMMA_MN_MAJOR_K_STEP"
            } else {
                "WGMMA_K_STEP"
            }
        });
        if piece.is_none_or(|piece| (piece.block, piece.part, piece.depth) == (0, 0, 0)) {
            self.line(format!("const u64 {new};"));
        }
        self.line("#pragma unroll");
        let depth = instruction_k(self.pipeline.dtype());
        let (first, each) = self.steps_of_k(piece, depth);
        let (x, w) = (
            format!("{x}s + {first} * {x_step}"),
            format!("{w}s + {first} * {w_step}"),
        );
        // What is on the instruction's M side comes first, and by blocks.
        let types_of = [multiplies[multiply].on_m, multiplies[multiply].on_n[0]];
        let tiling_operands = self.tiling().operands();
        let ((a, a_rows), (b, b_rows)) = if self.tiling().swap_ab() {
            ((w, rows[1]), (x, rows[0]))
        } else {
            ((x, rows[0]), (w, rows[1]))
        };
        let has = match (a_rows, b_rows) {
            (false, false) => "",
            (false, true) => ", K_MAJOR, MN_MAJOR",
            (true, false) => ", MN_MAJOR, K_MAJOR",
            (true, true) => ", MN_MAJOR, MN_MAJOR",
        };
        let types = match self.pipeline.dtype().is_fp8() {
            true => types_of
                .map(|part| format!("{}()", tiling_operands[part].element))
                .join(", "),
            false => "T()".into(),
        };
        let n = match (piece, self.tiling().promotion()) {
            (Some(_), Some(promotion)) => self.n_of_piece(promotion),
            _ => of_instruction(&self.tile_n(), &multiplies[multiply]),
        };
        let part = piece.map_or(String::new(), |piece| self.part_of_n(piece, " * WGMMA_ROW"));
        let step = |acc: &str, block: &str| {
            format!(
                "wgmma_m64k{depth}<{n}{has}>({acc}, {a}{block}, {b}{part}, {accumulate}, {types});"
            )
        };
        let one_by_one = self.tiling().promotion().filter(|it| it.together == 1);
        let acc = match piece {
            Some(_) => SHORT.into(),
            None => acc,
        };
        let Some(blocks) = self.blocks() else {
            return self.line(format!("{each} {}", step(&acc, "")));
        };
        if let (Some(piece), Some(_)) = (piece, one_by_one) {
            let block = match piece.block {
                0 => String::new(),
                1 => format!(" + {}", next_block(a_rows)),
                more => format!(" + {more} * {}", next_block(a_rows)),
            };
            return self.line(format!("{each} {}", step(&acc, &block)));
        }
        self.block(each, |text| {
            text.line("#pragma unroll");
            let (acc, next) = (format!("{acc}[block]"), next_block(a_rows));
            let step = step(&acc, &format!(" + block * {next}"));
            text.line(format!(
                "for (u32 block = 0; block < {blocks}; ++block) {step}"
            ));
        });
    }
}
