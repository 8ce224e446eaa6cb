//! The baseline: what cuBLASLt does in one call, and the reference for both if that is more than a product.

use super::after::After;
use super::task::{Set, Task};
use super::turns::Contender;
use crate::cuda::{
    Activation, Blas, CompareFused, Difference, Draw, Fused, Numbers, Operands, Problem, Product,
};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::TensorId;
use counterflow_runtime::cuda::Address;
use counterflow_runtime::gpus::{Memory, POISON};
use counterflow_runtime::{Communicator, Error};

/// The allowed error of cuBLASLt's GELU per unit of its argument: half of that of the GPU's tanh, 2^-11.
const STEEP: f32 = 2.5e-4;

/// An epilogue on the GPU.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Does {
    after: After,
    steep: f32,
}

impl Does {
    /// The schedule's.
    pub(super) fn ours(after: After) -> Does {
        Does { after, steep: 0.0 }
    }

    /// cuBLASLt's: its GELU is by tanh.
    fn theirs(after: After) -> Does {
        let activation = match after.activation {
            Activation::Nothing => Activation::Nothing,
            Activation::Gelu | Activation::GeluTanh => Activation::GeluTanh,
        };
        Does {
            after: After {
                activation,
                ..after
            },
            steep: STEEP,
        }
    }
}

/// cuBLASLt's product, with its epilogue.
pub(super) struct Yardstick<'a> {
    pub name: String,
    pub product: Product<'a>,
    /// Set by set.
    pub operands: Vec<Operands>,
    pub does: Does,
}

impl<'a> Yardstick<'a> {
    /// Everything in one call, if the library has an algorithm for that; otherwise the product alone.
    pub(super) fn new(
        blas: &'a Blas,
        task: &Task<'_>,
        sets: &[Set],
    ) -> Result<Yardstick<'a>, Error> {
        let after = task.after();
        let plain: Vec<Operands> = sets.iter().map(Set::operands).collect();
        let fused: Vec<Operands> = sets
            .iter()
            .zip(&plain)
            .map(|(set, plain)| Operands {
                c: place(set, after.added).or(after.in_place.then_some(plain.y)),
                ..*plain
            })
            .collect();
        let whole = Fused {
            added: after.added.is_some() || after.in_place,
            bias: place(&sets[0], after.bias),
            gelu: after.activation != Activation::Nothing,
        };
        match blas.product(problem(task, whole), &fused) {
            Ok(product) => Ok(Yardstick {
                name: after.yardstick(true),
                product,
                operands: fused,
                does: Does::theirs(after),
            }),
            Err(Error::Toolkit { .. }) if after.some() => Ok(Yardstick {
                name: after.yardstick(false),
                product: blas.product(problem(task, Fused::default()), &plain)?,
                operands: plain,
                does: Does::theirs(After::default()),
            }),
            Err(error) => Err(error),
        }
    }
}

fn problem(task: &Task<'_>, fused: Fused) -> Problem {
    Problem {
        size: task.case.size,
        dtype: task.dtype,
        result: task.result(),
        fused,
        layout: task.layout,
    }
}

fn place(set: &Set, tensor: Option<TensorId>) -> Option<Address> {
    Some(set.more(tensor?)?.address())
}

/// cuBLASLt's f32 product of the first set.
pub(super) struct Exact<'a> {
    product: Memory,
    /// The contents of every result before the launch, if they count.
    before: Option<(Memory, Draw)>,
    set: &'a Set,
}

impl<'a> Exact<'a> {
    pub(super) fn new(
        rank: &Communicator,
        (blas, numbers): (&Blas, &Numbers),
        task: &Task<'_>,
        set: &'a Set,
    ) -> Result<Exact<'a>, Error> {
        let [m, n, _] = task.case.size.map(u64::from);
        let product = Memory::new(rank, m * n * u64::from(Dtype::F32.bytes()), false)?;
        let operands = Operands {
            y: product.address(),
            ..set.operands()
        };
        let problem = Problem {
            result: Dtype::F32,
            ..problem(task, Fused::default())
        };
        blas.product(problem, &[operands])?.run(&operands)?;
        let before = if task.after().in_place {
            let (dtype, count) = (task.result(), m * n);
            let memory = Memory::new(rank, count * u64::from(dtype.bytes()), false)?;
            let draw = Draw {
                // No operand's.
                seed: task.seed.wrapping_mul(1 << 20).wrapping_sub(1),
                first: 0,
                count,
            };
            numbers.normal(memory.address(), dtype, draw)?;
            Some((memory, draw))
        } else {
            None
        };
        Ok(Exact {
            product,
            before,
            set,
        })
    }

    /// One launch on a poisoned result, or on what it adds to, compared element by element.
    pub(super) fn check(
        &self,
        rank: &Communicator,
        numbers: &Numbers,
        task: &Task<'_>,
        (contender, memory, does): (&Contender<'_>, &Memory, Does),
    ) -> Result<Difference, Error> {
        let [m, n, k] = task.case.size;
        let (count, dtype) = (u64::from(m) * u64::from(n), task.result());
        let at = memory.address();
        let before = self.before.as_ref().filter(|_| does.after.in_place);
        match before {
            Some((_, draw)) => numbers.normal(at, dtype, *draw)?,
            None => memory.fill(POISON)?,
        }
        (contender.launch)(0)?;
        rank.synchronize()?;
        let given = |tensor| Some((place(self.set, tensor)?, dtype));
        numbers.differ_fused(CompareFused {
            got: at,
            dtype,
            product: self.product.address(),
            bias: given(does.after.bias),
            activation: does.after.activation,
            added: given(does.after.added).or(before.map(|(before, _)| (before.address(), dtype))),
            count,
            columns: n,
            depth: k,
            steep: does.steep,
        })
    }
}
