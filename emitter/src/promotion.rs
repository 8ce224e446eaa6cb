//! The text of promoted sums.

use super::Text;
use counterflow_codegen::tiling::{Piece, Promotion, StagedScale};
use counterflow_codegen::warp::{Expr, RingId};

/// The registers for what tensor cores sum of a piece of a step.
pub(super) const SHORT: &str = "short_acc";

/// Distance of the part of `n` with that number, as `each` makes it.
fn before(nth: u32, n: &str, each: &str) -> String {
    match nth {
        0 => String::new(),
        1 => format!(" + ({n}{each})"),
        _ => format!(" + ({nth} * {n}{each})"),
    }
}

impl Text<'_> {
    /// Declares the registers of short sums, and those for the scales of one share at a time.
    pub(super) fn declare_short(&mut self, promotion: Promotion) {
        let blocks = match (promotion.together, self.blocks()) {
            (1, _) | (_, None) => String::new(),
            (_, Some(blocks)) => format!("[{blocks}]"),
        };
        let n = self.n_of_piece(promotion);
        self.line(format!(
            "float {SHORT}{blocks}[{n} / 2];  // what tensor cores sum of a step, which keeps 13 fraction bits"
        ));
        let pipeline = self.pipeline;
        let tiling = pipeline.tiling_of(self.tiling);
        let scales = 0..tiling.scales().len();
        let several = promotion.depth > 1;
        let scales_of_parts =
            (scales.clone()).filter(move |scale| several && tiling.shares_of_scale(*scale) == 1);
        for scale in scales.filter(|scale| tiling.shares_of_scale(*scale) > 1) {
            let name = self.scale_names(scale).0;
            let n = self.n_of_share(promotion);
            self.line(match tiling.is_on_m(tiling.scales()[scale].operand) {
                true => format!("float {name}[2];  // of one block at a time"),
                false => format!("float {name}[{n} / 4];  // of one share at a time"),
            });
        }
        for scale in scales_of_parts {
            let (name, of) = (self.scale_names(scale).0, self.registers_of_scale(scale));
            self.line(format!("float {name}{of};  // of one part of K at a time"));
        }
    }

    /// Dimensions of the registers of a scale that no shares divide.
    fn registers_of_scale(&self, scale: usize) -> String {
        let (tiling, n) = (self.tiling(), self.tile_n());
        let staged = tiling.scales()[scale];
        match (staged.block.is_1d(), tiling.is_on_m(staged.operand)) {
            (true, true) => match self.blocks() {
                Some(blocks) => format!("[{blocks}][2]"),
                None => "[2]".into(),
            },
            (true, false) => format!("[{n} / 4]"),
            (false, false) if staged.crosses() => format!("[{n} / {}]", staged.alike()),
            (false, false) if staged.side > staged.block.rows => format!("[{n} / SCALE_BLOCK]"),
            (false, _) => String::new(),
        }
    }

    /// Declares the registers of a scale where they are read: those of several parts of K stand before the loop.
    fn declare_scale(&mut self, scale: usize) {
        if self.tiling().parts_of_k() == 1 {
            let (name, of) = (self.scale_names(scale).0, self.registers_of_scale(scale));
            self.line(format!("float {name}{of};"));
        }
    }

    /// Reads the only scale of a step's blocks, or of a part of its K.
    fn read_one(&mut self, name: &str, at: &str) {
        let declared = match self.tiling().parts_of_k() {
            1 => "const float ",
            _ => "",
        };
        self.line(format!("{declared}{name} = scale_of_block({at});"));
    }

    /// Elements of a piece on the instruction's N side.
    pub(super) fn n_of_piece(&self, promotion: Promotion) -> String {
        match promotion.parts {
            1 => self.tile_n(),
            parts => format!("{} / {parts}", self.tile_n()),
        }
    }

    /// Elements of a share of a piece on that side.
    fn n_of_share(&self, promotion: Promotion) -> String {
        match promotion.shares {
            1 => self.n_of_piece(promotion),
            shares => format!("{} / {shares}", self.n_of_piece(promotion)),
        }
    }

    /// Distance of a piece on the N side, as `each` makes it.
    pub(super) fn part_of_n(&self, piece: Piece, each: &str) -> String {
        let promotion = self.tiling().promotion();
        promotion.map_or(String::new(), |it| {
            before(piece.part, &self.n_of_piece(it), each)
        })
    }

    /// Adds the sums of a piece's share to the promoted ones.
    pub(super) fn promote(&mut self, multiply: usize, piece: Piece, share: u32) {
        let Some(promotion) = self.tiling().promotion() else {
            return;
        };
        let product = self.tiling().multiplies()[multiply].first;
        let (acc, _) = self.accumulators(product);
        let n = self.n_of_share(promotion);
        // A part of the N side has registers of its own for what tensor cores sum, and is one of all scales that a thread has; a
        // share is one of what they sum, and has the scales that a thread has then.
        let (in_piece, scales) = match promotion.shares {
            1 => (String::new(), self.part_of_n(piece, " / 2")),
            _ => (before(share, &n, " / 2"), String::new()),
        };
        let in_sums = format!("{in_piece}{scales}");
        let blocks = self.blocks();
        let (all, sum, short) = match (promotion.blocks, promotion.together) {
            (1, _) => (false, acc, SHORT.to_string()),
            (_, 1) => (false, format!("{acc}[{}]", piece.block), SHORT.to_string()),
            (..) => (true, format!("{acc}[block]"), format!("{SHORT}[block]")),
        };
        if let (true, Some(blocks)) = (all, &blocks) {
            self.line("#pragma unroll");
            self.line(format!("for (u32 block = 0; block < {blocks}; ++block)"));
        }
        self.line("#pragma unroll");
        let block = match promotion.blocks {
            1 => String::new(),
            _ if all => "[block]".into(),
            _ => format!("[{}]", piece.block),
        };
        let operands = self.tiling().products()[product];
        let factors = operands.map(|operand| self.factor_of(operand, &block, &scales));
        let (sum, short) = (
            format!("{sum}[i{in_sums}]"),
            format!("{short}[i{in_piece}]"),
        );
        let add = match factors {
            [Some(x), Some(w)] => format!("add_scaled({sum}, {short}, {x}, {w});"),
            [Some(_), None] | [None, Some(_)] | [None, None] => format!("{sum} += {short};"),
        };
        self.line(format!("for (u32 i = 0; i < {n} / 2; ++i) {add}"));
    }

    /// The factor for accumulator `i` of a piece, read from the registers with the scales of an operand's blocks; `None` if the
    /// operand has none.
    fn factor_of(&self, operand: usize, block: &str, before: &str) -> Option<String> {
        let tiling = self.tiling();
        let scale = tiling.scale_of(operand)?;
        let (name, _) = self.scale_names(scale);
        let staged = tiling.scales()[scale];
        let StagedScale {
            block: of, side, ..
        } = staged;
        Some(match (of.is_1d(), tiling.is_on_m(operand)) {
            (true, true) if tiling.shares_of_scale(scale) > 1 => {
                format!("{name}[vector_index_transposed(i)]")
            }
            (true, true) => format!("{name}{block}[vector_index_transposed(i)]"),
            (true, false) => format!("{name}[vector_index(i{before})]"),
            (false, false) if staged.crosses() => {
                format!("{name}[(i{before}) / {}]", staged.alike() / 2)
            }
            (false, false) if side > of.rows => {
                format!("{name}[(i{before}) / (SCALE_BLOCK / 2)]")
            }
            (false, _) => name,
        })
    }

    /// The registers of a scale of blocks, and its part of a stage.
    fn scale_names(&self, scale: usize) -> (String, String) {
        let part = self.tiling().operands().len() + scale;
        let part = &self.pipeline.rings[0].part(self.tiling, part).name;
        (format!("{part}s"), part.clone())
    }

    /// Reads a scale of a step's blocks, or of a share of them.
    pub(super) fn read_blocks(
        &mut self,
        ring: RingId,
        scale: usize,
        (number, begin): (&Expr, &Expr),
        share: u32,
    ) {
        let part = self.tiling().operands().len() + scale;
        let mut from = self.shared(ring, part, &Expr::Const(0), false);
        if *number != Expr::Const(0) {
            let StagedScale { block, side, .. } = self.tiling().scales()[scale];
            let line = match block.is_1d() {
                true => format!("{side} * "),
                false => String::new(),
            };
            from.push_str(&format!(" + {} * {line}SCALE_STRIDE", self.factor(number)));
        }
        let (name, _) = self.scale_names(scale);
        let tiling = self.tiling();
        let staged = tiling.scales()[scale];
        let StagedScale {
            block,
            side,
            operand,
            ..
        } = staged;
        let first = self.first_on_m();
        let n = self.tile_n();
        let blocks = self.blocks();
        match (block.is_1d(), tiling.is_on_m(operand)) {
            (true, true) if blocks.is_none() => {
                self.declare_scale(scale);
                self.line(format!("scales_on_m({name}, {from}, {first}, lane);"));
            }
            (true, true) if tiling.shares_of_scale(scale) > 1 => {
                let first = match share {
                    0 => first.into(),
                    1 => format!("{first} + 64"),
                    _ => format!("{first} + {share} * 64"),
                };
                self.line(format!("scales_on_m({name}, {from}, {first}, lane);"));
            }
            (true, true) => {
                let blocks = blocks.unwrap_or_default();
                self.declare_scale(scale);
                self.line("#pragma unroll");
                self.line(format!("for (u32 block = 0; block < {blocks}; ++block) scales_on_m({name}[block], {from}, {first} + block * 64, lane);"));
            }
            (true, false) if tiling.shares_of_scale(scale) > 1 => {
                let n = tiling.promotion().map_or(n, |it| self.n_of_share(it));
                let from = format!("{from}{}", before(share, &n, " * SCALE_STRIDE"));
                self.line(format!("scales_on_n<{n}>({name}, {from}, lane);"));
            }
            (true, false) => {
                self.declare_scale(scale);
                self.line(format!("scales_on_n<{n}>({name}, {from}, lane);"));
            }
            // A warpgroup's blocks lie within one block.
            (false, true) if side > block.rows => {
                let at = format!("{from} + {first} / SCALE_BLOCK * SCALE_LINE_STRIDE");
                self.read_one(&name, &at);
            }
            (false, false) if staged.crosses() => {
                let (each, begin) = (staged.alike(), self.expr(begin));
                self.declare_scale(scale);
                self.line(format!(
                    "scales_across<{each}, SCALE_BLOCK>({name}, {from}, {begin});"
                ));
            }
            (false, false) if side > block.rows => {
                self.declare_scale(scale);
                self.line("#pragma unroll");
                self.line(format!("for (u32 i = 0; i < {n} / SCALE_BLOCK; ++i) {name}[i] = scale_of_block({from} + i * SCALE_LINE_STRIDE);"));
            }
            (false, _) => {
                self.read_one(&name, &from);
            }
        }
    }
}
