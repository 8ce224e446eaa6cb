//! The text of what a thread does with its fragment of a tile.

use super::Text;
use super::value::results;
use counterflow_codegen::program::Side;
use counterflow_codegen::warp::{
    Along, Elements, Expr, Field, FragmentOp, ReadInto, Slot, Spelling,
};

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

    /// Reads a subtile from shared memory.
    fn read_subtile(&mut self, element: &str, into: &ReadInto, mut shared: String) {
        match into {
            ReadInto::Own { name, .. } => {
                self.subtile_array(name, "");
                self.subtile("subtile_read", element, (name, ""), &shared);
            }
            ReadInto::Sum { name, .. } => {
                self.subtile("subtile_add", element, (name, ""), &shared);
            }
            ReadInto::Product { part, scaled } => {
                let part = self.factor(part);
                let at = format!(" + {part} * {} / 2", self.subtile_n());
                let mut verb = "subtile_add";
                if let Some(rule) = self.pipeline.kernel.rule().filter(|_| *scaled) {
                    let columns = rule.block().columns;
                    let block = self.blocks().map_or("", |_| "[block]");
                    verb = "subtile_add_scaled";
                    shared = format!("scales{block}[{part} * SUBTILE_N / {columns}], {shared}");
                }
                self.subtile(verb, element, ("acc", &at), &shared);
            }
        }
    }

    /// One operation.
    pub(super) fn fragment(&mut self, op: &FragmentOp) {
        match op {
            FragmentOp::ReadSubtile {
                ring,
                slot_part,
                index,
                dtype,
                into,
            } => {
                let shared = self.shared(*ring, *slot_part, index, false);
                let element = self.element(*dtype);
                self.read_subtile(&element, into, shared);
            }
            FragmentOp::StartSum { name, .. } => self.subtile_array(name, " = {}"),
            FragmentOp::AddOwn {
                name,
                elements,
                part,
                dtype,
                ..
            } => self.add_own(name, self.element(*dtype), (*elements, part)),
            FragmentOp::Broadcast {
                name,
                tensor,
                along,
                again,
                ..
            } => {
                let from = self.field(Field::Vector(*tensor));
                let Some(Along { side, first, end }) = along else {
                    return self.line(format!("const float {name} = *{from};"));
                };
                let [first, end] = [first, end].map(|number| self.expr(number));
                let first = place(first, *again);
                match side {
                    Side::Columns => self.vector(name, &format!("{from}, {first}"), &end),
                    Side::Rows => self.rows(name, (&from, &first), &end),
                }
            }
            FragmentOp::ReadAhead { tensor, along } => {
                let vector = self.field(Field::Vector(*tensor));
                let width = match along.side {
                    Side::Rows => self.pipeline.tile_rows(self.tiling),
                    Side::Columns => self.pipeline.tile_columns(self.tiling),
                };
                let [first, end] = [&along.first, &along.end].map(|number| self.expr(number));
                self.line(format!(
                    "vector_read_ahead<{width}>({vector}, {first}, {end}, lane);"
                ));
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
            FragmentOp::Quantize {
                elements,
                part,
                columns,
                to,
            } => self.quantize((*elements, part), columns, to),
            FragmentOp::ReadTileScales {
                tensor,
                slot,
                rows,
                columns,
            } => self.read_tile_scales((*tensor, slot), rows, columns),
            FragmentOp::Amax {
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
