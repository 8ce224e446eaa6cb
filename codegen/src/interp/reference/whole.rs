//! What a tensor's type promises: each rank's complete products added up once, whatever the schedule does on the way.
//!
//! What is added up is read off the statements, but how often, where and in which parts is not: a product that the
//! schedule adds twice, or leaves out on a rank, is here once a rank. Where statements do not all bring the same
//! products, or bring together what is itself computed, nothing is promised here.

use super::writers::{Filler, What, Writer, writers};
use crate::interp::inputs::Inputs;
use crate::interp::known::{Known, apply};
use crate::interp::sizes::Sizes;
use crate::program::{Program, StoreMode, TensorKind};
use crate::value::{AccId, Binary, Value};
use ndarray::{Array2, Axis, Slice};
use std::collections::{BTreeSet, HashMap};

/// Complete products by their operands, and inputs: each rank's is a term of a sum.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Terms {
    products: BTreeSet<(usize, usize)>,
    inputs: BTreeSet<usize>,
}

/// An expression of sums over ranks and of inputs of the rank that owns the rows.
#[derive(Clone, PartialEq, Debug)]
struct Promise {
    value: Value,
    /// Which accumulators in it are sums, of what.
    sums: Vec<(AccId, Terms)>,
    loads: Vec<(AccId, usize)>,
}

pub(super) struct Wholes<'a, 'p> {
    program: &'p Program,
    sizes: &'a Sizes<'p>,
    inputs: &'a Inputs,
    writers: Vec<Writer<'p>>,
    /// Without any product, what a rank adds to a sum is its input.
    products: bool,
    /// What was worked out, by tensor: the same rows of all ranks.
    known: HashMap<usize, Option<Array2<f64>>>,
}

impl<'a, 'p> Wholes<'a, 'p> {
    pub fn new(program: &'p Program, sizes: &'a Sizes<'p>, inputs: &'a Inputs) -> Self {
        let (writers, products) = writers(program);
        Wholes {
            program,
            sizes,
            inputs,
            writers,
            products,
            known: HashMap::new(),
        }
    }

    /// What a rank's tensor holds at the end, row by row, if its type says so.
    pub fn of(&mut self, tensor: usize, rank: u32) -> Option<Vec<f64>> {
        match self.program.tensors[tensor].kind {
            TensorKind::Gathered => Some(self.inputs.seen(rank, tensor).into_iter().collect()),
            TensorKind::Accumulated => self.added(tensor, rank),
            TensorKind::Scattered | TensorKind::Reduced => {
                if !self.known.contains_key(&tensor) {
                    let known = self.summed(tensor);
                    self.known.insert(tensor, known);
                }
                let all = self.known[&tensor].as_ref()?;
                let held = self.sizes.held(tensor, rank);
                let rows = Slice::from(held.start as usize..held.end as usize);
                Some(all.slice_axis(Axis(0), rows).iter().copied().collect())
            }
            TensorKind::Local
            | TensorKind::Vector
            | TensorKind::Out
            | TensorKind::Scratch { .. } => None,
        }
    }

    /// A sum over ranks, all rows: each chunk as its owner makes it.
    fn summed(&self, tensor: usize) -> Option<Array2<f64>> {
        let promise = self.promise(tensor)?;
        let total = |terms: &Terms| {
            let ranks = 0..self.sizes.world;
            let each = ranks.map(|rank| self.total(terms, rank));
            each.reduce(|sum, more| sum + more)
        };
        let mut totals = Vec::new();
        for (acc, terms) in &promise.sums {
            totals.push((*acc, total(terms)?));
        }
        let chunks: Vec<Array2<f64>> = (0..self.sizes.chunks(tensor))
            .map(|owner| {
                let rows = self.sizes.chunk(tensor, owner);
                let rows = rows.start as usize..rows.end as usize;
                let shape = (rows.len(), self.sizes.columns(tensor) as usize);
                if rows.is_empty() {
                    return Array2::zeros(shape);
                }
                // A vector is one row for all of them.
                let part = |of: &Array2<f64>| match of.nrows() {
                    1 => of.clone(),
                    _ => of.slice_axis(Axis(0), Slice::from(rows.clone())).to_owned(),
                };
                let acc = |id: AccId| {
                    let sum = totals.iter().find(|(sum, _)| *sum == id);
                    let load = promise.loads.iter().find(|(load, _)| *load == id);
                    Known::exact(match (sum, load) {
                        (Some((_, total)), _) => part(total),
                        (None, Some((_, from))) => part(&self.inputs.seen(owner, *from)),
                        (None, None) => Array2::zeros((1, 1)),
                    })
                };
                apply(&promise.value, &acc, &[]).widened(shape).value
            })
            .collect();
        let chunks: Vec<_> = chunks.iter().map(|chunk| chunk.view()).collect();
        ndarray::concatenate(Axis(0), &chunks).ok()
    }

