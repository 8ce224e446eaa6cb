//! The math after the dot: that each subtile gets the value the schedule stores, from operands of its own rows and columns.

use super::filled::{POINTS, of_product};
use super::held::{Applied, Fragment, Place, Summed};
use super::simulator::{Agent, KnownValue, Simulator, Verdict};
use super::step::Area;
use super::trace;
use crate::dtype::Dtype;
use crate::kernel::{OpKind, ValueId, visit};
use crate::program::{Side, TensorId};
use crate::value::AccId;
use crate::warp::{Elements, Source};

impl Simulator<'_> {
    /// The tensor that fills an accumulator: of a load, or of a sum.
    fn loaded_from(&self, acc: AccId) -> Option<TensorId> {
        let mut found = None;
        for role in &self.case.pipeline.kernel.roles {
            visit(&role.body, &mut |op| {
                if let OpKind::Load { acc: filled, from }
                | OpKind::Reduce {
                    acc: filled, from, ..
                } = &op.kind
                    && *filled == acc
                {
                    found = Some(from.buffer);
                }
            });
        }
        found
    }

    fn has_read(&mut self, index: usize, acc: AccId, row: Option<u32>, column: u32) {
        let read = &mut self.agents[index].fragment.read;
        read.retain(|(known, ..)| *known != acc);
        read.push((acc, row, column));
    }

    /// A stored subtile is read.
    pub(super) fn read_subtile(&mut self, index: usize, subtile: Area, acc: AccId) -> Verdict {
        let Some(from) = self.stored_subtile(self.agents[index].cta, subtile) else {
            let what = "a stage does not hold one stored subtile";
            return Err(Box::new(trace::wrong(self, index, what)));
        };
        if self.loaded_from(acc) != Some(from.tensor) {
            let what = "the stored subtile is of another tensor";
            return Err(Box::new(trace::wrong(self, index, what)));
        }
        let row = self.row_in_all(&from, from.origin.0);
        self.has_read(index, acc, Some(row), from.origin.1);
        Ok(())
    }

    /// A sum begins.
    pub(super) fn start_sum(&mut self, index: usize, acc: AccId) {
        let fragment = &mut self.agents[index].fragment;
        fragment.read.retain(|(known, ..)| *known != acc);
        fragment.summed.retain(|sum| sum.acc != acc);
        fragment.summed.push(Summed {
            acc,
            ranks: Vec::new(),
            own: None,
        });
    }

    /// This rank's own term is added to a sum: a product with all of K, or what became of this subtile, of the same place as
    /// the stored subtiles before it.
    pub(super) fn add_own(
        &mut self,
        index: usize,
        acc: AccId,
        (elements, part): (Elements, u32),
        dtype: Dtype,
    ) -> Verdict {
        let wrong = |what: &str| Err(Box::new(trace::wrong(self, index, what)));
        self.is_there(index, elements, part)?;
        let buffers = &self.case.pipeline.kernel.buffers;
        let others = self.loaded_from(acc);
        if others.map(|tensor| buffers[tensor.index()].dtype) != Some(dtype) {
            return wrong(
                "this rank's own term is rounded to another type than those of the others",
            );
        }
        let Agent { fragment, who, .. } = &self.agents[index];
        let own = |op: &OpKind| {
            let OpKind::Reduce { acc: of, own, .. } = op else {
                return None;
            };
            own.filter(|_| *of == acc)
        };
        if !(0..POINTS).all(|point| self.is_value_at(point, &own, fragment, elements)) {
            return wrong("this rank's own term is another value");
        }
        let plan = self.case.plan_of(who.launch);
        let products = self.products_in(fragment, elements);
        if !(products.iter()).all(|product| product.has_all(part, self.depth(product, plan))) {
            return wrong("this rank's own term is a product that does not have all of K");
        }
        let product = products.first().map(|product| product.at);
        let at = product.or_else(|| self.read_at(fragment, elements, part));
        let place = self.subtile_of(at.unwrap_or_default(), part);
        let mut read = fragment.read.iter();
        let before = read.find(|(known, ..)| *known == acc).copied();
        match (before, place) {
            (Some((_, row, column)), (Some(at), Some(first)))
                if (row, column) != (Some(at), first) =>
            {
                return wrong("this rank's own term is of another place than those it is added to");
            }
            (None, (Some(at), Some(first))) => self.has_read(index, acc, Some(at), first),
            (Some(_) | None, _) => {}
        }
        let rank = self.agents[index].who.rank;
        let mut sums = self.agents[index].fragment.summed.iter_mut();
        let Some(sum) = sums.find(|sum| sum.acc == acc) else {
            let what = "the sum's registers were not set to zero";
            return Err(Box::new(trace::wrong(self, index, what)));
        };
        sum.ranks.push(rank);
        sum.own = Some((elements, part));
        Ok(())
    }

    /// A stored subtile is added to a sum: of the same place as those before it.
    pub(super) fn add_to_sum(&mut self, index: usize, subtile: Area, acc: AccId) -> Verdict {
        let before = self.agents[index].fragment.read.iter();
        let before = before.copied().find(|(known, ..)| *known == acc);
        self.read_subtile(index, subtile, acc)?;
        let cta = self.agents[index].cta;
        let from = self.stored_subtile(cta, subtile);
        let term = from.map(|from| self.term(cta, subtile, &from));
        let fragment = &mut self.agents[index].fragment;
        let now = fragment.read.iter().find(|(known, ..)| *known == acc);
        let same = before.is_none_or(|before| now == Some(&before));
        let mut sums = fragment.summed.iter_mut();
        let sum = sums.find(|sum| sum.acc == acc);
        match (sum, term) {
            (Some(sum), Some(term)) if same => sum.ranks.push(term),
            (Some(_), _) => {
                let what = "the stored subtile is of another place than those it is added to";
                return Err(Box::new(trace::wrong(self, index, what)));
            }
            (None, _) => {
                let what = "the sum's registers were not set to zero";
                return Err(Box::new(trace::wrong(self, index, what)));
            }
        }
        Ok(())
    }

    /// Reason that a sum of a subtile is not what the schedule says: each of its slots once, in ascending order, and
    /// this rank's own term in its turn if the schedule adds it there.
    fn incomplete_sum(&self, index: usize, acc: AccId, part: u32) -> Option<&'static str> {
        let agent = &self.agents[index];
        let mut sums = agent.fragment.summed.iter();
        let Some(sum) = sums.find(|sum| sum.acc == acc) else {
            return Some("does not have every other rank's part once");
        };
        let me = agent.who.rank;
        let (wanted, own) = self.case.summed(acc, me).unwrap_or_default();
        let own_is_right = match sum.own {
            None => !own,
            Some((_, of)) => own && of == part,
        };
        if sum.ranks == wanted && own_is_right {
            return None;
        }
        let mut ranks = sum.ranks.clone();
        ranks.sort_unstable();
        let others = |ranks: &[u32]| -> Vec<u32> {
            ranks.iter().copied().filter(|rank| *rank != me).collect()
        };
        Some(match others(&ranks) == others(&wanted) {
            false => "does not have every other rank's part once",
            true => "does not have this rank's own term in its turn",
        })
    }

    /// Place of the tile of which an epilogue without a product reads subtile `part`.
    fn place_of_reads(&self, index: usize, epilogue: usize, part: u32) -> Place {
        let params = &self.case.pipeline.epilogues[epilogue].params;
        let (row, column) = self.case.pipeline.subtile_at(part);
        let read = &self.agents[index].fragment.read;
        let mut place = (None, None);
        for param in params {
            let known = read.iter().find(|(acc, ..)| *acc == param.acc);
            if let Some((_, at, first)) = known {
                place.0 = place.0.or(at.map(|at| at.wrapping_sub(row)));
                place.1 = place.1.or(Some(first.wrapping_sub(column)));
            }
        }
        place
    }

    /// A vector or a scale is read.
    pub(super) fn broadcast(
        &mut self,
        index: usize,
        acc: AccId,
        tensor: TensorId,
        along: Option<(Side, u32)>,
    ) -> Verdict {
        if self.loaded_from(acc) != Some(tensor) {
            let what = match along {
                Some((Side::Rows, _)) => "the scale is another one",
                Some((Side::Columns, _)) | None => "the vector or scale is another one",
            };
            return Err(Box::new(trace::wrong(self, index, what)));
        }
        match along {
            None => self.has_read(index, acc, None, 0),
            Some((Side::Columns, column)) => self.has_read(index, acc, None, column),
            Some((Side::Rows, row)) => self.has_read(index, acc, Some(row), 0),
        }
        Ok(())
    }

    /// An epilogue is applied to a subtile.
    pub(super) fn applied(&mut self, index: usize, epilogue: usize, part: u32) -> Verdict {
        let params = &self.case.pipeline.epilogues[epilogue].params;
        // All products of an item are of the same tile.
        let product = params.iter().find_map(|param| match param.from {
            Source::Product(product) => Some(product),
            Source::Subtile | Source::Sum | Source::Broadcast(_) => None,
        });
        let fragment = &self.agents[index].fragment;
        let alone = (product.is_none()).then(|| self.place_of_reads(index, epilogue, part));
        let place = product.map(|product| fragment.products[product].at);
        // Where a tile lies outside, whatever is there will do.
        let is = |at: Option<u32>, known: u32| at.is_none_or(|at| at == known);
        let (row, column) = self.subtile_of(alone.or(place).unwrap_or_default(), part);
        for param in params {
            let rows = match param.from {
                Source::Product(_) => continue,
                Source::Subtile | Source::Sum => true,
                Source::Broadcast(Some(Side::Columns)) => false,
                Source::Broadcast(None) => {
                    if fragment.read.iter().any(|(acc, ..)| *acc == param.acc) {
                        continue;
                    }
                    let what = format!("`{}` was not read", param.name);
                    return Err(Box::new(trace::wrong(self, index, &what)));
                }
                Source::Broadcast(Some(Side::Rows)) => {
                    let of_row = |(acc, at, _): &(AccId, Option<u32>, u32)| {
                        *acc == param.acc && at.is_some_and(|at| is(row, at))
                    };
                    if fragment.read.iter().any(of_row) {
                        continue;
                    }
                    let what = format!("`{}` is not there for these rows", param.name);
                    return Err(Box::new(trace::wrong(self, index, &what)));
                }
            };
            let incomplete = (param.from == Source::Sum)
                .then(|| self.incomplete_sum(index, param.acc, part))
                .flatten();
            if let Some(why) = incomplete {
                let what = format!("`{}` {why}", param.name);
                return Err(Box::new(trace::wrong(self, index, &what)));
            }
            // A sum of nothing is of no place.
            if param.from == Source::Sum && self.case.world == 1 {
                continue;
            }
            let there = fragment.read.iter().any(|(acc, at, first)| {
                let there = at.map(|at| is(row, at));
                (*acc, there) == (param.acc, rows.then_some(true)) && is(column, *first)
            });
            if !there {
                let what = format!("`{}` is not there for these rows and columns", param.name);
                return Err(Box::new(trace::wrong(self, index, &what)));
            }
        }
        let applied = &mut self.agents[index].fragment.applied;
        applied.retain(|known| known.part == part && known.epilogue != epilogue);
        applied.push(Applied {
            epilogue,
            part,
            at: alone,
        });
        Ok(())
    }

    /// True if what became of products is what the schedule stores in a tensor.
    pub(super) fn is_what_is_stored(
        &self,
        tensor: TensorId,
        fragment: &Fragment,
        elements: Elements,
    ) -> bool {
        let operands = fragment.products.iter().map(|product| product.tensors);
        let is_known = |(of, what, by, _): &&KnownValue| {
            (*of, *what) == (tensor, elements) && by.iter().copied().eq(operands.clone())
        };
        if let Some((.., is)) = self.known_values.borrow().iter().find(is_known) {
            return *is;
        }
        let stored = |op: &OpKind| {
            let OpKind::Store { dst, value, .. } = op else {
                return None;
            };
            (dst.buffer == tensor).then_some(*value)
        };
        let is = (0..POINTS).all(|point| self.is_value_at(point, &stored, fragment, elements));
        let mut known = self.known_values.borrow_mut();
        known.push((tensor, elements, operands.collect(), is));
        is
    }

    /// True if it is what the schedule makes an amax of.
    pub(super) fn is_what_the_amax_is_of(
        &self,
        tensor: TensorId,
        fragment: &Fragment,
        elements: Elements,
    ) -> bool {
        let measured = |op: &OpKind| {
            let OpKind::Store { amax, .. } = op else {
                return None;
            };
            amax.filter(|amax| amax.to == tensor).map(|amax| amax.of)
        };
        (0..POINTS).all(|point| self.is_value_at(point, &measured, fragment, elements))
    }

    /// True if it is a value of some op, of some number for each product, sum and load. Of the products it depends on their operands
    /// alone.
    fn is_value_at(
        &self,
        point: u32,
        of: &dyn Fn(&OpKind) -> Option<ValueId>,
        fragment: &Fragment,
        elements: Elements,
    ) -> bool {
        let kernel = &self.case.pipeline.kernel;
        let filled = &self.filled[point as usize];
        let mut found = false;
        for role in &kernel.roles {
            visit(&role.body, &mut |op| {
                let Some(value) = of(&op.kind) else {
                    return;
                };
                let value = &kernel.values[usize::from(value.0)];
                let params = match elements {
                    Elements::Product(_) => &[][..],
                    Elements::Applied(epilogue) => &self.case.pipeline.epilogues[epilogue].params,
                };
                // A product has all that the item added up, but for sums that have registers of their own.
                let own = |acc: &AccId| {
                    let mut params = params.iter();
                    params.any(|param| param.acc == *acc && param.from == Source::Sum)
                };
                let accs = value.accs().into_iter().filter(|acc| !own(acc));
                let added: f64 = accs.map(|acc| filled.added(acc)).sum();
                let product = |product: usize| {
                    let tensors = fragment.products[product].tensors;
                    tensors.map_or(f64::NAN, |of| of_product(of, point)) + added
                };
                let is = match elements {
                    Elements::Product(index) => product(index),
                    Elements::Applied(epilogue) => {
                        let made = &self.case.pipeline.epilogues[epilogue];
                        let param = |acc: AccId| {
                            let from = made.params.iter().find(|param| param.acc == acc);
                            match from.map(|param| param.from) {
                                Some(Source::Product(index)) => product(index),
                                Some(Source::Subtile | Source::Sum | Source::Broadcast(_)) => {
                                    filled.number(acc)
                                }
                                None => f64::NAN,
                            }
                        };
                        made.value.eval(&param, &[])
                    }
                };
                let should = value.eval(&|acc| filled.number(acc), &[]);
                let same = (is - should).abs() <= 1e-9 * should.abs().max(1.0)
                    || is.is_nan() && should.is_nan();
                found |= same;
            });
        }
        found
    }
}
