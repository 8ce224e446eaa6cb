//! This rank's own term of a sum over the others.
//!
//! `dot(x[t], w[t]) + partial[others()][t].sum()` adds what this rank computed to what the others sent, which was rounded to
//! the type of `partial` on its way. If the own term stayed in f32, or came first, a row's bits would depend on the rank that
//! owns the row, and so on the number of rows of a launch. So it is rounded as the others' are, and added in its turn: the sum
//! goes through the ranks in ascending order, and is the same whoever adds it up.
//!
//! A rank's own term is what the schedule sends: the summands that spell the value of every store to `partial`, or the tensor of
//! every copy there. What else is added (a bias, a residual) stays in f32 and comes after the sum. Where the summands do not
//! spell what is sent, nothing is rounded, and the variant is not batch-invariant ([`crate::bits`]).

use crate::program::{
    Home, Pick, Place, Program, Slots, Stmt, StmtKind, StoreMode, Tensor, TensorId,
};
use crate::value::{AccId, Value};
use std::borrow::Cow;
use std::collections::HashMap;

/// A program whose sums over the others have their own terms. One that has them is as it is.
///
/// Partial sums of FP8 have scales that their senders make: no rank makes those of its own term.
pub fn with_own_terms<'p>(program: Cow<'p, Program>) -> Cow<'p, Program> {
    let over_others = |stmt: &Stmt| of_others(stmt).is_some();
    let rounded = |of: &Tensor| of.usage.is_scratch() && of.usage.rule().is_some();
    if program.tensors.iter().any(rounded) || !program.stmts().any(over_others) {
        return program;
    }
    let sources = Sources::of(&program);
    let mut sent: HashMap<TensorId, Option<Value>> = HashMap::new();
    for (_, tensor) in program.stmts().filter_map(of_others) {
        let value = sources.sent(&program, tensor);
        sent.insert(tensor, value);
    }
    let mut made = program.into_owned();
    for item in made.items_mut() {
        let sums: Vec<_> = item
            .iter()
            .flat_map(Stmt::all)
            .filter_map(of_others)
            .collect();
        for (sum, tensor) in sums {
            if let Some(sent) = sent.get(&tensor).and_then(Option::as_ref) {
                OwnTerm {
                    sum,
                    sent,
                    sources: &sources,
                }
                .place(item);
            }
        }
    }
    Cow::Owned(made)
}

/// The accumulator and the scratch of a sum over the others' slots in this rank's memory, which has no own term yet.
fn of_others(stmt: &Stmt) -> Option<(AccId, TensorId)> {
    match &stmt.kind {
        StmtKind::Sum {
            acc,
            from,
            own: None,
        } if from.slot == Some(Pick::Others) && !from.home.is_remote() => Some((*acc, from.tensor)),
        StmtKind::Sum { .. }
        | StmtKind::Wait { .. }
        | StmtKind::Signal { .. }
        | StmtKind::Copy { .. }
        | StmtKind::Dot { .. }
        | StmtKind::Load { .. }
        | StmtKind::Store { .. }
        | StmtKind::ForRanks { .. }
        | StmtKind::ForItems { .. }
        | StmtKind::If { .. } => None,
    }
}

/// Statement that fills an accumulator.
#[derive(Clone, PartialEq)]
enum Source {
    /// A product of two tensors of this rank.
    Product([TensorId; 2]),
    /// A tile or vector of a tensor of this rank.
    Tile(TensorId),
    /// Anything else: like nothing but itself.
    Other,
}

/// Every accumulator's sources, in the order in which they fill it.
struct Sources {
    of: Vec<Vec<Source>>,
    /// Sources of tensors that are copied as they are: accumulators that no statement fills.
    copied: HashMap<TensorId, AccId>,
}

