//! Operations on numbers that the language has words for, and what they mean in f64.

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

/// The comparison of a [`Value::Select`](super::Value::Select): `[a, b, then, otherwise]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// `a < b`
    Lt,
    /// `a <= b`
    Le,
    /// `a == b`
    Eq,
}

impl Unary {
    /// Value, computed in f64 (the emulator rounds the whole expression's result to f32).
    pub fn eval(self, x: f64) -> f64 {
        match self {
            Unary::Neg => -x,
            Unary::Abs => x.abs(),
            Unary::Exp => x.exp(),
            Unary::Ln => x.ln(),
            Unary::Sqrt => x.sqrt(),
            Unary::Tanh => x.tanh(),
            Unary::Erf => libm::erf(x),
            Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Unary::Gelu => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
            Unary::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                // 0.5 * (1 + tanh(u)) as sigmoid(2u), which keeps the digits of a small tail.
                x / (1.0 + (-2.0 * inner).exp())
            }
            Unary::Silu => x / (1.0 + (-x).exp()),
            Unary::Relu => x.max(0.0),
        }
    }

    /// Name in a schedule.
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

impl Binary {
    /// Value for these operands.
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
    /// True if it holds.
    pub fn eval(self, a: f64, b: f64) -> bool {
        match self {
            Compare::Lt => a < b,
            Compare::Le => a <= b,
            Compare::Eq => a == b,
        }
    }
}
