//! The kernel on emulated ranks: a row at a time is sent to a peer, then a row at a time is received.

use super::{Collective, PIECE, Sizes};
use crate::slots::{Slots, launches_before};
use counterflow_codegen::dtype::Dtype;
use counterflow_emulator::open::{Awaited, Fault, Memory, Stepped, Twin};
use half::{bf16, f16};
use std::ops::Range;

/// Addresses of a launch's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub launches: u64,
    pub x: u64,
    pub y: u64,
}

/// One rank's launch.
#[derive(Clone, Debug)]
pub(crate) struct Launched {
    slots: Slots,
    sizes: Sizes,
    dtype: Dtype,
    at: At,
    steps: Vec<Step>,
}

/// What a step does.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Sends a row of this rank's to a peer, or one piece if there is none.
    Send { peer: u64, row: u64, of: u64 },
    /// Receives a row of a peer and keeps it, or one piece if there is none.
    Gather { peer: u64, row: u64, of: u64 },
    /// Receives a sum of a peer and keeps it.
    GatherSum { peer: u64, row: u64 },
    /// Receives a row of all peers and keeps the sum, or one piece of each if there is none.
    Add { row: u64, of: u64 },
    /// Ends the launch.
    End,
}

/// A number of an element's bits, and back.
fn number(dtype: Dtype, bits: u16) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_bits(bits).to_f32(),
        _ => bf16::from_bits(bits).to_f32(),
    }
}