impl Sources {
    fn of(program: &Program) -> Sources {
        let mut of = vec![Vec::new(); program.accs.len()];
        let mut copied = HashMap::new();
        let own = |place: &Place| place.home == Home::Me && place.slot.is_none();
        let mut fill = |acc: AccId, source: Source| {
            if let Some(sources) = of.get_mut(usize::from(acc.0)) {
                sources.push(source);
            }
        };
        for stmt in program.stmts() {
            match &stmt.kind {
                StmtKind::Dot { acc, a, b } => fill(
                    *acc,
                    match own(a) && own(b) {
                        true => Source::Product([a.tensor, b.tensor]),
                        false => Source::Other,
                    },
                ),
                StmtKind::Load { acc, from } => fill(
                    *acc,
                    match own(from) {
                        true => Source::Tile(from.tensor),
                        false => Source::Other,
                    },
                ),
                StmtKind::Sum { acc, .. } => fill(*acc, Source::Other),
                StmtKind::Copy { src, .. } if own(src) => {
                    copied.entry(src.tensor).or_insert(());
                }
                StmtKind::Copy { .. }
                | StmtKind::Wait { .. }
                | StmtKind::Signal { .. }
                | StmtKind::Store { .. }
                | StmtKind::ForRanks { .. }
                | StmtKind::ForItems { .. }
                | StmtKind::If { .. } => {}
            }
        }
        let mut tensors: Vec<TensorId> = copied.into_keys().collect();
        tensors.sort();
        let copied = tensors.into_iter().map(|tensor| {
            of.push(vec![Source::Tile(tensor)]);
            (tensor, AccId(of.len() as u16 - 1))
        });
        let copied = copied.collect();
        Sources { of, copied }
    }

    /// True if two expressions are the same function of the same sources.
    fn alike(&self, one: &Value, other: &Value) -> bool {
        let first_like = |acc: AccId| {
            let own = &self.of[usize::from(acc.0)];
            let known = own.iter().all(|source| *source != Source::Other);
            let first = self.of.iter().position(|other| other == own);
            Value::Acc(match first.filter(|_| known) {
                Some(first) => AccId(first as u16),
                None => acc,
            })
        };
        let valid =
            |value: &Value| (value.accs().iter()).all(|acc| usize::from(acc.0) < self.of.len());
        valid(one) && valid(other) && one.with(&first_like) == other.with(&first_like)
    }

    /// Value that every statement which fills a scratch tensor sends, if it is the same and each rank has a slot
    /// there: the ranks' turns.
    fn sent(&self, program: &Program, tensor: TensorId) -> Option<Value> {
        let mut sent: Option<Value> = None;
        if program.tensors.get(tensor.index())?.usage.placement.slots != Slots::World {
            return None;
        }
        for stmt in program.stmts() {
            let value = match &stmt.kind {
                StmtKind::Store { dst, .. } | StmtKind::Copy { dst, .. }
                    if dst.tensor != tensor =>
                {
                    continue;
                }
                StmtKind::Store {
                    mode: StoreMode::Add,
                    ..
                } => return None,
                StmtKind::Store { value, .. } => value.clone(),
                StmtKind::Copy { src, .. } => Value::Acc(*self.copied.get(&src.tensor)?),
                StmtKind::Sum { .. }
                | StmtKind::Wait { .. }
                | StmtKind::Signal { .. }
                | StmtKind::Dot { .. }
                | StmtKind::Load { .. }
                | StmtKind::ForRanks { .. }
                | StmtKind::ForItems { .. }
                | StmtKind::If { .. } => continue,
            };
            match &sent {
                Some(known) if !self.alike(known, &value) => return None,
                Some(_) | None => sent = Some(value),
            }
        }
        sent
    }
}

/// A sum over the others in an item, and what the schedule sends to where it adds.
struct OwnTerm<'s> {
    sum: AccId,
    sent: &'s Value,
    sources: &'s Sources,
}

