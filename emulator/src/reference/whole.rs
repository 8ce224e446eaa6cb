//! The promise of a tensor's type: each rank's complete products, added once, whatever the schedule does to get there.
//!
//! The statements, executed one after another on terms instead of numbers, decide which products are added, and what is
//! done with their sum. They do not decide how often, where or in which parts: a product that the schedule adds twice,
//! or leaves out on a rank, counts once per rank here. If the statements leave the promise open, there is no reference.

use super::held::Held;
use super::terms::{Operands, SumId, Term};
use crate::blocks::Blocks;
use crate::expected::NoReference;
use crate::inputs::Inputs;
use crate::known::{Known, apply};
use crate::meaning::{Products, in_turns, part, part_mut};
use crate::product::product;
use crate::sizes::Sizes;
use counterflow_codegen::encoded::scale_of;
use counterflow_codegen::program::{AtEnd, Program, Side, TensorId, Usage};
use counterflow_codegen::shape::Extent;
use counterflow_codegen::value::AccId;
use ndarray::{Array2, Axis, Slice, Zip};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

/// Tensors' contents as their types promise.
pub(super) struct Wholes<'a> {
    held: Held<'a>,
    inputs: &'a Inputs,
    products: &'a Products,
    /// Products of a rank, and of all ranks together.
    known: HashMap<(Option<u32>, Operands), Array2<f64>>,
}

/// Number of times that a term counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    /// In a sum over ranks: what one rank contributes, every rank contributes once.
    EveryRank,
    /// Every term once.
    Once,
    /// As often as it was added.
    AsWritten,
    /// As often as it was added, by that rank: what it sends, whoever computed it.
    Sent(u32),
}

/// Part of a tensor: which rows, as what some rank has in them counts.
struct Part {
    rank: u32,
    slot: usize,
    rows: Range<u32>,
    count: Count,
}

/// True if a tensor's type promises sums of terms.
fn promises(usage: Usage) -> bool {
    match usage.at_end {
        AtEnd::Computed | AtEnd::Accumulated | AtEnd::Sum { .. } | AtEnd::Sent => true,
        // A gathered tensor is what was given.
        AtEnd::Gathered | AtEnd::Nothing | AtEnd::Own => false,
    }
}

impl<'a> Wholes<'a> {
    pub fn new(
        program: &'a Program,
        sizes: &'a Sizes<'a>,
        inputs: &'a Inputs,
        products: &'a Products,
    ) -> Result<Self, NoReference> {
        let mut held = Held::new(program, sizes);
        // Terms of all elements are as much as the numbers are: most products promise nothing.
        if program.tensors.iter().any(|tensor| promises(tensor.usage)) {
            held.begin();
            in_turns(program, sizes, &mut held)?;
        }
        Ok(Wholes {
            held,
            inputs,
            products,
            known: HashMap::new(),
        })
    }

    /// A rank's tensor at the end, row by row, by the promise of its type.
    pub fn of(&mut self, tensor: usize, rank: u32) -> Option<Result<Vec<f64>, String>> {
        let sizes = self.held.sizes;
        let ranks = 0..sizes.world;
        let here = |slot: u32, count: Count| Part {
            rank,
            slot: slot as usize,
            rows: sizes.held(tensor, rank),
            count,
        };
        let every: Vec<Part> = match self.held.program.tensors[tensor].usage.at_end {
            AtEnd::Gathered => {
                let all = self.inputs.seen(rank, tensor);
                return Some(Ok(all.into_iter().collect()));
            }
            AtEnd::Computed => ranks
                .map(|owner| Part {
                    rank: owner,
                    slot: 0,
                    rows: sizes.shard(tensor, owner),
                    count: Count::Sent(owner),
                })
                .collect(),
            AtEnd::Accumulated => vec![here(0, Count::Once)],
            AtEnd::Sum { .. } => vec![here(0, Count::EveryRank)],
            AtEnd::Sent => ranks.map(|from| here(from, Count::Sent(from))).collect(),
            AtEnd::Nothing | AtEnd::Own => return None,
        };
        let parts = every.iter().map(|part| self.promised(tensor, part));
        Some(
            parts
                .collect::<Result<Vec<_>, _>>()
                .map(|parts| parts.concat()),
        )
    }

