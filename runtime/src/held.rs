//! Parts of the heap that are given out, with their owners.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Allocations start on this: the swizzle's period, and a multiple of the lines that keep counters apart.
pub(crate) const ALIGN: u64 = 1024;

/// Owner of a part of the heap.
///
/// ```
/// use counterflow::{Communicator, Held, Owner, schedules::AgGemmOp};
///
/// let ranks = Communicator::emulated(2)?;
/// let ops = Communicator::each(&ranks, |rank| {
///     rank.reserve(4 << 20)?;
///     let _op = rank.op_of::<AgGemmOp>().first_options().up_to(64, 64, 64).build()?;
///     let found = rank.heap_use();
///     let of_ops = |held: &&Held| held.owner == Owner::Ops;
///     rank.barrier()?;
///     Ok(found.held.iter().filter(of_ops).map(|held| held.name.to_string()).collect::<Vec<_>>())
/// })?;
/// assert!(ops[0].contains(&"counters of ag_gemm".to_owned()));
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// The program's: a buffer that it allocated.
    Program,
    /// The ops': counters and scratch of kernels, and of which some are shared by several.
    Ops,
    /// Another library's, which the program adopted.
    Library,
}

/// A part of each rank's slot.
///
/// ```
/// use counterflow::{Communicator, Held, Owner};
///
/// let rank = &Communicator::emulated(1)?[0];
/// rank.reserve(2 << 20)?;
/// let x = rank.allocate::<f32>("x", [1024])?;
/// let held = Held { name: "x".into(), owner: Owner::Program, offset: x.offset(), bytes: 4096 };
/// assert_eq!(rank.heap_use().held, [held]);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// The name of the buffer, or of what a kernel has there.
    pub name: Arc<str>,
    /// Owner of the range.
    pub owner: Owner,
    /// Offset at which it starts in every slot.
    pub offset: u64,
    /// Bytes of each rank.
    pub bytes: u64,
}

/// Reserved and given-out bytes of a communicator's heap, on each rank; all ranks have as much.
///
/// ```
/// use counterflow::{Communicator, HeapUse};
///
/// let rank = &Communicator::emulated(1)?[0];
/// rank.reserve(2 << 20)?;
/// let x = rank.allocate::<f32>("x", [1024])?;
/// let HeapUse { reserved, used, .. } = rank.heap_use();
/// assert!(reserved >= 2 << 20 && used == 4096);
/// assert!(rank.heap_use().to_string().contains("4096 bytes  x (program)"));
/// # drop(x);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeapUse {
    /// Bytes that have memory.
    pub reserved: u64,
    /// Bytes that are given out now.
    pub used: u64,
    /// The most that were given out at once.
    pub peak: u64,
    /// Ranges that are given out, by offset.
    pub held: Vec<Held>,
}

impl HeapUse {
    /// Bytes of the heap that an allocation of `bytes` bytes takes.
    ///
    /// ```
    /// use counterflow::HeapUse;
    ///
    /// assert_eq!([0, 5, 1024, 1025].map(HeapUse::by), [1024, 1024, 1024, 2048]);
    /// ```
    pub fn by(bytes: u64) -> u64 {
        bytes.max(1).div_ceil(ALIGN).saturating_mul(ALIGN)
    }
}

/// A line for each part, and the sums.
impl fmt::Display for HeapUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for held in &self.held {
            let owner = match held.owner {
                Owner::Program => "program",
                Owner::Ops => "ops",
                Owner::Library => "another library",
            };
            let (offset, bytes, name) = (held.offset, held.bytes, &held.name);
            writeln!(f, "{offset:>12} {bytes:>12} bytes  {name} ({owner})")?;
        }
        let (used, peak, reserved) = (self.used, self.peak, self.reserved);
        write!(
            f,
            "{used} bytes of {reserved} are used, at most {peak} were"
        )
    }
}

/// Holders as the heap keeps them.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// By their starts.
    held: BTreeMap<u64, Held>,
    used: u64,
    peak: u64,
}

impl Holders {
    pub fn add(&mut self, name: &str, owner: Owner, range: &Range<u64>) {
        let bytes = range.end - range.start;
        let held = Held {
            name: name.into(),
            owner,
            offset: range.start,
            bytes,
        };
        self.held.insert(range.start, held);
        self.used += bytes;
        self.peak = self.peak.max(self.used);
    }

    pub fn remove(&mut self, range: &Range<u64>) {
        if let Some(held) = self.held.remove(&range.start) {
            self.used -= held.bytes;
        }
    }

    pub fn report(&self, reserved: u64) -> HeapUse {
        HeapUse {
            reserved,
            used: self.used,
            peak: self.peak,
            held: self.held.values().cloned().collect(),
        }
    }
}
