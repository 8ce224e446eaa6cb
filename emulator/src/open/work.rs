//! Work that is put on a stream.

use super::bytes::{Fault, Memory, put, word};
use super::compare::Compare;
use super::twin::TwinLaunch;
use super::watch::Watch;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::verify::Checked;
use std::sync::Arc;

/// A stream of a [`Machine`](super::Machine).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub(super) usize);

/// A point in a stream: after so many pieces of work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Point {
    /// The stream.
    pub stream: StreamId,
    /// Number of pieces of work that come before it.
    pub done: u64,
}

/// One piece of work of a stream. It begins when everything before it in the stream is done.
#[derive(Clone, Debug)]
pub enum Work {
    /// Writes these bytes.
    Write {
        /// To where.
        to: u64,
        /// Bytes to write.
        bytes: Vec<u8>,
    },
    /// Sets bytes.
    Fill {
        /// Address of the first byte.
        to: u64,
        /// To this.
        byte: u8,
        /// Number of bytes.
        bytes: u64,
    },
    /// Copies lines.
    Copy {
        /// Destination of the first line, and bytes from one line to the next.
        to: (u64, u64),
        /// Source of the first line, and bytes from one line to the next.
        from: (u64, u64),
        /// Bytes of a line.
        bytes: u64,
        /// Number of lines.
        lines: u64,
    },
    /// Waits until the 64 bits there are at least `value`.
    AtLeast {
        /// Address of the cell.
        cell: u64,
        /// Least number that ends the wait.
        value: u64,
    },
    /// Stores 64 bits.
    Store {
        /// Address of the cell.
        cell: u64,
        /// Number to write.
        value: u64,
    },
    /// Waits for a point of another stream.
    After(Point),
    /// Ends an allocation.
    Free(u64),
    /// Runs a kernel. Launches that are alike are one.
    Kernel(Arc<Launch>),
    /// Compares a launch with the peers'.
    Compare(Compare),
    /// Runs the twin of a kernel.
    Twin(TwinLaunch),
}

/// The place of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// In this rank's memory.
    pub own: u64,
    /// In slot 0, if it is in the heap.
    pub shared: Option<u64>,
}

/// One rank's launch of a checked plan.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The plan.
    pub plan: Checked<Plan>,
    /// The rank.
    pub rank: u32,
    /// Places of the tensors, by their number.
    pub places: Vec<Option<Place>>,
    /// Bytes from a rank's slot of the heap to the next.
    pub stride: u64,
    /// The first counter cell in slot 0.
    pub cells: u64,
    /// The first cell of each counter among a rank's.
    pub first: Vec<u32>,
    /// Arrivals that a cell of each counter gets for each that the kernel counts.
    pub scales: Vec<u32>,
    /// CTAs, which all run at once.
    pub ctas: u32,
    /// Place and limit for giving up.
    pub watch: Watch,
}

impl Work {
    /// Does what needs no more than memory. False if it cannot begin yet.
    pub(super) fn act(&self, memory: &mut impl Memory) -> Result<bool, Fault> {
        match self {
            Work::Write { to, bytes } => memory.write(*to, bytes)?,
            Work::Fill { to, byte, bytes } => {
                const PIECE: u64 = 1 << 16;
                let piece = vec![*byte; PIECE.min(*bytes) as usize];
                for at in (0..*bytes).step_by(PIECE as usize) {
                    memory.write(to + at, &piece[..PIECE.min(bytes - at) as usize])?;
                }
            }
            Work::Copy {
                to,
                from,
                bytes,
                lines,
            } => {
                for line in 0..*lines {
                    let moved = memory.bytes(from.0 + line * from.1, *bytes)?.into_owned();
                    memory.write(to.0 + line * to.1, &moved)?;
                }
            }
            Work::AtLeast { cell, value } => {
                // As hardware compares: by signed difference.
                #[expect(clippy::cast_possible_wrap, reason = "a signed difference")]
                let ahead = word(memory, *cell)?.wrapping_sub(*value) as i64;
                return Ok(ahead >= 0);
            }
            Work::Store { cell, value } => put(memory, *cell, *value)?,
            Work::Free(at) => memory.free(*at)?,
            Work::After(_) | Work::Kernel(_) | Work::Compare(_) | Work::Twin(_) => {}
        }
        Ok(true)
    }
}
