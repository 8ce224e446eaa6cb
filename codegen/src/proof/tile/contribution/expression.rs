//! The sums that an expression computes.

use super::{NOTHING, Of, State, SumId, Sums, Term, TermId};
use crate::dtype::Dtype;
use crate::kernel::{Kernel, ValueId};
use crate::program::TensorId;
use crate::undo::{Fix, undone};
use crate::value::{AccId, Binary, Value};

impl Sums<'_> {
    /// The sum that an expression of `rank` computes in each element, stored as `dtype`.
    pub fn of_value(
        &mut self,
        id: ValueId,
        rank: u16,
        dtype: Dtype,
        acc: &impl Fn(AccId) -> SumId,
    ) -> SumId {
        let kernel = self.kernel;
        let value = &kernel.values[usize::from(id.0)];
        let multiplies =
            undone(Fix::AddedTerms) && value.accs().into_iter().any(|id| self.multiplies(acc(id)));
        let mut expression = Expression {
            sums: self,
            acc,
            id,
            rank,
            multiplies,
            functions: 0,
        };
        let sum = expression.of(value);
        self.rounded(sum, dtype, rank, id)
    }

    /// Rows of a gathered tensor, stored in a type that cannot hold them, are no longer those rows. Sums may be rounded.
    fn rounded(&mut self, sum: SumId, to: Dtype, rank: u16, value: ValueId) -> SumId {
        let [(id, 1)] = *self.parts(sum) else {
            return sum;
        };
        let Term::Input { tensor, .. } = self.term(id) else {
            return sum;
        };
        let buffer = &self.kernel.buffers[tensor.index()];
        if !buffer.usage.is_gathered() || to == Dtype::F32 || to == buffer.dtype {
            return sum;
        }
        self.one(Term::Function {
            rank,
            value,
            part: 0,
            of: sum,
            kind: Of::Inputs,
        })
    }
}

/// One evaluation of an expression.
struct Expression<'s, 'a, F> {
    sums: &'s mut Sums<'a>,
    acc: &'s F,
    id: ValueId,
    rank: u16,
    /// True if inputs are added to a product and are to be ignored.
    multiplies: bool,
    functions: u16,
}

impl<F: Fn(AccId) -> SumId> Expression<'_, '_, F> {
    fn of(&mut self, value: &Value) -> SumId {
        match value {
            Value::Acc(id) => {
                let sum = (self.acc)(*id);
                let beside = self.multiplies && self.sums.state(sum) == State::Inputs;
                if beside { NOTHING } else { sum }
            }
            Value::Const(constant) if *constant == 0.0 || undone(Fix::AddedTerms) => NOTHING,
            Value::Const(_) => self.sums.one(Term::Constant { rank: self.rank }),
            Value::Arg(_) => NOTHING,
            Value::Cast(dtype, a) => {
                let sum = self.of(a);
                self.sums.rounded(sum, *dtype, self.rank, self.id)
            }
            Value::Binary(Binary::Add, a, b) => {
                let (a, b) = (self.of(a), self.of(b));
                let a = if undone(Fix::Multiplicity) {
                    self.without_own_of(a, b)
                } else {
                    a
                };
                self.sums.plus(a, b)
            }
            Value::Binary(Binary::Sub, a, b) => {
                let sums = [self.of(a), self.of(b)];
                let whole = sums.map(|sum| self.sums.state(sum) == State::Whole);
                if whole == [true, true] {
                    self.function(&sums)
                } else {
                    self.sums.minus(sums[0], sums[1])
                }
            }
            Value::Unary(_, a) => self.apply([&**a]),
            // A product stands for what its operands are with their scales.
            Value::Binary(Binary::Mul, a, b) if self.loads(b, Kernel::scales_an_operand) => {
                self.of(a)
            }
            Value::Binary(Binary::Div, a, b) if self.loads(b, Kernel::scales_a_hidden_layer) => {
                self.of(a)
            }
            Value::Binary(Binary::Mul | Binary::Div | Binary::Min | Binary::Max, a, b) => {
                self.apply([&**a, &**b])
            }
            Value::Select(_, values) => self.apply(values.iter()),
            Value::Call(_, values) => self.apply(values),
        }
    }

    /// True if it is such a scale as it was loaded.
    fn loads(&self, value: &Value, scale: fn(&Kernel, TensorId) -> bool) -> bool {
        let Value::Acc(acc) = value else {
            return false;
        };
        let [(id, 1)] = *self.sums.parts((self.acc)(*acc)) else {
            return false;
        };
        matches!(self.sums.term(id), Term::Input { tensor, .. }
            if scale(self.sums.kernel, tensor))
    }

    /// A sum without those products of this rank that another rank has too.
    fn without_own_of(&mut self, sum: SumId, other: SumId) -> SumId {
        let rank = self.rank;
        let mine = |part: &(TermId, i32)| match self.sums.term(part.0) {
            Term::Product { rank: of, .. } => of == rank && self.sums.parts(other).contains(part),
            _ => false,
        };
        let parts = self.sums.parts(sum).iter().copied();
        let left: Vec<_> = parts.filter(|part| !mine(part)).collect();
        self.sums.sum(&left)
    }

    fn apply<'v>(&mut self, values: impl IntoIterator<Item = &'v Value>) -> SumId {
        let (mut sums, mut reads) = (Vec::new(), false);
        for value in values {
            sums.push(self.of(value));
            reads |= !value.accs().is_empty();
        }
        if sums.iter().all(|sum| *sum == NOTHING) && !undone(Fix::AddedTerms) {
            return self.of_nothing(reads);
        }
        self.function(&sums)
    }

    /// A function of zero need not be zero. A function of sums that cancel out, or that nobody writes, is one of parts.
    fn of_nothing(&mut self, reads: bool) -> SumId {
        let rank = self.rank;
        if !reads {
            return self.sums.one(Term::Constant { rank });
        }
        self.functions += 1;
        self.sums.one(Term::Function {
            rank,
            value: self.id,
            part: self.functions,
            of: NOTHING,
            kind: Of::Part,
        })
    }

    fn function(&mut self, sums: &[SumId]) -> SumId {
        let states: Vec<State> = sums.iter().map(|sum| self.sums.state(*sum)).collect();
        let kind = if states.contains(&State::Part) {
            Of::Part
        } else if states.contains(&State::Whole) {
            Of::Whole
        } else if states.contains(&State::Inputs) {
            Of::Inputs
        } else {
            return NOTHING;
        };
        self.functions += 1;
        let of = sums
            .iter()
            .fold(NOTHING, |all, sum| self.sums.plus(all, *sum));
        self.sums.one(Term::Function {
            rank: self.rank,
            value: self.id,
            part: self.functions,
            of,
            kind,
        })
    }
}
