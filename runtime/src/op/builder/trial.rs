//! Times candidates: memory for their launches, the kernels, and rounds through all of them.

use super::super::built::tensors_of;
use super::super::typed::Launcher;
use super::OpBuilder;
use super::proofs::{Proven, needs};
use crate::communicator::Communicator;
use crate::driver::{Event, Local};
use crate::error::Error;
use crate::launch::{Loaded, Tensors};
use crate::noise;
use crate::tuning::{Effort, Times, Tuning, read, slowest, text};
use crate::user_buffer::UserBuffer;
use counterflow_codegen::program::TensorId;
use std::collections::BTreeMap;
use std::sync::Arc;
use tracing::info;

impl<S: Launcher> OpBuilder<'_, S> {
    /// The times of those candidates that can be loaded, with their places. None where the memory for it is not there. When the
    /// budget is spent, however long launches take, rounds end: the least that give a median come first.
    pub(super) fn times(
        &self,
        candidates: &[Proven],
        (tuning, effort): (Tuning, Effort),
        alone: bool,
    ) -> Result<Option<Vec<(usize, Times)>>, Error> {
        let Some(memory) = self.memory_for(candidates, alone)? else {
            return Ok(None);
        };
        let mut loaded = Vec::new();
        for (at, candidate) in candidates.iter().enumerate() {
            let kernels = self.loaded(candidate, "candidates");
            if let Err(error) = &kernels {
                self.rank.alive()?;
                info!(rank = self.rank.rank(), %error, "a candidate is left out");
            }
            let left_out = match self.any(alone, kernels.is_err()) {
                // Another rank refused it while this one was here already, and asks as well now.
                Err(_) if self.rank.alive().is_ok() => self.any(alone, true),
                said => said,
            }?;
            if let (Ok(kernels), false) = (kernels, left_out) {
                loaded.push((at, kernels));
            }
        }
        if loaded.len() < 2 {
            return Ok(None);
        }
        // An emulated launch takes milliseconds.
        let effort = match self.rank.gpu().is_emulated() {
            true => Effort {
                launches: 1,
                ..effort
            },
            false => effort,
        };
        let launch = |(at, kernels): &(usize, Vec<Loaded>)| {
            let stages = candidates[*at].stages.iter().zip(kernels);
            let mut stages = stages.zip(memory.tensors(&candidates[*at]));
            stages.try_for_each(|((proof, loaded), tensors)| {
                loaded.launch(self.rank, &proof.largest, &tensors)
            })
        };
        let stream = self.rank.own_stream();
        let mut samples = vec![Vec::new(); loaded.len()];
        let begun = Event::record(stream)?;
        loaded.iter().try_for_each(launch)?;
        let first = seconds(&begun, Event::record(stream)?, self.rank)?;
        // Ranks begin a round together, and end together. Another candidate is the first in each.
        let any = |own| self.any(alone, own);
        effort.rounds(tuning.budget(), first, any, |round, launches| {
            let begun = Event::record(stream)?;
            let mut events = Vec::new();
            for turn in 0..loaded.len() {
                let at = (round as usize + turn) % loaded.len();
                // What ranks wait for each other until all have begun is not timed.
                launch(&loaded[at])?;
                let start = Event::record(stream)?;
                (0..launches).try_for_each(|_| launch(&loaded[at]))?;
                events.push((at, start, Event::record(stream)?));
            }
            let spent = seconds(&begun, Event::record(stream)?, self.rank)?;
            for (at, start, end) in events {
                let each = end.since(&start)?.as_secs_f64() / f64::from(launches);
                samples[at].push(each * 1e6);
            }
            Ok(spent)
        })?;
        let own: Vec<Times> = samples.into_iter().filter_map(Times::of).collect();
        let times = match alone {
            true => own,
            false => {
                let said = self.rank.shares(&text(&own))?;
                let each = said.iter().zip(0..).map(|(said, rank)| read(said, rank));
                slowest(&each.collect::<Result<Vec<_>, _>>()?)
            }
        };
        let places = loaded.into_iter().map(|(at, _)| at);
        Ok(Some(places.zip(times).collect()))
    }

    /// Memory for launches of all candidates, if all ranks have it.
    fn memory_for(&self, candidates: &[Proven], alone: bool) -> Result<Option<Memory>, Error> {
        let made = Memory::new(self.rank, candidates);
        let made = made.and_then(|given| {
            let between = self.between_alone(candidates)?;
            Ok(Memory { between, ..given })
        });
        if let Err(error) = &made {
            self.rank.alive()?;
            info!(rank = self.rank.rank(), %error, "no candidates are measured");
        }
        match self.any(alone, made.is_err())? {
            true => Ok(None),
            false => made.map(Some),
        }
    }
}

/// Waits for the second event, and gives the time since the first.
fn seconds(begun: &Event, ended: Event, rank: &Communicator) -> Result<f64, Error> {
    rank.synchronize()?;
    Ok(ended.since(begun)?.as_secs_f64())
}

/// A tensor for candidates' launches.
enum Given {
    Heap(UserBuffer<u8>),
    Own(Arc<Local<u8>>),
}

/// Tensors that candidates' launches are given, as large as the largest of each.
struct Memory {
    /// By name: each candidate's kernel has them in an order of its own.
    given: BTreeMap<String, Given>,
    between: Option<Arc<Local<u8>>>,
}

impl Memory {
    /// Symmetric tensors first: all ranks have these, or none.
    fn new(rank: &Communicator, candidates: &[Proven]) -> Result<Memory, Error> {
        let needs = needs(candidates);
        let heap = needs.iter().filter(|(_, (_, in_heap))| *in_heap);
        let heap = heap.map(|(name, (bytes, _))| {
            let buffer = rank.allocate::<u8>(&format!("{name} of candidates"), [*bytes as usize]);
            Ok((name.clone(), Given::Heap(buffer?)))
        });
        let mut given = heap.collect::<Result<BTreeMap<_, _>, Error>>()?;
        let _turn = rank.own().settled()?;
        for (name, (bytes, in_heap)) in needs {
            if !in_heap {
                let local = Local::zeros(rank.own_stream(), bytes as usize)?;
                given.insert(name, Given::Own(Arc::new(local)));
            }
        }
        given.values().try_for_each(|given| given.fill(rank))?;
        Ok(Memory {
            given,
            between: None,
        })
    }

    /// The tensors of each stage.
    fn tensors<'m>(&'m self, candidate: &'m Proven) -> impl Iterator<Item = Tensors> + 'm {
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
