//! The math after the dot: that each subtile gets the value the schedule stores, from operands of its own rows and columns.

use super::simulator::{Simulator, Verdict};
use super::step::Area;
use super::trace;
use crate::kernel::{OpKind, visit};
use crate::program::TensorId;
use crate::value::{AccId, Value};
use crate::warp::Source;

impl Simulator<'_> {
    /// The tensor that fills an accumulator.
    fn loaded_from(&self, acc: AccId) -> Option<TensorId> {
        let mut found = None;
        for role in &self.case.pipeline.kernel.roles {
            visit(&role.body, &mut |op| {
                if let OpKind::Load { acc: filled, from } = &op.kind
                    && *filled == acc
                {
                    found = Some(from.buffer);
                }
            });
        }
        found
    }

    fn has_read(&mut self, index: usize, acc: AccId, row: Option<u32>, column: u32) {
        let read = &mut self.agents[index].product.read;
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

    /// A vector is read.
    pub(super) fn read_vector(
        &mut self,
        index: usize,
        acc: AccId,
        tensor: TensorId,
        column: u32,
    ) -> Verdict {
        if self.loaded_from(acc) != Some(tensor) {
            let what = "the vector is another one";
            return Err(Box::new(trace::wrong(self, index, what)));
        }
        self.has_read(index, acc, None, column);
        Ok(())
    }

    /// An epilogue is applied to a subtile.
    pub(super) fn applied(&mut self, index: usize, epilogue: usize, part: u32) -> Verdict {
        let product = &self.agents[index].product;
        // Where a tile lies outside, whatever is there will do.
        let is = |at: Option<u32>, known: u32| at.is_none_or(|at| at == known);
        let (row, column) = self.subtile_of(product, part);
        for param in &self.case.pipeline.epilogues[epilogue].params {
            let rows = match param.from {
                Source::Product => continue,
                Source::Subtile => true,
                Source::Vector => false,
            };
            let there = product.read.iter().any(|(acc, at, first)| {
                let there = at.map(|at| is(row, at));
                (*acc, there) == (param.acc, rows.then_some(true)) && is(column, *first)
            });
            if !there {
                let what = format!("`{}` is not there for these rows and columns", param.name);
                return Err(Box::new(trace::wrong(self, index, &what)));
            }
        }
        let applied = &mut self.agents[index].product.applied;
        applied.retain(|(_, known)| *known == part);
        applied.push((epilogue, part));
        Ok(())
    }

    /// Whether what an epilogue makes of a product is what the schedule stores in a tensor.
    pub(super) fn is_what_is_stored(&self, tensor: TensorId, epilogue: Option<usize>) -> bool {
        let kernel = &self.case.pipeline.kernel;
        let made = epilogue.map(|index| &self.case.pipeline.epilogues[index]);
        let mut found = false;
        for role in &kernel.roles {
            visit(&role.body, &mut |op| {
                let OpKind::Store { dst, value, .. } = &op.kind else {
                    return;
                };
                let value = &kernel.values[usize::from(value.0)];
                let same = match made {
                    None => {
                        let mut terms = Vec::new();
                        value.summands(&mut terms);
                        terms.iter().all(|term| matches!(term, Value::Acc(_)))
                    }
                    Some(made) => {
                        // Some number for each accumulator, and their sum for those that were added up.
                        let number = |acc: AccId| 0.25 + f64::from(acc.0) / 8.0;
                        let read = |acc: &AccId| {
                            made.params
                                .iter()
                                .any(|param| param.acc == *acc && param.from != Source::Product)
                        };
                        let accs = value.accs().into_iter().filter(|acc| !read(acc));
                        let sum: f64 = accs.map(number).sum();
                        let param = |acc: AccId| if read(&acc) { number(acc) } else { sum };
                        let (is, should) = (made.value.eval(&param, &[]), value.eval(&number, &[]));
                        (is - should).abs() <= 1e-9 * should.abs().max(1.0)
                            || is.is_nan() && should.is_nan()
                    }
                };
                found |= dst.buffer == tensor && same;
            });
        }
        found
    }
}