impl OwnTerm<'_> {
    /// Gives the sum its own term, and takes that from the values which have both. If one of them has the sum without it, or
    /// another one, the item stays as it is.
    fn place(&self, item: &mut Vec<Stmt>) {
        let mut own: Option<Value> = None;
        let mut edited = item.clone();
        for stmt in edited.iter_mut().flat_map(Stmt::leaves_mut) {
            let StmtKind::Store { value, amax, .. } = &mut stmt.kind else {
                continue;
            };
            for value in std::iter::once(value).chain(amax.as_mut().map(|amax| &mut amax.of)) {
                let Some(found) = self.taken_from(value) else {
                    return;
                };
                let same = own.is_none() || found.is_none() || own == found;
                if !same {
                    return;
                }
                own = own.or(found);
            }
        }
        let Some(own) = own else { return };
        if self.behind(&mut edited, &own).is_some() {
            let is_sum = |stmt: &&mut Stmt| of_others(stmt).is_some_and(|(acc, _)| acc == self.sum);
            let mut stmts = edited.iter_mut().flat_map(Stmt::leaves_mut);
            if let Some(Stmt {
                kind: StmtKind::Sum { own: term, .. },
                ..
            }) = stmts.find(is_sum)
            {
                *term = Some(own);
                *item = edited;
            }
        }
    }

    /// Moves the sum behind what fills its own term, if it stands before: over products, loads and other sums of the item, which
    /// nobody waits for. `None` where something else stands between.
    fn behind(&self, item: &mut [Stmt], own: &Value) -> Option<()> {
        let accs = own.accs();
        let fills = |stmt: &Stmt| match &stmt.kind {
            StmtKind::Dot { acc, .. } | StmtKind::Load { acc, .. } | StmtKind::Sum { acc, .. } => {
                accs.contains(acc)
            }
            StmtKind::Wait { .. }
            | StmtKind::Signal { .. }
            | StmtKind::Copy { .. }
            | StmtKind::Store { .. }
            | StmtKind::ForRanks { .. }
            | StmtKind::ForItems { .. }
            | StmtKind::If { .. } => false,
        };
        let is_sum = |stmt: &Stmt| of_others(stmt).is_some_and(|(acc, _)| acc == self.sum);
        let order: Vec<bool> = (item.iter().flat_map(Stmt::all))
            .filter(|stmt| fills(stmt) || is_sum(stmt))
            .map(is_sum)
            .collect();
        if order.iter().filter(|sum| **sum).count() != 1 {
            return None;
        }
        if order.last() == Some(&true) {
            return Some(());
        }
        let from = item.iter().position(is_sum)?;
        let to = item.iter().rposition(fills)?;
        let passes = |stmt: &Stmt| {
            matches!(
                stmt.kind,
                StmtKind::Dot { .. } | StmtKind::Load { .. } | StmtKind::Sum { .. }
            )
        };
        if order.len() - 1 != item.iter().filter(|stmt| fills(stmt)).count()
            || !item.get(from..=to)?.iter().all(passes)
        {
            return None;
        }
        item[from..=to].rotate_left(1);
        Some(())
    }

    /// Takes the own term from an expression that adds it to the sum. `None` where the sum occurs without it.
    fn taken_from(&self, value: &mut Value) -> Option<Option<Value>> {
        if !value.accs().contains(&self.sum) {
            return Some(None);
        }
        let mut summands = Vec::new();
        value.summands(&mut summands);
        if summands.iter().any(|term| **term == Value::Acc(self.sum)) {
            let (own, rest) = self.matched(&summands)?;
            *value = rest
                .into_iter()
                .fold(Value::Acc(self.sum), |sum, term| sum + term);
            return Some(Some(own));
        }
        let parts: Vec<&mut Value> = match value {
            Value::Acc(_) | Value::Arg(_) | Value::Const(_) => return None,
            Value::Unary(_, a) | Value::Cast(_, a) => vec![a],
            Value::Binary(_, a, b) => vec![a, b],
            Value::Select(_, parts) => parts.iter_mut().collect(),
            Value::Call(_, values) => values.iter_mut().collect(),
        };
        let mut own = None;
        for part in parts {
            let found = self.taken_from(part)?;
            if own.is_some() && found.is_some() && own != found {
                return None;
            }
            own = own.or(found);
        }
        Some(own)
    }

    /// The own term among the summands, and the others but the sum.
    fn matched(&self, summands: &[&Value]) -> Option<(Value, Vec<Value>)> {
        let is_sum = |term: &&&Value| **term == &Value::Acc(self.sum);
        if summands.iter().filter(is_sum).count() != 1 {
            return None;
        }
        let others = summands.iter().filter(|term| !is_sum(term));
        let mut rest: Vec<&Value> = others.copied().collect();
        if rest.iter().any(|term| term.accs().contains(&self.sum)) {
            return None;
        }
        let mut sent = Vec::new();
        self.sent.summands(&mut sent);
        let mut here: HashMap<AccId, AccId> = HashMap::new();
        for wanted in sent {
            let at = (rest.iter()).position(|term| self.sources.alike(term, wanted))?;
            here.extend(wanted.accs().into_iter().zip(rest.remove(at).accs()));
        }
        if !self.sent.accs().iter().all(|acc| here.contains_key(acc)) {
            return None;
        }
        // In the order in which it is computed where it is sent.
        let own = self
            .sent
            .with(&|acc| Value::Acc(here.get(&acc).copied().unwrap_or(acc)));
        Some((own, rest.into_iter().cloned().collect()))
    }
}
