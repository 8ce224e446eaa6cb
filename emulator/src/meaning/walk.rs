//! The statements of one role of one rank in order, with loops unrolled and indices as numbers.

use crate::sizes::{Item, Sizes};
use counterflow_codegen::map::Map;
use counterflow_codegen::order::{ByClosure, RankOrder};
use counterflow_codegen::program::{
    Amax, CellIndex, Cells, CounterDim, Home, PartitionId, Pick, Place, Program, Side, Stmt,
    StmtKind, StoreMode, Usage, Var,
};
use counterflow_codegen::rank::{Cond, RankExpr};
use counterflow_codegen::value::{AccId, Value};
use std::ops::Range;

/// A rectangle of a tensor, in the memory of some ranks.
#[derive(Clone, Debug)]
pub(crate) struct Rect {
    pub tensor: usize,
    pub homes: Range<u32>,
    pub slot: u32,
    pub rows: Range<u32>,
    pub columns: Range<u32>,
}

/// A statement's effect.
#[derive(Debug)]
pub(crate) enum Act<'p> {
    /// Another item begins, with empty accumulators.
    Item,
    Wait {
        cells: Vec<usize>,
        at_least: Option<u32>,
    },
    Signal {
        cells: Vec<usize>,
        amount: u32,
    },
    Copy {
        dst: Rect,
        src: Rect,
    },
    Dot {
        acc: AccId,
        a: Rect,
        b: Rect,
    },
    Sum {
        acc: AccId,
        from: Vec<Rect>,
        /// This rank's own term, and where it would be.
        own: Option<(&'p Value, Rect)>,
    },
    Load {
        acc: AccId,
        from: Rect,
    },
    Store {
        dst: Rect,
        mode: StoreMode,
        value: &'p Value,
        amax: Option<&'p Amax>,
    },
}

/// A number for every cell of every rank that a statement names.
#[derive(Default)]
pub(super) struct Names {
    known: Map<(u16, u32, Vec<u32>), usize>,
}

impl Names {
    fn of(&mut self, counter: u16, home: u32, index: Vec<u32>) -> usize {
        let next = self.known.len();
        *self.known.entry((counter, home, index)).or_insert(next)
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }
}

/// A loop variable's value.
#[derive(Clone, Debug)]
enum Bound {
    Nothing,
    Rank(u32),
    Item {
        partition: PartitionId,
        item: Item,
        rows: Range<u32>,
        columns: Range<u32>,
    },
}

pub(super) struct Walk<'a, 'p> {
    program: &'p Program,
    sizes: &'a Sizes<'p>,
    names: &'a mut Names,
    rank: u32,
    bound: Vec<Bound>,
    pub acts: Vec<Act<'p>>,
}

/// Reason that a statement has no meaning in its place.
type Why = String;

impl<'a, 'p> Walk<'a, 'p> {
    pub fn new(
        program: &'p Program,
        sizes: &'a Sizes<'p>,
        names: &'a mut Names,
        rank: u32,
    ) -> Walk<'a, 'p> {
        Walk {
            program,
            sizes,
            names,
            rank,
            bound: vec![Bound::Nothing; program.vars.len()],
            acts: Vec::new(),
        }
    }

    pub fn stmts(&mut self, body: &'p [Stmt]) -> Result<(), Why> {
        body.iter().try_for_each(|stmt| {
            let done = self.stmt(&stmt.kind);
            done.map_err(|why| format!("{why} (rank {}, {})", self.rank, stmt.at))
        })
    }

