//! One rank's tensor in f64, with error bounds.

use super::walk::Rect;
use crate::known::{Known, stored};
use crate::product::{Numbers, Operand};
use counterflow_codegen::dtype::Dtype;
use ndarray::{
    ArcArray2, Array2, ArrayBase, ArrayView2, ArrayViewMut2, Axis, Data, DataMut, Ix2, Slice,
};
use std::ops::Range;

/// A tensor's memory on one rank: all its slots, one below the other.
pub(super) struct Plane {
    pub dtype: Dtype,
    /// The rows it holds.
    pub held: Range<u32>,
    value: Contents,
    /// Error bounds. None until something inexact is written.
    pub off: Option<Array2<f64>>,
    sums: Option<Sums>,
}

/// The numbers of a tensor.
enum Contents {
    /// An input that nothing was written to.
    Given(ArcArray2<f32>),
    Written(Array2<f64>),
}

impl Contents {
    fn part(&self, parts: &Parts) -> Numbers<'_> {
        match self {
            Contents::Given(all) => Numbers::Given(part(all, parts)),
            Contents::Written(all) => Numbers::Computed(part(all, parts)),
        }
    }

    fn dim(&self) -> (usize, usize) {
        match self {
            Contents::Given(all) => all.dim(),
            Contents::Written(all) => all.dim(),
        }
    }

    /// The numbers, to write some.
    fn written(&mut self) -> &mut Array2<f64> {
        if let Contents::Given(given) = self {
            *self = Contents::Written(given.mapv(f64::from));
        }
        match self {
            Contents::Written(all) => all,
            Contents::Given(_) => unreachable!("they were just replaced"),
        }
    }
}

/// The adds to an element, where every sum is rounded and the order is unknown.
struct Sums {
    /// The sum of the terms' error bounds.
    off: Array2<f64>,
    /// The sum of their magnitudes, which bounds every partial sum.
    size: Array2<f64>,
    /// Number of terms that were added.
    count: Array2<f64>,
}

/// Rows and columns of an array.
pub(crate) type Parts = (Range<usize>, Range<usize>);

impl Plane {
    /// Memory that holds these rows, and before a launch has `filled`: values of some rows.
    pub fn new(
        dtype: Dtype,
        held: Range<u32>,
        (columns, slots): (u32, u32),
        filled: Option<(Range<u32>, &ArcArray2<f32>)>,
    ) -> Plane {
        let shape = (held.len() * slots as usize, columns as usize);
        let value = match filled {
            Some((_, values)) if values.dim() == shape => Contents::Given(values.clone()),
            filled => {
                let mut all = Array2::from_elem(shape, f64::NAN);
                if let Some((rows, values)) = filled {
                    let first = (rows.start - held.start) as usize;
                    let parts = (first..first + rows.len(), 0..all.ncols());
                    let mut there = part_mut(&mut all, &parts);
                    there.zip_mut_with(values, |there, value| *there = f64::from(*value));
                }
                Contents::Written(all)
            }
        };
        Plane {
            dtype,
            held,
            value,
            off: None,
            sums: None,
        }
    }

    fn parts(&self, rect: &Rect) -> Result<Parts, String> {
        parts(&self.held, rect)
    }

