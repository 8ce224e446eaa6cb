//! One rank's part of a measurement: its operands, the candidates' samples, and the check that all compute the same.

use super::baseline::{Baseline, Does, Exact};
use super::check::{Check, Checks};
use super::contenders::{Ready, rounded};
use super::interleaved::Contender;
use super::peer::{How, Peer, Product};
use super::room::Room;
use super::table;
use super::task::{Held, Measured, Operand, Set, Task};
use super::timed::timed;
use super::written::{Holds, Written};
use crate::cuda::{
    Blas, Compare, Difference, Draw, Fp8, Nccl, Numbers, Operands, Pieces, off_of_sums,
};
use counterflow_codegen::program::Usage;
use counterflow_codegen::shape::Extent;
use counterflow_runtime::driver::Address;
use counterflow_runtime::gpus::{Memory, POISON};
use counterflow_runtime::jit::Compiler;
use counterflow_runtime::{Communicator, Error};
use std::time::Instant;

/// State that a rank keeps from product to product.
pub(super) struct Worker {
    pub blas: Blas,
    pub nccl: Option<Nccl>,
    pub(super) numbers: Numbers,
    /// FP8 operands, where anything is FP8.
    fp8: Option<Fp8>,
}

impl<'a> Task<'a> {
    /// Our product alone, if it is measured, the schedule's kernels, and the same without options.
    pub(super) fn kernels(&self, room: &Room<'_>, sets: &[Set]) -> Result<Vec<Ready<'a>>, Error> {
        let alone = self.alone.into_iter();
        let given = self.given();
        let on = (room, self.compiler);
        let alone = alone.map(|planned| Ready::alone(on, planned, sets, given));
        let ours = self.ours.iter().chain(self.plain);
        let ours = ours.map(|planned| Ready::new(room.rank, self.compiler, planned, sets));
        let apart = self.apart.iter().enumerate();
        let apart = apart.map(|at| Ready::apart(on, self, at, sets));
        alone.chain(ours).chain(apart).collect()
    }

    /// Seed of a tensor's numbers in a set: those of a rank, or, of what is gathered, those that all ranks have.
    fn seed_of(&self, (set, which): (u64, u64), whose: Option<&Communicator>) -> u64 {
        let rank = whose.map_or(0, |rank| u64::from(rank.rank()) + 1);
        let seed = self.seed.wrapping_mul(1 << 20);
        seed.wrapping_add((set << 12) + (which << 8) + rank)
    }
}

impl Worker {
    pub(super) fn new(
        rank: &Communicator,
        compiler: &Compiler,
        fp8: bool,
    ) -> Result<Worker, Error> {
        rank.gpu().cuda()?.keep_freed()?;
        let load = || Fp8::load(rank.gpu(), rank.stream(), compiler);
        Ok(Worker {
            fp8: fp8.then(load).transpose()?,
            blas: Blas::open(rank.gpu(), rank.stream())?,
            nccl: None,
            numbers: Numbers::load(rank.gpu(), rank.stream(), compiler)?,
        })
    }