    fn stmt(&mut self, stmt: &'p StmtKind) -> Result<(), Why> {
        match stmt {
            StmtKind::ForRanks { var, order, body } => {
                let steps = order.steps(self.rank, self.sizes.world, &self.var());
                for step in 0..steps.map_err(|why| why.to_string())? {
                    self.bound[var.index()] = Bound::Rank(self.at(order, step)?);
                    self.stmts(body)?;
                }
            }
            StmtKind::ForItems { var, items, body } => {
                let partition = items.partition;
                let all = self.sizes.shards_of(partition);
                let shards = match &items.shard {
                    None => 0..all,
                    Some(shard) => {
                        let shard = self.number(shard, all)?;
                        shard..shard + 1
                    }
                };
                let order = self.sizes.order(items.order);
                for shard in shards {
                    let (rows, columns) = self.sizes.grid(partition, shard);
                    let some = (items.selection)
                        .of(rows * columns, self.rank, self.sizes.world, &self.var())
                        .map_err(|(_, why)| why.to_string())?;
                    for nth in 0..some.count {
                        let (row, column) = order.at(some.at(nth), rows, columns);
                        let item = Item { shard, row, column };
                        let (rows, columns) = self.sizes.item(partition, item);
                        self.bound[var.index()] = Bound::Item {
                            partition,
                            item,
                            rows,
                            columns,
                        };
                        self.acts.push(Act::Item);
                        self.stmts(body)?;
                    }
                }
                self.bound[var.index()] = Bound::Nothing;
            }
            StmtKind::If {
                cond,
                then,
                otherwise,
            } => {
                let holds = self.holds(cond)?;
                self.stmts(if holds { then } else { otherwise })?;
            }
            StmtKind::Wait {
                cells, at_least, ..
            } => {
                let cells = self.cells(cells)?;
                self.acts.push(Act::Wait {
                    cells,
                    at_least: *at_least,
                });
            }
            StmtKind::Signal { cells, amount } => {
                let cells = self.cells(cells)?;
                self.acts.push(Act::Signal {
                    cells,
                    amount: *amount,
                });
            }
            StmtKind::Copy { dst, src } => {
                let (dst, src) = (self.copied(dst)?, self.copied(src)?);
                self.acts.push(Act::Copy { dst, src });
            }
            StmtKind::Dot { acc, a, b } => {
                let (a, b) = (self.operand(a, true)?, self.operand(b, false)?);
                if !a.columns.is_empty() {
                    self.acts.push(Act::Dot { acc: *acc, a, b });
                }
            }
            StmtKind::Sum { acc, from, own } => {
                let place = Place {
                    slot: Some(Pick::One(RankExpr::Me)),
                    ..from.clone()
                };
                let own = match own {
                    Some(own) => Some((own, self.place(&place)?)),
                    None => None,
                };
                let from = self.places(from)?;
                self.acts.push(Act::Sum {
                    acc: *acc,
                    from,
                    own,
                });
            }
            StmtKind::Load { acc, from } => {
                let from = self.place(from)?;
                self.acts.push(Act::Load { acc: *acc, from });
            }
            StmtKind::Store {
                dst,
                mode,
                value,
                amax,
            } => {
                let dst = self.place(dst)?;
                self.acts.push(Act::Store {
                    dst,
                    mode: *mode,
                    value,
                    amax: amax.as_ref(),
                });
            }
        }
        Ok(())
    }

    fn at(&self, order: &RankOrder<ByClosure>, step: u32) -> Result<u32, Why> {
        let rank = order.at(self.rank, step, self.sizes.world);
        if rank < self.sizes.world {
            Ok(rank)
        } else {
            Err(format!(
                "an order is at rank {rank} of {}",
                self.sizes.world
            ))
        }
    }

