//! Ranks, spans and cells of one step: expressions become numbers, and what is out of bounds is refused.

use super::*;

impl Walker<'_> {
    pub(super) fn var(&self) -> impl Fn(Var) -> Option<i64> + '_ {
        |var| match self.bound.get(var.index()) {
            Some(Bound::Rank(rank)) => Some(i64::from(*rank)),
            Some(Bound::Nothing | Bound::Item { .. } | Bound::Split { .. }) | None => None,
        }
    }

    pub(super) fn name(&self) -> impl Fn(Var) -> String + '_ {
        |var| {
            self.kernel
                .vars
                .get(var.index())
                .cloned()
                .unwrap_or_default()
        }
    }

    pub(super) fn holds(
        &self,
        cond: &crate::rank::Cond,
        op: Option<OpId>,
    ) -> Result<bool, Diagnostic> {
        cond.eval(self.rank, self.geometry.world, &self.var())
            .map_err(|error| self.no_value(&cond.text(&self.name()), error, op))
    }

    fn no_value(&self, text: &str, error: RankError, op: Option<OpId>) -> Diagnostic {
        let at = op.map(|op| self.kernel.loc(op));
        Diagnostic::new(
            Rule::Bounds,
            at,
            format!("`{text}` has no value on rank {}: {error}", self.rank),
        )
    }

    pub(super) fn rank_value(
        &self,
        expr: &RankExpr,
        below: u32,
        what: &str,
        op: Option<OpId>,
    ) -> Result<u32, Diagnostic> {
        let value = expr
            .eval(self.rank, self.geometry.world, &self.var())
            .map_err(|error| self.no_value(&expr.text(&self.name()), error, op))?;
        match u32::try_from(value) {
            Ok(value) if value < below => Ok(value),
            _ => Err(Diagnostic::new(
                Rule::Bounds,
                op.map(|op| self.kernel.loc(op)),
                format!(
                    "`{}` is {what} {value} on rank {} of {}, but there are only {below}",
                    expr.text(&self.name()),
                    self.rank,
                    self.geometry.world
                ),
            )
            .hint("wrap it with `% world()`, or guard it with `if`")),
        }
    }

    fn picked(&self, pick: &Pick, below: u32, what: &str, op: OpId) -> Result<Picked, Diagnostic> {
        Ok(match pick {
            Pick::One(expr) => {
                let one = self.rank_value(expr, below, what, Some(op))?;
                Picked {
                    range: one..one + 1,
                    without: None,
                }
            }
            Pick::All => Picked {
                range: 0..below,
                without: None,
            },
            Pick::Others => Picked {
                range: 0..below,
                without: Some(self.rank),
            },
        })
    }

    pub(super) fn slots(&self, op: OpId, region: &Region) -> Result<Picked, Diagnostic> {
        let buffer = &self.kernel.buffers[region.buffer.index()];
        match &region.slot {
            None => Ok(Picked {
                range: 0..1,
                without: None,
            }),
            Some(pick) => self.picked(pick, buffer.slots(self.geometry.world), "slot", op),
        }
    }

    pub(super) fn home(&self, home: &Home, op: OpId) -> Result<u16, Diagnostic> {
        Ok(match home {
            Home::Me => narrow(self.rank),
            Home::On(expr) => {
                narrow(self.rank_value(expr, self.geometry.world, "rank", Some(op))?)
            }
            Home::Everywhere => EVERYWHERE,
        })
    }

    pub(super) fn span(&self, op: OpId, region: &Region, slot: u32) -> Result<Span, Diagnostic> {
        let buffer = &self.kernel.buffers[region.buffer.index()];
        let home = self.home(&region.home, op)?;
        let rows = self.axis(region.rows, buffer.rows);
        let columns = self.axis(region.columns, buffer.columns);
        let span = Span {
            buffer: region.buffer,
            home,
            slot: narrow(slot),
            rows,
            columns,
        };
        if home != EVERYWHERE && !rows.is_empty() && buffer.kind != TensorKind::Vector {
            let held = self.geometry.held(buffer, u32::from(home));
            if rows.start < held.start || rows.end > held.end {
                return Err(Diagnostic::new(
                    Rule::Bounds,
                    self.kernel.loc(op),
                    format!(
                        "rank {} touches rows {}..{} of {} on rank {home}, which holds only rows {}..{} of it",
                        self.rank, rows.start, rows.end, buffer.name, held.start, held.end
                    ),
                )
                .hint(format!("{} holds on each rank only the chunk it owns: address the owner with `.on(rank)`", buffer.name)));
            }
        }
        Ok(span)
    }

    fn axis(&self, axis: Axis, dim: crate::kernel::DimId) -> Extent {
        let all = Extent {
            start: 0,
            end: self.geometry.size(dim),
        };
        let bound = |var: Var| self.bound[var.index()];
        match axis {
            Axis::All => all,
            Axis::RowsOf(var) => match bound(var) {
                Bound::Item { partition, item } => self.geometry.item(partition, item).0,
                Bound::Nothing | Bound::Rank(_) | Bound::Split { .. } => all,
            },
            Axis::ColumnsOf(var) => match bound(var) {
                Bound::Item { partition, item } => self.geometry.item(partition, item).1,
                Bound::Nothing | Bound::Rank(_) | Bound::Split { .. } => all,
            },
            Axis::Split(var) => match bound(var) {
                Bound::Split { index, count } => self.geometry.split(all.end, index, count),
                Bound::Nothing | Bound::Rank(_) | Bound::Item { .. } => all,
            },
        }
    }

    /// Emits one step for each cell, last axis fastest.
    pub(super) fn cells(
        &mut self,
        op: OpId,
        cells: &Cells,
        step: impl Fn(CounterId, u16, u32) -> StepKind,
    ) -> Result<(), Diagnostic> {
        let homes = match self.home(&cells.home, op)? {
            EVERYWHERE => 0..narrow(self.geometry.world),
            home => home..home + 1,
        };
        for home in homes {
            self.cells_of(op, cells, 0, 0, &|walker: &mut Self, cell| {
                walker.push(op, step(cells.counter, home, cell));
            })?;
        }
        Ok(())
    }

    fn cells_of(
        &mut self,
        op: OpId,
        cells: &Cells,
        axis: usize,
        base: u32,
        emit: &impl Fn(&mut Self, u32),
    ) -> Result<(), Diagnostic> {
        let Some(index) = cells.index.get(axis) else {
            emit(self, base);
            return Ok(());
        };
        let size = self.geometry.counter_axes(cells.counter)[axis];
        let base = base * size;
        match index {
            CellIndex::Rank(pick) => {
                for at in self.picked(pick, size, "cell", op)? {
                    self.cells_of(op, cells, axis + 1, base + at, emit)?;
                }
            }
            CellIndex::Item(var) => {
                if let Bound::Item { partition, item } = self.bound[var.index()] {
                    let at = self.geometry.cell(partition, item);
                    self.cells_of(op, cells, axis + 1, base + at, emit)?;
                }
            }
            CellIndex::Rows(var, split) => {
                let CounterDim::Items(covered) =
                    self.kernel.counters[cells.counter.index()].dims[axis]
                else {
                    return Ok(());
                };
                let Bound::Item { partition, item } = self.bound[var.index()] else {
                    return Ok(());
                };
                let rows = self.geometry.item(partition, item).0;
                let columns = split.map(|split| {
                    let size = self
                        .geometry
                        .size(self.kernel.partitions[covered.index()].columns);
                    match self.bound[split.index()] {
                        Bound::Split { index, count } => self.geometry.split(size, index, count),
                        Bound::Nothing | Bound::Rank(_) | Bound::Item { .. } => Extent {
                            start: 0,
                            end: size,
                        },
                    }
                });
                let (rows, columns) = self
                    .geometry
                    .overlapping(covered, item.chunk, rows, columns);
                for row in rows {
                    for column in columns.clone() {
                        let at = self.geometry.cell(
                            covered,
                            shape::Item {
                                chunk: item.chunk,
                                row,
                                column,
                            },
                        );
                        self.cells_of(op, cells, axis + 1, base + at, emit)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Indices along one axis: a range, perhaps without me.
pub(super) struct Picked {
    range: std::ops::Range<u32>,
    without: Option<u32>,
}

impl Iterator for Picked {
    type Item = u32;
    fn next(&mut self) -> Option<u32> {
        let next = self.range.next()?;
        if Some(next) == self.without {
            self.range.next()
        } else {
            Some(next)
        }
    }
}
