//! Numbers in f64, each with a bound on the rounding error of a device's number.

use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::{Side, Usage};
use counterflow_codegen::value::{AccId, Binary, Body, Compare, Foreign, Unary, Value};
use ndarray::{Array2, Axis, Slice, Zip};
use std::ops::Range;

/// A matrix with an error bound for each element. A single row or column is repeated as needed.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub value: Array2<f64>,
    pub off: Array2<f64>,
}

/// A number and its error bound.
type Number = (f64, f64);

const F32: Dtype = Dtype::F32;

impl Known {
    pub fn exact(value: Array2<f64>) -> Known {
        let off = Array2::zeros(value.raw_dim());
        Known { value, off }
    }

    pub fn zero(rows: usize, columns: usize) -> Known {
        Known::exact(Array2::zeros((rows, columns)))
    }

    fn map(&self, f: impl Fn(Number) -> Number) -> Known {
        let mut new = self.clone();
        Zip::from(&mut new.value)
            .and(&mut new.off)
            .for_each(|value, off| (*value, *off) = f((*value, *off)));
        new
    }

    fn zip(&self, other: &Known, f: impl Fn(Number, Number) -> Number) -> Known {
        let most = |a: usize, b: usize| if a == 1 { b } else { a };
        let (a, b) = (self.value.dim(), other.value.dim());
        let shape = (most(a.0, b.0), most(a.1, b.1));
        let mut new = self.clone().widened(shape);
        let wide;
        let other = match b == shape {
            true => other,
            false => {
                wide = other.clone().widened(shape);
                &wide
            }
        };
        Zip::from(&mut new.value)
            .and(&mut new.off)
            .and(&other.value)
            .and(&other.off)
            .for_each(|value, off, b, b_off| (*value, *off) = f((*value, *off), (*b, *b_off)));
        new
    }

    /// Some rows of a matrix whose first row is `first`. A single row, which is repeated, stays as it is.
    pub fn some(&self, first: u32, rows: &Range<u32>) -> Known {
        let held = self.value.nrows();
        if held == 1 || held == rows.len() {
            return self.clone();
        }
        let start = rows.start.saturating_sub(first) as usize;
        let some = Slice::from(start.min(held)..(start + rows.len()).min(held));
        let of = |all: &Array2<f64>| all.slice_axis(Axis(0), some).to_owned();
        Known {
            value: of(&self.value),
            off: of(&self.off),
        }
    }

    /// Expanded to that many rows and columns: a single one is repeated.
    pub fn widened(self, shape: (usize, usize)) -> Known {
        if self.value.dim() == shape {
            return self;
        }
        let wide = |of: &Array2<f64>| {
            let view = of.broadcast(shape);
            view.map_or_else(
                || Array2::from_elem(shape, f64::NAN),
                |view| view.to_owned(),
            )
        };
        Known {
            value: wide(&self.value),
            off: wide(&self.off),
        }
    }

    /// As an item reads it: one number for each of its columns is a row.
    pub fn laid(self, usage: Usage) -> Known {
        if usage.read_along(Side::Rows) != Some(Side::Columns) {
            return self;
        }
        Known {
            value: self.value.reversed_axes(),
            off: self.off.reversed_axes(),
        }
    }

    /// Their sum in f32.
    pub fn plus(&self, other: &Known) -> Known {
        self.zip(other, |a, b| single((a.0 + b.0, a.1 + b.1)))
    }

    /// Rounded to that type. FP8 saturates: what is too large becomes the largest, and is off by no more than before.
    pub fn stored(&self, dtype: Dtype) -> Known {
        let most = f64::from(dtype.round(f32::MAX));
        let within = |value: f64| match dtype.is_fp8() {
            true => value.clamp(-most, most),
            false => value,
        };
        self.map(|a| (within(a.0), stored(dtype, a)))
    }
}

/// The error of rounding a number to `dtype`: half a unit in the last place, or half the spacing of the type's
/// subnormals, which matters in the tail of an activation.
pub(super) fn stored(dtype: Dtype, (value, off): Number) -> f64 {
    off + dtype.unit_roundoff() * (value.abs() + off) + dtype.half_subnormal()
}

/// The result of one operation in f32.
fn single((value, off): Number) -> Number {
    (value, off + F32.unit_roundoff() * (value.abs() + off))
}

/// An expression of known accumulators.
pub(super) fn apply(value: &Value, acc: &impl Fn(AccId) -> Known, args: &[Known]) -> Known {
    let of = |value: &Value| apply(value, acc, args);
    let constant = |value: f64| Known::exact(Array2::from_elem((1, 1), value));
    match value {
        Value::Acc(id) => acc(*id),
        Value::Arg(index) => {
            let arg = args.get(usize::from(*index)).cloned();
            arg.unwrap_or_else(|| constant(f64::NAN))
        }
        Value::Const(value) => constant(f64::from(*value)),
        Value::Unary(function, a) => of(a).map(|a| unary(*function, a)),
        Value::Binary(function, a, b) => of(a).zip(&of(b), |a, b| binary(*function, a, b)),
        Value::Select(compare, parts) => {
            let [a, b, then, otherwise] = &**parts;
            choose(*compare, [&of(a), &of(b), &of(then), &of(otherwise)])
        }
        Value::Cast(dtype, a) => of(a).stored(*dtype),
        Value::Call(function, values) => {
            let args: Vec<Known> = values.iter().map(of).collect();
            match &function.body {
                Body::Value(body) => apply(body, acc, &args),
                Body::Foreign(function) => foreign(function, &args),
            }
        }
    }
}