    fn var(&self) -> impl Fn(Var) -> Option<i64> + '_ {
        |var| match &self.bound[var.index()] {
            Bound::Rank(index) => Some(i64::from(*index)),
            Bound::Nothing | Bound::Item { .. } => None,
        }
    }

    fn holds(&self, cond: &Cond) -> Result<bool, Why> {
        cond.eval(self.rank, self.sizes.world, &self.var())
            .map_err(|why| why.to_string())
    }

    fn number(&self, expr: &RankExpr, below: u32) -> Result<u32, Why> {
        let value = expr.eval(self.rank, self.sizes.world, &self.var());
        let value = value.map_err(|why| why.to_string())?;
        let fits = u32::try_from(value).ok().filter(|value| *value < below);
        fits.ok_or_else(|| format!("{value} is not below {below}"))
    }

    fn picked(&self, pick: &Pick, below: u32) -> Result<Vec<u32>, Why> {
        Ok(match pick {
            Pick::One(expr) => vec![self.number(expr, below)?],
            Pick::All => (0..below).collect(),
            Pick::Others => (0..below).filter(|rank| *rank != self.rank).collect(),
        })
    }

    fn homes(&self, home: &Home) -> Result<Range<u32>, Why> {
        Ok(match home {
            Home::Me => self.rank..self.rank + 1,
            Home::On(expr) => {
                let rank = self.number(expr, self.sizes.world)?;
                rank..rank + 1
            }
            Home::Everywhere => 0..self.sizes.world,
        })
    }

    /// The rows and columns of the item that `var` visits.
    fn item(&self, var: Var) -> Result<(Range<u32>, Range<u32>), Why> {
        match &self.bound[var.index()] {
            Bound::Item { rows, columns, .. } => Ok((rows.clone(), columns.clone())),
            Bound::Nothing | Bound::Rank(_) => Err("there is no item here".into()),
        }
    }

    /// The part of a place that an item covers, in each named slot.
    fn places(&self, place: &Place) -> Result<Vec<Rect>, Why> {
        self.covered(place, Usage::read_along)
    }

    fn covered(
        &self,
        place: &Place,
        along: fn(Usage, Side) -> Option<Side>,
    ) -> Result<Vec<Rect>, Why> {
        let tensor = place.tensor.index();
        let homes = self.homes(&place.home)?;
        let slots = match &place.slot {
            None => vec![0],
            Some(pick) => self.picked(pick, self.sizes.slots(tensor))?,
        };
        // A vector needs no index: it has the columns of the enclosing item.
        let around = || {
            let standing = |bound: &Bound| matches!(bound, Bound::Item { .. });
            let at = self.bound.iter().position(standing)?;
            Some(Var(u16::try_from(at).ok()?))
        };
        let item = place.item.or_else(around);
        let (rows, columns) = self.item(item.ok_or("there is no item here")?)?;
        let usage = self.program.tensors[tensor].usage;
        let [rows, columns] = Side::ALL.map(|own| match (along(usage, own), own) {
            (Some(Side::Rows), Side::Rows) => {
                let each = usage.rows_each();
                rows.start / each..rows.end.div_ceil(each)
            }
            (Some(Side::Rows), Side::Columns) => rows.clone(),
            (Some(Side::Columns), _) => columns.clone(),
            (None, Side::Rows) => 0..self.sizes.rows(tensor),
            (None, Side::Columns) => 0..self.sizes.columns(tensor),
        });
        // Of tiles in several shards, memory that has one has the rows of that.
        let across = item.is_some_and(|item| self.is_across(item));
        let rows = match across {
            true => common(rows, self.sizes.held(tensor, homes.start)),
            false => rows,
        };
        let rect = |slot| Rect {
            tensor,
            homes: homes.clone(),
            slot,
            rows: rows.clone(),
            columns: columns.clone(),
        };
        Ok(slots.into_iter().map(rect).collect())
    }

    fn is_across(&self, item: Var) -> bool {
        match &self.bound[item.index()] {
            Bound::Item { partition, .. } => self.program.partitions[partition.index()].across,
            Bound::Nothing | Bound::Rank(_) => false,
        }
    }

    fn place(&self, place: &Place) -> Result<Rect, Why> {
        one(self.places(place)?)
    }

    /// The part of a place that a copy of an item moves.
    fn copied(&self, place: &Place) -> Result<Rect, Why> {
        one(self.covered(place, Usage::copied_along)?)
    }

    /// An operand of a product over K: the item's rows for the first, its columns as rows for the second.
    fn operand(&self, place: &Place, first: bool) -> Result<Rect, Why> {
        let tensor = place.tensor.index();
        let item = place.item.ok_or("an operand names no tile")?;
        let (rows, columns) = self.item(item)?;
        let depth = self.sizes.columns(tensor);
        Ok(Rect {
            tensor,
            homes: self.homes(&place.home)?,
            slot: 0,
            rows: if first { rows } else { columns },
            columns: 0..depth,
        })
    }

    fn cells(&mut self, cells: &Cells) -> Result<Vec<usize>, Why> {
        let set = &self.program.counters[cells.counter.index()];
        let mut indices = vec![Vec::new()];
        for (index, dim) in cells.index.iter().zip(&set.dims) {
            let along = self.along(index, *dim)?;
            indices = indices
                .iter()
                .flat_map(|before: &Vec<u32>| {
                    along
                        .iter()
                        .map(move |next| [before.as_slice(), next].concat())
                })
                .collect();
        }
        let mut found = Vec::new();
        for home in self.homes(&cells.home)? {
            for index in &indices {
                found.push(self.names.of(cells.counter.0, home, index.clone()));
            }
        }
        Ok(found)
    }

    /// The cells along one axis: a number each, or an item.
    fn along(&self, index: &CellIndex, dim: CounterDim) -> Result<Vec<Vec<u32>>, Why> {
        let of = |item: Item| vec![item.shard, item.row, item.column];
        Ok(match index {
            CellIndex::Rank(pick) => {
                let below = match dim {
                    CounterDim::World => self.sizes.world,
                    CounterDim::Count(count) => count,
                    CounterDim::Items(_) => return Err("a rank indexes items".into()),
                };
                let picked = self.picked(pick, below)?;
                picked.into_iter().map(|one| vec![one]).collect()
            }
            CellIndex::Item(var) => match &self.bound[var.index()] {
                Bound::Item { item, .. } => vec![of(*item)],
                Bound::Nothing | Bound::Rank(_) => {
                    return Err("there is no item here".into());
                }
            },
            CellIndex::Along(var, side) => {
                let bound = &self.bound[var.index()];
                let (
                    CounterDim::Items(counted),
                    Bound::Item {
                        partition,
                        item,
                        rows,
                        columns,
                    },
                ) = (dim, bound)
                else {
                    return Err("rows index what has none".into());
                };
                let Some(along) = self.sizes.side_of(counted, *partition, *side) else {
                    return Err("a side indexes items of other tensors".into());
                };
                let extent = match side {
                    Side::Rows => rows,
                    Side::Columns => columns,
                };
                let divided = self.sizes.divides(counted, along);
                let shards = match self.program.partitions[partition.index()].across {
                    true if divided => 0..self.sizes.shards_of(counted),
                    true | false if divided => item.shard..item.shard + 1,
                    true | false => 0..1,
                };
                let candidates = shards.flat_map(|shard| {
                    let (down, across) = self.sizes.grid(counted, shard);
                    let all = (0..down).flat_map(move |row| (0..across).map(move |it| (row, it)));
                    all.map(move |(row, column)| Item { shard, row, column })
                });
                let meets = |a: &Range<u32>, b: &Range<u32>| a.start < b.end && b.start < a.end;
                let holds = |candidate: &Item| {
                    let (rows, columns) = self.sizes.item(counted, *candidate);
                    match along {
                        Side::Rows => meets(&rows, extent),
                        Side::Columns => meets(&columns, extent),
                    }
                };
                candidates.filter(holds).map(of).collect()
            }
        })
    }
}

/// The only place that a statement names.
fn one(places: Vec<Rect>) -> Result<Rect, Why> {
    let mut places = places.into_iter();
    places.next().ok_or_else(|| "no slot is named".into())
}

/// Common part of two ranges: an empty range within the second one, if they share nothing.
fn common(of: Range<u32>, held: Range<u32>) -> Range<u32> {
    let start = of.start.clamp(held.start, held.end);
    start..of.end.clamp(start, held.end)
}
