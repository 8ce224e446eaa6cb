//! What a kernel means, in f64: expected outputs derived from its statements, independent of any schedule.
//!
//! - A gathered tensor is the concatenation of the ranks' chunks.
//! - `Out` is its store's expression, each dot taken over full tensors.
//! - What is `Accumulated` is what it held before plus what is added, one rounding more.
//! - A sum over ranks (`Scattered`, `Reduced`) is its initial store's expression with `Reduce := 0` and each dot
//!   summed over ranks. Where that expression has no dot, its `Reduce` is the sum over ranks of what they store in
//!   the scratch it reads. Where others `+=`, it is the owner's initial expression plus theirs.
//!
//! Every element comes with a bound on the error that rounding may make.

mod gather;
mod sum;

use super::Input;
use crate::dtype::Dtype;
use crate::kernel::Kernel;
use crate::plan::Plan;
use crate::program::{StoreMode, TensorId, TensorKind};
use crate::shape::Extent;
use crate::value::{AccId, Value};
use gather::{Filler, Writer, writers};
use ndarray::{Array2, ArrayView2, Axis, Slice, linalg::general_mat_mul};
use std::fmt;

/// Expected outputs of one launch.
#[derive(Clone, PartialEq, Debug)]
pub struct Expected {
    /// Which launch.
    pub launch: usize,
    /// Every gathered tensor and output of every rank.
    pub tensors: Vec<ExpectedTensor>,
}

/// One rank's expected tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct ExpectedTensor {
    /// The rank.
    pub rank: u32,
    /// Which tensor.
    pub tensor: TensorId,
    /// Its element type.
    pub dtype: Dtype,
    /// The rows the rank holds.
    pub rows: Extent,
    /// How many columns.
    pub columns: u32,
    /// Row by row.
    pub values: Vec<f64>,
    /// How far off each may be.
    pub bounds: Vec<f64>,
}

/// Why there is no reference: the schedule computes something this module cannot derive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoReference {
    /// The tensor, or the schedule.
    pub of: String,
    /// Why.
    pub why: String,
}

impl fmt::Display for NoReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no reference for {}: {}", self.of, self.why)
    }
}

impl std::error::Error for NoReference {}

/// A matrix, and how far off each element may be.
#[derive(Clone)]
struct Known {
    value: Array2<f64>,
    off: Array2<f64>,
}

impl Known {
    fn exact(value: Array2<f64>) -> Known {
        let off = Array2::zeros(value.raw_dim());
        Known { value, off }
    }

    fn add(self, other: &Known) -> Known {
        Known {
            value: self.value + &other.value,
            off: self.off + &other.off,
        }
    }
}

/// Expected outputs of launch `launch` of `plan`, for the same `inputs` as [`super::run`] was given.
///
/// # Errors
/// The first tensor that cannot be derived.
pub fn reference(
    kernel: &Kernel,
    plan: &Plan,
    launch: usize,
    mut inputs: impl FnMut(Input<'_>, &mut [f32]),
) -> Result<Expected, NoReference> {
    let world = plan.geometry.world;
    let mut deriver = Deriver {
        kernel,
        plan,
        writers: writers(kernel),
        inputs: Vec::new(),
    };
    for rank in 0..world {
        deriver.inputs.push(
            (0..kernel.buffers.len())
                .map(|index| deriver.input(launch, rank, TensorId(index as u16), &mut inputs))
                .collect(),
        );
    }
    let mut tensors = Vec::new();
    for (index, buffer) in kernel.buffers.iter().enumerate() {
        let id = TensorId(index as u16);
        let output = match buffer.kind {
            TensorKind::Local | TensorKind::Vector | TensorKind::Scratch { .. } => continue,
            TensorKind::Gathered
            | TensorKind::Out
            | TensorKind::Accumulated
            | TensorKind::Scattered
            | TensorKind::Reduced => buffer,
        };
        // What is the same on every rank is derived once.
        let sums = matches!(output.kind, TensorKind::Scattered | TensorKind::Reduced);
        let shared = if sums { Some(deriver.sum(id)?) } else { None };
        for rank in 0..world {
            let known = match (&shared, output.kind) {
                (Some(sum), _) => sum.clone(),
                (None, TensorKind::Gathered) => Known::exact(deriver.gathered(id)),
                (None, TensorKind::Accumulated) => deriver.accumulated(id, rank)?,
                (None, _) => deriver.out(id, rank, StoreMode::Write)?,
            };
            let rows = plan.geometry.held(output, rank);
            let part = |from: &Array2<f64>| -> Vec<f64> {
                let rows = Slice::from(rows.range());
                from.slice_axis(Axis(0), rows).iter().copied().collect()
            };
            let mut bounds = part(&known.off);
            let values = part(&known.value);
            if output.kind != TensorKind::Gathered {
                for (bound, value) in bounds.iter_mut().zip(&values) {
                    *bound = stored(output.dtype, *value, *bound);
                }
            }
            tensors.push(ExpectedTensor {
                rank,
                tensor: id,
                dtype: output.dtype,
                rows,
                columns: plan.geometry.size(output.columns),
                values,
                bounds,
            });
        }
    }
    Ok(Expected { launch, tensors })
}

/// The bound after rounding to `dtype`: one half unit in the last place of what may be stored, or half the spacing
/// of the type's subnormals, which the tail of an activation meets.
fn stored(dtype: Dtype, value: f64, error: f64) -> f64 {
    let tiny = match dtype {
        Dtype::F16 => 2f64.powi(-25),
        Dtype::Bf16 => 2f64.powi(-134),
        Dtype::F32 => 2f64.powi(-150),
    };
    error + dtype.unit_roundoff() * (value.abs() + error) + tiny
}

struct Deriver<'a> {
    kernel: &'a Kernel,
    plan: &'a Plan,
    writers: Vec<Writer<'a>>,
    /// By rank and tensor; empty for what nothing is in before. Gathered tensors hold the rank's own chunk.
    inputs: Vec<Vec<Array2<f64>>>,
}

