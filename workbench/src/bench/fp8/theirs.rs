//! cuBLASLt's products of FP8, by kind of scales.

use super::super::task::{Set, Task};
use super::super::worker::Worker;
use super::operands::{Both, draw};
use crate::cuda::{Fp8, Fused, Matmul, Operands, Pieces, Problem, Scaled};
use counterflow_runtime::driver::Address;
use counterflow_runtime::{Communicator, Error};

/// cuBLASLt with a kind of scales.
pub(super) struct Theirs<'a> {
    pub kind: Scaled,
    pub product: Matmul<'a>,
    /// Set by set.
    pub operands: Vec<Operands>,
}

/// Whether that means that the library has nothing for the problem.
fn lacks(error: &Error) -> bool {
    match error {
        Error::Toolkit { .. } => true,
        Error::Driver { code, .. } => ["not supported", "invalid value"].contains(&&code[..]),
        _ => false,
    }
}

impl Worker {
    /// cuBLASLt with a kind of scales; nothing if it has no algorithm for that.
    pub(super) fn theirs<'a>(
        &'a self,
        with: (&Communicator, &Fp8),
        task: &Task<'_>,
        kind: Scaled,
        sets: &[Set],
        both: &mut Both,
    ) -> Result<Option<Theirs<'a>>, Error> {
        draw(with, task, kind, sets.len(), both)?;
        let in_place = task.epilogue().in_place;
        let of = |side: usize| &both[&(side, kind.pieces[side])].places;
        let operands = sets.iter().zip(of(0).iter().zip(of(1)));
        let operands: Vec<Operands> = operands
            .map(|(set, (x, w))| {
                let y = set.product.address();
                let scale = |side: usize, plane: Address| {
                    (kind.pieces[side] != Pieces::Nothing).then_some(plane)
                };
                Operands {
                    x: x.codes,
                    w: w.codes,
                    c: in_place.then_some(y),
                    y,
                    scales: [scale(0, x.plane), scale(1, w.plane)],
                }
            })
            .collect();
        let problem = Problem {
            size: task.case.size,
            dtypes: task.dtypes(),
            scaled: Some(kind),
            result: task.result(),
            fused: Fused {
                added: in_place,
                ..Fused::default()
            },
            layout: task.layout,
        };
        match self.blas.product(problem, &operands) {
            Ok(product) => Ok(Some(Theirs {
                kind,
                product,
                operands,
            })),
            Err(error) if lacks(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
