//! The kernel on emulated ranks: a row of a rank at a time is sent, then a row at a time is done.

use super::row::row;
use crate::job::Words;
use crate::kernels::{Recipe, Scaling};
use crate::twin::{Matrix, cast, quantise};
use counterflow_codegen::encoding::Granularity;
use counterflow_emulator::open::{Awaited, Fault, Memory, Stepped, Twin};
use counterflow_runtime::slots::{Slots, launches_before, words};
use half::bf16;

/// Addresses of a launch's memory. None of what the recipe has not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct At {
    pub launches: u64,
    pub x: u64,
    pub residual: u64,
    pub gamma: u64,
    pub y: u64,
    pub scales: Option<u64>,
    pub multiplier: Option<u64>,
    pub amax: Option<u64>,
}

/// One rank's launch.
#[derive(Clone, Debug)]
pub(super) struct Launched {
    pub slots: Slots,
    pub rows: u64,
    pub columns: usize,
    pub eps: f32,
    pub recipe: Option<Recipe>,
    pub plane: Words,
    pub at: At,
}

fn halves(bytes: &[u8]) -> Vec<bf16> {
    let (pairs, _) = bytes.as_chunks();
    let each = pairs.iter().map(|pair| bf16::from_le_bytes(*pair));
    each.collect()
}

impl Launched {
    fn row_bytes(&self) -> u64 {
        2 * self.columns as u64
    }

    fn bf16s(&self, at: u64, memory: &dyn Memory) -> Result<Vec<bf16>, Fault> {
        Ok(halves(&memory.bytes(at, self.row_bytes())?))
    }

    fn send(&self, row: u64, launch: u32, memory: &mut dyn Memory) -> Result<(), Fault> {
        let first = row * self.row_bytes();
        let own = memory.bytes(self.at.x + first, self.row_bytes())?;
        let own = own.into_owned();
        let mut peers = self.slots.peers();
        peers.try_for_each(|peer| self.slots.send(peer, (first, launch), &own, memory))
    }

    /// The rows of all ranks, or what is not there of one.
    fn receive(
        &self,
        row: u64,
        launch: u32,
        waits: bool,
        memory: &mut dyn Memory,
    ) -> Result<Result<Vec<Vec<bf16>>, Awaited>, Fault> {
        let (at, bytes) = ((row * self.row_bytes(), launch), self.row_bytes());
        let mut all = vec![Vec::new(); self.slots.world as usize];
        all[self.slots.rank as usize] = self.bf16s(self.at.x + at.0, memory)?;
        for peer in self.slots.peers() {
            match self.slots.come(peer, at, (bytes, waits), memory)? {
                Ok(come) => all[peer as usize] = halves(&come),
                Err(seen) => return Ok(Err(Slots::awaits(peer, row, seen))),
            }
        }
        for peer in self.slots.peers() {
            self.slots.clear(peer, at, bytes, memory)?;
        }
        Ok(Ok(all))
    }

    /// Writes the row's results.
    fn write(&self, row: u64, y: &[bf16], memory: &mut dyn Memory) -> Result<(), Fault> {
        let first = row * self.columns as u64;
        let Some(recipe) = self.recipe else {
            let bytes: Vec<u8> = y.iter().flat_map(|y| y.to_le_bytes()).collect();
            return memory.write(self.at.y + 2 * first, &bytes);
        };
        let values: Vec<f32> = y.iter().map(|y| y.to_f32()).collect();
        let matrix = Matrix::new(&values, [1, self.columns], recipe.from);
        let number = |at: u64, memory: &dyn Memory| -> Result<f32, Fault> {
            Ok(f32::from_bits(
                words(&memory.bytes(at, 4)?).next().unwrap_or(0),
            ))
        };
        let pieces = match (recipe.scaling, self.at.multiplier) {
            (Scaling::Current(pieces), _) => pieces,
            (Scaling::Delayed, None) => return Ok(()),
            (Scaling::Delayed, Some(at)) => {
                let codes = cast(&matrix, recipe.rule.to, number(at, memory)?);
                memory.write(self.at.y + first, &codes)?;
                let Some(at) = self.at.amax else {
                    return Ok(());
                };
                let held = number(at, memory)?;
                let amax = values
                    .iter()
                    .fold(held, |amax, value| amax.max(value.abs()));
                return memory.write(at, &amax.to_le_bytes());
            }
        };
        let made = quantise(&matrix, &recipe.rule, pieces);
        memory.write(self.at.y + first, &made.codes)?;
        let Some(scales) = self.at.scales else {
            return Ok(());
        };
        let [along, across] = self.plane.strides.map(|words| words as u64);
        for (block, scale) in (0..).zip(&made.scales) {
            let line = scales + 4 * block * across;
            memory.write(line + 4 * row * along, &scale.to_le_bytes())?;
            if row + 1 == self.rows && pieces == Granularity::BLOCK_1X128 {
                let padding = self.plane.padded[0] as u64 - self.rows;
                memory.write(line + 4 * self.rows, &vec![0; 4 * padding as usize])?;
            }
        }
        Ok(())
    }
}

impl Twin for Launched {
    fn take(&self, step: u64, waits: bool, memory: &mut dyn Memory) -> Result<Stepped, Fault> {
        let launch = launches_before(self.at.launches, memory)?;
        if step < self.rows {
            self.send(step, launch, memory)?;
            return Ok(Stepped::Next);
        }
        let at = step - self.rows;
        let partials = match self.receive(at, launch, waits, memory)? {
            Ok(partials) => partials,
            Err(awaited) => return Ok(Stepped::Waits(awaited)),
        };
        let residual = self.at.residual + at * self.row_bytes();
        let (before, gamma) = (
            self.bf16s(residual, memory)?,
            self.bf16s(self.at.gamma, memory)?,
        );
        let partials: Vec<&[bf16]> = partials.iter().map(Vec::as_slice).collect();
        let [after, y] = row(&partials, &before, &gamma, self.eps);
        let after: Vec<u8> = after.iter().flat_map(|value| value.to_le_bytes()).collect();
        memory.write(residual, &after)?;
        self.write(at, &y, memory)?;
        if at + 1 < self.rows {
            return Ok(Stepped::Next);
        }
        let next = launch.wrapping_add(1);
        memory.write(self.at.launches, &next.to_le_bytes())?;
        Ok(Stepped::Last)
    }
}
