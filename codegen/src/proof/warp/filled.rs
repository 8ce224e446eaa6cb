//! Numbers at which the values that subtiles get are compared with those that the schedule stores.

use crate::kernel::{Kernel, OpKind, visit};
use crate::map::Map;
use crate::program::TensorId;
use crate::value::AccId;

/// Numbers that fill the accumulators of a kernel: one for each product, sum and load.
pub(super) struct Filled(Map<AccId, [f64; 3]>);

impl Filled {
    /// At each point.
    pub fn at_all(kernel: &Kernel) -> Vec<Filled> {
        (0..POINTS).map(|point| Filled::of(kernel, point)).collect()
    }

    fn of(kernel: &Kernel, point: u32) -> Filled {
        let mut filled: Map<AccId, [f64; 3]> = Map::default();
        for role in &kernel.roles {
            visit(&role.body, &mut |op| {
                let (acc, from, number) = match &op.kind {
                    OpKind::Dot { acc, a, b } => (acc, 0, of_product([a.buffer, b.buffer], point)),
                    OpKind::Reduce { acc, .. } => (acc, 1, of_tiles(*acc, point)),
                    OpKind::Load { acc, .. } => (acc, 2, of_tiles(*acc, point)),
                    OpKind::Wait { .. }
                    | OpKind::Signal { .. }
                    | OpKind::Copy { .. }
                    | OpKind::Store { .. }
                    | OpKind::ForRanks { .. }
                    | OpKind::If { .. } => return,
                };
                filled.entry(*acc).or_default()[from] += number;
            });
        }
        Filled(filled)
    }

    /// All of an accumulator.
    pub fn number(&self, acc: AccId) -> f64 {
        self.0
            .get(&acc)
            .map_or(f64::NAN, |parts| parts.iter().sum())
    }

    /// The sums in it.
    pub fn added(&self, acc: AccId) -> f64 {
        self.0.get(&acc).map_or(0.0, |[_, added, _]| *added)
    }
}

/// At how many points values are compared. Where all numbers are positive, `relu` and `abs` do nothing.
pub(super) const POINTS: u32 = 4;

/// A number for the product of two tensors: of either sign, by the point.
pub(super) fn of_product([x, w]: [TensorId; 2], point: u32) -> f64 {
    let size = 0.5 + f64::from(x.0) / 7.0 + f64::from(w.0) / 11.0;
    if point.is_multiple_of(2) { size } else { -size }
}

/// A number for stored tiles: of either sign, whatever that of a product is.
fn of_tiles(acc: AccId, point: u32) -> f64 {
    let size = 0.25 + f64::from(acc.0) / 8.0;
    if point / 2 == 0 { size } else { -size }
}