    /// A part, row by row.
    fn promised(&mut self, tensor: usize, wanted: &Part) -> Result<Vec<f64>, String> {
        let held = self.held.sizes.held(tensor, wanted.rank);
        let first = wanted.rows.start as usize;
        let start = wanted.slot * held.len() + first - held.start as usize;
        let there = Slice::from(start..start + wanted.rows.len());
        let ids = self.held.plane(wanted.rank, tensor);
        let ids = ids.slice_axis(Axis(0), there).to_owned();
        let mut bounds: BTreeMap<SumId, Range<usize>> = BTreeMap::new();
        for ((row, _), id) in ids.indexed_iter() {
            let rows = bounds.entry(*id).or_insert(row..row + 1);
            rows.end = row + 1;
        }
        let mut all = Array2::from_elem(ids.raw_dim(), f64::NAN);
        for (id, rows) in bounds {
            let there = first + rows.start..first + rows.end;
            let known = self.value(id, &there, wanted.count)?;
            let known = known.widened((rows.len(), ids.ncols()));
            let window = (rows, 0..ids.ncols());
            Zip::from(part_mut(&mut all, &window))
                .and(part(&ids, &window))
                .and(&known.value)
                .for_each(|all, at, value| {
                    if *at == id {
                        *all = *value;
                    }
                });
        }
        Ok(all.into_iter().collect())
    }

    /// A sum in those rows.
    fn value(&mut self, sum: SumId, rows: &Range<usize>, count: Count) -> Result<Known, String> {
        let terms = self.held.sums.terms(sum);
        let multiplies = |term: &Term| matches!(term, Term::Product { .. } | Term::Function(_));
        let multiplied = terms.keys().any(multiplies);
        let every = count == Count::EveryRank;
        let whose = |rank: u32| match count {
            Count::Sent(by) => by,
            Count::EveryRank | Count::Once | Count::AsWritten => rank,
        };
        let mut all = Known::zero(1, 1);
        let mut done: BTreeSet<(usize, usize)> = BTreeSet::new();
        let mut add = |times: i32, of: Array2<f64>| {
            let of = Known::exact(of * f64::from(times));
            all = all.plus(&of);
        };
        for (term, times) in &*terms {
            let times = match count {
                Count::AsWritten | Count::Sent(_) => *times,
                Count::EveryRank | Count::Once => times.signum(),
            };
            match *term {
                Term::Elsewhere => {
                    return Err("it holds values of other rows or columns".into());
                }
                Term::Scale | Term::Divisor => {
                    return Err("it holds a scale without a product".into());
                }
                Term::Constant(bits) => {
                    add(
                        times,
                        Array2::from_elem((1, 1), f64::from(f32::from_bits(bits))),
                    );
                }
                Term::Function(index) => {
                    let function = self.held.sums.function(index);
                    let count = match count {
                        Count::EveryRank | Count::Sent(_) => count,
                        Count::Once | Count::AsWritten => Count::AsWritten,
                    };
                    let mut of = Vec::new();
                    for argument in function.of {
                        of.push(self.value(argument, rows, count)?);
                    }
                    let argument = |acc: AccId| of[usize::from(acc.0)].clone();
                    add(times, apply(&function.value, &argument, &[]).value);
                }
                Term::Product { rank, operands } if !every => {
                    add(times, self.product(Some(whose(rank)), operands, rows));
                }
                Term::Product { operands, .. } => {
                    if done.insert(operands) {
                        // Contributions are added, even if a rank subtracts its own.
                        add(1, self.product(None, operands, rows));
                    }
                }
                Term::Input { rank, tensor } => {
                    let like = |term: &&Term| matches!(term, Term::Input { tensor: other, .. } if *other == tensor);
                    let ranks = terms.keys().filter(like).count();
                    if !every || ranks == 1 {
                        add(times, self.input(whose(rank), tensor, rows));
                    } else if multiplied {
                        let name = &self.held.program.tensors[tensor].name;
                        return Err(format!("{ranks} ranks add {name} to the sum"));
                    } else if done.insert((tensor, tensor)) {
                        for rank in 0..self.held.sizes.world {
                            add(1, self.input(rank, tensor, rows));
                        }
                    }
                }
            }
        }
        Ok(all)
    }

