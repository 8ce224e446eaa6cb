//! Numbers in f64, each with a bound on the rounding error of a device's number.

use crate::dtype::Dtype;
use crate::program::{Side, TensorKind};
use crate::value::{AccId, Binary, Body, Compare, Foreign, Unary, Value};
use crate::variant::BLOCK;
use ndarray::{Array2, ArrayView2, Axis, Slice, Zip, linalg::general_mat_mul};
use std::ops::Range;

/// A matrix with an error bound for each element. A single row or column is repeated as needed.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub value: Array2<f64>,
    pub off: Array2<f64>,
}

/// A number and its error bound.
type Number = (f64, f64);

/// An operand of a product: its numbers and error bounds. `None`: exact.
pub(super) type Operand<'a> = (ArrayView2<'a, f64>, Option<ArrayView2<'a, f64>>);

const F32: Dtype = Dtype::F32;
/// Depth of one multiply of FP8.
const SHORT_STEP: usize = 32;
/// What is cut off in one: its products, the accumulator, and their sum.
const SHORT_TERMS: f64 = SHORT_STEP as f64 + 2.0;
/// The last bit that is kept, as a share of the largest.
const SHORT_BIT: f64 = 1.0 / 8192.0;
/// CTAs that share K, at most: those of a cluster.
const MOST_SHARES: usize = 16;

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
        let mut new = self.widened(shape);
        let other = other.widened(shape);
        Zip::from(&mut new.value)
            .and(&mut new.off)
            .and(&other.value)
            .and(&other.off)
            .for_each(|value, off, b, b_off| (*value, *off) = f((*value, *off), (*b, *b_off)));
        new
    }

    /// Expanded to that many rows and columns: a single one is repeated.
    pub fn widened(&self, shape: (usize, usize)) -> Known {
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
    pub fn laid(self, kind: TensorKind) -> Known {
        if kind.read_along(Side::Rows) != Some(Side::Columns) {
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

    /// Adds `a · bᵀ`. Any order of K products and sums in f32 is off by at most K roundings of the sum of magnitudes
    /// (to first order; one more covers the second).
    pub fn add_product(&mut self, a: &Operand<'_>, b: &Operand<'_>) {
        let times = |a: &ArrayView2<'_, f64>, b: &ArrayView2<'_, f64>, c: &mut Array2<f64>| {
            general_mat_mul(1.0, a, &b.t(), 1.0, c);
        };
        let depth = (a.0.ncols() + 1) as f64 * F32.unit_roundoff();
        let (size_a, size_b) = (a.0.mapv(f64::abs), b.0.mapv(f64::abs));
        let mut size = self.value.mapv(f64::abs);
        times(&size_a.view(), &size_b.view(), &mut size);
        if a.1.is_some() || b.1.is_some() {
            let mut more = self.value.mapv(f64::abs);
            times(&largest(a).view(), &largest(b).view(), &mut more);
            self.off += &(&more - &size);
            size = more;
        }
        self.off.scaled_add(depth, &size);
        times(&a.0, &b.0, &mut self.value);
    }

    /// Adds `a · bᵀ` of FP8 operands, as tensor cores do: 32 of K at a time, they align the products and the accumulator to the
    /// largest exponent, cut each off after 13 fraction bits, and so their sum. Each of those is off by less than one such
    /// bit of the largest, which is at most the accumulator and all magnitudes of the step. Where CTAs share the steps,
    /// their accumulators are differences of two sums from the start.
    pub fn add_short_product(&mut self, a: &Operand<'_>, b: &Operand<'_>) {
        let mut most = self.value.mapv(f64::abs);
        let depth = a.0.ncols();
        for start in (0..depth).step_by(SHORT_STEP) {
            let step = start..(start + SHORT_STEP).min(depth);
            let (a, b) = (part(a, &step), part(b, &step));
            let magnitudes = largest(&a).dot(&largest(&b).t());
            if a.1.is_some() || b.1.is_some() {
                let exact = a.0.mapv(f64::abs).dot(&b.0.mapv(f64::abs).t());
                self.off += &(&magnitudes - &exact);
            }
            let off = (&most * 2.0 + &magnitudes + &self.off) * (SHORT_TERMS * SHORT_BIT);
            self.off += &off;
            self.value += &a.0.dot(&b.0.t());
            most.zip_mut_with(&self.value, |most, value| *most = most.max(value.abs()));
        }
    }
}

/// Those columns of an operand.
fn part<'a>(of: &'a Operand<'_>, columns: &Range<usize>) -> Operand<'a> {
    let cut = |all: &'a ArrayView2<'_, f64>| all.slice_axis(Axis(1), Slice::from(columns.clone()));
    (cut(&of.0), of.1.as_ref().map(cut))
}

/// The largest that an operand's magnitudes may be.
fn largest((value, off): &Operand<'_>) -> Array2<f64> {
    let size = value.mapv(f64::abs);
    match off {
        Some(off) => size + off,
        None => size,
    }
}

impl Known {
    /// Adds `a · bᵀ` of FP8 operands with promoted sums: 128 of K at a time as tensor cores do, from zero, then times its factors
    /// and added in f32. Each of those sums is off as [`Known::add_short_product`] says; the product of two factors by a
    /// rounding; any order of the sums in f32, those of CTAs that share K among them, by a rounding each of all magnitudes.
    pub fn add_promoted_product(
        &mut self,
        a: &Operand<'_>,
        b: &Operand<'_>,
        factors: &[Option<Array2<f64>>; 2],
    ) {
        let depth = a.0.ncols();
        let mut size = self.value.mapv(f64::abs);
        for start in (0..depth).step_by(BLOCK as usize) {
            let columns = start..(start + BLOCK as usize).min(depth);
            let (a, b) = (part(a, &columns), part(b, &columns));
            let mut block = Known::zero(a.0.nrows(), b.0.nrows());
            block.add_short_product(&a, &b);
            let step = start / BLOCK as usize;
            let factor = |side: usize, row: usize| {
                (factors[side].as_ref()).map_or(1.0, |factors| factors[(row, step)])
            };
            for ((row, column), value) in block.value.indexed_iter() {
                let at = (row, column);
                let scale = factor(0, row) * factor(1, column);
                let term = value * scale;
                let off = block.off[at] * scale.abs();
                let off = off + (term.abs() + off) * F32.unit_roundoff() + F32.half_subnormal();
                self.value[at] += term;
                self.off[at] += off;
                size[at] += term.abs() + off;
            }
        }
        let roundings = (depth.div_ceil(BLOCK as usize) + MOST_SHARES) as f64;
        self.off.scaled_add(roundings * F32.unit_roundoff(), &size);
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
    let (decided, then) = (decided.widened(shape), then.widened(shape));
    let mut chosen = otherwise.widened(shape);
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

/// What a function says of known arguments. Only its values are known: an argument's error has at most twice the effect of its
/// two ends, as for our own functions.
fn foreign(function: &Foreign, args: &[Known]) -> Known {
    // Only its shape matters here.
    let none = Known::zero(1, 1);
    let shape = args
        .iter()
        .fold(none, |shape, arg| shape.zip(arg, |a, _| a));
    let shape = shape.value.dim();
    let args: Vec<Known> = args.iter().map(|arg| arg.widened(shape)).collect();
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
