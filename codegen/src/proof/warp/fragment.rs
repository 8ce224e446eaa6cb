//! A thread's work on its fragment of a tile: its numbers, its meaning, and its words in a report.

use super::flatten::Flattener;
use super::simulator::{Simulator, Verdict};
use super::step::{FragmentStep, Kind, Step};
use super::trace;
use crate::encoding::BLOCK;
use crate::program::Side;
use crate::tiling::{StagedScale, Subtile};
use crate::warp::{Elements, Expr, FragmentOp, Node, Slot, Source};

impl<'a> Flattener<'a> {
    /// An operation with its numbers.
    pub(super) fn fragment(&mut self, node: &'a Node, op: &FragmentOp) {
        let step = match op {
            FragmentOp::ReadSubtile {
                ring,
                acc,
                slot_part,
                index,
                dtype,
                ..
            } => {
                let (area, subtile) = self.subtile(*ring, *slot_part, index, *dtype);
                let acc = *acc;
                FragmentStep::ReadSubtile { area, subtile, acc }
            }
            FragmentOp::StartSum { acc, .. } => FragmentStep::StartSum { acc: *acc },
            FragmentOp::AddToSum {
                ring,
                acc,
                dtype,
                slot_part,
                ..
            } => {
                let (area, subtile) = self.subtile(*ring, *slot_part, &0.into(), *dtype);
                let acc = *acc;
                FragmentStep::AddToSum { area, subtile, acc }
            }
            FragmentOp::AddOwn {
                acc,
                elements,
                part,
                dtype,
                ..
            } => FragmentStep::AddOwn {
                acc: *acc,
                elements: *elements,
                part: self.value(part),
                dtype: *dtype,
            },
            FragmentOp::ReadVector {
                acc,
                tensor,
                column,
                end,
                ..
            } => {
                let (acc, tensor, column) = (*acc, *tensor, self.value(column));
                let subtile = self.case.pipeline.tiling_of(self.tiling).subtile();
                FragmentStep::ReadVector {
                    acc,
                    tensor,
                    column,
                    shared: self.scales(tensor, (column, self.value(end)), subtile.columns),
                }
            }
            FragmentOp::ReadRows {
                acc,
                tensor,
                row,
                end,
                ..
            } => {
                let (acc, tensor, row) = (*acc, *tensor, self.value(row));
                let subtile = self.case.pipeline.tiling_of(self.tiling).subtile();
                FragmentStep::ReadRows {
                    acc,
                    tensor,
                    row,
                    shared: self.scales(tensor, (row, self.value(end)), subtile.rows),
                }
            }
            FragmentOp::ReadAhead {
                tensor,
                side,
                first,
                end,
            } => {
                let (tensor, first) = (*tensor, self.value(first));
                let tile = self.case.pipeline.tiling_of(self.tiling).tile();
                let count = match side {
                    Side::Rows => tile.rows,
                    Side::Columns => tile.columns,
                };
                FragmentStep::ReadAhead {
                    tensor,
                    first,
                    shared: self.scales(tensor, (first, self.value(end)), count),
                }
            }
            FragmentOp::ReadScale { acc, tensor, .. } => {
                let (acc, tensor) = (*acc, *tensor);
                FragmentStep::ReadScale { acc, tensor }
            }
            FragmentOp::ReadBlocks {
                ring,
                scale,
                number,
                begin,
                share,
            } => {
                let tiling = self.case.pipeline.tiling_of(self.tiling);
                let (part, slot) = (
                    tiling.operands().len() + scale,
                    self.slot(*ring, Slot::Current),
                );
                // Each group reads its own of those along the M side; here, any of them.
                let StagedScale { operand, .. } = tiling.scales()[*scale];
                let (shares, share_at) = match tiling.is_on_m(operand) {
                    true => (1, 0),
                    false => (tiling.shares_of_scale(*scale), *share),
                };
                let bytes = tiling.scales()[*scale].box_bytes() / shares;
                let area = self.area(*ring, part, slot, share_at * bytes, bytes);
                FragmentStep::ReadBlocks {
                    area,
                    scale: *scale,
                    number: self.value(number),
                    begin: self.value(begin),
                    share: *share,
                }
            }
            FragmentOp::Promote {
                multiply,
                piece,
                share,
            } => {
                let tiling = self.case.pipeline.tiling_of(self.tiling);
                let product = tiling.multiplies()[*multiply].first;
                FragmentStep::Promote {
                    product,
                    piece: *piece,
                    share: *share,
                }
            }
            FragmentOp::Apply { epilogue, part } => {
                let (epilogue, part) = (*epilogue, self.value(part));
                FragmentStep::Apply { epilogue, part }
            }
            FragmentOp::WriteSubtile {
                ring,
                part,
                elements,
                dtype,
                scaled,
            } => {
                let (area, _) = self.subtile(*ring, 0, &0.into(), *dtype);
                FragmentStep::WriteSubtile {
                    area,
                    part: self.subtile_number(part),
                    elements: *elements,
                    scaled: *scaled,
                }
            }
            FragmentOp::MakeScales {
                elements,
                part,
                columns,
            } => FragmentStep::MakeScales {
                elements: *elements,
                part: self.subtile_number(part),
                columns: self.extent(columns, BLOCK),
            },
            FragmentOp::WriteScales {
                tensor,
                elements,
                part,
                rows,
                all,
                columns,
            } => FragmentStep::WriteScales {
                tensor: *tensor,
                elements: *elements,
                part: self.subtile_number(part),
                rows: self.extent(rows, self.of_subtile().rows),
                all: (self.value(&all[0]), self.value(&all[1])),
                columns: self.extent(columns, self.of_subtile().columns),
            },
            FragmentOp::TakeAmax {
                tensor,
                elements,
                part,
                rows,
                columns,
            } => {
                let subtile = self.of_subtile();
                FragmentStep::TakeAmax {
                    tensor: *tensor,
                    elements: *elements,
                    part: self.subtile_number(part),
                    rows: self.extent(rows, subtile.rows),
                    columns: self.extent(columns, subtile.columns),
                }
            }
            FragmentOp::AddSubtile {
                ring,
                slot_part,
                index,
                part,
                dtype,
                scaled,
            } => {
                let (area, subtile) = self.subtile(*ring, *slot_part, index, *dtype);
                let part = self.value(part);
                FragmentStep::AddSubtile {
                    area,
                    subtile,
                    part,
                    scaled: *scaled,
                }
            }
            FragmentOp::SendScales {
                tensor,
                elements,
                part,
                to: [rank, slot],
                rows,
                columns,
            } => {
                let columns = self.extent(columns, BLOCK);
                let place = (self.value(rank), self.value(slot));
                let rows = self.extent_of_group(rows);
                FragmentStep::SendScales {
                    elements: *elements,
                    part: self.subtile_number(part),
                    to: self.beside_slot(*tensor, place, rows, columns),
                    columns,
                }
            }
            FragmentOp::ReadTileScales {
                tensor,
                slot,
                rows,
                columns,
            } => {
                let tile = self.case.pipeline.tiling_of(self.tiling).tile();
                let columns = self.extent(columns, tile.columns);
                let place = (self.rank_of_role(), self.value(slot));
                let rows = self.extent_of_group(rows);
                let from = self.beside_slot(*tensor, place, rows, columns);
                FragmentStep::ReadTileScales { from }
            }
            FragmentOp::SendPartial {
                ring,
                to,
                index,
                part,
            } => {
                let slot = self.slot(*ring, Slot::Current);
                FragmentStep::SendPartial {
                    cta: self.value(to),
                    area: self.sum(*ring, slot, index),
                    barrier: self.barrier(ring.full(), slot),
                    part: self.value(part),
                }
            }
            FragmentOp::AddPartial { ring, index, part } => {
                let slot = self.slot(*ring, Slot::Current);
                let (area, part) = (self.sum(*ring, slot, index), self.value(part));
                FragmentStep::AddPartial { area, part }
            }
        };
        self.push(node, Kind::Fragment(step));
    }