    /// What a rank adds to a sum, over all rows.
    fn total(&self, terms: &Terms, rank: u32) -> Array2<f64> {
        let product = |(a, b): &(usize, usize)| {
            self.inputs
                .seen(rank, *a)
                .dot(&self.inputs.seen(rank, *b).t())
        };
        let inputs = terms
            .inputs
            .iter()
            .map(|input| self.inputs.seen(rank, *input));
        let all = terms.products.iter().map(product).chain(inputs);
        all.reduce(|sum, more| sum + more)
            .unwrap_or_else(|| Array2::zeros((1, 1)))
    }

    /// What a rank's tensor held, and its own products.
    fn added(&self, tensor: usize, rank: u32) -> Option<Vec<f64>> {
        let mut terms: Option<Terms> = None;
        for writer in self.writers_of(tensor) {
            let What::Store { value, accs, .. } = &writer.what else {
                return None;
            };
            let mut summands = Vec::new();
            value.summands(&mut summands);
            let plain = |summand: &&Value| matches!(summand, Value::Acc(_));
            let product = |(_, filler): &(AccId, Filler)| matches!(filler, Filler::Dot(..));
            if !summands.iter().all(plain) || !accs.iter().all(product) {
                return None;
            }
            let more = self.linear(value, accs, &mut Vec::new())?;
            if terms.as_ref().is_some_and(|terms| *terms != more) {
                return None;
            }
            terms = Some(more);
        }
        let sum = self.inputs.own(rank, tensor) + &self.total(&terms?, rank);
        Some(sum.into_iter().collect())
    }

