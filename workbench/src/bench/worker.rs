//! One rank's part of a measurement: its operands, the candidates' samples, and the check that all compute the same.

use super::baseline::{Baseline, Does, Exact};
use super::contenders::{Holds, Peer, Ready, Written};
use super::interleaved::{Contender, Interleaved};
use super::meter;
use super::stats::{self, Spread};
use super::task::{Measured, Set, Task};
use crate::cuda::{Blas, Compare, Difference, Draw, Fp8, Nccl, Numbers};
use counterflow_codegen::program::TensorKind;
use counterflow_runtime::driver::Address;
use counterflow_runtime::gpus::{Memory, POISON};
use counterflow_runtime::jit::Compiler;
use counterflow_runtime::launch::Loaded;
use counterflow_runtime::{Communicator, Error};
use std::cell::Cell;
use std::time::Instant;

/// The least bytes of all operand sets together: several times the L2 cache.
pub(super) const ROTATED: u64 = 256 << 20;
pub(super) const MOST_SETS: u64 = 16;

/// What a rank keeps from product to product.
pub(super) struct Worker {
    pub blas: Blas,
    pub nccl: Option<Nccl>,
    pub(super) numbers: Numbers,
    /// Where operands are FP8.
    fp8: Option<Fp8>,
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
        if let Some(fp8) = &self.fp8 {
            return self.measure_fp8(rank, fp8, task, begin);
        }
        let sets = self.sets(rank, task)?;
        let baseline = Baseline::new(rank, (&self.blas, &self.numbers), task, &sets)?;
        let product = &baseline.product;
        let alone = task.alone.into_iter().map(|planned| (planned, true));
        let kernels = alone
            .chain(task.ours.iter().map(|planned| (planned, false)))
            .map(|(planned, alone)| Ready::new(rank, task.compiler, planned, &sets, alone))
            .collect::<Result<Vec<_>, _>>()?;
        let peer = self
            .nccl
            .as_ref()
            .map(|nccl| Peer::new(rank, nccl, product, task, &sets));
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
        if task.fused() {
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
            baseline: baseline.name.clone(),
            products: 1 + u32::from(task.epilogue().up.is_some()),
            ..Measured::default()
        };
        timed(rank, task, (begin, sets.len()), &contenders, measured)
    }

    /// Memory with random numbers: more sets than the cache holds.
    fn sets(&self, rank: &Communicator, task: &Task<'_>) -> Result<Vec<Set>, Error> {
        let [m, n, k] = task.case.size.map(u64::from);
        let width = u64::from(task.dtype.bytes());
        let padded = m.next_multiple_of(u64::from(rank.world()));
        let [of_x, of_w] = [m * k, n * k].map(|elements| elements * width);
        let of_y = padded * n * u64::from(task.result().bytes());
        let first = &task.ours[0];
        let (kernel, roles) = (&first.built.kernel, first.built.roles);
        let needs = |tensor| Loaded::needs(kernel, &first.plan, tensor);
        let more: u64 = roles
            .epilogue
            .operands()
            .map(|tensor| needs(tensor).0)
            .sum();
        let count = (ROTATED.div_ceil(of_x + of_w + of_y + more) + 1).min(MOST_SETS);
        // What comes of all ranks' products is compared with them.
        let shared = Holds::of(kernel, &first.plan, roles.y) != Holds::Own;
        let mut heap: u64 = 0;
        for tensor in [roles.x, roles.w, roles.y] {
            let (bytes, in_heap) = needs(tensor);
            heap += if in_heap { bytes + 2048 } else { 0 } * count;
        }
        heap += if shared { of_y + 2048 } else { 0 } * count;
        for planned in task.alone.into_iter().chain(task.ours) {
            heap += planned.plan.heap.bytes + planned.plan.arrivals.len() as u64 * 256 + 65536;
        }
        rank.reserve(heap + (16 << 20))?;
        let place = |tensor: counterflow_codegen::program::TensorId| -> Result<Memory, Error> {
            let (bytes, in_heap) = needs(tensor);
            Memory::new(rank, &kernel.buffers[tensor.index()].name, bytes, in_heap)
        };
        let gathered = kernel.buffers[roles.x.index()].kind == TensorKind::Gathered;
        let rows = if gathered {
            first
                .plan
                .geometry
                .chunk(kernel.buffers[roles.x.index()].rows, rank.rank())
        } else {
            first
                .plan
                .geometry
                .held(&kernel.buffers[roles.x.index()], rank.rank())
        };
        let mut sets = Vec::new();
        for set in 0..count {
            let made = Set {
                x: place(roles.x)?,
                w: place(roles.w)?,
                y: place(roles.y)?,
                whole: gathered
                    .then(|| Memory::new(rank, "whole", of_x, false))
                    .transpose()?,
                product: Memory::new(rank, "product", of_y, shared)?,
                more: roles
                    .epilogue
                    .operands()
                    .map(|tensor| Ok((tensor, place(tensor)?)))
                    .collect::<Result<_, Error>>()?,
            };
            // A gathered tensor is the same matrix on every rank. Everything else differs.
            let seed = |which: u64, own: bool| {
                let rank = if own { u64::from(rank.rank()) + 1 } else { 0 };
                task.seed
                    .wrapping_mul(1 << 20)
                    .wrapping_add((set << 12) + (which << 8) + rank)
            };
            let seed_x = seed(0, !gathered);
            if gathered {
                made.x.fill(POISON)?;
            }
            let first = if gathered {
                u64::from(rows.start) * k
            } else {
                0
            };
            let own = if gathered {
                u64::from(rows.len()) * k
            } else {
                m * k
            };
            let draw = |seed, first, count| Draw { seed, first, count };
            self.numbers.normal(
                made.x.address().plus(first * width),
                task.dtype,
                draw(seed_x, first, own),
            )?;
            if let Some(whole) = &made.whole {
                self.numbers
                    .normal(whole.address(), task.dtype, draw(seed_x, 0, m * k))?;
            }
            self.numbers
                .normal(made.w.address(), task.dtype, draw(seed(1, true), 0, n * k))?;
            for (which, (tensor, memory)) in (2..).zip(&made.more) {
                let buffer = &kernel.buffers[tensor.index()];
                let elements = match buffer.kind {
                    TensorKind::Vector => n,
                    _ if roles.epilogue.up == Some(*tensor) => n * k,
                    _ => m * n,
                };
                let drawn = draw(seed(which, true), 0, elements);
                self.numbers.normal(memory.address(), buffer.dtype, drawn)?;
            }
            sets.push(made);
        }
        rank.synchronize()?;
        rank.barrier()?;
        Ok(sets)
    }

    /// One launch on a poisoned result, compared with cuBLASLt's. Collective.
    fn check(
        &self,
        rank: &Communicator,
        task: &Task<'_>,
        contender: &Contender<'_>,
        result: &Written<'_>,
        set: &Set,
    ) -> Result<Difference, Error> {
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

/// Times all contenders, on so many sets of operands, from what was begun then. Collective.
pub(super) fn timed(
    rank: &Communicator,
    task: &Task<'_>,
    (begin, sets): (Instant, usize),
    contenders: &[Contender<'_>],
    measured: Measured,
) -> Result<Measured, Error> {
    let interleaved = Interleaved {
        rank,
        exchange: task.exchange,
        contenders,
        sets,
        next: Cell::new(0),
    };
    let launches = interleaved.launches()?;
    let left = |budget: f64| -> Result<f64, Error> {
        let spent = begin.elapsed().as_secs_f64();
        Ok(budget - task.exchange.most(rank, spent)?)
    };
    let warm = match task.budget {
        Some(budget) => stats::settling(left(budget)?, task.warm),
        None => task.warm,
    };
    let round = interleaved.settle(&launches, warm)?;
    let samples = match task.budget {
        Some(budget) => stats::affordable(left(budget)?, round, task.samples),
        None => task.samples,
    };
    let (seconds, reading) = meter::watch(rank.gpu(), || interleaved.samples(&launches, samples));
    let seconds = seconds?;
    let sustained = match task.sustained {
        Some(long) => {
            let each = seconds.iter().map(|samples| Spread::of(samples).median);
            interleaved.sustained(long, &each.collect::<Vec<_>>())?
        }
        None => Vec::new(),
    };
    rank.synchronize()?;
    // No rank frees memory while a peer's kernel may still use it.
    rank.barrier()?;
    Ok(Measured {
        seconds,
        launches,
        reading,
        sustained,
        ..measured
    })
}