    /// Runs the task on this rank. Collective.
    ///
    /// # Errors
    /// What the compiler or the driver rejects; a rank that gave up.
    pub(super) fn measure(&self, rank: &Communicator, task: &Task<'_>) -> Result<Measured, Error> {
        let begin = Instant::now();
        if let Some(fp8) = self.fp8.as_ref().filter(|_| task.dtype.is_fp8()) {
            return self.measure_fp8(rank, fp8, task, begin);
        }
        let room = &task.room(rank, task.sets())?;
        let sets = self.sets(room, task)?;
        let baseline = Baseline::new(rank, (&self.blas, &self.numbers), task, &sets)?;
        let product = &baseline.product;
        let kernels = task.kernels(room, &sets)?;
        let peer = self.nccl.as_ref().map(|nccl| {
            let gathers = How::of(&task.ours[0]) == How::Gather;
            let all = &sets;
            let multiply = move |set: usize| {
                let set = &all[set];
                if !gathers {
                    return product.run(&set.of_product());
                }
                let [x, w] = [0, 1].map(|side| set.operands[side].given.elements.address());
                product.run(&Operands {
                    x,
                    w,
                    ..set.of_product()
                })
            };
            let theirs = Product::Theirs(task.wide());
            Peer::new(rank, nccl, task, all, (theirs, multiply))
        });
        // Also for candidates that do not need it: the pause before a sample must favour none.
        let together = rank.world() > 1;
        let mut contenders = vec![Contender {
            launch: Box::new(|set| baseline.run(set)),
            together,
        }];
        let mut checks = Vec::new();
        for ready in &kernels {
            checks.push(ready.result(rank, &sets[0]));
            contenders.push(Contender {
                launch: Box::new(|set| ready.launch(rank, set)),
                together,
            });
        }
        if let Some(peer) = &peer {
            checks.push(peer.result(rank, &sets[0]));
            contenders.push(Contender {
                launch: Box::new(|set| peer.launch(set)),
                together,
            });
        }
        rank.barrier()?;

        let mut differences = Vec::new();
        if let Some(fp8) = self.fp8.as_ref().filter(|_| task.narrows()) {
            let theirs = sets[0].theirs(task.wide(), task.case.size[0]);
            let mut all = vec![(theirs, 0)];
            // NCCL adds what it received, and passes that on.
            let of_ours = kernels
                .iter()
                .map(|ready| rounded(ready.kernel(), rank.world()));
            let rounded = of_ours.chain(peer.iter().map(|_| rank.world()));
            all.extend(checks.into_iter().zip(rounded));
            differences = self.narrowed((room, fp8), task, (&sets[0], &contenders), all)?;
        } else if task.fused() {
            let exact = Exact::new(rank, (&self.blas, &self.numbers), task, &sets[0])?;
            for (index, contender) in contenders.iter().enumerate() {
                let (memory, what) = match index {
                    0 => (&sets[0].product, baseline.does),
                    _ => (checks[index - 1].memory, Does::ours(task.epilogue())),
                };
                let contender = (contender, memory, what);
                differences.push(exact.check(rank, &self.numbers, task, contender)?);
            }
        } else {
            (contenders[0].launch)(0)?;
            differences.push(Difference::default());
            for (contender, result) in contenders[1..].iter().zip(&checks) {
                differences.push(self.check(rank, task, contender, result, &sets[0])?);
            }
        }
        let measured = Measured {
            differences,
            algorithms: product.tried(),
            baseline: format!("{}{}", baseline.name, task.lacks(task.wide())),
            products: 1 + u32::from(task.epilogue().up.is_some()),
            peers: (peer.iter())
                .map(|peer| peer.name(&format!("{}{}", table::CUBLAS, task.lacks(task.wide()))))
                .collect(),
            ..Measured::default()
        };
        timed(rank, task, (begin, sets.len()), &contenders, measured)
    }

    /// Memory with random numbers: more sets than the cache holds.
    fn sets(&self, room: &Room<'_>, task: &Task<'_>) -> Result<Vec<Set>, Error> {
        let rank = room.rank;
        let [m, n, k] = task.case.size.map(u64::from);
        let width = u64::from(task.dtype.bytes());
        let first = &task.ours[0];
        let (kernel, roles) = (&first.built.kernel, first.built.roles);
        let mut sets = Vec::new();
        for set in 0..task.sets() {
            let operand = |side: usize| -> Result<Operand, Error> {
                let tensor = first.built.operands()[side];
                let given = Held::given(room, first.built, side)?;
                self.draw(rank, task, (set, side), &given.elements)?;
                let whole = match first.built.is_gathered(tensor) {
                    true => {
                        let count = [m, n][side] * k;
                        let whole = Memory::new(rank, "whole", count * width, false)?;
                        let drawn = Draw {
                            seed: task.seed_of((set, side as u64), None),
                            first: 0,
                            count,
                        };
                        self.numbers.normal(whole.address(), task.dtype, drawn)?;
                        Some(Held {
                            elements: whole,
                            scales: None,
                        })
                    }
                    false => None,
                };
                Ok(Operand { given, whole })
            };
            let made = Set::new(room, task, [operand(0)?, operand(1)?])?;
            for (which, (tensor, memory)) in (2..).zip(&made.more) {
                let buffer = &kernel.buffers[tensor.index()];
                let elements = match buffer.usage {
                    Usage::VECTOR => n,
                    _ if roles.epilogue.up == Some(*tensor) => n * k,
                    _ => m * n,
                };
                let drawn = Draw {
                    seed: task.seed_of((set, which), Some(rank)),
                    first: 0,
                    count: elements,
                };
                self.numbers.normal(memory.address(), buffer.dtype, drawn)?;
            }
            sets.push(made);
        }
        rank.synchronize()?;
        rank.barrier()?;
        Ok(sets)
    }

