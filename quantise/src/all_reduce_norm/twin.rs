//! The kernel on emulated ranks: a row of a rank at a time is sent, then a row at a time is done.

use super::row::row;
use crate::job::Words;
use crate::kernels::{Recipe, Scaling};
use crate::twin::{Matrix, cast, quantise};
use counterflow_codegen::encoding::Granularity;
use counterflow_codegen::interp::open::{Awaited, Fault, Memory, Stepped, Twin};
use half::bf16;

/// Addresses of a launch's memory. None of what the recipe has not, or of a world of one rank.
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
    /// Of rank 0, and bytes to the next rank's.
    pub slots: Option<(u64, u64)>,
}

/// One rank's launch.
#[derive(Clone, Debug)]
pub(super) struct Launched {
    pub rank: u64,
    pub world: u64,
    pub rows: u64,
    pub columns: usize,
    /// Bytes of a sender's rows.
    pub each: u64,
    pub eps: f32,
    pub recipe: Option<Recipe>,
    pub plane: Words,
    pub at: At,
}

/// Two elements as they travel.
fn inverted(word: u32) -> u32 {
    match word {
        u32::MAX => !0x7fff_7fff,
        word => !word,
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u32::from_le_bytes(*word))
}

impl Launched {
    fn row_bytes(&self) -> u64 {
        2 * self.columns as u64
    }

    /// Rows of one sender in a rank's buffer.
    fn rows_from(&self, home: u64, sender: u64, launch: u32) -> Option<u64> {
        let (slots, stride) = self.at.slots?;
        let turn = u64::from(launch % 2) * (self.world - 1);
        let at = turn + sender - u64::from(sender > home);
        Some(slots + home * stride + at * self.each)
    }

    fn peers(&self) -> impl Iterator<Item = u64> {
        let rank = self.rank;
        (0..self.world).filter(move |peer| *peer != rank)
    }

    fn launch(&self, memory: &dyn Memory) -> Result<u32, Fault> {
        let bytes = memory.bytes(self.at.launches, 4)?;
        Ok(words(&bytes).next().unwrap_or(0))
    }

    fn bf16s(&self, at: u64, memory: &dyn Memory) -> Result<Vec<bf16>, Fault> {
        let bytes = memory.bytes(at, self.row_bytes())?;
        let (pairs, _) = bytes.as_chunks();
        let each = pairs.iter().map(|pair| bf16::from_le_bytes(*pair));
        Ok(each.collect())
    }

    fn send(&self, row: u64, launch: u32, memory: &mut dyn Memory) -> Result<(), Fault> {
        let first = row * self.row_bytes();
        let own = memory.bytes(self.at.x + first, self.row_bytes())?;
        let sent: Vec<u8> = words(&own)
            .flat_map(|word| inverted(word).to_le_bytes())
            .collect();
        for peer in self.peers() {
            if let Some(rows) = self.rows_from(peer, self.rank, launch) {
                memory.write(rows + first, &sent)?;
            }
        }
        Ok(())
    }

    /// The rows of all ranks, or what is not there of one.
    fn receive(
        &self,
        row: u64,
        launch: u32,
        waits: bool,
        memory: &mut dyn Memory,
    ) -> Result<Result<Vec<Vec<bf16>>, Awaited>, Fault> {
        let first = row * self.row_bytes();
        let mut all = vec![Vec::new(); self.world as usize];
        all[self.rank as usize] = self.bf16s(self.at.x + first, memory)?;
        let from = |peer| {
            self.rows_from(self.rank, peer, launch)
                .map(|rows| (peer, rows + first))
        };
        let places: Vec<(u64, u64)> = self.peers().filter_map(from).collect();
        for (peer, at) in &places {
            let bytes = memory.bytes(*at, self.row_bytes())?;
            let wanted = bytes.len() as u64 / 4;
            let seen = words(&bytes).filter(|word| *word != 0).count() as u64;
            if seen < wanted && waits {
                return Ok(Err(Awaited {
                    what: *peer as u32,
                    index: row as u32,
                    seen,
                    wanted,
                }));
            }
            let halves = words(&bytes).flat_map(|word| [!word as u16, (!word >> 16) as u16]);
            all[*peer as usize] = halves.map(bf16::from_bits).collect();
        }
        for (_, at) in places {
            memory.write(at, &vec![0; self.row_bytes() as usize])?;
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
        let launch = self.launch(memory)?;
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
