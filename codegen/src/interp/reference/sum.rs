//! Sums over ranks.

use super::gather::Writer;
use super::{Deriver, Known, NoReference};
use crate::program::{StoreMode, TensorId, TensorKind};
use ndarray::{Array2, Axis, Slice};

impl<'a> Deriver<'a> {
    /// The largest roundoff on the way of a partial sum.
    fn coarsest(&self) -> f64 {
        let buffers = self
            .kernel
            .buffers
            .iter()
            .filter(|buffer| !buffer.kind.is_input());
        buffers
            .map(|buffer| buffer.dtype.unit_roundoff())
            .fold(0.0, f64::max)
    }

    /// Partial sums are rounded when they are stored, once or twice (a reduce-add rounds the tile and the sum) on
    /// each rank; each is off by one roundoff of at most the sum of all magnitudes.
    fn hops(&self, sum: Known, magnitude: &Array2<f64>) -> Known {
        let factor = 2.0 * f64::from(self.plan.geometry.world) * self.coarsest();
        Known {
            off: sum.off + magnitude * factor,
            value: sum.value,
        }
    }

    /// A sum over ranks, over all rows.
    pub(super) fn sum(&self, id: TensorId) -> Result<Known, NoReference> {
        self.sum_at(id, 0)
    }

    fn sum_at(&self, id: TensorId, depth: u32) -> Result<Known, NoReference> {
        let world = self.plan.geometry.world;
        let (mut first, mut add): (Option<&Writer<'a>>, Option<&Writer<'a>>) = (None, None);
        let mut copied = None;
        for writer in self.writers_of(id) {
            if let Some(from) = writer.copied {
                copied = copied.or(Some(from).filter(|from| *from != id));
                continue;
            }
            if writer.unclear {
                return self.none(id, "a sum of a loop or branch");
            }
            let known = match writer.mode {
                StoreMode::Write => &mut first,
                StoreMode::Add => &mut add,
            };
            if known.is_some_and(|known| !known.same(writer)) {
                return self.none(id, "statements that store different things");
            }
            *known = Some(writer);
        }
        let Some(first) = first else {
            return match copied {
                Some(from) if depth < 8 => self.sum_at(from, depth + 1),
                Some(_) | None => self.none(id, "nothing stores it"),
            };
        };
        let loads_local = first
            .loads()
            .any(|from| !matches!(self.kernel.buffers[from.index()].kind, TensorKind::Gathered));
        if let Some(add) = add {
            let mut per_rank = Vec::new();
            for rank in 0..world {
                let begin = self.value(first, |acc| self.acc(first, acc, rank))?;
                let more = self.value(add, |acc| self.acc(add, acc, rank))?;
                per_rank.push((begin, more));
            }
            return Ok(self.by_owner(id, |owner| {
                let mut sum = per_rank[owner].0.clone();
                let mut magnitude = sum.value.mapv(f64::abs);
                for (_, more) in per_rank
                    .iter()
                    .enumerate()
                    .filter_map(|(rank, known)| (rank != owner).then_some(known))
                {
                    sum = sum.add(more);
                    magnitude += &more.value.mapv(f64::abs);
                }
                self.hops(sum, &magnitude)
            }));
        }
        let derive = |owner: u32| {
            self.value(first, |acc| {
                let mut total: Option<Known> = None;
                let mut magnitude: Option<Array2<f64>> = None;
                let mut include = |next: Known| {
                    let size = next.value.mapv(f64::abs);
                    magnitude = Some(match magnitude.take() {
                        Some(magnitude) => magnitude + &size,
                        None => size,
                    });
                    total = Some(match total.take() {
                        Some(total) => total.add(&next),
                        None => next,
                    });
                };
                if first.has_dot(acc) {
                    for rank in 0..world {
                        self.acc(first, acc, rank)?
                            .into_iter()
                            .for_each(&mut include);
                    }
                } else if first.any_dot() {
                    // What is reduced beside a dot is the other ranks' share of that dot's sum.
                    return self.acc(first, acc, owner);
                } else {
                    for from in first.reduced(acc) {
                        for rank in 0..world {
                            include(self.partial(from, rank, 0)?);
                        }
                    }
                    self.acc(first, acc, owner)?
                        .into_iter()
                        .for_each(&mut include);
                }
                Ok(match (total, magnitude) {
                    (Some(total), Some(magnitude)) => Some(self.hops(total, &magnitude)),
                    _ => None,
                })
            })
        };
        if !loads_local {
            return derive(0);
        }
        if self.kernel.buffers[id.index()].kind == TensorKind::Reduced && !first.mine {
            return self.none(id, "an epilogue operand whose rank is unclear");
        }
        let all = (0..world).map(derive).collect::<Result<Vec<_>, _>>()?;
        Ok(self.by_owner(id, |owner| all[owner].clone()))
    }

    /// Each chunk of rows from its owner's matrix.
    fn by_owner(&self, id: TensorId, of: impl Fn(usize) -> Known) -> Known {
        let rows = self.kernel.buffers[id.index()].rows;
        let mut out: Option<Known> = None;
        for owner in 0..self.plan.geometry.world {
            let chunk = Slice::from(self.plan.geometry.chunk(rows, owner).range());
            let mine = of(owner as usize);
            let out = out.get_or_insert_with(|| mine.clone());
            for (to, from) in [(&mut out.value, &mine.value), (&mut out.off, &mine.off)] {
                to.slice_axis_mut(Axis(0), chunk)
                    .assign(&from.slice_axis(Axis(0), chunk));
            }
        }
        out.unwrap_or_else(|| Known::exact(Array2::zeros((0, 0))))
    }

    /// What a rank stores in scratch that others add up.
    fn partial(&self, id: TensorId, rank: u32, depth: u32) -> Result<Known, NoReference> {
        let mut found: Option<&Writer<'a>> = None;
        for writer in self.writers_of(id) {
            if writer.unclear || writer.reduces() {
                return self.none(id, "partial sums that are themselves reduced");
            }
            if found.is_some_and(|known| !known.same(writer)) {
                return self.none(id, "statements that store different things");
            }
            found = Some(writer);
        }
        let Some(writer) = found else {
            return self.none(id, "nothing stores it");
        };
        match writer.copied {
            None => self.value(writer, |acc| self.acc(writer, acc, rank)),
            Some(from) if self.kernel.buffers[from.index()].is_scratch() && depth < 8 => {
                self.partial(from, rank, depth + 1)
            }
            Some(from) => Ok(Known::exact(self.operand(from, rank, 0)?)),
        }
    }
}
