//! A thread's work on its fragment of a tile: its numbers, its meaning, and its words in a report.

use super::flatten::Flattener;
use super::simulator::{Simulator, Verdict};
use super::step::{Box4, FragmentStep, Into, Kind, Scales, Step};
use super::trace;
use crate::program::{Side, TensorId};
use crate::tiling::{StagedScale, Subtile};
use crate::warp::{Along, Elements, Expr, FragmentOp, Node, ReadInto, ScalesTo, Slot, Source};

impl<'a> Flattener<'a> {
    /// An operation with its numbers.
    pub(super) fn fragment(&mut self, node: &'a Node, op: &FragmentOp) {
        let step = match op {
            FragmentOp::ReadSubtile {
                ring,
                slot_part,
                index,
                dtype,
                into,
            } => {
                let (area, subtile) = self.subtile(*ring, *slot_part, index, *dtype);
                let into = match into {
                    ReadInto::Own { acc, .. } => Into::Own(*acc),
                    ReadInto::Sum { acc, .. } => Into::Sum(*acc),
                    ReadInto::Product { part, scaled } => Into::Product {
                        part: self.value(part),
                        scaled: *scaled,
                    },
                };
                FragmentStep::ReadSubtile {
                    area,
                    subtile,
                    into,
                }
            }
            FragmentOp::StartSum { acc, .. } => FragmentStep::StartSum { acc: *acc },
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
            FragmentOp::Broadcast {
                acc, tensor, along, ..
            } => {
                let subtile = self.of_subtile();
                let shared = along.as_ref().and_then(|along| {
                    let count = side_of(along.side, subtile.rows, subtile.columns);
                    self.along(*tensor, along, count)
                });
                FragmentStep::Broadcast {
                    acc: *acc,
                    tensor: *tensor,
                    along: along.as_ref().map(|at| (at.side, self.value(&at.first))),
                    shared,
                }
            }
            FragmentOp::ReadAhead { tensor, along } => {
                let tile = self.case.pipeline.tiling_of(self.tiling).tile();
                let count = side_of(along.side, tile.rows, tile.columns);
                FragmentStep::ReadAhead {
                    tensor: *tensor,
                    first: self.value(&along.first),
                    shared: self.along(*tensor, along, count),
                }
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
            FragmentOp::Quantize {
                elements,
                part,
                columns,
                to,
            } => {
                let subtile = self.of_subtile();
                let most = match to {
                    ScalesTo::Registers | ScalesTo::Slot { .. } => {
                        let rule = self.case.pipeline.kernel.rule();
                        rule.map_or(0, |rule| rule.block().columns)
                    }
                    ScalesTo::Plane { .. } => subtile.columns,
                };
                let columns = self.extent(columns, most);
                let to = match to {
                    ScalesTo::Registers => Scales::Registers,
                    ScalesTo::Plane { tensor, rows, all } => Scales::Plane {
                        tensor: *tensor,
                        rows: self.extent(rows, subtile.rows),
                        all: (self.value(&all[0]), self.value(&all[1])),
                    },
                    ScalesTo::Slot {
                        tensor,
                        to: [rank, slot],
                        rows,
                    } => {
                        let place = (self.value(rank), self.value(slot));
                        let rows = self.extent_of_group(rows);
                        Scales::Slot(self.beside_slot(*tensor, place, rows, columns))
                    }
                };
                FragmentStep::Quantize {
                    elements: *elements,
                    part: self.subtile_number(part),
                    columns,
                    to,
                }
            }
            FragmentOp::Amax {
                tensor,
                elements,
                part,
                rows,
                columns,
            } => {
                let subtile = self.of_subtile();
                FragmentStep::Amax {
                    tensor: *tensor,
                    elements: *elements,
                    part: self.subtile_number(part),
                    rows: self.extent(rows, subtile.rows),
                    columns: self.extent(columns, subtile.columns),
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

    /// Box of the numbers along a side, if others write them in a launch.
    fn along(&mut self, tensor: TensorId, along: &Along, count: u32) -> Option<Box4> {
        let [first, end] = [&along.first, &along.end].map(|at| self.value(at));
        self.scales(tensor, (first, end), count)
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

fn side_of(side: Side, rows: u32, columns: u32) -> u32 {
    match side {
        Side::Rows => rows,
        Side::Columns => columns,
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
            FragmentStep::Quantize {
                elements,
                part,
                columns,
                to,
            } => self.quantize(index, (part, elements), columns, to)?,
            FragmentStep::Amax {
                tensor,
                elements,
                part,
                rows,
                columns,
            } => self.amax(index, tensor, (part, elements), (rows, columns))?,
            FragmentStep::ReadTileScales { from } => self.read_tile_scales(index, &from)?,
            FragmentStep::ReadSubtile {
                area,
                subtile,
                into,
            } => {
                let id = self.touch_shared(index, cta, area, false, false)?;
                self.agents[index].accessed(id);
                match into {
                    Into::Own(acc) => self.read_subtile(index, subtile, acc)?,
                    Into::Sum(acc) => self.add_to_sum(index, subtile, acc)?,
                    Into::Product { part, scaled } => {
                        self.has_its_scales(index, subtile, part, scaled)?;
                        self.added(index, subtile, part)?;
                    }
                }
            }
            FragmentStep::StartSum { acc } => self.start_sum(index, acc),
            FragmentStep::AddOwn {
                acc,
                elements,
                part,
                dtype,
            } => self.add_own(index, acc, (elements, part), dtype)?,
            FragmentStep::Broadcast {
                acc,
                tensor,
                along,
                shared,
            } => {
                self.read_scales(index, shared)?;
                self.broadcast(index, acc, tensor, along)?;
            }
            FragmentStep::ReadAhead { shared, .. } => self.read_scales(index, shared)?,
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
            | FragmentStep::Quantize {
                elements,
                to: Scales::Registers,
                ..
            }
            | FragmentStep::Amax { elements, .. } => elements == Elements::Product(product),
            FragmentStep::Apply { epilogue, .. } => {
                let mut params = self.case.pipeline.epilogues[epilogue].params.iter();
                params.any(|param| param.from == Source::Product(product))
            }
            FragmentStep::Promote { product: other, .. } => other == product,
            FragmentStep::ReadSubtile {
                into: Into::Product { .. },
                ..
            }
            | FragmentStep::SendPartial { .. }
            | FragmentStep::AddPartial { .. } => true,
            FragmentStep::ReadSubtile { .. }
            | FragmentStep::Broadcast { .. }
            | FragmentStep::ReadAhead { .. }
            | FragmentStep::Quantize { .. }
            | FragmentStep::ReadTileScales { .. }
            | FragmentStep::StartSum { .. }
            | FragmentStep::StartProducts
            | FragmentStep::ReadBlocks { .. } => false,
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
            FragmentStep::Amax { tensor, part, .. } => format!(
                "measures subtile {part} for {}",
                self.case.pipeline.kernel.buffers[tensor.index()].name
            ),
            FragmentStep::Quantize { part, to, .. } => match to {
                Scales::Registers => format!("makes the scales of subtile {part}"),
                Scales::Plane { tensor, .. } => format!(
                    "writes the scales of subtile {part} to {}",
                    self.case.pipeline.kernel.buffers[tensor.index()].name
                ),
                Scales::Slot(to) => format!(
                    "writes the scales of subtile {part} to {} on rank {}",
                    self.case.pipeline.kernel.buffers[to.tensor.index()].name,
                    to.rank
                ),
            },
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
            FragmentStep::Broadcast { tensor, along, .. } => {
                let from = &self.case.pipeline.kernel.buffers[tensor.index()].name;
                match along {
                    None => format!("reads {from}"),
                    Some((Side::Columns, first)) => format!("reads {from} from column {first} on"),
                    Some((Side::Rows, first)) => format!("reads {from} from row {first} on"),
                }
            }
            FragmentStep::ReadAhead { tensor, first, .. } => format!(
                "reads {} ahead, from number {first} on",
                self.case.pipeline.kernel.buffers[tensor.index()].name
            ),
            FragmentStep::Apply { epilogue, part } => format!(
                "applies {} to subtile {part}",
                self.case.pipeline.epilogues[*epilogue].name
            ),
        }
    }
}