    fn writers_of(&self, tensor: usize) -> impl Iterator<Item = &Writer<'p>> {
        self.writers
            .iter()
            .filter(move |writer| writer.dst == tensor)
    }

    /// The terms of which what a tensor holds on some rank is a partial sum.
    fn partial(&self, tensor: usize, seen: &mut Vec<usize>) -> Option<Terms> {
        match self.program.tensors[tensor].kind {
            TensorKind::Local if !self.products => {
                let inputs = BTreeSet::from([tensor]);
                return Some(Terms {
                    inputs,
                    ..Terms::default()
                });
            }
            TensorKind::Scattered | TensorKind::Reduced | TensorKind::Scratch { .. } => {}
            TensorKind::Gathered
            | TensorKind::Local
            | TensorKind::Vector
            | TensorKind::Out
            | TensorKind::Accumulated => return None,
        }
        if seen.contains(&tensor) {
            return Some(Terms::default());
        }
        seen.push(tensor);
        let mut all = Terms::default();
        for writer in self.writers_of(tensor) {
            let more = match &writer.what {
                What::Copy(from) => self.partial(*from, seen)?,
                What::Store { value, accs, .. } => self.linear(value, accs, seen)?,
            };
            if all == Terms::default() {
                all = more;
            } else if more != Terms::default() && more != all {
                return None;
            }
        }
        Some(all)
    }

    /// The terms of an expression that adds up accumulators. Of products that a function was applied to before they are
    /// added up, the products themselves: that is what is promised, whatever is stored.
    fn linear(
        &self,
        value: &Value,
        accs: &[(AccId, Filler)],
        seen: &mut Vec<usize>,
    ) -> Option<Terms> {
        let mut summands = Vec::new();
        value.summands(&mut summands);
        let mut all = Terms::default();
        for summand in summands {
            let ids = summand.accs();
            let plain = matches!(summand, Value::Acc(_));
            for (_, filler) in accs.iter().filter(|(id, _)| ids.contains(id)) {
                if !plain && !matches!(filler, Filler::Dot(..)) {
                    return None;
                }
                let more = self.filled(*filler, seen)?;
                all.products.extend(more.products);
                all.inputs.extend(more.inputs);
            }
            if ids.is_empty() {
                return None;
            }
        }
        Some(all)
    }

    fn filled(&self, filler: Filler, seen: &mut Vec<usize>) -> Option<Terms> {
        match filler {
            Filler::Dot(a, b) => {
                let input = |tensor: usize| self.program.tensors[tensor].kind.is_input();
                (input(a) && input(b)).then(|| Terms {
                    products: BTreeSet::from([(a, b)]),
                    ..Terms::default()
                })
            }
            Filler::Sum(from) | Filler::Load(from) => self.partial(from, seen),
        }
    }

    /// What all stores that make up a sum over ranks promise together.
    fn promise(&self, tensor: usize) -> Option<Promise> {
        let (mut first, mut added): (Option<Promise>, Option<Terms>) = (None, None);
        for writer in self.finals(tensor, &mut Vec::new())? {
            let What::Store { mode, value, accs } = &writer.what else {
                return None;
            };
            match mode {
                StoreMode::Write => {
                    let next = self.store(writer, value, accs)?;
                    if first.as_ref().is_some_and(|first| *first != next) {
                        return None;
                    }
                    first = Some(next);
                }
                StoreMode::Add => {
                    let next = self.linear(value, accs, &mut Vec::new())?;
                    if added.as_ref().is_some_and(|added| *added != next) {
                        return None;
                    }
                    added = Some(next);
                }
            }
        }
        let first = first?;
        let Some(added) = added else {
            return Some(first);
        };
        // What others add is the rest of the sum that the first one begins.
        let mut summands = Vec::new();
        first.value.summands(&mut summands);
        let [(sum, terms)] = first.sums.as_slice() else {
            return None;
        };
        let begins = summands.contains(&&Value::Acc(*sum)) && *terms == added;
        begins.then_some(first)
    }

    /// The stores whose results lie in a tensor at the end, whoever copied them there.
    fn finals(&self, tensor: usize, seen: &mut Vec<usize>) -> Option<Vec<&Writer<'p>>> {
        if seen.contains(&tensor) {
            return Some(Vec::new());
        }
        seen.push(tensor);
        if self.program.tensors[tensor].kind.is_input() {
            return None;
        }
        let mut all = Vec::new();
        for writer in self.writers_of(tensor) {
            match &writer.what {
                What::Copy(from) => all.extend(self.finals(*from, seen)?),
                What::Store { .. } => all.push(writer),
            }
        }
        Some(all)
    }

    /// A store's expression with each sum of partial sums made whole. Accumulators are numbered anew, so that two
    /// stores of the same are equal.
    fn store(
        &self,
        writer: &Writer<'p>,
        value: &Value,
        accs: &[(AccId, Filler)],
    ) -> Option<Promise> {
        let mut promise = Promise {
            value: Value::Const(0.0),
            sums: Vec::new(),
            loads: Vec::new(),
        };
        promise.value = self.made_whole(value, accs, &mut promise)?;
        let own = |(_, tensor): &(AccId, usize)| {
            writer.own || self.program.tensors[*tensor].kind == TensorKind::Gathered
        };
        promise.loads.iter().all(own).then_some(promise)
    }

    fn made_whole(
        &self,
        value: &Value,
        accs: &[(AccId, Filler)],
        promise: &mut Promise,
    ) -> Option<Value> {
        if matches!(value, Value::Acc(_) | Value::Binary(Binary::Add, ..)) {
            return self.sum_made_whole(value, accs, promise);
        }
        let mut inner = |value: &Value| {
            let whole = self.made_whole(value, accs, promise)?;
            Some(Box::new(whole))
        };
        Some(match value {
            Value::Acc(_) | Value::Arg(_) | Value::Const(_) => value.clone(),
            Value::Unary(function, a) => Value::Unary(*function, inner(a)?),
            Value::Cast(dtype, a) => Value::Cast(*dtype, inner(a)?),
            Value::Binary(function, a, b) => Value::Binary(*function, inner(a)?, inner(b)?),
            Value::Select(compare, parts) => {
                let [a, b, then, otherwise] = &**parts;
                let parts = [*inner(a)?, *inner(b)?, *inner(then)?, *inner(otherwise)?];
                Value::Select(*compare, Box::new(parts))
            }
            Value::Call(function, values) => {
                let values: Option<Vec<Value>> =
                    values.iter().map(|value| Some(*inner(value)?)).collect();
                Value::Call(function.clone(), values?)
            }
        })
    }

    /// The summands that hold partial sums are one whole sum; the others are added to it.
    fn sum_made_whole(
        &self,
        value: &Value,
        accs: &[(AccId, Filler)],
        promise: &mut Promise,
    ) -> Option<Value> {
        let mut summands = Vec::new();
        value.summands(&mut summands);
        let mut terms: Option<Terms> = None;
        let mut rest = Vec::new();
        for summand in summands {
            let Value::Acc(acc) = summand else {
                rest.push(self.made_whole(summand, accs, promise)?);
                continue;
            };
            let fillers: Vec<Filler> = accs
                .iter()
                .filter(|(id, _)| id == acc)
                .map(|(_, filler)| *filler)
                .collect();
            match fillers.as_slice() {
                [Filler::Load(from)]
                    if self.products && self.program.tensors[*from].kind.is_input() =>
                {
                    let known = promise.loads.iter().find(|(_, known)| known == from);
                    let next = AccId(promise.loads.len() as u16);
                    let id = known.map_or(next, |(id, _)| *id);
                    if known.is_none() {
                        promise.loads.push((id, *from));
                    }
                    rest.push(Value::Acc(id));
                }
                fillers => {
                    let terms = terms.get_or_insert_with(Terms::default);
                    for filler in fillers {
                        let more = self.filled(*filler, &mut Vec::new())?;
                        terms.products.extend(more.products);
                        terms.inputs.extend(more.inputs);
                    }
                }
            }
        }
        if let Some(terms) = terms {
            let id = AccId(u16::MAX - promise.sums.len() as u16);
            promise.sums.push((id, terms));
            rest.insert(0, Value::Acc(id));
        }
        rest.into_iter().reduce(|sum, more| sum + more)
    }
}
