//! cuBLASLt's products of FP8, by kind of scales.

use super::super::task::{Set, Task};
use super::super::worker::Worker;
use super::operands::{Both, draw};
use crate::cuda::{Fused, Matmul, Operands, Pieces, Problem, Scaled};
use counterflow_codegen::dtype::Dtype;
use counterflow_runtime::driver::Address;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::{Communicator, Error};

/// cuBLASLt with a kind of scales.
pub(super) struct Theirs<'a> {
    pub kind: Scaled,
    /// The type of its results.
    pub result: Dtype,
    pub product: Matmul<'a>,
    /// Set by set.
    pub operands: Vec<Operands>,
}

impl Theirs<'_> {
    /// Name with what it lacks of ours.
    pub(super) fn name(&self, task: &Task<'_>) -> String {
        format!("cuBLASLt {}{}", self.kind.name(), task.lacks(self.result))
    }
}

/// True if that means that the library has nothing for the problem.
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
        rank: &Communicator,
        task: &Task<'_>,
        kind: Scaled,
        sets: &[Set],
        both: &mut Both,
    ) -> Result<Option<Theirs<'a>>, Error> {
        draw((rank, &self.numbers), task, kind, sets.len(), both)?;
        for result in task.theirs(kind) {
            match self.theirs_in(task, (kind, result), sets, both) {
                Ok(found) => return Ok(Some(found)),
                Err(error) if lacks(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Contender with results in that type.
    fn theirs_in<'a>(
        &'a self,
        task: &Task<'_>,
        (kind, result): (Scaled, Dtype),
        sets: &[Set],
        both: &Both,
    ) -> Result<Theirs<'a>, Error> {
        let in_place = task.epilogue().in_place;
        let of = |side: usize| &both[&(side, kind.pieces[side])].places;
        let operands = sets.iter().zip(of(0).iter().zip(of(1)));
        let operands: Vec<Operands> = operands
            .map(|(set, (x, w))| {
                let y = set.product.address();
                let scale = |side: usize, plane: Address| {
                    (kind.pieces[side] != Pieces::Nothing).then_some(plane)
                };
                let beside = set.theirs(result, task.case.size[0]).beside;
                Operands {
                    x: x.codes,
                    w: w.codes,
                    c: in_place.then_some(y),
                    y,
                    scales: [scale(0, x.plane), scale(1, w.plane)],
                    of_result: [beside.scale, beside.amax].map(|it| it.map(Memory::address)),
                }
            })
            .collect();
        let problem = Problem {
            size: task.case.size,
            dtypes: task.dtypes(),
            scaled: Some(kind),
            result,
            fused: Fused {
                added: in_place,
                ..Fused::default()
            },
            layout: task.layout,
        };
        let product = self.blas.product(problem, &operands)?;
        Ok(Theirs {
            kind,
            result,
            product,
            operands,
        })
    }
}
