//! Results of FP8 products beside the exact ones.

use super::super::contenders::{Holds, Written};
use super::super::interleaved::Contender;
use super::super::task::{Set, Task};
use super::super::worker::Worker;
use super::operands::{Both, spoil};
use crate::cuda::{Difference, Draw, Exactly, Fp8, Pieces, Terms};
use counterflow_runtime::driver::Address;
use counterflow_runtime::gpus::{Memory, POISON};
use counterflow_runtime::{Communicator, Error};

/// What a contender's result must be.
pub(super) struct Check<'a> {
    /// What has scales in its operands.
    pub pieces: [Pieces; 2],
    pub written: Written<'a>,
    /// How often sums of ranks' products are rounded before the last time.
    pub rounded: u32,
}

/// The exact product of this rank. Peers read it where results are sums over ranks.
struct Exact {
    value: Memory,
    allowed: Memory,
}

impl Exact {
    fn new(rank: &Communicator, count: u64, shared: bool) -> Result<Exact, Error> {
        Ok(Exact {
            value: Memory::new(rank, "exact", 8 * count, shared)?,
            allowed: Memory::new(rank, "allowed", 4 * count, shared)?,
        })
    }

    /// A rank's, from that element on.
    fn of(&self, rank: Option<u32>, element: u64) -> Exactly {
        let at = |memory: &Memory, bytes: u64| -> Address {
            let start = match (memory, rank) {
                (Memory::Heap(buffer), Some(rank)) => buffer.on(rank),
                (own, _) => own.address(),
            };
            start.plus(element * bytes)
        };
        Exactly {
            value: at(&self.value, 8),
            allowed: at(&self.allowed, 4),
        }
    }
}

impl Worker {
    /// One launch of each contender on a poisoned result, or on what it adds to, compared element by element. What is gathered
    /// is NaN before each of them, but for a rank's own share. Collective.
    pub(super) fn differences(
        &self,
        (rank, fp8): (&Communicator, &Fp8),
        task: &Task<'_>,
        (set, both): (&Set, &Both),
        (contenders, checks): (&[Contender<'_>], &[Check<'_>]),
    ) -> Result<Vec<Difference>, Error> {
        let (dtype, [m, n, _]) = (task.result(), task.case.size.map(u64::from));
        let shared = checks.iter().any(|check| check.written.holds != Holds::Own);
        let exact = Exact::new(rank, m * n, shared)?;
        let before = (task.epilogue().in_place)
            .then(|| Memory::new(rank, "before", m * n * u64::from(dtype.bytes()), false))
            .transpose()?;
        let draw = Draw {
            // No operand's.
            seed: task.seed.wrapping_mul(1 << 20).wrapping_sub(1),
            first: 0,
            count: m * n,
        };
        if let Some(before) = &before {
            self.numbers.normal(before.address(), dtype, draw)?;
        }
        let mut found = vec![Difference::default(); contenders.len()];
        let mut known: Option<[Pieces; 2]> = None;
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        order.sort_by_key(|which| checks[*which].pieces);
        for which in order {
            let check = &checks[which];
            let drawn = [0, 1].map(|side| &both[&(side, check.pieces[side])]);
            if known != Some(check.pieces) {
                let [x, w] = drawn.map(|drawn| (drawn.matrix, drawn.places[0]));
                fp8.exactly(x, w, exact.of(None, 0))?;
                known = Some(check.pieces);
            }
            for (side, operand) in set.operands.iter().enumerate() {
                let matrix = both[&(side, task.own_kind().pieces[side])].matrix;
                spoil((rank, fp8), &task.ours[0], (side, matrix), operand)?;
            }
            match before {
                Some(_) => {
                    let result = check.written.memory.address();
                    self.numbers.normal(result, dtype, draw)?;
                }
                None => check.written.memory.fill(POISON)?,
            }
            rank.synchronize()?;
            rank.barrier()?;
            (contenders[which].launch)(0)?;
            rank.synchronize()?;
            rank.barrier()?;
            let before = before.as_ref().map(Memory::address);
            found[which] = compared((rank, fp8), task, check, (&exact, before))?;
            rank.barrier()?;
        }
        Ok(found)
    }
}

/// A result beside what it must hold.
fn compared(
    (rank, fp8): (&Communicator, &Fp8),
    task: &Task<'_>,
    check: &Check<'_>,
    (exact, before): (&Exact, Option<Address>),
) -> Result<Difference, Error> {
    let (dtype, n) = (task.result(), u64::from(task.case.size[1]));
    let Written {
        memory,
        rows,
        at_front,
        holds,
    } = &check.written;
    let [first, count] = [rows.start, rows.len()].map(|rows| u64::from(rows) * n);
    let width = u64::from(dtype.bytes());
    let got = memory.address();
    let got = got.plus(if *at_front { 0 } else { first * width });
    match *holds {
        Holds::Own => {
            let terms = exact.of(None, first).alone();
            fp8.differ_exactly((got, dtype), terms, before, count)
        }
        Holds::Sum => {
            let terms = Terms {
                exact: exact.of(Some(0), first),
                stride: rank.stride(),
                parts: rank.world(),
                rounded: check.rounded,
            };
            fp8.differ_exactly((got, dtype), terms, before, count)
        }
        Holds::Each { slot } => {
            let mut all = Difference::default();
            for of in 0..rank.world() {
                let at = got.plus(u64::from(of) * u64::from(slot) * n * width);
                let terms = exact.of(Some(of), first).alone();
                all = all.and(fp8.differ_exactly((at, dtype), terms, before, count)?);
            }
            Ok(all)
        }
    }
}
