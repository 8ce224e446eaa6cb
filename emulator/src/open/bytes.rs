//! Memory by address, and tiles of numbers in it.

use crate::data::Tile;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::{Bytes, Plan};
use counterflow_codegen::region::Span;
use std::borrow::Cow;
use std::fmt;

/// Reason that an access failed, as the caller's memory says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

/// Memory that every GPU of a machine addresses. Other machines may have a part of it too, and change it meanwhile.
pub trait Memory {
    /// Bytes at an address: a copy, where others may change them.
    ///
    /// # Errors
    /// If they are not all in one allocation.
    fn bytes(&self, at: u64, len: u64) -> Result<Cow<'_, [u8]>, Fault>;

    /// Replaces bytes.
    ///
    /// # Errors
    /// If their places are not all in one allocation.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Changes bytes from what they are. `change` gets them in one piece or several, each with its distance from `at`,
    /// and none across a multiple of eight bytes unless it gets both sides whole. It may be asked again for a piece that
    /// others changed meanwhile, so that nothing of theirs is lost.
    ///
    /// # Errors
    /// If they are not all in one allocation.
    fn update(
        &mut self,
        at: u64,
        len: u64,
        change: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), Fault>;

    /// Ends an allocation.
    ///
    /// # Errors
    /// If none begins there.
    fn free(&mut self, at: u64) -> Result<(), Fault>;
}

/// A 64-bit word.
pub(super) fn word(memory: &impl Memory, at: u64) -> Result<u64, Fault> {
    let bytes = memory.bytes(at, 8)?;
    let mut word = [0; 8];
    word.copy_from_slice(&bytes);
    Ok(u64::from_le_bytes(word))
}

/// Replaces a 64-bit word.
pub(super) fn put(memory: &mut impl Memory, at: u64, value: u64) -> Result<(), Fault> {
    memory.write(at, &value.to_le_bytes())
}

/// Adds to a 64-bit word, in one step with others that do.
pub(super) fn add(memory: &mut impl Memory, at: u64, more: u64) -> Result<(), Fault> {
    memory.update(at, 8, &mut |_, place| {
        let mut word = [0; 8];
        word.copy_from_slice(place);
        let sum = u64::from_le_bytes(word).wrapping_add(more);
        place.copy_from_slice(&sum.to_le_bytes());
    })
}

/// A rectangle's lines at an address.
pub(super) struct Lines {
    start: u64,
    lines: Bytes,
    dtype: Dtype,
    /// True if a line is a column.
    columns: bool,
    rows: (usize, usize),
}

impl Lines {
    /// Lines of a rectangle in a tensor that begins at `start`.
    pub fn of(kernel: &Kernel, plan: &Plan, span: &Span, start: u64) -> Lines {
        let buffer = &kernel.buffers[span.buffer.index()];
        let lines = plan.lines(kernel, span);
        Lines {
            start: start + lines.offset,
            dtype: buffer.dtype,
            columns: buffer.mn_major,
            rows: (span.rows.len() as usize, span.columns.len() as usize),
            lines,
        }
    }

    fn at(&self, line: u64) -> (u64, u64) {
        (self.start + line * self.lines.pitch, self.lines.bytes)
    }

    /// The place of element `at` of a line, row by row.
    fn index(&self, line: u64, at: usize) -> usize {
        let (line, columns) = (line as usize, self.rows.1);
        match self.columns {
            true => at * columns + line,
            false => line * columns + at,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.0 == 0 || self.rows.1 == 0
    }

    /// The numbers, row by row.
    pub fn read(&self, memory: &impl Memory) -> Result<Tile, Fault> {
        let mut tile = Tile::default();
        tile.shaped(self.rows.0, self.rows.1);
        if self.is_empty() {
            return Ok(tile);
        }
        let width = self.dtype.bytes() as usize;
        for line in 0..self.lines.lines {
            let (start, bytes) = self.at(line);
            let bytes = memory.bytes(start, bytes)?;
            if !self.columns {
                let first = self.index(line, 0);
                let values = &mut tile.values[first..first + bytes.len() / width];
                self.dtype.read_all(&bytes, values);
                continue;
            }
            for (at, place) in bytes.chunks_exact(width).enumerate() {
                tile.values[self.index(line, at)] = self.dtype.read(place);
            }
        }
        Ok(tile)
    }

    /// Rounds `values`, row by row, and stores or adds them, which rounds once more.
    pub fn write(&self, memory: &mut impl Memory, values: &[f32], add: bool) -> Result<(), Fault> {
        if self.is_empty() {
            return Ok(());
        }
        let width = self.dtype.bytes() as usize;
        for line in 0..self.lines.lines {
            let (start, bytes) = self.at(line);
            let round = |at| self.dtype.round(values[self.index(line, at)]);
            if add {
                memory.update(start, bytes, &mut |from, piece| {
                    for (at, place) in piece.chunks_exact_mut(width).enumerate() {
                        let sum = self.dtype.read(place) + round(from / width + at);
                        self.dtype.write(sum, place);
                    }
                })?;
                continue;
            }
            let mut new = vec![0; bytes as usize];
            if !self.columns {
                let first = self.index(line, 0);
                let values = &values[first..first + new.len() / width];
                self.dtype.write_all(values, &mut new);
                memory.write(start, &new)?;
                continue;
            }
            for (at, place) in new.chunks_exact_mut(width).enumerate() {
                self.dtype.write(round(at), place);
            }
            memory.write(start, &new)?;
        }
        Ok(())
    }

    /// Makes what its lines have behind it in memory zero.
    pub fn clear_rest(&self, memory: &mut impl Memory) -> Result<(), Fault> {
        let Bytes { offset, pitch, .. } = self.lines;
        for line in 0..self.lines.lines {
            let (start, bytes) = self.at(line);
            let rest = pitch - offset % pitch - bytes;
            if rest > 0 {
                memory.write(start + bytes, &vec![0; rest as usize])?;
            }
        }
        Ok(())
    }

    /// Moves the bytes of a rectangle of the same size and type.
    pub fn copy(&self, from: &Lines, memory: &mut impl Memory) -> Result<(), Fault> {
        if self.is_empty() {
            return Ok(());
        }
        if (self.columns, self.dtype) != (from.columns, from.dtype) {
            let tile = from.read(memory)?;
            return self.write(memory, &tile.values, false);
        }
        for line in 0..self.lines.lines {
            let (start, bytes) = from.at(line);
            let moved = memory.bytes(start, bytes)?.into_owned();
            memory.write(self.at(line).0, &moved)?;
        }
        Ok(())
    }
}
