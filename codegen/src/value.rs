//! Epilogue expressions: the value of a store, element by element, in f32.

mod foreign;
pub mod names;
mod operations;
mod pure;

use crate::dtype::Dtype;
pub use foreign::Foreign;
pub use operations::{Binary, Compare, Unary};
use std::fmt;
use std::ops::{Add, Mul, Sub};

/// An accumulator of one item: a tile of f32 registers that dots, sums and loads fill.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AccId(pub u16);

/// An element-wise expression over accumulators. It is evaluated in f32 and rounded once when stored.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// The element of an accumulator.
    Acc(AccId),
    /// An argument of a [`ScalarFn`]. Illegal outside one.
    Arg(u16),
    /// A constant.
    Const(f32),
    /// A function of one number.
    Unary(Unary, Box<Value>),
    /// A function of two numbers.
    Binary(Binary, Box<Value>, Box<Value>),
    /// `then` if the comparison holds, otherwise `otherwise`.
    Select(Compare, Box<[Value; 4]>),
    /// Rounded to an element type and back.
    Cast(Dtype, Box<Value>),
    /// A user's function applied to arguments.
    Call(ScalarFn, Vec<Value>),
}

/// A user's function of numbers: scalar code that stays callable in Rust as its own reference.
#[derive(Clone, PartialEq, Debug)]
pub struct ScalarFn {
    /// Name in the user's program.
    pub name: &'static str,
    /// The names of its arguments.
    pub params: &'static [&'static str],
    /// Arithmetic of the function.
    pub body: Body,
}

/// Arithmetic of a [`ScalarFn`].
#[derive(Clone, PartialEq, Debug)]
pub enum Body {
    /// An `#[epilogue]` function: an expression over [`Value::Arg`].
    Value(Box<Value>),
    /// A function of another language.
    Foreign(Foreign),
}

impl ScalarFn {
    /// Value for these arguments.
    pub fn eval(&self, args: &[f64]) -> f64 {
        match &self.body {
            Body::Value(value) => value.eval(&|_| f64::NAN, args),
            Body::Foreign(foreign) => foreign.eval(args),
        }
    }

    /// Reason that it cannot be called in a kernel, if it cannot: a foreign function is arithmetic on its arguments,
    /// and no more.
    pub(crate) fn refusal(&self) -> Option<String> {
        match &self.body {
            Body::Value(_) => None,
            Body::Foreign(foreign) => pure::refusal(self.name, self.params, &foreign.cuda),
        }
    }
}

