//! The contents of memory and accumulators while statements are executed, as sums of terms instead of numbers.

use super::terms::{NOTHING, SumId, Sums, Term};
use crate::meaning::walk::{Act, Rect};
use crate::meaning::{Memory, agents, part, part_mut, parts};
use crate::sizes::Sizes;
use counterflow_codegen::map::Map;
use counterflow_codegen::program::{AtStart, Program, Side, StoreMode, Usage};
use counterflow_codegen::value::{AccId, Value};
use ndarray::{Array2, Axis, Slice, Zip};
use std::ops::Range;

/// The contents of memory and accumulators, as sums of terms.
pub(super) struct Held<'a> {
    pub program: &'a Program,
    pub sizes: &'a Sizes<'a>,
    pub sums: Sums,
    /// By rank and tensor.
    planes: Vec<Array2<SumId>>,
    accs: Vec<Map<AccId, Filled>>,
}

/// An accumulator with its rows and columns. A vector is one row for all rows.
#[derive(Clone)]
struct Filled {
    ids: Array2<SumId>,
    rows: Range<u32>,
    columns: Range<u32>,
    /// True if it is the same in all rows.
    vector: bool,
    /// And in all columns.
    scale: bool,
}

impl<'a> Held<'a> {
    /// Without contents.
    pub fn new(program: &'a Program, sizes: &'a Sizes<'a>) -> Held<'a> {
        Held {
            program,
            sizes,
            sums: Sums::new(),
            planes: Vec::new(),
            accs: vec![Map::default(); agents(program, sizes.world)],
        }
    }

    /// Has the contents before a launch.
    pub fn begin(&mut self) {
        let (sizes, sums) = (self.sizes, &mut self.sums);
        for rank in 0..sizes.world {
            for (tensor, of) in self.program.tensors.iter().enumerate() {
                let rows = sizes.held(tensor, rank).len() * sizes.slots(tensor) as usize;
                let scaled = of.usage.given_scale_of();
                let scaled = scaled.map(|of| self.program.tensors[of.index()].usage);
                let before = match of.usage.at_start() {
                    AtStart::Whole | AtStart::Shard if scaled.is_some_and(Usage::is_input) => {
                        sums.one(Term::Scale)
                    }
                    AtStart::Whole if scaled.is_some_and(Usage::is_scratch) => {
                        sums.one(Term::Divisor)
                    }
                    AtStart::Whole if of.usage.amax_of().is_none() => {
                        sums.one(Term::Input { rank, tensor })
                    }
                    AtStart::Shard => sums.one(Term::Input { rank: 0, tensor }),
                    AtStart::Whole | AtStart::Nothing => NOTHING,
                };
                let columns = sizes.columns(tensor) as usize;
                self.planes.push(Array2::from_elem((rows, columns), before));
            }
        }
    }

    fn index(&self, rank: u32, tensor: usize) -> usize {
        rank as usize * self.program.tensors.len() + tensor
    }

    pub fn plane(&self, rank: u32, tensor: usize) -> &Array2<SumId> {
        &self.planes[self.index(rank, tensor)]
    }

    fn read(&self, home: u32, rect: &Rect) -> Result<Filled, String> {
        let held = self.sizes.held(rect.tensor, home);
        let plane = self.plane(home, rect.tensor);
        let usage = self.program.tensors[rect.tensor].usage;
        let ids = part(plane, &parts(&held, rect)?).to_owned();
        // One number for each column of the item is a row.
        let by_columns = usage.read_along(Side::Rows) == Some(Side::Columns);
        let (ids, columns) = match by_columns {
            true => (ids.reversed_axes(), &rect.rows),
            false => (ids, &rect.columns),
        };
        Ok(Filled {
            ids,
            rows: rect.rows.clone(),
            columns: columns.clone(),
            vector: usage.is_same_in(Side::Rows),
            scale: usage.is_same_in(Side::Columns),
        })
    }

    /// Stores or adds sums. A gathered tensor holds what it gathers, whoever fills it.
    fn write(&mut self, dst: &Rect, mode: StoreMode, ids: &Array2<SumId>) -> Result<(), String> {
        if self.program.tensors[dst.tensor].usage.is_gathered() {
            return Ok(());
        }
        for home in dst.homes.clone() {
            let window = parts(&self.sizes.held(dst.tensor, home), dst)?;
            let at = self.index(home, dst.tensor);
            let sums = &mut self.sums;
            let mut there = part_mut(&mut self.planes[at], &window);
            there.zip_mut_with(ids, |there, id| {
                *there = match mode {
                    StoreMode::Write => *id,
                    StoreMode::Add => sums.plus(*there, *id, 1),
                };
            });
        }
        Ok(())
    }

    /// The sums as seen from a rectangle: terms of other rows or columns are elsewhere.
    fn seen(&mut self, filled: &Filled, from: &Rect) -> Array2<SumId> {
        let shape = (from.rows.len(), from.columns.len());
        let within = filled.rows.start <= from.rows.start && from.rows.end <= filled.rows.end;
        let rows = filled.vector || within;
        let here = rows && (filled.scale || filled.columns == from.columns);
        let mut ids = filled.ids.view();
        if here && !filled.vector {
            let first = (from.rows.start - filled.rows.start) as usize;
            let some = first..first + from.rows.len();
            ids.slice_axis_inplace(Axis(0), Slice::from(some));
        }
        let ids = ids.broadcast(shape).filter(|_| here);
        ids.map(|ids| ids.to_owned())
            .unwrap_or_else(|| Array2::from_elem(shape, self.sums.one(Term::Elsewhere)))
    }

    /// Adds to an accumulator. If the rows or columns differ from before, the result is elsewhere.
    fn fill(&mut self, agent: usize, acc: AccId, mut more: Filled) {
        if let Some(before) = self.accs[agent].remove(&acc) {
            let alike = before.ids.dim() == more.ids.dim() && before.rows == more.rows;
            if alike && before.columns == more.columns {
                let sums = &mut self.sums;
                let both = Zip::from(&before.ids).and(&more.ids);
                more.ids = both.map_collect(|before, more| sums.plus(*before, *more, 1));
            } else {
                more.ids.fill(self.sums.one(Term::Elsewhere));
            }
        }
        self.accs[agent].insert(acc, more);
    }

    /// The sums of an expression in each element of a rectangle.
    fn value(&mut self, agent: usize, dst: &Rect, value: &Value) -> Array2<SumId> {
        let mut accs = Vec::new();
        for acc in value.accs() {
            if let Some(filled) = self.accs[agent].get(&acc).cloned() {
                accs.push((acc, self.seen(&filled, dst)));
            }
        }
        let mut known: Map<Vec<SumId>, SumId> = Map::default();
        // Neighbours are nearly always alike.
        let mut last: (Vec<SumId>, SumId) = (Vec::new(), NOTHING);
        let shape = (dst.rows.len(), dst.columns.len());
        Array2::from_shape_fn(shape, |at| {
            let here = accs.iter().map(|(_, ids)| ids[at]);
            if !accs.is_empty() && here.clone().eq(last.0.iter().copied()) {
                return last.1;
            }
            let here: Vec<SumId> = here.collect();
            if let Some(sum) = known.get(&here) {
                last = (here, *sum);
                return *sum;
            }
            let acc = |id: AccId| {
                let mut filled = accs.iter().zip(&here);
                let found = filled.find(|((acc, _), _)| *acc == id);
                found.map_or(NOTHING, |(_, sum)| *sum)
            };
            let sum = self.sums.of_value(value, &acc);
            known.insert(here, sum);
            sum
        })
    }
}

impl Memory for Held<'_> {
    fn act(&mut self, agent: usize, rank: u32, act: &Act<'_>) -> Result<(), String> {
        match act {
            Act::Wait { .. } | Act::Signal { .. } => {}
            Act::Item => self.accs[agent].clear(),
            Act::Copy { dst, src } => {
                let read = self.read(src.homes.start, src)?;
                let ids = self.seen(&read, dst);
                self.write(dst, StoreMode::Write, &ids)?;
            }
            Act::Dot { acc, a, b } => {
                let operands = (a.tensor, b.tensor);
                let product = self.sums.one(Term::Product { rank, operands });
                let product = Filled {
                    ids: Array2::from_elem((a.rows.len(), b.rows.len()), product),
                    rows: a.rows.clone(),
                    columns: b.rows.clone(),
                    vector: false,
                    scale: false,
                };
                self.fill(agent, *acc, product);
            }
            Act::Sum { acc, from, own } => {
                if let Some((value, of)) = own {
                    let own = Filled {
                        ids: self.value(agent, of, value),
                        rows: of.rows.clone(),
                        columns: of.columns.clone(),
                        vector: false,
                        scale: false,
                    };
                    self.fill(agent, *acc, own);
                }
                for from in from {
                    for home in from.homes.clone() {
                        let read = self.read(home, from)?;
                        self.fill(agent, *acc, read);
                    }
                }
            }
            Act::Load { acc, from } => {
                let read = self.read(from.homes.start, from)?;
                self.accs[agent].insert(*acc, read);
            }
            Act::Store {
                dst, mode, value, ..
            } => {
                let ids = self.value(agent, dst, value);
                self.write(dst, *mode, &ids)?;
            }
        }
        Ok(())
    }
}
