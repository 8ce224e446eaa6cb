//! Results beside exact products: every element, and what stands beside results of FP8.

use super::held;
use super::interleaved::Contender;
use super::room::{Room, What};
use super::task::Task;
use super::written::{Codes, Holds, Written};
use crate::cuda::{Difference, Draw, Exactly, Fp8, Got, Narrowed, Numbers, Pieces, Scale, Terms};
use counterflow_codegen::bounds::{Magnitude, of_codes};
use counterflow_codegen::rule::ScaleRule;
use counterflow_runtime::driver::Address;
use counterflow_runtime::gpus::{Memory, POISON};
use counterflow_runtime::{Communicator, Error};

/// Demand on a contender's result.
pub(super) struct Check<'a> {
    /// Pieces of the operands that have a scale each.
    pub pieces: [Pieces; 2],
    pub written: Written<'a>,
    /// Number of times that sums of ranks' products are rounded before the last time.
    pub rounded: u32,
}

/// The exact product of this rank. Peers read it where results are sums over ranks.
pub(super) struct Exact {
    value: Memory,
    allowed: Memory,
    /// Loss of the least codes of each row and 128 columns, where products are codes.
    least: Memory,
    size: [u32; 2],
    /// The amax of each row and 128 columns, row by row.
    amaxes: Vec<Magnitude>,
    /// ScaleRule by which those codes are scaled.
    rule: Option<ScaleRule>,
}

impl Exact {
    /// Memory of a check, with names and bytes.
    pub(super) fn parts(size: [u32; 3]) -> [(What, &'static str, u64); 3] {
        let [m, n, _] = size.map(u64::from);
        [
            (What::Exact, "exact", 8 * m * n),
            (What::Allowed, "allowed", 4 * m * n),
            (What::Least, "least", 4 * m * n.div_ceil(128)),
        ]
    }

    pub(super) fn new(room: &Room<'_>, [m, n, _]: [u32; 3]) -> Result<Exact, Error> {
        Ok(Exact {
            value: room.take(What::Exact)?,
            allowed: room.take(What::Allowed)?,
            least: room.take(What::Least)?,
            size: [m, n],
            amaxes: Vec::new(),
            rule: None,
        })
    }

    /// This rank's.
    fn own(&self) -> Exactly {
        self.of(None, 0)
    }

    /// A rank's, from that row on.
    fn of(&self, rank: Option<u32>, row: u32) -> Exactly {
        let element = u64::from(row) * u64::from(self.size[1]);
        Exactly {
            value: place(&self.value, rank).plus(8 * element),
            allowed: place(&self.allowed, rank).plus(4 * element),
        }
    }

    /// Forgets a product, as a new one begins.
    fn forget(&mut self) {
        (self.amaxes, self.rule) = (Vec::new(), None);
    }

    /// Finds the amaxes, if they are not known.
    fn measure(&mut self, fp8: &Fp8) -> Result<(), Error> {
        if self.amaxes.is_empty() {
            self.amaxes = fp8.magnitudes(self.own(), self.size)?;
        }
        Ok(())
    }

    /// Finds what codes by that rule lose.
    fn narrow(&mut self, fp8: &Fp8, rule: ScaleRule) -> Result<(), Error> {
        self.measure(fp8)?;
        if self.rule != Some(rule) {
            let least = held::least(&rule, &self.amaxes);
            let bytes: Vec<u8> = least.into_iter().flat_map(f32::to_le_bytes).collect();
            self.least.write(&bytes)?;
            self.rule = Some(rule);
        }
        Ok(())
    }

    /// Products as codes: a rank's, from that row on.
    fn codes(&self, codes: &Codes, rank: Option<u32>, row: u32) -> Narrowed {
        let blocks = u64::from(row) * u64::from(self.size[1].div_ceil(128));
        Narrowed {
            least: place(&self.least, rank).plus(4 * blocks),
            loses: of_codes(&codes.rule),
            shard: codes.shard,
        }
    }
}

/// Address of a rank's part.
fn place(memory: &Memory, rank: Option<u32>) -> Address {
    match (memory, rank) {
        (Memory::Heap(buffer), Some(rank)) => buffer.on(rank),
        (own, _) => own.address(),
    }
}

/// Compares results of the first set, one launch of each contender.
pub(super) struct Checks<'a> {
    rank: &'a Communicator,
    fp8: &'a Fp8,
    numbers: &'a Numbers,
    task: &'a Task<'a>,
    exact: Exact,
    /// Results before the launch, which adds to them.
    before: Option<Memory>,
}