    /// Rows of an input. A vector is one row for all rows.
    fn input(&self, rank: u32, tensor: usize, rows: &Range<usize>) -> Array2<f64> {
        let all = self.inputs.seen(rank, tensor);
        if self.held.program.tensors[tensor].usage.is_repeated() {
            return all;
        }
        all.slice_axis(Axis(0), Slice::from(rows.clone()))
            .to_owned()
    }

    /// Rows of a rank's product, or of all ranks' together.
    fn product(
        &mut self,
        rank: Option<u32>,
        operands: Operands,
        rows: &Range<usize>,
    ) -> Array2<f64> {
        if !self.known.contains_key(&(rank, operands)) {
            let ranks = rank.map_or(0..self.held.sizes.world, |rank| rank..rank + 1);
            let each = ranks.map(|rank| self.multiplied(rank, operands));
            let all = each.reduce(|sum, more| sum + more).unwrap_or_default();
            self.known.insert((rank, operands), all);
        }
        let all = &self.known[&(rank, operands)];
        all.slice_axis(Axis(0), Slice::from(rows.clone()))
            .to_owned()
    }

    /// A rank's product, of what its operands are with their scales. Codes of a hidden layer are its values times its number.
    fn multiplied(&self, rank: u32, (a, b): Operands) -> Array2<f64> {
        let mut product = self.unscaled(rank, (a, b));
        let tensors = &self.held.program.tensors;
        for operand in [a, b] {
            let hidden = |usage: Usage| {
                let of = usage.given_scale_of().map(TensorId::index);
                of == Some(operand) && tensors[operand].usage.is_scratch()
            };
            if let Some(number) = tensors.iter().position(|tensor| hidden(tensor.usage)) {
                product /= &self.inputs.seen(rank, number);
            }
            let scale = scale_of(self.held.program, TensorId(operand as u16));
            let blocks = |scale: TensorId| tensors[scale.index()].usage.blocks();
            if let Some(scale) = scale.filter(|scale| blocks(*scale).is_none()) {
                let all = self.inputs.seen(rank, scale.index());
                let along = tensors[scale.index()].usage.read_along(Side::Rows);
                product *= &match along == Some(Side::Columns) {
                    true => all.reversed_axes(),
                    false => all,
                };
            }
        }
        product
    }

    /// An input with the scales of its blocks, if it has some.
    fn operand(&self, rank: u32, tensor: usize) -> Array2<f64> {
        let mut seen = self.inputs.seen(rank, tensor);
        let Some(blocks) = Blocks::of(self.held.program, TensorId(tensor as u16)) else {
            return seen;
        };
        let rows = Extent {
            start: 0,
            end: seen.nrows() as u32,
        };
        let factors = blocks.factors(rows, &self.inputs.seen(rank, blocks.scale.index()).view());
        let depth = blocks.block.columns as usize;
        for ((row, column), value) in seen.indexed_iter_mut() {
            *value *= factors[(row, column / depth)];
        }
        seen
    }

    /// Product without scales of rows or of the whole: of inputs, or of values that its statements computed.
    fn unscaled(&self, rank: u32, (a, b): Operands) -> Array2<f64> {
        let is_input = |tensor: usize| self.held.program.tensors[tensor].usage.is_input();
        if is_input(a) && is_input(b) {
            return product(&self.operand(rank, a).view(), &self.operand(rank, b).view());
        }
        let sides = [a, b].map(|operand| self.held.sizes.rows(operand) as usize);
        let made = self.products.get(&(rank, (a, b))).cloned();
        made.unwrap_or_else(|| Array2::from_elem(sides, f64::NAN))
    }
}