    fn of_subtile(&self) -> Subtile {
        self.case.pipeline.tiling_of(self.tiling).subtile()
    }

    /// Rows of this group that exist in a tile.
    fn extent_of_group(&mut self, rows: &[Expr; 2]) -> (u32, u32) {
        let all = self.of_subtile().rows;
        let (before, own) = match self.case.pipeline.cta.staggered() {
            true => (0, all),
            false => self.share(all),
        };
        let [first, end] = [&rows[0], &rows[1]].map(|at| self.value(at));
        ((first + before).min(end), (first + before + own).min(end))
    }

    /// Elements that exist along a side of a subtile.
    fn extent(&mut self, [first, end]: &[Expr; 2], most: u32) -> (u32, u32) {
        let [first, end] = [first, end].map(|at| self.value(at));
        (first, (first + most).min(end))
    }
}

impl Simulator<'_> {
    /// Does it.
    pub(super) fn fragment(&mut self, index: usize, step: FragmentStep) -> Verdict {
        let cta = self.agents[index].cta;
        self.may_name(index, &step)?;
        match step {
            FragmentStep::WriteSubtile {
                area,
                part,
                elements,
                scaled,
            } => {
                let id = self.touch_shared(index, cta, area, true, false)?;
                self.agents[index].accessed(id);
                self.written_subtile(index, area, (part, elements), scaled)?;
            }
            FragmentStep::MakeScales {
                elements,
                part,
                columns,
            } => self.make_scales(index, (part, elements), columns)?,
            FragmentStep::WriteScales { .. } => self.write_scales(index, step)?,
            FragmentStep::TakeAmax {
                tensor,
                elements,
                part,
                rows,
                columns,
            } => self.measured(index, tensor, (part, elements), (rows, columns))?,
            FragmentStep::AddSubtile {
                area,
                subtile,
                part,
                scaled,
            } => {
                let id = self.touch_shared(index, cta, area, false, false)?;
                self.agents[index].accessed(id);
                self.has_its_scales(index, subtile, part, scaled)?;
                self.added(index, subtile, part)?;
            }
            FragmentStep::SendScales {
                elements,
                part,
                to,
                columns,
            } => self.send_scales(index, (part, elements), &to, columns)?,
            FragmentStep::ReadTileScales { from } => self.read_tile_scales(index, &from)?,
            FragmentStep::ReadSubtile { area, subtile, acc } => {
                let id = self.touch_shared(index, cta, area, false, false)?;
                self.agents[index].accessed(id);
                self.read_subtile(index, subtile, acc)?;
            }
            FragmentStep::StartSum { acc } => self.start_sum(index, acc),
            FragmentStep::AddToSum { area, subtile, acc } => {
                let id = self.touch_shared(index, cta, area, false, false)?;
                self.agents[index].accessed(id);
                self.add_to_sum(index, subtile, acc)?;
            }
            FragmentStep::AddOwn {
                acc,
                elements,
                part,
                dtype,
            } => self.add_own(index, acc, (elements, part), dtype)?,
            FragmentStep::ReadVector {
                acc,
                tensor,
                column,
                shared,
            } => {
                self.read_scales(index, shared)?;
                self.read_vector(index, acc, tensor, column)?;
            }
            FragmentStep::ReadRows {
                acc,
                tensor,
                row,
                shared,
            } => {
                self.read_scales(index, shared)?;
                self.read_rows(index, acc, tensor, row)?;
            }
            FragmentStep::ReadAhead { shared, .. } => self.read_scales(index, shared)?,
            FragmentStep::ReadScale { acc, tensor } => self.read_vector(index, acc, tensor, 0)?,
            FragmentStep::Apply { epilogue, part } => self.applied(index, epilogue, part)?,
            FragmentStep::StartProducts => self.start_products(index),
            FragmentStep::ReadBlocks {
                area,
                scale,
                number,
                begin,
                share,
            } => {
                let id = self.touch_shared(index, cta, area, false, false)?;
                self.agents[index].accessed(id);
                self.read_blocks(index, area, (scale, number, begin), share)?;
            }
            FragmentStep::Promote {
                product,
                piece,
                share,
            } => self.promote(index, product, (piece, share))?,
            FragmentStep::SendPartial {
                cta: to,
                area,
                barrier,
                part,
            } => self.send_partial(index, to, area, (barrier, part))?,
            FragmentStep::AddPartial { area, part } => {
                let id = self.touch_shared(index, cta, area, false, false)?;
                self.agents[index].accessed(id);
                self.added_partial(index, area, part)?;
            }
        }
        Ok(())
    }

    /// Accumulators are the tensor cores' until the multiplies into them have been waited for.
    fn may_name(&self, index: usize, step: &FragmentStep) -> Verdict {
        let named = |product: usize| match *step {
            FragmentStep::WriteSubtile { elements, .. }
            | FragmentStep::AddOwn { elements, .. }
            | FragmentStep::MakeScales { elements, .. }
            | FragmentStep::TakeAmax { elements, .. } => elements == Elements::Product(product),
            FragmentStep::Apply { epilogue, .. } => {
                let mut params = self.case.pipeline.epilogues[epilogue].params.iter();
                params.any(|param| param.from == Source::Product(product))
            }
            FragmentStep::Promote { product: other, .. } => other == product,
            FragmentStep::AddSubtile { .. }
            | FragmentStep::SendPartial { .. }
            | FragmentStep::AddPartial { .. } => true,
            FragmentStep::ReadSubtile { .. }
            | FragmentStep::ReadVector { .. }
            | FragmentStep::ReadScale { .. }
            | FragmentStep::ReadRows { .. }
            | FragmentStep::ReadAhead { .. }
            | FragmentStep::WriteScales { .. }
            | FragmentStep::SendScales { .. }
            | FragmentStep::ReadTileScales { .. }
            | FragmentStep::StartSum { .. }
            | FragmentStep::StartProducts
            | FragmentStep::ReadBlocks { .. }
            | FragmentStep::AddToSum { .. } => false,
        };
        let agent = &self.agents[index];
        let mut under_way = agent.mma.iter().flatten().chain(&agent.open_mma);
        match under_way.find(|(_, product)| named(*product)) {
            None => Ok(()),
            Some((_, product)) => Err(Box::new(trace::accumulating(self, index, *product))),
        }
    }

    /// Tells it.
    pub(super) fn fragment_deed(&self, step: &Step<'_>, fragment: &FragmentStep) -> String {
        match fragment {
            FragmentStep::WriteSubtile { area, .. } => {
                format!("writes {}", self.area_name(step, area))
            }
            FragmentStep::TakeAmax { tensor, part, .. } => format!(
                "measures subtile {part} for {}",
                self.case.pipeline.kernel.buffers[tensor.index()].name
            ),
            FragmentStep::MakeScales { part, .. } => format!("makes the scales of subtile {part}"),
            FragmentStep::WriteScales { tensor, part, .. } => format!(
                "writes the scales of subtile {part} to {}",
                self.case.pipeline.kernel.buffers[tensor.index()].name
            ),
            FragmentStep::SendScales { part, to, .. } => format!(
                "writes the scales of subtile {part} to {} on rank {}",
                self.case.pipeline.kernel.buffers[to.tensor.index()].name,
                to.rank
            ),
            FragmentStep::ReadTileScales { from } => format!(
                "reads {}",
                self.case.pipeline.kernel.buffers[from.tensor.index()].name
            ),
            FragmentStep::StartSum { .. } => "begins a sum".into(),
            FragmentStep::AddOwn { part, .. } => {
                format!("adds its own term of subtile {part} to a sum")
            }
            FragmentStep::StartProducts => "begins its products".into(),
            FragmentStep::ReadBlocks { area, .. } => {
                format!("reads {}", self.area_name(step, area))
            }
            FragmentStep::Promote { piece, share, .. } => {
                let tiling = self.case.pipeline.tiling_of(step.tiling);
                match tiling.promotion().map_or(1, |it| it.shares) {
                    1 => format!("promotes {piece}"),
                    _ => format!("promotes {piece} share {share}"),
                }
            }
            FragmentStep::AddSubtile { area, .. } | FragmentStep::AddToSum { area, .. } => {
                format!("reads {}", self.area_name(step, area))
            }
            FragmentStep::SendPartial {
                cta, area, part, ..
            } => format!(
                "sends subtile {part} of its part to {} of CTA {cta} of its cluster",
                self.area_name(step, area)
            ),
            FragmentStep::AddPartial { area, part } => {
                format!("adds {} to subtile {part}", self.area_name(step, area))
            }
            FragmentStep::ReadSubtile { area, .. } => {
                format!("reads {}", self.area_name(step, area))
            }
            FragmentStep::ReadVector { tensor, column, .. } => format!(
                "reads {} from column {column} on",
                self.case.pipeline.kernel.buffers[tensor.index()].name
            ),
            FragmentStep::ReadRows { tensor, row, .. } => format!(
                "reads {} from row {row} on",
                self.case.pipeline.kernel.buffers[tensor.index()].name
            ),
            FragmentStep::ReadAhead { tensor, first, .. } => format!(
                "reads {} ahead, from number {first} on",
                self.case.pipeline.kernel.buffers[tensor.index()].name
            ),
            FragmentStep::ReadScale { tensor, .. } => format!(
                "reads {}",
                self.case.pipeline.kernel.buffers[tensor.index()].name
            ),
            FragmentStep::Apply { epilogue, part } => format!(
                "applies {} to subtile {part}",
                self.case.pipeline.epilogues[*epilogue].name
            ),
        }
    }
}