/// Every NaN becomes the same.
fn rounded(dtype: Dtype, value: f32) -> u16 {
    match dtype {
        _ if value.is_nan() => 0x7fff,
        Dtype::F16 => f16::from_f32(value).to_bits(),
        _ => bf16::from_f32(value).to_bits(),
    }
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> {
    let (pairs, _) = bytes.as_chunks();
    pairs.iter().map(|pair| u16::from_le_bytes(*pair))
}

impl Launched {
    pub(crate) fn new(slots: Slots, sizes: Sizes, dtype: Dtype, at: At) -> Launched {
        let mut launched = Launched {
            slots,
            sizes,
            dtype,
            at,
            steps: Vec::new(),
        };
        launched.steps = launched.all_steps();
        launched
    }

    /// The rows that a rank owns.
    fn owned(&self, rank: u64) -> Range<u64> {
        let Sizes { shard, rows, .. } = self.sizes;
        let first = |rank: u64| (rank * u64::from(shard)).min(rows.into());
        first(rank)..first(rank + 1)
    }

    /// The rows that one rank sends another.
    fn sent(&self, from: u64, to: u64) -> Range<u64> {
        match self.sizes.collective {
            Collective::AllGather => self.owned(from),
            Collective::ReduceScatter | Collective::TwoShotAllReduce => self.owned(to),
            Collective::AllReduce => 0..self.sizes.rows.into(),
        }
    }

    fn all_steps(&self) -> Vec<Step> {
        let me = self.slots.rank;
        // Where there are no rows, a step has to do with a piece.
        let each = |rows: Range<u64>| {
            let of = rows.end - rows.start;
            (rows.start..rows.start + of.max(1)).map(move |row| (row, of))
        };
        let mut steps = Vec::new();
        for peer in self.slots.peers() {
            let rows = each(self.sent(me, peer));
            steps.extend(rows.map(|(row, of)| Step::Send { peer, row, of }));
        }
        match self.sizes.collective {
            Collective::AllGather => {
                for peer in self.slots.peers() {
                    let rows = each(self.sent(peer, me));
                    steps.extend(rows.map(|(row, of)| Step::Gather { peer, row, of }));
                }
            }
            Collective::ReduceScatter | Collective::AllReduce | Collective::TwoShotAllReduce => {
                let rows = each(self.sent(me, me));
                steps.extend(rows.map(|(row, of)| Step::Add { row, of }));
            }
        }
        if self.sizes.collective == Collective::TwoShotAllReduce {
            for peer in self.slots.peers() {
                steps.extend(self.owned(peer).map(|row| Step::GatherSum { peer, row }));
            }
        }
        steps.push(Step::End);
        steps
    }

    /// Bytes of a row of so many: one piece if there is none.
    fn bytes(&self, of: u64) -> u64 {
        if of == 0 { PIECE } else { self.sizes.row }
    }

    /// The row of one peer, or what it waits for. Nothing is taken.
    fn come(
        &self,
        (peer, row, of): (u64, u64, u64),
        (launch, waits): (u32, bool),
        memory: &dyn Memory,
    ) -> Result<Result<Vec<u8>, Awaited>, Fault> {
        let behind = (row - self.sent(peer, self.slots.rank).start) * self.sizes.row;
        let at = (behind, launch);
        let come = self.slots.come(peer, at, (self.bytes(of), waits), memory)?;
        Ok(come.map_err(|seen| Slots::awaits(peer, row, seen)))
    }

    fn take_from(
        &self,
        (peer, row, of): (u64, u64, u64),
        launch: u32,
        memory: &mut dyn Memory,
    ) -> Result<(), Fault> {
        let behind = (row - self.sent(peer, self.slots.rank).start) * self.sizes.row;
        self.slots
            .clear(peer, (behind, launch), self.bytes(of), memory)
    }

    fn sum(&self, terms: &[Vec<u8>]) -> Vec<u8> {
        let terms: Vec<Vec<u16>> = terms.iter().map(|term| halves(term).collect()).collect();
        let add = |at: usize| {
            let each = terms.iter().map(|term| number(self.dtype, term[at]));
            rounded(self.dtype, each.fold(0.0, |sum, term| sum + term))
        };
        let sums = (0..terms[0].len()).map(add);
        sums.flat_map(u16::to_le_bytes).collect()
    }
}

impl Twin for Launched {
    fn take(&self, step: u64, waits: bool, memory: &mut dyn Memory) -> Result<Stepped, Fault> {
        let launch = launches_before(self.at.launches, memory)?;
        let (me, row_bytes) = (self.slots.rank, self.sizes.row);
        match self.steps[step as usize] {
            Step::Send { peer, row, of } => {
                let own = match of {
                    0 => vec![0; PIECE as usize],
                    _ => memory
                        .bytes(self.at.x + row * row_bytes, row_bytes)?
                        .into_owned(),
                };
                let behind = (row - self.sent(me, peer).start) * row_bytes;
                self.slots.send(peer, (behind, launch), &own, memory)?;
            }
            Step::Gather { peer, row, of } => {
                match self.come((peer, row, of), (launch, waits), memory)? {
                    Err(awaited) => return Ok(Stepped::Waits(awaited)),
                    Ok(come) if of > 0 => memory.write(self.at.y + row * row_bytes, &come)?,
                    Ok(_) => {}
                }
                self.take_from((peer, row, of), launch, memory)?;
            }
            Step::Add { row, of } => {
                let mut terms = vec![Vec::new(); self.slots.world as usize];
                for peer in self.slots.peers() {
                    match self.come((peer, row, of), (launch, waits), memory)? {
                        Err(awaited) => return Ok(Stepped::Waits(awaited)),
                        Ok(come) => terms[peer as usize] = come,
                    }
                }
                for peer in self.slots.peers() {
                    self.take_from((peer, row, of), launch, memory)?;
                }
                if of > 0 {
                    let own = memory.bytes(self.at.x + row * row_bytes, row_bytes)?;
                    terms[me as usize] = own.into_owned();
                    let (sum, behind) = (self.sum(&terms), row - self.sent(me, me).start);
                    let at = match self.sizes.collective {
                        Collective::TwoShotAllReduce => row,
                        Collective::AllGather
                        | Collective::ReduceScatter
                        | Collective::AllReduce => behind,
                    };
                    memory.write(self.at.y + at * row_bytes, &sum)?;
                    if self.sizes.collective == Collective::TwoShotAllReduce {
                        let at = (self.slots.each / 2 + behind * row_bytes, launch);
                        let mut peers = self.slots.peers();
                        peers.try_for_each(|peer| self.slots.send(peer, at, &sum, memory))?;
                    }
                }
            }
            Step::GatherSum { peer, row } => {
                let behind = (row - self.owned(peer).start) * row_bytes;
                let at = (self.slots.each / 2 + behind, launch);
                match self.slots.come(peer, at, (row_bytes, waits), memory)? {
                    Err(seen) => return Ok(Stepped::Waits(Slots::awaits(peer, row, seen))),
                    Ok(come) => memory.write(self.at.y + row * row_bytes, &come)?,
                }
                self.slots.clear(peer, at, row_bytes, memory)?;
            }
            Step::End => {
                let next = launch.wrapping_add(1);
                memory.write(self.at.launches, &next.to_le_bytes())?;
                return Ok(Stepped::Last);
            }
        }
        Ok(Stepped::Next)
    }
}
