//! Sums of products, inputs, constants and functions' results, as statements combine them.
//!
//! A term belongs to the element's own row and column, so it records no position.

use counterflow_codegen::map::Map;
use counterflow_codegen::value::{AccId, Binary, Value};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The two tensors of a product.
pub(super) type Operands = (usize, usize);

/// Term of a sum.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Term {
    /// A rank's product of two tensors, over all of K.
    Product { rank: u32, operands: Operands },
    /// An input, or the old contents of an accumulated output. All ranks see the same of a gathered tensor.
    Input { rank: u32, tensor: usize },
    /// An operand's scale: a product stands for what its operands are with theirs.
    Scale,
    /// The number of a hidden layer: a product that is divided by it stands for what the layer's values are.
    Divisor,
    /// A constant, by its bits.
    Constant(u32),
    /// An index into the functions of [`Sums`].
    Function(usize),
    /// A value of other rows or columns than those it is stored to.
    Elsewhere,
}

/// A function's result.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Function {
    /// One operation over its arguments: accumulators 0, 1, …
    pub value: Value,
    pub of: Vec<SumId>,
}

/// An index into [`Sums`]. Equal sums have equal indices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(super) struct SumId(u32);

/// The empty sum, also of unwritten memory.
pub(super) const NOTHING: SumId = SumId(0);

/// Every sum that occurs, each once.
pub(super) struct Sums {
    sums: Vec<Rc<BTreeMap<Term, i32>>>,
    ids: Map<Rc<BTreeMap<Term, i32>>, SumId>,
    added: Map<(SumId, SumId, i32), SumId>,
    functions: Vec<Function>,
}

impl Sums {
    /// Only the empty sum.
    pub fn new() -> Sums {
        let mut sums = Sums {
            sums: Vec::new(),
            ids: Map::default(),
            added: Map::default(),
            functions: Vec::new(),
        };
        sums.sum(BTreeMap::new());
        sums
    }

    fn sum(&mut self, terms: BTreeMap<Term, i32>) -> SumId {
        if let Some(id) = self.ids.get(&terms) {
            return *id;
        }
        let (id, terms) = (SumId(self.sums.len() as u32), Rc::new(terms));
        self.sums.push(terms.clone());
        self.ids.insert(terms, id);
        id
    }

    /// The terms of a sum, and how often each is there: never zero times.
    pub fn terms(&self, sum: SumId) -> Rc<BTreeMap<Term, i32>> {
        self.sums[sum.0 as usize].clone()
    }

    pub fn function(&self, index: usize) -> Function {
        self.functions[index].clone()
    }

    /// Sum of that term, once.
    pub fn one(&mut self, term: Term) -> SumId {
        self.sum(BTreeMap::from([(term, 1)]))
    }

    /// A sum with so many times another.
    pub fn plus(&mut self, a: SumId, b: SumId, times: i32) -> SumId {
        if let Some(known) = self.added.get(&(a, b, times)) {
            return *known;
        }
        let mut terms = (*self.sums[a.0 as usize]).clone();
        for (term, more) in self.sums[b.0 as usize].iter() {
            *terms.entry(*term).or_default() += more * times;
        }
        terms.retain(|_, times| *times != 0);
        let sum = self.sum(terms);
        self.added.insert((a, b, times), sum);
        sum
    }

    /// The sum of an expression. Sums may be rounded.
    pub fn of_value(&mut self, value: &Value, acc: &impl Fn(AccId) -> SumId) -> SumId {
        match value {
            Value::Acc(id) => acc(*id),
            Value::Const(constant) if *constant == 0.0 => NOTHING,
            Value::Const(constant) => self.one(Term::Constant(constant.to_bits())),
            // Arguments occur only in functions' bodies, which are not examined.
            Value::Arg(_) => NOTHING,
            Value::Cast(_, a) => self.of_value(a, acc),
            Value::Binary(Binary::Add, a, b) => {
                let (a, b) = (self.of_value(a, acc), self.of_value(b, acc));
                self.plus(a, b, 1)
            }
            Value::Binary(Binary::Sub, a, b) => {
                let (a, b) = (self.of_value(a, acc), self.of_value(b, acc));
                self.plus(a, b, -1)
            }
            Value::Unary(function, a) => {
                let of = vec![self.of_value(a, acc)];
                self.apply(Value::Unary(*function, argument(0)), of)
            }
            Value::Binary(Binary::Mul, a, b) if self.is(Term::Scale, b, acc) => {
                self.of_value(a, acc)
            }
            Value::Binary(Binary::Div, a, b) if self.is(Term::Divisor, b, acc) => {
                self.of_value(a, acc)
            }
            Value::Binary(
                function @ (Binary::Mul | Binary::Div | Binary::Min | Binary::Max),
                a,
                b,
            ) => {
                let of = vec![self.of_value(a, acc), self.of_value(b, acc)];
                self.apply(Value::Binary(*function, argument(0), argument(1)), of)
            }
            Value::Select(compare, parts) => {
                let of = parts.iter().map(|part| self.of_value(part, acc)).collect();
                let parts = [0, 1, 2, 3].map(|index| *argument(index));
                self.apply(Value::Select(*compare, Box::new(parts)), of)
            }
            Value::Call(function, values) => {
                let of: Vec<SumId> = values
                    .iter()
                    .map(|value| self.of_value(value, acc))
                    .collect();
                let arguments = (0..of.len()).map(|index| *argument(index)).collect();
                self.apply(Value::Call(function.clone(), arguments), of)
            }
        }
    }

    /// Whether a value is that term as it was loaded.
    fn is(&mut self, term: Term, value: &Value, acc: &impl Fn(AccId) -> SumId) -> bool {
        matches!(value, Value::Acc(id) if acc(*id) == self.one(term))
    }

    fn apply(&mut self, value: Value, of: Vec<SumId>) -> SumId {
        let function = Function { value, of };
        let known = self.functions.iter().position(|known| *known == function);
        let index = known.unwrap_or_else(|| {
            self.functions.push(function);
            self.functions.len() - 1
        });
        self.one(Term::Function(index))
    }
}

/// A function's argument, by its index.
fn argument(index: usize) -> Box<Value> {
    Box::new(Value::Acc(AccId(index as u16)))
}