    /// Makes an operand of a set what it is before a launch: drawn, or, of one that is gathered, this rank's shard, and NaN where
    /// its peers' come.
    fn draw(
        &self,
        rank: &Communicator,
        task: &Task<'_>,
        (set, side): (u64, usize),
        elements: &Memory,
    ) -> Result<(), Error> {
        let [m, n, depth] = task.case.size;
        let first = &task.ours[0];
        let tensor = first.built.operands()[side];
        let (rows, whose) = match first.built.is_gathered(tensor) {
            true => {
                elements.fill(POISON)?;
                let rows = first.built.kernel.buffers[tensor.index()].rows;
                (first.plan.geometry.shard(rows, rank.rank()), None)
            }
            false => {
                let (start, end) = (0, [m, n][side]);
                (Extent { start, end }, Some(rank))
            }
        };
        let [before, count] =
            [rows.start, rows.len()].map(|rows| u64::from(rows) * u64::from(depth));
        let at = elements
            .address()
            .plus(before * u64::from(task.dtype.bytes()));
        let drawn = Draw {
            seed: task.seed_of((set, side as u64), whose),
            first: before,
            count,
        };
        self.numbers.normal(at, task.dtype, drawn)
    }

    /// Takes from the first set what its last launch gathered.
    fn spoil(&self, rank: &Communicator, task: &Task<'_>, set: &Set) -> Result<(), Error> {
        for (side, operand) in set.operands.iter().enumerate() {
            if operand.whole.is_some() {
                self.draw(rank, task, (0, side), &operand.given.elements)?;
            }
        }
        Ok(())
    }

    /// Each contender's result where some are FP8, or are sums of FP8, beside cuBLASLt's products in f32. Collective.
    fn narrowed(
        &self,
        (room, fp8): (&Room<'_>, &Fp8),
        task: &Task<'_>,
        (set, contenders): (&Set, &[Contender<'_>]),
        all: Vec<(Written<'_>, u32)>,
    ) -> Result<Vec<Difference>, Error> {
        let rank = room.rank;
        let [m, n, k] = task.case.size;
        let all: Vec<Check<'_>> = all
            .into_iter()
            .map(|(written, rounded)| Check {
                pieces: [Pieces::Nothing; 2],
                written,
                rounded,
            })
            .collect();
        let mut checks = Checks::new((room, fp8, &self.numbers), task)?;
        let product = Exact::new(rank, (&self.blas, &self.numbers), task, set)?;
        let count = u64::from(m) * u64::from(n);
        checks.of_product(|to| fp8.widened(product.product(), (count, off_of_sums(k)), to))?;
        let each = contenders.iter().zip(&all);
        each.map(|(contender, check)| {
            self.spoil(rank, task, set)?;
            checks.one(contender, check)
        })
        .collect()
    }

    /// One launch on a poisoned result and what was not gathered yet, compared with cuBLASLt's. Collective.
    fn check(
        &self,
        rank: &Communicator,
        task: &Task<'_>,
        contender: &Contender<'_>,
        result: &Written<'_>,
        set: &Set,
    ) -> Result<Difference, Error> {
        self.spoil(rank, task, set)?;
        result.memory.fill(POISON)?;
        rank.synchronize()?;
        rank.barrier()?;
        (contender.launch)(0)?;
        rank.synchronize()?;
        rank.barrier()?;
        let n = u64::from(task.case.size[1]);
        let row = n * u64::from(task.dtype.bytes());
        let before = u64::from(result.rows.start) * row;
        let got = result.memory.address();
        let got = got.plus(if result.at_front { 0 } else { before });
        let compare = |got, want: Address, (stride, parts)| {
            let compare = Compare {
                got,
                want: want.plus(before),
                stride,
                parts,
                count: u64::from(result.rows.len()) * n,
                depth: task.case.size[2],
            };
            self.numbers.differ(task.dtype, compare)
        };
        let found = match (&set.product, result.holds) {
            (Memory::Heap(product), Holds::Sum) => {
                compare(got, product.on(0), (rank.stride(), rank.world()))
            }
            (Memory::Heap(product), Holds::Each { slot }) => {
                let of_slot = |of: u32| {
                    let at = got.plus(u64::from(of) * u64::from(slot) * row);
                    compare(at, product.on(of), (0, 1))
                };
                let all = (0..rank.world()).map(of_slot);
                all.reduce(|all, one| Ok(all?.and(one?)))
                    .unwrap_or_else(|| Ok(Difference::default()))
            }
            (own, _) => compare(got, own.address(), (0, 1)),
        }?;
        rank.barrier()?;
        Ok(found)
    }
}
