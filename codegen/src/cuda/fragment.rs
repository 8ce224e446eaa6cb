//! The text of what a thread does with its fragment of a tile.

use super::Text;
use super::value::results;
use crate::encoding::BLOCK;
use crate::program::Side;
use crate::warp::{Elements, Expr, Field, FragmentOp, Slot, Spelling};

impl Text<'_> {
    /// The registers that a subtile's elements are in: the array, and where in it they begin.
    pub(super) fn elements(&mut self, elements: Elements, part: &Expr) -> (String, String) {
        match elements {
            Elements::Applied(index) => (results(&self.pipeline.epilogues[index]), String::new()),
            Elements::Product(product) => {
                let (acc, before) = self.accumulators(product);
                let (part, subtile) = (self.factor(part), self.subtile_n());
                (acc, format!(" + {before}{part} * {subtile} / 2"))
            }
        }
    }

    /// Adds this rank's own term to a sum's registers.
    fn add_own(&mut self, sum: &str, element: String, (elements, part): (Elements, &Expr)) {
        let (term, at) = self.elements(elements, part);
        let subtile = self.subtile_n();
        let Some(blocks) = self.blocks() else {
            return self.line(format!("add_own<{element}, {subtile}>({sum}, {term}{at});"));
        };
        self.line("#pragma unroll");
        self.line(format!("for (u32 block = 0; block < {blocks}; ++block) add_own<{element}, {subtile}>({sum}[block], {term}[block]{at});"));
    }

    /// One operation.
    pub(super) fn fragment(&mut self, op: &FragmentOp) {
        match op {
            FragmentOp::ReadSubtile {
                ring,
                name,
                slot_part,
                index,
                dtype,
                ..
            } => {
                let shared = self.shared(*ring, *slot_part, index, false);
                let element = self.element(*dtype);
                self.subtile_array(name, "");
                self.subtile("subtile_read", &element, (name, ""), &shared);
            }
            FragmentOp::StartSum { name, .. } => self.subtile_array(name, " = {}"),
            FragmentOp::AddToSum {
                ring,
                name,
                dtype,
                slot_part,
                ..
            } => {
                let shared = self.shared(*ring, *slot_part, &Expr::Const(0), false);
                let element = self.element(*dtype);
                self.subtile("subtile_add", &element, (name, ""), &shared);
            }
            FragmentOp::AddOwn {
                name,
                elements,
                part,
                dtype,
                ..
            } => self.add_own(name, self.element(*dtype), (*elements, part)),
            FragmentOp::ReadVector {
                name,
                tensor,
                column,
                end,
                again,
                ..
            } => {
                let vector = self.field(Field::Vector(*tensor));
                let [column, columns] = [column, end].map(|number| self.expr(number));
                let column = place(column, *again);
                self.vector(name, &format!("{vector}, {column}"), &columns);
            }
            FragmentOp::ReadRows {
                name,
                tensor,
                row,
                end,
                again,
                ..
            } => {
                let scale = self.field(Field::Vector(*tensor));
                let [row, rows] = [row, end].map(|number| self.expr(number));
                let row = place(row, *again);
                self.rows(name, (&scale, &row), &rows);
            }
            FragmentOp::ReadAhead {
                tensor,
                side,
                first,
                end,
            } => {
                let vector = self.field(Field::Vector(*tensor));
                let width = match side {
                    Side::Rows => self.pipeline.tile_rows(self.tiling),
                    Side::Columns => self.pipeline.tile_columns(self.tiling),
                };
                let [first, end] = [first, end].map(|number| self.expr(number));
                self.line(format!(
                    "vector_read_ahead<{width}>({vector}, {first}, {end}, lane);"
                ));
            }
            FragmentOp::ReadScale { name, tensor, .. } => {
                let scale = self.field(Field::Vector(*tensor));
                self.line(format!("const float {name} = *{scale};"));
            }
            FragmentOp::ReadBlocks {
                ring,
                scale,
                number,
                begin,
                share,
            } => self.read_blocks(*ring, *scale, (number, begin), *share),
            FragmentOp::Promote {
                multiply,
                piece,
                share,
            } => self.promote(*multiply, *piece, *share),
            FragmentOp::Apply { epilogue, part } => {
                let part = self.factor(part);
                self.apply(*epilogue, &part);
            }
            FragmentOp::WriteSubtile {
                ring,
                part,
                elements,
                dtype,
                scaled,
            } => {
                let shared = self.shared(*ring, 0, &Expr::Const(0), false);
                let element = self.element(*dtype);
                let (from, at) = self.elements(*elements, part);
                if !scaled {
                    return self.subtile("subtile_store", &element, (&from, &at), &shared);
                }
                let multipliers = self.multipliers(*elements);
                let shared = format!("{multipliers}, {shared}");
                self.subtile("subtile_store_scaled", &element, (&from, &at), &shared);
            }
            FragmentOp::MakeScales {
                elements,
                part,
                columns,
            } => self.make_scales((*elements, part), columns),
            FragmentOp::WriteScales { .. } => self.write_scales(op),
            FragmentOp::SendScales { .. } => self.send_scales(op),
            FragmentOp::ReadTileScales { .. } => self.read_tile_scales(op),
            FragmentOp::TakeAmax {
                tensor,
                elements,
                part,
                rows,
                columns,
            } => {
                let amax = self.field(Field::Vector(*tensor));
                let (from, at) = self.elements(*elements, part);
                let [rows, columns] = [rows, columns].map(|side| side.each_ref());
                let [rows, columns] = [rows, columns].map(|side| side.map(|at| self.expr(at)));
                self.take_amax(&amax, (&from, &at), rows, columns);
            }
            FragmentOp::SendPartial {
                ring,
                to,
                index,
                part,
            } => {
                let barrier = self.barrier(ring.full(), Slot::Current);
                let to = self.expr(to);
                self.partial(
                    "partial_send",
                    *ring,
                    (index, part),
                    &format!("{barrier}.at, {to}, "),
                );
            }
            FragmentOp::AddPartial { ring, index, part } => {
                self.partial("partial_add", *ring, (index, part), "")
            }
            FragmentOp::AddSubtile {
                ring,
                slot_part,
                index,
                part,
                dtype,
                scaled,
            } => {
                let mut shared = self.shared(*ring, *slot_part, index, false);
                let part = self.factor(part);
                let at = format!(" + {part} * {} / 2", self.subtile_n());
                let element = self.element(*dtype);
                let mut verb = "subtile_add";
                if *scaled {
                    let block = self.blocks().map_or("", |_| "[block]");
                    verb = "subtile_add_scaled";
                    shared = format!("scales{block}[{part} * SUBTILE_N / {BLOCK}], {shared}");
                }
                self.subtile(verb, &element, ("acc", &at), &shared);
            }
        }
    }
}

/// Address of a vector. If it was read before, the compiler is not told that this is the same place: it would keep
/// the addresses of all subtiles.
fn place(first: String, again: bool) -> String {
    match again {
        true => format!("again({first})"),
        false => first,
    }
}