impl Value {
    /// The value of one element: `acc` gives accumulators, `args` the arguments of the enclosing function.
    pub fn eval(&self, acc: &impl Fn(AccId) -> f64, args: &[f64]) -> f64 {
        match self {
            Value::Acc(id) => acc(*id),
            Value::Arg(index) => args.get(usize::from(*index)).copied().unwrap_or(f64::NAN),
            Value::Const(value) => f64::from(*value),
            Value::Unary(unary, a) => unary.eval(a.eval(acc, args)),
            Value::Binary(binary, a, b) => binary.eval(a.eval(acc, args), b.eval(acc, args)),
            Value::Select(compare, parts) => {
                let [a, b, then, otherwise] = &**parts;
                let chosen = if compare.eval(a.eval(acc, args), b.eval(acc, args)) {
                    then
                } else {
                    otherwise
                };
                chosen.eval(acc, args)
            }
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a cast rounds: that is what it is for"
            )]
            Value::Cast(dtype, a) => f64::from(dtype.round(a.eval(acc, args) as f32)),
            Value::Call(function, values) => {
                let args: Vec<f64> = values.iter().map(|value| value.eval(acc, args)).collect();
                function.eval(&args)
            }
        }
    }

    /// The accumulators it reads, each once, in order.
    pub fn accs(&self) -> Vec<AccId> {
        let mut found = Vec::new();
        self.visit(&mut |value| {
            if let Value::Acc(id) = value
                && !found.contains(id)
            {
                found.push(*id);
            }
        });
        found
    }

    /// Terms of a sum, in order; of anything else itself.
    pub fn summands<'a>(&'a self, terms: &mut Vec<&'a Value>) {
        if let Value::Binary(Binary::Add, a, b) = self {
            a.summands(terms);
            b.summands(terms);
        } else {
            terms.push(self);
        }
    }

    /// Puts the first of `terms` in place of their sum; `None` where they occur other than all together in a sum.
    pub(crate) fn folded(&self, terms: &[AccId]) -> Option<Value> {
        if let ([_], _) | (_, Value::Arg(_) | Value::Const(_)) = (terms, self) {
            return Some(self.clone());
        }
        let boxed = |value: &Value| value.folded(terms).map(Box::new);
        Some(match self {
            Value::Acc(acc) if terms.contains(acc) => return None,
            Value::Acc(_) | Value::Arg(_) | Value::Const(_) => self.clone(),
            Value::Binary(Binary::Add, a, b) => {
                let mut summands = Vec::new();
                self.summands(&mut summands);
                let is_term =
                    |value: &&Value| matches!(value, Value::Acc(acc) if terms.contains(acc));
                let (mut ours, others): (Vec<&Value>, Vec<&Value>) =
                    summands.into_iter().partition(is_term);
                if ours.is_empty() {
                    return Some(Value::Binary(Binary::Add, boxed(a)?, boxed(b)?));
                }
                ours.sort_by_key(|value| value.accs());
                let all = ours
                    .iter()
                    .map(|value| value.accs()[0])
                    .eq(terms.iter().copied());
                let mut sum = all.then(|| Value::Acc(terms[0]))?;
                for other in others {
                    sum = sum + other.folded(terms)?;
                }
                sum
            }
            Value::Unary(unary, a) => Value::Unary(*unary, boxed(a)?),
            Value::Binary(binary, a, b) => Value::Binary(*binary, boxed(a)?, boxed(b)?),
            Value::Cast(dtype, a) => Value::Cast(*dtype, boxed(a)?),
            Value::Select(compare, parts) => {
                let [a, b, then, otherwise] = &**parts;
                let parts = [a, b, then, otherwise].map(|part| part.folded(terms));
                let [Some(a), Some(b), Some(then), Some(otherwise)] = parts else {
                    return None;
                };
                Value::select(*compare, a, b, then, otherwise)
            }
            Value::Call(function, values) => {
                let values = values.iter().map(|value| value.folded(terms));
                Value::Call(function.clone(), values.collect::<Option<_>>()?)
            }
        })
    }

    /// Puts what `f` gives in place of each accumulator.
    pub fn with(&self, f: &impl Fn(AccId) -> Value) -> Value {
        let boxed = |value: &Value| Box::new(value.with(f));
        match self {
            Value::Acc(acc) => f(*acc),
            Value::Arg(_) | Value::Const(_) => self.clone(),
            Value::Unary(unary, a) => Value::Unary(*unary, boxed(a)),
            Value::Binary(binary, a, b) => Value::Binary(*binary, boxed(a), boxed(b)),
            Value::Cast(dtype, a) => Value::Cast(*dtype, boxed(a)),
            Value::Select(compare, parts) => {
                let [a, b, then, otherwise] = &**parts;
                let [a, b, then, otherwise] = [a, b, then, otherwise].map(|part| part.with(f));
                Value::select(*compare, a, b, then, otherwise)
            }
            Value::Call(function, values) => {
                let values = values.iter().map(|value| value.with(f)).collect();
                Value::Call(function.clone(), values)
            }
        }
    }

    /// Calls `f` on this and every part of it, except functions' bodies.
    pub fn visit<'a>(&'a self, f: &mut impl FnMut(&'a Value)) {
        f(self);
        match self {
            Value::Acc(_) | Value::Arg(_) | Value::Const(_) => {}
            Value::Unary(_, a) | Value::Cast(_, a) => a.visit(f),
            Value::Binary(_, a, b) => {
                a.visit(f);
                b.visit(f);
            }
            Value::Select(_, parts) => parts.iter().for_each(|part| part.visit(f)),
            Value::Call(_, values) => values.iter().for_each(|value| value.visit(f)),
        }
    }

    /// The functions that it calls, each once, and before each those that it calls itself.
    pub fn functions<'a>(&'a self, found: &mut Vec<&'a ScalarFn>) {
        self.visit(&mut |part| {
            if let Value::Call(function, _) = part
                && !found.contains(&function)
            {
                if let Body::Value(body) = &function.body {
                    body.functions(found);
                }
                found.push(function);
            }
        });
    }

    /// Text of the value, with accumulators under the names that `name` gives them.
    pub fn text(&self, name: &impl Fn(AccId) -> String) -> String {
        self.text_in(name, 0)
    }

    fn text_in(&self, name: &impl Fn(AccId) -> String, outer: u8) -> String {
        match self {
            Value::Acc(id) => name(*id),
            Value::Arg(index) => format!("arg{index}"),
            Value::Const(value) => format!("{value:?}"),
            Value::Unary(unary, a) => format!("{}({})", unary.name(), a.text(name)),
            Value::Binary(binary, a, b) => {
                let (sign, level) = match binary {
                    Binary::Add => ("+", 1),
                    Binary::Sub => ("-", 1),
                    Binary::Mul => ("*", 2),
                    Binary::Div => ("/", 2),
                    Binary::Min => return format!("min({}, {})", a.text(name), b.text(name)),
                    Binary::Max => return format!("max({}, {})", a.text(name), b.text(name)),
                };
                let text = format!(
                    "{} {sign} {}",
                    a.text_in(name, level),
                    b.text_in(name, level + 1)
                );
                if level < outer {
                    format!("({text})")
                } else {
                    text
                }
            }
            Value::Select(compare, parts) => {
                let [a, b, then, otherwise] = &**parts;
                let sign = match compare {
                    Compare::Lt => "<",
                    Compare::Le => "<=",
                    Compare::Eq => "==",
                };
                let (a, b) = (a.text_in(name, 1), b.text_in(name, 1));
                format!(
                    "({a} {sign} {b} ? {} : {})",
                    then.text(name),
                    otherwise.text(name)
                )
            }
            Value::Cast(dtype, a) => format!("{dtype}({})", a.text(name)),
            Value::Call(function, values) => {
                let values: Vec<String> = values.iter().map(|value| value.text(name)).collect();
                format!("{}({})", function.name, values.join(", "))
            }
        }
    }

    fn unary(self, unary: Unary) -> Value {
        Value::Unary(unary, Box::new(self))
    }

    fn binary(self, binary: Binary, other: impl Into<Value>) -> Value {
        Value::Binary(binary, Box::new(self), Box::new(other.into()))
    }

    /// GELU by the error function.
    #[must_use]
    pub fn gelu(self) -> Value {
        self.unary(Unary::Gelu)
    }
    /// GELU by its tanh approximation.
    #[must_use]
    pub fn gelu_tanh(self) -> Value {
        self.unary(Unary::GeluTanh)
    }
    /// `x · sigmoid(x)`.
    #[must_use]
    pub fn silu(self) -> Value {
        self.unary(Unary::Silu)
    }
    /// `max(x, 0)`.
    #[must_use]
    pub fn relu(self) -> Value {
        self.unary(Unary::Relu)
    }
    /// One [`Unary`] function.
    #[must_use]
    pub fn apply(self, unary: Unary) -> Value {
        self.unary(unary)
    }
    /// One [`Binary`] function.
    #[must_use]
    pub fn combine(self, binary: Binary, other: impl Into<Value>) -> Value {
        self.binary(binary, other)
    }
    /// Times a constant.
    #[must_use]
    pub fn scale(self, factor: f32) -> Value {
        self.binary(Binary::Mul, factor)
    }
    /// Plus a bias (a [`Value`] loaded from a vector along the columns).
    #[must_use]
    pub fn bias(self, bias: impl Into<Value>) -> Value {
        self.binary(Binary::Add, bias)
    }
    /// Plus a residual tile.
    #[must_use]
    pub fn residual(self, residual: impl Into<Value>) -> Value {
        self.binary(Binary::Add, residual)
    }
    /// Rounded to `dtype` and back.
    #[must_use]
    pub fn cast(self, dtype: Dtype) -> Value {
        Value::Cast(dtype, Box::new(self))
    }
    /// A user's function of this value and `others`.
    #[must_use]
    pub fn call(self, function: ScalarFn, others: impl IntoIterator<Item = Value>) -> Value {
        Value::Call(function, std::iter::once(self).chain(others).collect())
    }
    /// `then` where `a compare b`, otherwise `otherwise`.
    pub fn select(compare: Compare, a: Value, b: Value, then: Value, otherwise: Value) -> Value {
        Value::Select(compare, Box::new([a, b, then, otherwise]))
    }
}

impl From<Value> for Body {
    fn from(value: Value) -> Body {
        Body::Value(Box::new(value))
    }
}

impl From<Foreign> for Body {
    fn from(foreign: Foreign) -> Body {
        Body::Foreign(foreign)
    }
}

impl From<f32> for Value {
    fn from(value: f32) -> Self {
        Value::Const(value)
    }
}

impl<T: Into<Value>> Add<T> for Value {
    type Output = Value;
    fn add(self, other: T) -> Value {
        self.binary(Binary::Add, other)
    }
}
impl<T: Into<Value>> Sub<T> for Value {
    type Output = Value;
    fn sub(self, other: T) -> Value {
        self.binary(Binary::Sub, other)
    }
}
impl<T: Into<Value>> Mul<T> for Value {
    type Output = Value;
    fn mul(self, other: T) -> Value {
        self.binary(Binary::Mul, other)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&|id| format!("acc{}", id.0)))
    }
}
