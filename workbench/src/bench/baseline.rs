//! The baseline: what cuBLASLt does in one call, and the reference for both if that is more than a product.

use super::fused_epilogue::FusedEpilogue;
use super::interleaved::Contender;
use super::task::{Set, Task};
use crate::cuda::{
    Activation, Blas, CompareFused, Difference, Draw, Fused, Matmul, Numbers, Operands, Problem,
};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::TensorId;
use counterflow_runtime::driver::Address;
use counterflow_runtime::gpus::{Memory, POISON};
use counterflow_runtime::{Communicator, Error};

/// The allowed error of cuBLASLt's GELU per unit of its argument: half of that of the GPU's tanh, 2^-11.
const STEEP: f32 = 2.5e-4;

/// The allowed error of a gated activation of rounded products, in roundings of each: SiLU is at most 1.1 as steep as its
/// argument.
const ROUNDED_BOTH: f32 = 2.2;

/// An epilogue on the GPU.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Does {
    epilogue: FusedEpilogue,
    steep: f32,
}

impl Does {
    /// The schedule's.
    pub(super) fn ours(epilogue: FusedEpilogue) -> Does {
        Does {
            epilogue,
            steep: 0.0,
        }
    }

    /// cuBLASLt's: its GELU is by tanh.
    fn theirs(epilogue: FusedEpilogue) -> Does {
        let activation = match epilogue.activation {
            Activation::Nothing => Activation::Nothing,
            Activation::Gelu | Activation::GeluTanh => Activation::GeluTanh,
        };
        Does {
            epilogue: FusedEpilogue {
                activation,
                ..epilogue
            },
            steep: STEEP,
        }
    }
}

/// cuBLASLt's product, with its epilogue.
pub(super) struct Baseline<'a> {
    pub name: String,
    pub product: Matmul<'a>,
    /// Set by set.
    pub operands: Vec<Operands>,
    pub does: Does,
    gated: Option<Gated<'a>>,
}

/// The products of a gated activation between cuBLASLt and the kernel that reads them. All sets share their memory, which
/// the cache may hold.
struct Gated<'a> {
    numbers: &'a Numbers,
    gate: Memory,
    up: Memory,
    /// Operands of the second product, and the result's address, set by set.
    sets: Vec<(Operands, Address)>,
    dtype: Dtype,
    count: u64,
}

impl<'a> Gated<'a> {
    fn new(
        rank: &Communicator,
        numbers: &'a Numbers,
        task: &Task<'_>,
        sets: &[Set],
    ) -> Result<Option<Gated<'a>>, Error> {
        let Some(up) = task.epilogue().up else {
            return Ok(None);
        };
        let [m, n, _] = task.case.size.map(u64::from);
        let dtype = task.dtype;
        let product = |name| Memory::new(rank, name, m * n * u64::from(dtype.bytes()), false);
        let (of_gate, of_up) = (product("gate")?, product("up")?);
        let of_set = |set: &Set| {
            let plain = set.of_product();
            let second = Operands {
                w: place(set, Some(up)).unwrap_or(plain.w),
                y: of_up.address(),
                ..plain
            };
            (second, plain.y)
        };
        Ok(Some(Gated {
            sets: sets.iter().map(of_set).collect(),
            gate: of_gate,
            up: of_up,
            numbers,
            dtype,
            count: m * n,
        }))
    }
}

impl<'a> Baseline<'a> {
    /// Everything in one call, if the library has an algorithm for that; otherwise the product alone.
    pub(super) fn new(
        rank: &Communicator,
        (blas, numbers): (&'a Blas, &'a Numbers),
        task: &Task<'_>,
        sets: &[Set],
    ) -> Result<Baseline<'a>, Error> {
        let epilogue = task.epilogue();
        let plain: Vec<Operands> = sets.iter().map(Set::of_product).collect();
        if let Some(gated) = Gated::new(rank, numbers, task, sets)? {
            let y = gated.gate.address();
            let operands: Vec<Operands> =
                plain.iter().map(|plain| Operands { y, ..*plain }).collect();
            return Ok(Baseline {
                name: epilogue.baseline(false),
                product: blas.product(problem(task, Fused::default()), &operands)?,
                operands,
                does: Does {
                    epilogue,
                    steep: ROUNDED_BOTH * task.dtype.unit_roundoff() as f32,
                },
                gated: Some(gated),
            });
        }
        let fused: Vec<Operands> = sets
            .iter()
            .zip(&plain)
            .map(|(set, plain)| Operands {
                c: place(set, epilogue.added).or(epilogue.in_place.then_some(plain.y)),
                ..*plain
            })
            .collect();
        let whole = Fused {
            added: epilogue.added.is_some() || epilogue.in_place,
            bias: place(&sets[0], epilogue.bias),
            gelu: epilogue.activation != Activation::Nothing,
        };
        match blas.product(problem(task, whole), &fused) {
            Ok(product) => Ok(Baseline {
                name: epilogue.baseline(true),
                product,
                operands: fused,
                does: Does::theirs(epilogue),
                gated: None,
            }),
            Err(Error::Toolkit { .. }) if epilogue.some() => Ok(Baseline {
                name: epilogue.baseline(false),
                product: blas.product(problem(task, Fused::default()), &plain)?,
                operands: plain,
                does: Does::theirs(FusedEpilogue::default()),
                gated: None,
            }),
            Err(error) => Err(error),
        }
    }

    /// All of it, on a set.
    pub(super) fn run(&self, set: usize) -> Result<(), Error> {
        self.product.run(&self.operands[set])?;
        let Some(gated) = &self.gated else {
            return Ok(());
        };
        let (second, y) = &gated.sets[set];
        self.product.run(second)?;
        let operands = [gated.gate.address(), gated.up.address()];
        gated.numbers.gate(operands, *y, gated.dtype, gated.count)
    }
}

fn problem(task: &Task<'_>, fused: Fused) -> Problem {
    Problem {
        size: task.case.size,
        dtypes: [task.dtype; 2],
        scaled: None,
        result: task.wide(),
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
    /// Result of a gated activation's second weights.
    up: Option<Memory>,
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
        let product = Memory::new(
            rank,
            "product",
            m * n * u64::from(Dtype::F32.bytes()),
            false,
        )?;
        let operands = Operands {
            y: product.address(),
            ..set.of_product()
        };
        let problem = Problem {
            result: Dtype::F32,
            ..problem(task, Fused::default())
        };
        let exact = blas.product(problem, &[operands])?;
        exact.run(&operands)?;
        let bytes = m * n * u64::from(Dtype::F32.bytes());
        let up = match place(set, task.epilogue().up) {
            Some(w) => {
                let up = Memory::new(rank, "up", bytes, false)?;
                let y = up.address();
                exact.run(&Operands { w, y, ..operands })?;
                Some(up)
            }
            None => None,
        };
        let before = if task.epilogue().in_place {
            let (dtype, count) = (task.result(), m * n);
            let memory = Memory::new(rank, "operand", count * u64::from(dtype.bytes()), false)?;
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
            up,
            before,
            set,
        })
    }

    /// The product, in f32.
    pub(super) fn product(&self) -> Address {
        self.product.address()
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
        let before = self.before.as_ref().filter(|_| does.epilogue.in_place);
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
            up: self.up.as_ref().map(Memory::address),
            bias: given(does.epilogue.bias),
            activation: does.epilogue.activation,
            added: given(does.epilogue.added)
                .or(before.map(|(before, _)| (before.address(), dtype))),
            count,
            columns: n,
            depth: k,
            steep: does.steep,
        })
    }
}
