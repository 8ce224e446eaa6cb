//! Memory for launches of candidates.

use super::super::super::built::tensors_of;
use super::super::proofs::{Proven, between, needs};
use crate::communicator::Communicator;
use crate::driver::Local;
use crate::error::Error;
use crate::launch::Tensors;
use crate::noise;
use crate::user_buffer::UserBuffer;
use counterflow_codegen::program::TensorId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A tensor for candidates' launches.
enum Given {
    Heap(UserBuffer<u8>),
    Own(Arc<Local<u8>>),
}

/// Tensors that candidates' launches are given, as large as the largest of each.
pub(super) struct Memory {
    /// By name: each candidate's kernel has them in an order of its own.
    given: BTreeMap<String, Given>,
    between: Option<Arc<Local<u8>>>,
}

impl Memory {
    /// Symmetric tensors first: all ranks have these, or none. Waits at most `limit` until those are cleared.
    pub fn new(
        rank: &Communicator,
        candidates: &[Proven],
        limit: Duration,
    ) -> Result<Memory, Error> {
        let needs = needs(candidates);
        let heap = needs.iter().filter(|(_, (_, in_heap))| *in_heap);
        let heap = heap.map(|(name, (bytes, _))| {
            let buffer = rank.allocate::<u8>(&format!("{name} of candidates"), [*bytes as usize]);
            Ok((name.clone(), Given::Heap(buffer?)))
        });
        let mut given = heap.collect::<Result<BTreeMap<_, _>, Error>>()?;
        // To clear them takes SMs, which another library's kernel may keep. The copies below would wait for that without a limit.
        rank.waits_at_most(limit)?;
        {
            let _turn = rank.own().settled()?;
            for (name, (bytes, in_heap)) in needs {
                if !in_heap {
                    // For the same reason it is not cleared.
                    let local = Local::unwritten(rank.own_stream(), bytes as usize)?;
                    given.insert(name, Given::Own(Arc::new(local)));
                }
            }
            given.values().try_for_each(|given| given.fill(rank))?;
        }
        Ok(Memory {
            given,
            between: between(rank, candidates)?,
        })
    }

    /// The tensors of each stage.
    pub fn tensors<'m>(&'m self, candidate: &'m Proven) -> impl Iterator<Item = Tensors> + 'm {
        let buffers = &candidate.front.series.kernel().buffers;
        let given = |at: usize, id: TensorId, tensors: &mut Tensors| match self
            .given
            .get(&buffers[at].name)
        {
            Some(Given::Heap(buffer)) => tensors.shared(id, buffer),
            Some(Given::Own(local)) => tensors.own(id, local, u64::MAX),
            None => {}
        };
        let wires = candidate.wires.iter();
        wires.map(move |(sources, _)| tensors_of(sources, given, self.between.as_ref()))
    }
}

impl Given {
    /// Fills it with numbers that cost the power that others would.
    fn fill(&self, rank: &Communicator) -> Result<(), Error> {
        let (at, bytes) = match self {
            Given::Heap(buffer) => (buffer.address(), buffer.len()),
            Given::Own(local) => (local.address(), local.len()),
        };
        noise::fill(rank.own_stream(), at, bytes, rank.rank().into())
    }
}
