//! Epilogue expressions: the value of a store, element by element, in f32.

use crate::dtype::Dtype;
use std::cmp::Ordering;
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
    /// A user's `#[epilogue]` function applied to arguments.
    Call(ScalarFn, Vec<Value>),
}

/// Functions of one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unary {
    /// `-x`
    Neg,
    /// `|x|`
    Abs,
    /// `e^x`
    Exp,
    /// natural logarithm
    Ln,
    /// square root
    Sqrt,
    /// hyperbolic tangent
    Tanh,
    /// the error function
    Erf,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// `x · Φ(x)` by the error function
    Gelu,
    /// GELU by its tanh approximation
    GeluTanh,
    /// `x · sigmoid(x)`
    Silu,
    /// `max(x, 0)`
    Relu,
}

/// Functions of two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
    /// the smaller; if one is NaN, the other
    Min,
    /// the larger; if one is NaN, the other
    Max,
}

/// The comparison of a [`Value::Select`]: `[a, b, then, otherwise]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// `a < b`
    Lt,
    /// `a <= b`
    Le,
    /// `a == b`
    Eq,
}

/// A user's `#[epilogue]` function: scalar code that stays callable in Rust as its own reference.
#[derive(Clone, PartialEq, Debug)]
pub struct ScalarFn {
    /// Its name in the user's program.
    pub name: &'static str,
    /// The names of its arguments.
    pub params: &'static [&'static str],
    /// Its body over [`Value::Arg`].
    pub body: Box<Value>,
}

impl Unary {
    /// Its value, computed in f64 (the emulator rounds the whole expression's result to f32).
    pub fn eval(self, x: f64) -> f64 {
        match self {
            Unary::Neg => -x,
            Unary::Abs => x.abs(),
            Unary::Exp => x.exp(),
            Unary::Ln => x.ln(),
            Unary::Sqrt => x.sqrt(),
            Unary::Tanh => x.tanh(),
            Unary::Erf => erf(x),
            Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Unary::Gelu => 0.5 * x * erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
            Unary::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                // 0.5 * (1 + tanh(u)) as sigmoid(2u), which keeps the digits of a small tail.
                x / (1.0 + (-2.0 * inner).exp())
            }
            Unary::Silu => x / (1.0 + (-x).exp()),
            Unary::Relu => x.max(0.0),
        }
    }

    /// Its name in a schedule.
    pub const fn name(self) -> &'static str {
        match self {
            Unary::Neg => "neg",
            Unary::Abs => "abs",
            Unary::Exp => "exp",
            Unary::Ln => "ln",
            Unary::Sqrt => "sqrt",
            Unary::Tanh => "tanh",
            Unary::Erf => "erf",
            Unary::Sigmoid => "sigmoid",
            Unary::Gelu => "gelu",
            Unary::GeluTanh => "gelu_tanh",
            Unary::Silu => "silu",
            Unary::Relu => "relu",
        }
    }
}

/// The error function to within 1e-15: its Maclaurin series near zero, a continued fraction in the tail.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let value = if a < 2.5 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-17 * sum.abs() {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else if a.is_nan() {
        a
    } else {
        1.0 - erfc(a)
    };
    value.copysign(x)
}

/// One minus the error function, accurate also far below one's last place.
fn erfc(x: f64) -> f64 {
    // Also for NaN.
    if !matches!(
        x.partial_cmp(&2.5),
        Some(Ordering::Greater | Ordering::Equal)
    ) {
        return 1.0 - erf(x);
    }
    let fraction = (1..=60)
        .rev()
        .fold(0.0, |tail, n| f64::from(n) / 2.0 / (x + tail));
    (-x * x).exp() / (std::f64::consts::PI.sqrt() * (x + fraction))
}

impl Binary {
    /// Its value.
    pub fn eval(self, a: f64, b: f64) -> f64 {
        match self {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            Binary::Min => a.min(b),
            Binary::Max => a.max(b),
        }
    }
}

impl Compare {
    /// Whether it holds.
    pub fn eval(self, a: f64, b: f64) -> bool {
        match self {
            Compare::Lt => a < b,
            Compare::Le => a <= b,
            Compare::Eq => a == b,
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
                function.body.eval(acc, &args)
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

    /// Its terms if it is a sum, in order. Otherwise itself.
    pub fn summands<'a>(&'a self, terms: &mut Vec<&'a Value>) {
        if let Value::Binary(Binary::Add, a, b) = self {
            a.summands(terms);
            b.summands(terms);
        } else {
            terms.push(self);
        }
    }

    /// The same with the sum of `terms` as the first of them; `None` where they occur other than all together in a sum.
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

    /// The same expression of what `f` says for each accumulator.
    pub(crate) fn with(&self, f: &impl Fn(AccId) -> Value) -> Value {
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
    pub fn visit(&self, f: &mut impl FnMut(&Value)) {
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

    /// Its text, with accumulators under the names `name` gives them.
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
    /// A user's `#[epilogue]` function of this value and `others`.
    #[must_use]
    pub fn call(self, function: ScalarFn, others: impl IntoIterator<Item = Value>) -> Value {
        Value::Call(function, std::iter::once(self).chain(others).collect())
    }
    /// `then` where `a compare b`, otherwise `otherwise`.
    pub fn select(compare: Compare, a: Value, b: Value, then: Value, otherwise: Value) -> Value {
        Value::Select(compare, Box::new([a, b, then, otherwise]))
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