impl<'a> Deriver<'a> {
    fn none<T>(&self, id: TensorId, why: &'static str) -> Result<T, NoReference> {
        Err(NoReference {
            of: self.kernel.buffers[id.index()].name.clone(),
            why: why.into(),
        })
    }

    fn input(
        &self,
        launch: usize,
        rank: u32,
        id: TensorId,
        fill: &mut impl FnMut(Input<'_>, &mut [f32]),
    ) -> Array2<f64> {
        let buffer = &self.kernel.buffers[id.index()];
        if !buffer.kind.counts_before() {
            return Array2::zeros((0, 0));
        }
        let geometry = &self.plan.geometry;
        let rows = match buffer.kind {
            TensorKind::Gathered => geometry.chunk(buffer.rows, rank),
            TensorKind::Local
            | TensorKind::Vector
            | TensorKind::Out
            | TensorKind::Accumulated
            | TensorKind::Scattered
            | TensorKind::Reduced
            | TensorKind::Scratch { .. } => geometry.held(buffer, rank),
        };
        let columns = geometry.size(buffer.columns);
        let mut values = vec![0.0; rows.len() as usize * columns as usize];
        let input = Input {
            launch,
            rank,
            tensor: id,
            name: &buffer.name,
            rows,
            columns,
        };
        fill(input, &mut values);
        let rounded = values
            .iter()
            .map(|value| f64::from(buffer.dtype.round(*value)));
        Array2::from_shape_vec((rows.len() as usize, columns as usize), rounded.collect())
            .expect("as many values as rows by columns")
    }

    fn gathered(&self, id: TensorId) -> Array2<f64> {
        let chunks: Vec<ArrayView2<'_, f64>> = self
            .inputs
            .iter()
            .map(|rank| rank[id.index()].view())
            .collect();
        ndarray::concatenate(Axis(0), &chunks).expect("chunks have the same columns")
    }

    fn writers_of(&self, id: TensorId) -> impl Iterator<Item = &Writer<'a>> + '_ {
        self.writers.iter().filter(move |writer| writer.dst == id)
    }

    /// What an operand or a loaded tile holds on a rank, over all rows.
    fn operand(&self, id: TensorId, rank: u32, depth: u32) -> Result<Array2<f64>, NoReference> {
        match self.kernel.buffers[id.index()].kind {
            TensorKind::Local | TensorKind::Vector => {
                Ok(self.inputs[rank as usize][id.index()].clone())
            }
            TensorKind::Gathered => Ok(self.gathered(id)),
            TensorKind::Scratch { .. } => {
                let mut source = None;
                for writer in self.writers_of(id) {
                    match writer.copied {
                        Some(from) if from == id => {}
                        Some(from) if source.is_none_or(|known| known == from) => {
                            source = Some(from);
                        }
                        Some(_) | None => {
                            return self.none(id, "an operand in scratch that is not a plain copy");
                        }
                    }
                }
                match source {
                    Some(from)
                        if depth < 8
                            && self.kernel.buffers[from.index()].kind != TensorKind::Local =>
                    {
                        self.operand(from, rank, depth + 1)
                    }
                    Some(_) | None => self.none(id, "an operand whose source depends on the rank"),
                }
            }
            TensorKind::Out
            | TensorKind::Accumulated
            | TensorKind::Scattered
            | TensorKind::Reduced => self.none(id, "an operand that the schedule itself computes"),
        }
    }

    /// `a · bᵀ` on a rank. Any order of K products and sums in f32 is off by at most K roundings of the sum of
    /// magnitudes (to first order; one more covers the second).
    fn dot(&self, a: TensorId, b: TensorId, rank: u32) -> Result<Known, NoReference> {
        let (a, b) = (self.operand(a, rank, 0)?, self.operand(b, rank, 0)?);
        let times = |a: &Array2<f64>, b: &Array2<f64>, scale: f64| {
            let mut c = Array2::zeros((a.nrows(), b.nrows()));
            general_mat_mul(scale, a, &b.t(), 0.0, &mut c);
            c
        };
        let depth = (a.ncols() + 1) as f64 * Dtype::F32.unit_roundoff();
        Ok(Known {
            value: times(&a, &b, 1.0),
            off: times(&a.mapv(f64::abs), &b.mapv(f64::abs), depth),
        })
    }

    /// An accumulator's contents on a rank, without what is reduced into it; and the magnitude of its products.
    fn acc(
        &self,
        writer: &Writer<'a>,
        acc: AccId,
        rank: u32,
    ) -> Result<Option<Known>, NoReference> {
        let mut sum: Option<Known> = None;
        for filler in writer.fillers(acc) {
            let next = match filler {
                Filler::Dot { a, b } => self.dot(*a, *b, rank)?,
                Filler::Load(from) => Known::exact(self.operand(*from, rank, 0)?),
                Filler::Reduce(_) => continue,
            };
            sum = Some(match sum {
                Some(sum) => sum.add(&next),
                None => next,
            });
        }
        Ok(sum)
    }

    /// A writer's expression over given accumulators.
    fn value(
        &self,
        writer: &Writer<'a>,
        mut acc: impl FnMut(AccId) -> Result<Option<Known>, NoReference>,
    ) -> Result<Known, NoReference> {
        let buffer = &self.kernel.buffers[writer.dst.index()];
        let shape = (
            self.plan.geometry.size(buffer.rows) as usize,
            self.plan.geometry.size(buffer.columns) as usize,
        );
        let mut accs = Vec::new();
        for id in writer.value.accs() {
            let known = acc(id)?.unwrap_or_else(|| Known::exact(Array2::zeros(shape)));
            accs.push((id, known));
        }
        let mut out = Known::exact(Array2::zeros(shape));
        let casts = casts(writer.value);
        for row in 0..shape.0 {
            for column in 0..shape.1 {
                let at = |of: &Array2<f64>| {
                    let row = if of.nrows() == 1 { 0 } else { row };
                    of[(row, column)]
                };
                let eval = |moved: Option<(AccId, f64)>| {
                    let acc = |id: AccId| {
                        let known = accs.iter().find(|(known, _)| *known == id);
                        let by = moved
                            .filter(|(moved, _)| *moved == id)
                            .map_or(0.0, |(_, by)| by);
                        known.map_or(f64::NAN, |(_, known)| at(&known.value) + by)
                    };
                    writer.value.eval(&acc, &[])
                };
                let value = eval(None);
                // What an error in each accumulator does to the expression, doubled for what lies between the ends;
                // one f32 rounding for the whole; and the casts in it.
                let mut error = Dtype::F32.unit_roundoff() * value.abs() + casts * value.abs();
                if matches!(writer.value, Value::Acc(_)) {
                    error = at(&accs[0].1.off);
                } else {
                    for (id, known) in &accs {
                        let by = at(&known.off);
                        if by > 0.0 {
                            let up = (eval(Some((*id, by))) - value).abs();
                            error += 2.0 * up.max((eval(Some((*id, -by))) - value).abs());
                        }
                    }
                }
                out.value[(row, column)] = value;
                out.off[(row, column)] = error;
            }
        }
        Ok(out)
    }

    /// What a rank held before a launch, and what it adds: rounded, and the sum again.
    fn accumulated(&self, id: TensorId, rank: u32) -> Result<Known, NoReference> {
        let before = Known::exact(self.inputs[rank as usize][id.index()].clone());
        let mut more = self.out(id, rank, StoreMode::Add)?;
        let dtype = self.kernel.buffers[id.index()].dtype;
        let rounded = |off: &mut f64, value: &f64| *off = stored(dtype, *value, *off);
        more.off.zip_mut_with(&more.value, rounded);
        Ok(before.add(&more))
    }

    /// What all stores of a rank say, in that mode.
    fn out(&self, id: TensorId, rank: u32, mode: StoreMode) -> Result<Known, NoReference> {
        let mut found: Option<&Writer<'a>> = None;
        for writer in self.writers_of(id) {
            if writer.copied.is_some() || writer.mode != mode {
                return self.none(id, "an output that is copied, or both written and added to");
            }
            if writer.unclear || writer.reduces() {
                return self.none(id, "an output of partial sums, or of a loop or branch");
            }
            if found.is_some_and(|known| !known.same(writer)) {
                return self.none(id, "statements that store different things");
            }
            found = Some(writer);
        }
        match found {
            Some(writer) => self.value(writer, |acc| self.acc(writer, acc, rank)),
            None => self.none(id, "nothing stores it"),
        }
    }
}

/// How much casts inside an expression may round, relative to its value: each twice its roundoff, for a value that an
/// earlier error moves over a boundary.
fn casts(value: &Value) -> f64 {
    let mut sum = 0.0;
    value.visit(&mut |part| {
        if let Value::Cast(dtype, _) = part {
            sum += 2.0 * dtype.unit_roundoff();
        }
    });
    sum
}
