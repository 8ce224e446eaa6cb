//! Work on a thread's fragment of a tile, in words.

use super::Printer;
use crate::program::TensorId;
use crate::warp::spelling::number;
use crate::warp::{Elements, Expr, FragmentOp, ReadInto, ScalesTo, Source};

/// Words for one of several shares.
fn in_share(share: u32, shares: u32) -> String {
    match shares {
        1 => String::new(),
        _ => format!(", share {share}"),
    }
}

impl Printer<'_> {
    /// Words for a subtile's elements.
    fn elements(&self, elements: Elements, part: &Expr) -> String {
        match elements {
            Elements::Applied(index) => self.pipeline.epilogues[index].name.clone(),
            Elements::Product(product) => {
                format!("{}[{}]", self.accumulators(product), number(part, self))
            }
        }
    }

    /// One operation.
    pub(super) fn fragment(&self, op: &FragmentOp) -> String {
        let number = |expr: &Expr| number(expr, self);
        match op {
            FragmentOp::ReadSubtile {
                ring,
                slot_part,
                index,
                dtype,
                into,
            } => {
                let from = self.part(*ring, *slot_part, index);
                match into {
                    ReadInto::Own { name, .. } => format!("{name} = {from} as {dtype}"),
                    ReadInto::Sum { name, .. } => format!("{name} += {from} as {dtype}"),
                    ReadInto::Product { part, scaled } => {
                        let by = if *scaled { " by its scales" } else { "" };
                        format!("acc[{}] += {from}{by}", number(part))
                    }
                }
            }
            FragmentOp::StartSum { name, .. } => format!("{name} = 0"),
            FragmentOp::AddOwn {
                name,
                elements,
                part,
                dtype,
                ..
            } => format!("{name} += {} as {dtype}", self.elements(*elements, part)),
            FragmentOp::Broadcast {
                name,
                tensor,
                along,
                ..
            } => {
                let from = &self.pipeline.kernel.buffers[tensor.index()].name;
                match along {
                    Some(along) => format!("{name} = {from}[{}..]", number(&along.first)),
                    None => format!("{name} = {from}"),
                }
            }
            FragmentOp::ReadAhead { tensor, along } => {
                let vector = &self.pipeline.kernel.buffers[tensor.index()].name;
                format!("read ahead {vector}[{}..]", number(&along.first))
            }
            FragmentOp::ReadBlocks {
                ring,
                scale,
                number: nth,
                begin,
                share,
            } => {
                let part = self.tiling().operands().len() + scale;
                let name = &self.pipeline.ring(*ring).part(self.tiling, part).name;
                let of = match nth {
                    Expr::Const(0) => String::new(),
                    nth => format!(", number {}", number(nth)),
                };
                let begins = match begin {
                    Expr::Const(0) => String::new(),
                    begin => format!(", from {} of a block on", number(begin)),
                };
                let of = of + &begins + &in_share(*share, self.tiling().shares_of_scale(*scale));
                format!("{name}s = {}{of}", self.part(*ring, part, &Expr::Const(0)))
            }
            FragmentOp::Promote {
                multiply,
                piece,
                share,
            } => {
                let product = self.tiling().multiplies()[*multiply].first;
                let scales = self.tiling().products()[product].into_iter();
                let scales = scales.filter_map(|operand| self.tiling().scale_of(operand));
                let scales = scales.map(|scale| {
                    let part = self.tiling().operands().len() + scale;
                    let ring = &self.pipeline.rings[0];
                    format!(" * {}s", ring.part(self.tiling, part).name)
                });
                let scales: String = scales.collect();
                let shares = self.tiling().promotion().map_or(1, |it| it.shares);
                let share = in_share(*share, shares);
                format!(
                    "{} += short{scales}, {piece}{share}",
                    self.accumulators(product)
                )
            }
            FragmentOp::Apply { epilogue, part } => {
                let epilogue = &self.pipeline.epilogues[*epilogue];
                let name = |acc| {
                    let param = epilogue.params.iter().find(|param| param.acc == acc);
                    match param.map(|param| (param.from, &param.name)) {
                        Some((Source::Subtile | Source::Sum | Source::Broadcast(_), name)) => {
                            name.clone()
                        }
                        Some((Source::Product(product), _)) => {
                            format!("{}[{}]", self.accumulators(product), number(part))
                        }
                        None => format!("acc[{}]", number(part)),
                    }
                };
                format!("{} = {}", epilogue.name, epilogue.value.text(&name))
            }
            FragmentOp::WriteSubtile {
                ring,
                part,
                elements,
                dtype,
                scaled,
                ..
            } => {
                let from = self.elements(*elements, part);
                let by = if *scaled { " by its scales" } else { "" };
                let to = if *dtype == self.pipeline.dtype() {
                    String::new()
                } else {
                    format!(" as {dtype}")
                };
                format!("write {} <- {from}{by}{to}", self.ring(*ring))
            }
            FragmentOp::Quantize {
                elements,
                part,
                columns,
                to,
            } => {
                let from = self.elements(*elements, part);
                let [column, columns] = columns.each_ref().map(number);
                let buffers = &self.pipeline.kernel.buffers;
                let name = |tensor: &TensorId| &buffers[tensor.index()].name;
                let rule = self.pipeline.kernel.rule();
                let each = rule.map_or(1, |rule| rule.block().columns);
                match to {
                    ScalesTo::Registers => {
                        format!("make scales of |{from}| of [{column}..{columns}]")
                    }
                    ScalesTo::Plane { tensor, rows, all } => {
                        let [row, rows] = rows.each_ref().map(number);
                        let [all, line] = all.each_ref().map(number);
                        format!(
                            "{}[({column}) / {each}, {row}..{rows}] <- scales of |{from}| of [..{columns}], zeros in {all}..{line}",
                            name(tensor)
                        )
                    }
                    ScalesTo::Slot { tensor, to, rows } => {
                        let [rank, slot] = to.each_ref().map(number);
                        let [row, rows] = rows.each_ref().map(number);
                        format!(
                            "{} on {rank}, slot {slot} [{row}..{rows}, ({column}) / {each}] <- scales of |{from}| of [..{columns}]",
                            name(tensor)
                        )
                    }
                }
            }
            FragmentOp::ReadTileScales {
                tensor,
                slot,
                rows,
                columns,
            } => {
                let plane = &self.pipeline.kernel.buffers[tensor.index()].name;
                let slot = number(slot);
                let [row, rows] = rows.each_ref().map(number);
                let [column, columns] = columns.each_ref().map(number);
                format!("scales <- {plane}, slot {slot} [{row}..{rows}, {column}..{columns}]")
            }
            FragmentOp::Amax {
                tensor,
                elements,
                part,
                rows,
                columns,
            } => {
                let to = &self.pipeline.kernel.buffers[tensor.index()].name;
                let from = self.elements(*elements, part);
                let [row, rows, column, columns] =
                    [&rows[0], &rows[1], &columns[0], &columns[1]].map(number);
                format!("{to} = max({to}, |{from}| of [{row}..{rows}, {column}..{columns}])")
            }
            FragmentOp::SendPartial {
                ring,
                to,
                index,
                part,
            } => format!(
                "send acc[{}] to CTA {} of the cluster, {}",
                number(part),
                number(to),
                self.part(*ring, 0, index)
            ),
            FragmentOp::AddPartial { ring, index, part } => {
                format!("acc[{}] += {}", number(part), self.part(*ring, 0, index))
            }
        }
    }
}