/// `then` if the comparison holds. If rounding may decide it, the bound includes the distance to the other side.
fn choose(compare: Compare, [a, b, then, otherwise]: [&Known; 4]) -> Known {
    let decided = a.zip(b, |a, b| {
        let off = a.1 + b.1;
        let unsure = off > 0.0 && (a.0 - b.0).abs() <= off;
        let number = |holds: bool| f64::from(u8::from(holds));
        (number(compare.eval(a.0, b.0)), number(unsure))
    });
    // Only its shape matters here.
    let shape = decided.zip(&then.zip(otherwise, |a, _| a), |a, _| a);
    let shape = shape.value.dim();
    let (decided, then) = (decided.widened(shape), then.clone().widened(shape));
    let mut chosen = otherwise.clone().widened(shape);
    Zip::from(&mut chosen.value)
        .and(&mut chosen.off)
        .and(&decided.value)
        .and(&decided.off)
        .and(&then.value)
        .and(&then.off)
        .for_each(|value, off, holds, unsure, then, then_off| {
            let (otherwise, otherwise_off) = (*value, *off);
            if *holds > 0.0 {
                (*value, *off) = (*then, *then_off);
            }
            if *unsure > 0.0 {
                *off = then_off.max(otherwise_off) + (then - otherwise).abs();
            }
        });
    chosen
}

fn unary(function: Unary, a: Number) -> Number {
    let value = function.eval(a.0);
    // The effect of an error is at most its effect at either end.
    let ends = || {
        let [low, high] = [a.0 - a.1, a.0 + a.1].map(|end| (function.eval(end) - value).abs());
        if a.1 == 0.0 {
            0.0
        } else if low.is_nan() || high.is_nan() {
            f64::INFINITY
        } else {
            low.max(high)
        }
    };
    match function {
        Unary::Neg | Unary::Abs => (value, a.1),
        Unary::Relu => (value, ends()),
        Unary::Exp | Unary::Ln | Unary::Sqrt => single((value, ends())),
        // Doubled for points between the ends, and for the device's own error.
        Unary::Tanh | Unary::Erf | Unary::Sigmoid | Unary::Gelu | Unary::GeluTanh | Unary::Silu => {
            single((value, 2.0 * ends()))
        }
    }
}

fn binary(function: Binary, a: Number, b: Number) -> Number {
    let value = function.eval(a.0, b.0);
    match function {
        Binary::Add | Binary::Sub => single((value, a.1 + b.1)),
        Binary::Mul => single((value, a.0.abs() * b.1 + b.0.abs() * a.1 + a.1 * b.1)),
        Binary::Div => {
            let least = b.0.abs() - b.1;
            let off = if a.1 == 0.0 && b.1 == 0.0 {
                0.0
            } else if least > 0.0 {
                (a.1 + value.abs() * b.1) / least
            } else {
                f64::INFINITY
            };
            single((value, off))
        }
        Binary::Min | Binary::Max => (value, a.1.max(b.1)),
    }
}

/// Value of a function of known arguments. Only its values are known: an argument's error has at most twice the
/// effect of its two ends, as for our own functions.
fn foreign(function: &Foreign, args: &[Known]) -> Known {
    // Only its shape matters here.
    let none = Known::zero(1, 1);
    let shape = args
        .iter()
        .fold(none, |shape, arg| shape.zip(arg, |a, _| a));
    let shape = shape.value.dim();
    let args: Vec<Known> = args.iter().map(|arg| arg.clone().widened(shape)).collect();
    let mut result = Known::zero(shape.0, shape.1);
    let mut at = Vec::with_capacity(args.len());
    for (place, value) in result.value.indexed_iter_mut() {
        at.clear();
        at.extend(args.iter().map(|arg| arg.value[place]));
        *value = function.eval(&at);
        let size = at.iter().fold(value.abs(), |size, arg| size.max(arg.abs()));
        let mut off = f64::from(function.ulps) * 2.0 * F32.unit_roundoff() * size;
        for (index, arg) in args.iter().enumerate() {
            let ends = [-arg.off[place], arg.off[place]].map(|off| {
                let mut at = at.clone();
                at[index] += off;
                (function.eval(&at) - *value).abs()
            });
            off += match ends.iter().any(|end| end.is_nan()) {
                true => f64::INFINITY,
                false => 2.0 * ends[0].max(ends[1]),
            };
        }
        result.off[place] = off;
    }
    result
}