impl<'a> Checks<'a> {
    /// For a task. Collective.
    pub(super) fn new(
        (room, fp8, numbers): (&Room<'a>, &'a Fp8, &'a Numbers),
        task: &'a Task<'a>,
    ) -> Result<Checks<'a>, Error> {
        let rank = room.rank;
        let mut checks = Checks {
            rank,
            fp8,
            numbers,
            task,
            exact: Exact::new(room, task.case.size)?,
            before: None,
        };
        if task.epilogue().in_place {
            let draw = checks.drawn();
            let bytes = draw.count * u64::from(task.result().bytes());
            let before = Memory::new(rank, "before", bytes, false)?;
            numbers.normal(before.address(), task.result(), draw)?;
            checks.before = Some(before);
        }
        Ok(checks)
    }

    /// The exact product of what follows, which `make` writes.
    pub(super) fn of_product(
        &mut self,
        make: impl FnOnce(Exactly) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.exact.forget();
        make(self.exact.own())
    }

    fn drawn(&self) -> Draw {
        let [m, n, _] = self.task.case.size.map(u64::from);
        Draw {
            // No operand's.
            seed: self.task.seed.wrapping_mul(1 << 20).wrapping_sub(1),
            first: 0,
            count: m * n,
        }
    }

    /// One launch on a poisoned result, or on what it adds to, compared element by element. Collective.
    pub(super) fn one(
        &mut self,
        contender: &Contender<'_>,
        check: &Check<'_>,
    ) -> Result<Difference, Error> {
        let (rank, written) = (self.rank, &check.written);
        match self.before {
            Some(_) => {
                let result = written.memory.address();
                self.numbers.normal(result, written.dtype, self.drawn())?;
            }
            None => written.memory.fill(POISON)?,
        }
        // An amax grows from what it was.
        for (memory, byte) in [(written.beside.amax, 0), (written.beside.made, POISON)] {
            memory.map(|memory| memory.fill(byte)).transpose()?;
        }
        // Peers read it.
        if let Some(codes) = &written.codes {
            self.exact.narrow(self.fp8, codes.rule)?;
        }
        rank.synchronize()?;
        rank.barrier()?;
        (contender.launch)(0)?;
        rank.synchronize()?;
        rank.barrier()?;
        let found = self.elements(check)?.and(self.beside(written)?);
        rank.barrier()?;
        Ok(found)
    }

    fn elements(&self, check: &Check<'_>) -> Result<Difference, Error> {
        let (rank, written) = (self.rank, &check.written);
        let n = self.task.case.size[1];
        let rows = written.rows;
        let row = u64::from(n) * u64::from(written.dtype.bytes());
        let at_front = if written.at_front { 0 } else { rows.start };
        let scale = match (written.beside.made, written.beside.scale, &written.codes) {
            (Some(made), _, Some(codes)) => Scale::Plane {
                at: made.address().plus(4 * u64::from(at_front)),
                pitch: codes.pitch,
            },
            (_, Some(_), _) => Scale::Given(self.task.given()),
            (_, None, _) => Scale::Given(1.0),
        };
        let got = Got {
            at: written.memory.address().plus(u64::from(at_front) * row),
            dtype: written.dtype,
            rows,
            columns: n,
            scale,
        };
        let terms = |of: Option<u32>| {
            let codes = written.codes.as_ref();
            Terms {
                narrowed: codes.map(|codes| self.exact.codes(codes, of, rows.start)),
                ..self.exact.of(of, rows.start).alone()
            }
        };
        let before = self.before.as_ref().map(Memory::address);
        let differ = |got, terms| self.fp8.differ_exactly(got, terms, before);
        match written.holds {
            Holds::Own => differ(got, terms(None)),
            Holds::Sum => {
                let sum = Terms {
                    stride: rank.stride(),
                    parts: rank.world(),
                    rounded: check.rounded,
                    ..terms(Some(0))
                };
                differ(got, sum)
            }
            Holds::Each { slot } => {
                let mut all = Difference::default();
                for of in 0..rank.world() {
                    let at = got.at.plus(u64::from(of) * u64::from(slot) * row);
                    all = all.and(differ(Got { at, ..got }, terms(Some(of)))?);
                }
                Ok(all)
            }
        }
    }

    /// Difference of what stands beside a result of this rank's product.
    fn beside(&mut self, written: &Written<'_>) -> Result<Difference, Error> {
        let mut all = Difference::default();
        if let Some(amax) = written.beside.amax {
            self.exact.measure(self.fp8)?;
            let got = held::numbers(&amax.read()?);
            all = all.and(held::amax(&got, &self.exact.amaxes));
        }
        if let (Some(made), Some(codes)) = (written.beside.made, &written.codes) {
            let (got, pitch) = (held::numbers(&made.read()?), codes.pitch as usize);
            let lines = self.exact.size[1].div_ceil(128) as usize;
            let amaxes = &self.exact.amaxes;
            all = all.and(held::scales(&codes.rule, (&got, pitch), (amaxes, lines)));
        }
        Ok(all)
    }
}
