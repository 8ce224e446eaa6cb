//! Contents of memory and registers: every box, product, subtile and store is of the rows, columns and depth that it should be.
//!
//! No numbers are computed. A slot holds a box of a tensor or a subtile of a product; a product knows its rows, its
//! columns, how far along K it is and whose partial sums it has.

use super::case::EVERY_COPY;
use super::held::{Content, Fragment, Phase, Place, TileProduct};
use super::simulator::{Agent, Simulator, Verdict};
use super::step::{Area, Box4};
use super::trace;
use crate::diag::Diagnostic;
use crate::dtype::Dtype;
use crate::kernel::{OpKind, visit};
use crate::program::TensorId;
use crate::tiling::{Piece, Tiling};
use crate::warp::{BLOCK_ROWS, Elements, Source};

/// Part of an operand's tile.
struct Operand {
    /// The tile's first row among all rows.
    row: u32,
    /// Part of K that it has.
    columns: (u32, u32),
    /// Number of the part's rows that were loaded: its first ones.
    loaded: u32,
}

/// Boxes in a stage that do not make a tile.
struct NoTile;

impl Simulator<'_> {
    pub(super) fn row_in_all(&self, at: &Box4, row: u32) -> u32 {
        self.case.row_in_all(at, row)
    }

    pub(super) fn held(&self, cta: usize, area: Area) -> impl Iterator<Item = &Content> {
        let held = self.ctas[cta].held.iter();
        held.filter(move |(at, _)| at.overlaps(area))
            .map(|(_, content)| content)
    }

    pub(super) fn put(&mut self, cta: usize, area: Area, content: Content) {
        let held = &mut self.ctas[cta].held;
        held.retain(|(at, _)| !at.overlaps(area));
        held.push((area, content));
    }

    /// An operand in an area of a stage that so many rows of its tile lie before: its boxes that completed on a phase,
    /// whose rows follow each other, of the same columns. What lies behind them was not loaded. `None` where nothing was.
    ///
    /// # Errors
    /// Boxes that do not make a tile.
    fn operand(
        &self,
        cta: usize,
        (tensor, area): (TensorId, Area),
        before: u32,
        phase: Phase,
    ) -> Result<Option<Operand>, NoTile> {
        let line = self.line();
        let tile = Area {
            start: area.start - before * line,
            ..area
        };
        let mut held: Vec<(Area, Box4)> = Vec::new();
        for (at, content) in &self.ctas[cta].held {
            match content {
                Content::Box(from, on) if *on == phase && at.overlaps(tile) => {
                    held.push((*at, *from));
                }
                Content::Box(..)
                | Content::Everywhere(_)
                | Content::Subtile(..)
                | Content::Partial(..) => {}
            }
        }
        held.sort_by_key(|(at, _)| at.start);
        if self.case.pipeline.kernel.buffers[tensor.index()].mn_major {
            held = self.blocks(held)?;
        }
        let Some((_, from)) = held.first() else {
            return Ok(None);
        };
        let row = self.row_in_all(from, from.origin.0);
        let mut covered = tile.start;
        for (at, next) in &held {
            let follows =
                self.row_in_all(next, next.origin.0) == row + (covered - tile.start) / line;
            let same = (next.tensor, next.columns) == (tensor, from.columns);
            if at.start != covered || !follows || !same {
                return Err(NoTile);
            }
            covered = at.end;
        }
        Ok(Some(Operand {
            row,
            columns: from.columns,
            loaded: covered.min(area.end).saturating_sub(area.start) / line,
        }))
    }

    /// The blocks of an operand that is MN-major, of boxes in their order: each CTA of a cluster may have loaded
    /// some of a block's K, and K beyond the tensor is loaded too, as zeros.
    ///
    /// # Errors
    /// Boxes that do not make whole blocks.
    fn blocks(&self, boxes: Vec<(Area, Box4)>) -> Result<Vec<(Area, Box4)>, NoTile> {
        let mut blocks: Vec<(Area, Box4)> = Vec::new();
        for (at, next) in boxes {
            match blocks.last_mut() {
                Some((area, block)) if block.origin.0 == next.origin.0 => {
                    let k =
                        (area.end - area.start) / (BLOCK_ROWS * self.case.pipeline.dtype().bytes());
                    let wanted = (block.tensor, block.rank, block.shard, block.origin.1 + k);
                    if (next.tensor, next.rank, next.shard, next.origin.1) != wanted
                        || at.start != area.end
                    {
                        return Err(NoTile);
                    }
                    (area.end, block.columns.1) = (at.end, next.columns.1);
                }
                Some(_) | None => blocks.push((at, next)),
            }
        }
        let whole = BLOCK_ROWS * self.line();
        let all_whole = (blocks.iter()).all(|(area, _)| area.end - area.start == whole);
        all_whole.then_some(blocks).ok_or(NoTile)
    }

    /// Bytes of a row of an operand in a stage.
    fn line(&self) -> u32 {
        self.case.pipeline.tile().k * self.case.pipeline.dtype().bytes()
    }

    /// A multiply takes the operands of a loop's product that completed on a phase; so many rows of each one's tile lie before.
    pub(super) fn multiplied(
        &mut self,
        index: usize,
        (tiling, product): (usize, usize),
        areas: [Area; 2],
        (befores, phase): ([u32; 2], Phase),
        fresh: bool,
        piece: Option<Piece>,
    ) -> Result<Option<TileProduct>, Box<Diagnostic>> {
        let (cta, line) = (self.agents[index].cta, self.line());
        let wrong = |what| Err(Box::new(trace::wrong(self, index, what)));
        let no_tile = "a stage does not hold one tile of each operand";
        let tiling = self.case.pipeline.tiling_of(tiling);
        let tensors = tiling.products()[product].map(|part| tiling.operands()[part].tensor);
        let [x, w] = [0, 1].map(|side| {
            let part = (tensors[side], areas[side]);
            self.operand(cta, part, befores[side], phase)
        });
        let (Ok(x), Ok(w)) = (x, w) else {
            return wrong(no_tile);
        };
        // Of a cluster's last tile, one operand may lie outside.
        let Some(columns) = x.iter().chain(&w).map(|some| some.columns).next() else {
            return wrong(no_tile);
        };
        let operands = [&x, &w];
        let alike = operands
            .iter()
            .all(|some| some.as_ref().is_none_or(|some| some.columns == columns));
        let at = (x.as_ref().map(|x| x.row), w.as_ref().map(|w| w.row));
        let lacks = [0, 1].map(|side| {
            let loaded = operands[side].as_ref().map_or(0, |some| some.loaded);
            let rows = (areas[side].end - areas[side].start) / line;
            (befores[side] + loaded, befores[side] + rows)
        });
        // Whoever has all steps begins with the first; others with theirs, which the sum of all will show.
        let first = if self.case.pipeline.cta.split() > 1 {
            columns.0
        } else {
            0
        };
        if let Some(piece) = piece {
            if self.agents[index].fragment.short.is_some() || !fresh {
                return wrong("what tensor cores summed before was not added to the promoted sums");
            }
            return Ok(Some(TileProduct {
                tensors: Some(tensors),
                at,
                lacks,
                depth: self.part_of_k(tiling, piece, columns),
                ..TileProduct::default()
            }));
        }
        let so_far = &self.agents[index].fragment.products[product];
        let (before, depth) = if fresh {
            (at, first)
        } else {
            (so_far.at, so_far.depth.1)
        };
        if before != at || !alike || columns.0 != depth {
            return wrong("its operands are not the next of its tile's along K");
        }
        let fragment = &mut self.agents[index].fragment;
        if fresh {
            fragment.read.clear();
            fragment.applied.clear();
            fragment.products[product] = TileProduct {
                tensors: Some(tensors),
                at,
                lacks,
                depth: (first, first),
                ..TileProduct::default()
            };
        }
        let product = &mut fragment.products[product];
        product.lacks_also(lacks);
        product.depth.1 = columns.1;
        Ok(None)
    }

    /// Columns that a piece has of those of a step's operands.
    fn part_of_k(&self, tiling: &Tiling, piece: Piece, columns: (u32, u32)) -> (u32, u32) {
        let parts = tiling.parts_of_k();
        let each = self.case.pipeline.tile().k / parts;
        let at = |part: u32| (columns.0 + part * each).min(columns.1);
        match parts {
            1 => columns,
            _ => (at(piece.depth), at(piece.depth + 1)),
        }
    }

    /// The first row and column of a subtile of a tile.
    pub(super) fn subtile_of(&self, (first_row, first_column): Place, part: u32) -> Place {
        let (row, column) = self.case.pipeline.subtile_at(part);
        (
            first_row.map(|first| first + row),
            first_column.map(|first| first + column),
        )
    }

    /// Source of a stored subtile, as its first box says; `None` where there is no subtile, or not all of it.
    pub(super) fn stored_subtile(&self, cta: usize, subtile: Area) -> Option<Box4> {
        let mut held: Vec<_> = (self.ctas[cta].held.iter())
            .filter(|(at, _)| at.overlaps(subtile))
            .collect();
        held.sort_by_key(|(at, _)| at.start);
        let (Content::Box(first, _) | Content::Everywhere(first)) = held.first()?.1 else {
            return None;
        };
        let pipeline = self.case.pipeline;
        let bytes = pipeline.kernel.buffers[first.tensor.index()].dtype.bytes();
        let columns = pipeline.tiling().slice_columns(bytes);
        let (mut covered, mut column) = (subtile.start, first.origin.1);
        for (at, content) in held {
            let (Content::Box(next, _) | Content::Everywhere(next)) = content else {
                return None;
            };
            let same = |of: &Box4| (of.tensor, of.rank, of.shard, of.origin.0);
            let follows = (at.start, next.origin.1) == (covered, column);
            if !follows || same(next) != same(&first) {
                return None;
            }
            (covered, column) = (at.end, column + columns);
        }
        (covered == subtile.end).then_some(first)
    }

    /// Rank whose term of a sum a stored subtile is: its slot's, or that of every rank's copy.
    pub(super) fn term(&self, cta: usize, subtile: Area, from: &Box4) -> u32 {
        let everywhere = |content: &Content| matches!(content, Content::Everywhere(_));
        match self.held(cta, subtile).any(everywhere) {
            true => EVERY_COPY,
            false => self.case.slot(from),
        }
    }

    /// True if a store takes rows or columns of a subtile, from a column of it on, that are products of garbage.
    fn garbage(&self, product: &TileProduct, (part, before): (u32, u32), to: &Box4) -> bool {
        let (row, column) = self.case.pipeline.subtile_at(part);
        let column = column + before;
        let above = to.rows.0.wrapping_sub(to.origin.0);
        let stored = [
            (row + above, row + above + self.case.exists(to) - to.rows.0),
            (column, column + to.columns.1 - to.columns.0),
        ];
        let mut both = stored.iter().zip(product.lacks);
        both.any(|(stored, lacks)| lacks.0.max(stored.0) < lacks.1.min(stored.1))
    }

    /// A subtile is written.
    pub(super) fn written_subtile(
        &mut self,
        index: usize,
        area: Area,
        (part, elements): (u32, Elements),
        scaled: bool,
    ) -> Verdict {
        self.is_there(index, elements, part)?;
        if scaled {
            self.scales_of(index, elements, part)?;
        }
        let Agent {
            cta, ref fragment, ..
        } = self.agents[index];
        let content = Content::Subtile(Box::new(fragment.clone()), part, elements, scaled);
        self.put(cta, area, content);
        Ok(())
    }

    /// Checks that the results of products are there for a subtile.
    pub(super) fn is_there(&self, index: usize, elements: Elements, part: u32) -> Verdict {
        let fragment = &self.agents[index].fragment;
        let there = match elements {
            Elements::Applied(epilogue) => fragment.applied(epilogue, part).is_some(),
            Elements::Product(_) => true,
        };
        match there {
            true => Ok(()),
            false => {
                let what = "its epilogue was not applied to this subtile";
                Err(Box::new(trace::wrong(self, index, what)))
            }
        }
    }

    /// A stored subtile is added.
    pub(super) fn added(&mut self, index: usize, subtile: Area, part: u32) -> Verdict {
        let Agent {
            cta, ref fragment, ..
        } = self.agents[index];
        let product = &fragment.products[0];
        let Some(from) = self.stored_subtile(cta, subtile) else {
            let what = "a stage does not hold one stored subtile";
            return Err(Box::new(trace::wrong(self, index, what)));
        };
        let at = (
            Some(self.row_in_all(&from, from.origin.0)),
            Some(from.origin.1),
        );
        if at != self.subtile_of(product.at, part) {
            let what = "the stored subtile is not of its tile";
            return Err(Box::new(trace::wrong(self, index, what)));
        }
        if part == 0 {
            let slot = self.term(cta, subtile, &from);
            self.agents[index].fragment.products[0].added.push(slot);
        }
        Ok(())
    }

    /// A store takes its subtile or box.
    pub(super) fn stored(&self, index: usize, area: Area, to: &Box4) -> Verdict {
        let mut held = self.held(self.agents[index].cta, area).peekable();
        let kernel = &self.case.pipeline.kernel;
        let empty = to.columns.0 >= to.columns.1 || to.rows.0 >= to.rows.1;
        // Rows above the memory's first are left out: those below lie behind them.
        let row = self.row_in_all(to, to.origin.0);
        let wrong = |what: &str| Err(Box::new(trace::wrong(self, index, what)));
        if held.peek().is_none() {
            return wrong("nothing was put there");
        }
        for content in held.filter(|_| !empty) {
            match content {
                Content::Box(from, _) => {
                    if !self.moves(from.tensor, to.tensor) {
                        return wrong("the box is of another tensor");
                    }
                    if self.row_in_all(from, from.origin.0) != row || from.columns != to.columns {
                        return wrong("the box holds other rows or columns");
                    }
                }
                Content::Everywhere(_) => return wrong("a sum of every rank's copies lies there"),
                Content::Partial(..) => return wrong("another CTA's partials lie there"),
                Content::Subtile(fragment, part, elements, scaled) => {
                    if let Some(what) = self.unlike_scales(to.tensor, *scaled) {
                        return wrong(what);
                    }
                    if !self.is_what_is_stored(to.tensor, fragment, *elements) {
                        return wrong("the schedule stores another value there");
                    }
                    let buffer = &kernel.buffers[to.tensor.index()];
                    let before = self.columns_before(area, buffer.dtype);
                    let of = (&**fragment, *elements);
                    if let Some(what) = self.elsewhere(index, of, (*part, before), (row, to)) {
                        return wrong(what);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reason that a subtile, from a column of it on, is not what a box gets whose first row is known.
    pub(super) fn elsewhere(
        &self,
        index: usize,
        (fragment, elements): (&Fragment, Elements),
        (part, before): (u32, u32),
        (row, to): (u32, &Box4),
    ) -> Option<&'static str> {
        let me = self.agents[index].who.rank;
        let slots = self.adds_up(to.tensor, elements, me);
        if let Some(at) = self.read_at(fragment, elements, part) {
            // Nothing says in which rows a vector is, or where a number.
            let is = |at: Option<u32>, to: u32| at.is_none_or(|at| at == to);
            let (first, column) = self.subtile_of(at, part);
            let column = column.map(|first| first + before);
            if !is(first, row) || !is(column, to.columns.0) {
                return Some("the subtile is of another place");
            }
        }
        let mut products = self.products_in(fragment, elements).into_iter();
        products.find_map(|product| self.incomplete(product, (part, before), (row, to), &slots))
    }

    /// Place of the tile whose elements are of stored tiles and vectors alone.
    pub(super) fn read_at(
        &self,
        fragment: &Fragment,
        elements: Elements,
        part: u32,
    ) -> Option<Place> {
        match elements {
            Elements::Product(_) => None,
            Elements::Applied(epilogue) => fragment.applied(epilogue, part)?.at,
        }
    }

    /// The products that the elements of a subtile were made of.
    pub(super) fn products_in<'f>(
        &self,
        fragment: &'f Fragment,
        elements: Elements,
    ) -> Vec<&'f TileProduct> {
        match elements {
            Elements::Product(product) => vec![&fragment.products[product]],
            Elements::Applied(epilogue) => {
                let params = self.case.pipeline.epilogues[epilogue].params.iter();
                let products = params.flat_map(|param| match param.from {
                    Source::Product(product) => vec![&fragment.products[product]],
                    Source::Sum => {
                        let mut sums = fragment.summed.iter();
                        let sum = sums.find(|sum| sum.acc == param.acc);
                        let own = sum.and_then(|sum| sum.own);
                        own.map_or(Vec::new(), |(own, _)| self.products_in(fragment, own))
                    }
                    Source::Subtile | Source::Broadcast(_) => Vec::new(),
                });
                products.collect()
            }
        }
    }

    /// Reason that a product is incomplete where a subtile of it is stored, from a column of it on, to a box whose
    /// first row is known; it should have those ranks' parts.
    fn incomplete(
        &self,
        product: &TileProduct,
        (part, before): (u32, u32),
        (row, to): (u32, &Box4),
        slots: &[u32],
    ) -> Option<&'static str> {
        let lacks = "some of what exists of its operands was not loaded";
        let (Some(first), Some(column)) = self.subtile_of(product.at, part) else {
            return Some(lacks);
        };
        let mut added = product.added.clone();
        added.sort_unstable();
        if (first, column + before) != (row, to.columns.0) {
            Some("the subtile is of another place")
        } else if self.garbage(product, (part, before), to) {
            Some(lacks)
        } else if !product.has_all(part, self.depth(product, to.plan)) {
            Some("the product does not have all of K")
        } else if added != slots {
            Some("it does not have every other rank's part once")
        } else {
            None
        }
    }

    /// True if the schedule copies from one tensor to another.
    fn moves(&self, from: TensorId, to: TensorId) -> bool {
        let mut moves = false;
        for role in &self.case.pipeline.kernel.roles {
            visit(&role.body, &mut |op| {
                moves |= matches!(&op.kind, OpKind::Copy { dst, src } if (src.buffer, dst.buffer) == (from, to));
            });
        }
        moves
    }

    /// Columns of a subtile in its slot that lie before a slice of it, of elements of some type.
    fn columns_before(&self, slice: Area, dtype: Dtype) -> u32 {
        let (pipeline, subtiles) = (self.case.pipeline, &self.case.pipeline.rings[1].buffer);
        let columns = pipeline.tiling().slice_columns(dtype.bytes());
        let bytes = pipeline.tiling().subtile().rows * columns * dtype.bytes();
        subtiles.as_ref().map_or(0, |subtiles| {
            (slice.start - subtiles.at) % subtiles.slot_bytes / bytes * columns
        })
    }

    /// All of a product's K in the launches of a plan: columns of one layer are the depth of the next.
    pub(super) fn depth(&self, product: &TileProduct, plan: usize) -> u32 {
        let buffers = &self.case.pipeline.kernel.buffers;
        let geometry = self.case.geometry(plan);
        let depth = |[x, _]: [TensorId; 2]| geometry.size(buffers[x.index()].columns);
        product.tensors.map_or(0, depth)
    }

    /// The slots whose stored tiles were added to the accumulators of what is stored in a tensor: of a sum that has no
    /// registers of its own.
    fn adds_up(&self, tensor: TensorId, elements: Elements, me: u32) -> Vec<u32> {
        let kernel = &self.case.pipeline.kernel;
        let (mut sums, mut stored) = (Vec::new(), Vec::new());
        for role in &kernel.roles {
            visit(&role.body, &mut |op| {
                if let OpKind::Reduce { acc, .. } = &op.kind {
                    sums.push(*acc);
                }
                if let OpKind::Store { dst, value, .. } = &op.kind
                    && dst.buffer == tensor
                {
                    stored.extend(kernel.values[usize::from(value.0)].accs());
                }
            });
        }
        let params = match elements {
            Elements::Product(_) => &[][..],
            Elements::Applied(index) => &self.case.pipeline.epilogues[index].params,
        };
        let apart = params.iter().any(|param| param.from == Source::Sum);
        let mut added = sums.iter().filter(|acc| !apart && stored.contains(acc));
        let slots = added.find_map(|acc| self.case.summed(*acc, me));
        slots.map(|(slots, _)| slots).unwrap_or_default()
    }
}
