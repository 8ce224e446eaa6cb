//! Memory for launches of candidates.

use super::super::super::built::tensors_of;
use super::super::proofs::{Proven, between, needs, sizes_of_own};
use super::faults::{self, Fault};
use crate::communicator::Communicator;
use crate::driver::{Address, Local};
use crate::error::Error;
use crate::launch::Tensors;
use crate::noise;
use crate::rotation;
use crate::user_buffer::UserBuffer;
use counterflow_codegen::program::TensorId;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tracing::debug;

/// Tensors of this rank alone, by name.
type Set = BTreeMap<String, Arc<Local<u8>>>;

/// Tensors that candidates' launches are given, as large as the largest of each, by name: each candidate's kernel has them in an
/// order of its own.
pub(super) struct Memory {
    heap: BTreeMap<String, UserBuffer<u8>>,
    /// They take turns, so that weights come from memory as in a program's layers.
    sets: Vec<Set>,
    sizes: Vec<(String, u64)>,
    /// The set whose turn it is.
    turn: Cell<usize>,
    between: Option<Arc<Local<u8>>>,
}

impl Memory {
    /// Symmetric tensors first: all ranks have these, or none. Then one set of the others. Waits at most `limit` until the first are
    /// cleared.
    pub fn new(
        rank: &Communicator,
        candidates: &[Proven],
        limit: Duration,
    ) -> Result<Memory, Error> {
        let heap = needs(candidates).into_iter();
        let heap = heap.filter(|(_, (_, in_heap))| *in_heap);
        let heap = heap.map(|(name, (bytes, _))| {
            let buffer = rank.allocate::<u8>(&format!("{name} of candidates"), [bytes as usize]);
            Ok((name, buffer?))
        });
        let heap = heap.collect::<Result<BTreeMap<_, _>, Error>>()?;
        let sizes: Vec<_> = sizes_of_own(candidates).collect();
        // To clear them takes SMs, which another library's kernel may keep. The copies below would wait for that without a limit.
        rank.waits_at_most(limit)?;
        let first = {
            let _turn = rank.own().settled()?;
            let first = set(rank, &sizes)?;
            for buffer in heap.values() {
                fill(rank, buffer.address(), buffer.len())?;
            }
            first
        };
        Ok(Memory {
            heap,
            sets: vec![first],
            sizes,
            turn: Cell::new(0),
            between: between(rank, candidates)?,
        })
    }

    /// Adds as many sets as it takes that the cache holds none until its next turn, or as there is memory for.
    pub fn adds_sets(&mut self, rank: &Communicator) -> Result<(), Error> {
        let bytes = self.sizes.iter().map(|(_, bytes)| bytes).sum();
        let _turn = rank.own().settled()?;
        for at in 1..rotation::sets(bytes, rank.gpu().l2()) {
            match faults::fails(Fault::Full).and_then(|()| set(rank, &self.sizes)) {
                Ok(set) => self.sets.push(set),
                Err(error) => {
                    rank.alive()?;
                    debug!(rank = rank.rank(), sets = at, %error, "no memory for more sets");
                    break;
                }
            }
        }
        Ok(())
    }

    /// The tensors of each stage for the next launch, with those of the set whose turn it is.
    pub fn tensors<'m>(&'m self, candidate: &'m Proven) -> impl Iterator<Item = Tensors> + 'm {
        let set = self.turn.get();
        self.turn.set((set + 1) % self.sets.len());
        let buffers = &candidate.front.series.kernel().buffers;
        let given = move |at: usize, id: TensorId, tensors: &mut Tensors| {
            let name = &buffers[at].name;
            if let Some(buffer) = self.heap.get(name) {
                tensors.shared(id, buffer);
            } else if let Some(local) = self.sets[set].get(name) {
                tensors.own(id, local, u64::MAX);
            }
        };
        let wires = candidate.wires.iter();
        wires.map(move |(sources, _)| tensors_of(sources, given, self.between.as_ref()))
    }
}

/// Tensors with these names and bytes.
fn set(rank: &Communicator, sizes: &[(String, u64)]) -> Result<Set, Error> {
    let each = sizes.iter().map(|(name, bytes)| {
        // To clear it takes SMs, too.
        let local = Local::unwritten(rank.own_stream(), *bytes as usize)?;
        fill(rank, local.address(), local.len())?;
        Ok((name.clone(), Arc::new(local)))
    });
    each.collect()
}

/// Fills memory with numbers that cost the power that others would.
fn fill(rank: &Communicator, at: Address, bytes: usize) -> Result<(), Error> {
    noise::fill(rank.own_stream(), at, bytes, rank.rank().into())
}