    pub fn read(&self, rect: &Rect) -> Result<Operand<'_>, String> {
        let parts = self.parts(rect)?;
        let off = self.off.as_ref().map(|off| part(off, &parts));
        Ok((self.value.part(&parts), off))
    }

    /// Some of the numbers.
    pub fn numbers(&self, parts: &Parts) -> Array2<f64> {
        self.value.part(parts).to_owned()
    }

    /// All numbers, row by row, and their error bounds.
    pub fn into_numbers(self) -> (Vec<f64>, Vec<f64>) {
        let shape = self.value.dim();
        let off = self.off.unwrap_or_else(|| Array2::zeros(shape));
        let value = match self.value {
            Contents::Given(all) => all.mapv(f64::from),
            Contents::Written(all) => all,
        };
        let [value, off] = [value, off].map(|all| all.into_raw_vec_and_offset().0);
        (value, off)
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.value.dim().1
    }

    /// Replaces the contents.
    pub fn write(&mut self, rect: &Rect, known: &Known) -> Result<(), String> {
        let parts = self.parts(rect)?;
        part_mut(self.value.written(), &parts).assign(&known.value);
        let exact = known.off.iter().all(|off| *off == 0.0);
        if self.off.is_some() || !exact {
            let shape = self.value.dim();
            let off = self.off.get_or_insert_with(|| Array2::zeros(shape));
            part_mut(off, &parts).assign(&known.off);
        }
        if let Some(sums) = &mut self.sums {
            part_mut(&mut sums.off, &parts).assign(&known.off);
            part_mut(&mut sums.size, &parts).assign(&known.value.mapv(f64::abs));
            part_mut(&mut sums.count, &parts).fill(0.0);
        }
        Ok(())
    }

    /// Adds to the contents: the tile is rounded, and then every sum.
    pub fn add(&mut self, rect: &Rect, known: &Known) -> Result<(), String> {
        let (rows, columns) = self.parts(rect)?;
        let shape = self.value.dim();
        let value = self.value.written();
        let off = self.off.get_or_insert_with(|| Array2::zeros(shape));
        let sums = self.sums.get_or_insert_with(|| Sums {
            off: off.clone(),
            size: value.mapv(f64::abs),
            count: Array2::zeros(shape),
        });
        for (i, row) in rows.enumerate() {
            for (j, column) in columns.clone().enumerate() {
                let (here, from) = ((row, column), (i, j));
                let term = stored(self.dtype, (known.value[from], known.off[from]));
                value[here] += known.value[from];
                sums.off[here] += term;
                sums.size[here] += known.value[from].abs() + term;
                sums.count[here] += 1.0;
                let once = stored(self.dtype, (sums.size[here], 0.0));
                off[here] = sums.off[here] + sums.count[here] * once;
            }
        }
        Ok(())
    }
}

impl Plane {
    /// Makes its only number as large as the largest absolute value. A number with its sign bit set counts as 0, and NaN does,
    /// too. Of two largest ones that are off, that is at most as far off as either.
    pub fn measure(&mut self, known: &Known) {
        let known = known.stored(self.dtype);
        let larger = |most: f64, next: f64| match most.is_nan() || next.abs() <= most {
            true => most,
            false => next.abs(),
        };
        let farther = |most: f64, next: f64| most.max(next);
        let amax = known.value.iter().copied().fold(0.0, larger);
        let bound = known.off.iter().copied().fold(0.0, farther);
        self.value.written().mapv_inplace(|before| {
            let counts = before.is_sign_positive();
            larger(if counts { before } else { 0.0 }, amax)
        });
        let shape = self.value.dim();
        let off = self.off.get_or_insert_with(|| Array2::zeros(shape));
        off.mapv_inplace(|before| farther(before, bound));
    }
}

/// The position of a rectangle in a tensor's arrays that hold these rows, all slots one below the other.
pub(crate) fn parts(held: &Range<u32>, rect: &Rect) -> Result<Parts, String> {
    let rows = &rect.rows;
    let inside = rows.start >= held.start && rows.end <= held.end;
    if !rows.is_empty() && !inside {
        return Err(format!(
            "it accesses rows {rows:?}, but only {held:?} are held"
        ));
    }
    let first = rect.slot as usize * held.len();
    let first = first + rows.start.saturating_sub(held.start) as usize;
    let columns = rect.columns.start as usize..rect.columns.end as usize;
    Ok((first..first + rows.len(), columns))
}

pub(crate) fn part<'a, T>(
    of: &'a ArrayBase<impl Data<Elem = T>, Ix2>,
    (rows, columns): &Parts,
) -> ArrayView2<'a, T> {
    let mut view = of.slice_axis(Axis(0), Slice::from(rows.clone()));
    view.slice_axis_inplace(Axis(1), Slice::from(columns.clone()));
    view
}

pub(crate) fn part_mut<'a, T>(
    of: &'a mut ArrayBase<impl DataMut<Elem = T>, Ix2>,
    (rows, columns): &Parts,
) -> ArrayViewMut2<'a, T> {
    let mut view = of.slice_axis_mut(Axis(0), Slice::from(rows.clone()));
    view.slice_axis_inplace(Axis(1), Slice::from(columns.clone()));
    view
}
