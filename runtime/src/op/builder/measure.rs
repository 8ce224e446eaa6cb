//! Measures a few candidates of a bucket and tells the winner.

use super::super::built::tensors_of;
use super::super::typed::Launcher;
use super::OpBuilder;
use super::proofs::{Bucket, Proven};
use crate::communicator::Communicator;
use crate::driver::{Event, Local, write};
use crate::error::Error;
use crate::family::Family;
use crate::held::HeapUse;
use crate::launch::{Loaded, Tensors};
use crate::op::argument::Needs;
use crate::op::workspace::{TuningMemory, Workspace};
use crate::tuned::{Key, Tuned, Winner};
use crate::tuning::{Contender, Times, Tuning, contenders, fastest, slowest};
use crate::user_buffer::UserBuffer;
use counterflow_codegen::model::Machine;
use counterflow_codegen::program::{Program, TensorId};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use tracing::{info, warn};

/// How often each candidate is timed. Rounds go through all candidates, so that a change of clocks meets all of them.
const SAMPLES: u32 = 7;
/// The most launches of a sample.
const LAUNCHES: f64 = 50.0;

/// Choices as a table has them, and the model's time of a launch, in seconds.
type Row = (BTreeMap<String, String>, f64);

impl<S: Launcher> OpBuilder<'_, S> {
    /// How much is measured.
    ///
    /// # Errors
    /// What the environment says that is no word of [`Tuning`].
    fn measures(&self) -> Result<Tuning, Error> {
        match self.tuning {
            Some(tuning) => Ok(tuning),
            // Emulated GPUs have no speed worth knowing.
            None if self.rank.gpu().is_emulated() => Ok(Tuning::Off),
            None => Ok(Tuning::from_env()?.unwrap_or(Tuning::Off)),
        }
    }

    /// The winner of a measurement, if `found`, the choice without one, is not to be taken: all ranks take what rank 0 knows, and
    /// where that is nothing, what is fastest. Collective, unless each rank builds the op by itself.
    pub(super) fn measured(
        &self,
        bucket: Bucket<'_>,
        found: &Proven,
    ) -> Result<Option<Winner>, Error> {
        let tuning = self.measures()?;
        if tuning == Tuning::Off || self.first_options {
            return Ok(None);
        }
        let alone = found.is_alone();
        let own = (!found.is_predicted()).then(|| self.winner(bucket.shape, found));
        let known = match alone {
            true => own.clone(),
            false => self.of_first(&own)?,
        };
        if let Some(known) = known {
            return Ok((own.as_ref() != Some(&known)).then_some(known));
        }
        let recording = self
            .rank
            .gpu()
            .current()?
            .is_capturing(self.rank.own_stream());
        if self.any(alone, recording)? {
            return Ok(None);
        }
        let candidates = self.candidates(bucket, tuning)?;
        if candidates.len() < 2 {
            return Ok(None);
        }
        let Some(times) = self.times(&candidates, tuning, alone)? else {
            return Ok(None);
        };
        let (at, time) = best(&times);
        let winner = Winner {
            microseconds: time.median,
            p10: time.p10,
            p90: time.p90,
            ..self.winner(bucket.shape, &candidates[at])
        };
        info!(
            rank = self.rank.rank(),
            op = %winner.key.op,
            most = %bucket.shape,
            candidates = times.len(),
            microseconds = time.median,
            of_favourite = time.median / times[0].1.median,
            "candidates measured"
        );
        if (alone || self.rank.rank() == 0)
            && !self.rank.gpu().is_emulated()
            && let Err(error) = Tuned::keep(&winner)
        {
            // It serves this op all the same.
            warn!(rank = self.rank.rank(), %error, "the winner is not kept");
        }
        Ok(Some(winner))
    }

    /// What building takes.
    pub(super) fn memory_to_build(&self) -> Result<Workspace, Error> {
        let tuning = self.measures()?;
        let most = Cell::new(TuningMemory::default());
        let asks = |bucket: Bucket<'_>, found: &Proven| {
            if tuning != Tuning::Off && !self.first_options && found.is_predicted() {
                let candidates = self.candidates(bucket, tuning)?;
                if candidates.len() > 1 {
                    most.set(most.get().or(self.memory_to_measure(&candidates)));
                }
            }
            Ok(None)
        };
        let mut memory = self.memory(&self.proofs(&asks)?);
        memory.tuning = most.get();
        Ok(memory)
    }

    /// What measuring takes: the candidates are loaded together.
    fn memory_to_measure(&self, candidates: &[Proven]) -> TuningMemory {
        let loaded = self.memory(candidates);
        let tensors = needs(candidates).into_iter().flatten();
        let memory = TuningMemory {
            heap: loaded.heap,
            own: loaded.own,
        };
        tensors.fold(memory, |memory, (_, bytes, in_heap)| match in_heap {
            true => TuningMemory {
                heap: memory.heap + HeapUse::by(bytes),
                ..memory
            },
            false => TuningMemory {
                own: memory.own + bytes,
                ..memory
            },
        })
    }

    /// What rank 0 knows, by what each rank knows.
    fn of_first(&self, own: &Option<Winner>) -> Result<Option<Winner>, Error> {
        let said = self.rank.shares(&text(own))?;
        read(&said[0], 0)
    }

    /// Whether that is so on any rank.
    fn any(&self, alone: bool, own: bool) -> Result<bool, Error> {
        if alone {
            return Ok(own);
        }
        let said = self.rank.shares(&text(&own))?;
        let mut each = said.iter().zip(0..);
        each.try_fold(false, |any, (said, rank)| {
            Ok(any | read::<bool>(said, rank)?)
        })
    }

    /// A row of a table with these choices.
    fn winner(&self, shape: &Shape, of: &Proven) -> Winner {
        let gpu = self.rank.gpu().name();
        let choices = of.stages.iter().map(|proof| proof.variant.choices.clone());
        let choices: Vec<_> = choices.collect();
        let (key, choices) = match (&self.family, of.candidate()) {
            (Some(family), Some(at)) => {
                let candidate = &family.candidates()[at];
                (
                    family.key(gpu, &self.variant),
                    candidate.named_choices(&choices),
                )
            }
            (Some(_) | None, _) => {
                let named = choices.into_iter().flatten();
                let named = named.map(|(name, setting)| (name, setting.to_string()));
                (Key::new(gpu, &self.program, &self.variant), named.collect())
            }
        };
        Winner {
            key,
            m: shape.m,
            n: shape.n,
            k: shape.k,
            microseconds: 0.0,
            p10: 0.0,
            p90: 0.0,
            cublaslt: 0.0,
            choices,
        }
    }

    /// The candidates of a bucket, proven, the model's favourite first.
    fn candidates(&self, bucket: Bucket<'_>, tuning: Tuning) -> Result<Vec<Proven>, Error> {
        let rows = match &self.family {
            None => {
                let found = self.variants((&self.program, &self.variant), bucket, 0, tuning)?;
                let named = found.into_iter().map(|contender| {
                    let choices = contender.choices.into_iter();
                    let choices = choices.map(|(name, setting)| (name, setting.to_string()));
                    (choices.collect(), contender.seconds)
                });
                named.collect()
            }
            Some(family) => self.combined(family, bucket, tuning)?,
        };
        let gpu = self.rank.gpu().name();
        let key = match &self.family {
            Some(family) => family.key(gpu, &self.variant),
            None => Key::new(gpu, &self.program, &self.variant),
        };
        let mut proven: Vec<Proven> = Vec::new();
        for (choices, _) in rows {
            let Shape { m, n, k, .. } = *bucket.shape;
            let row = Winner {
                key: key.clone(),
                m,
                n,
                k,
                microseconds: 0.0,
                p10: 0.0,
                p90: 0.0,
                cublaslt: 0.0,
                choices,
            };
            // What is rejected closely is no candidate.
            let Ok(one) = self.proven(bucket, Some(&row)) else {
                continue;
            };
            if proven.len() < tuning.most() && !proven.iter().any(|known| known.like(&one)) {
                proven.push(one);
            }
        }
        Ok(proven)
    }

    /// Variants of a schedule, which is the stage of that number.
    fn variants(
        &self,
        (program, variant): (&Program, &Variant),
        bucket: Bucket<'_>,
        stage: usize,
        tuning: Tuning,
    ) -> Result<Vec<Contender>, Error> {
        let machine = Machine {
            sms: self.sms(program)?,
            ..Machine::of(self.rank.gpu().name())
        };
        let bits = (bucket.bits)(stage);
        Ok(contenders(
            program,
            variant,
            (bucket.shape, &machine),
            tuning.most(),
            &|kernel| bits.admits(kernel),
        ))
    }

    /// Rows of a family's candidates, those that the model prefers first: each candidate in its favourite variants, and others of
    /// each stage beside the favourites of the rest.
    fn combined(
        &self,
        family: &Family,
        bucket: Bucket<'_>,
        tuning: Tuning,
    ) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        let mut firsts = Vec::new();
        for candidate in family.candidates() {
            if bucket.only.is_some_and(|only| candidate.name() != only) {
                continue;
            }
            let stages = candidate.stages().iter().zip(0..);
            let each = stages.map(|(stage, at)| {
                let of = (stage.program(), &stage.variant(&self.variant));
                let shape = &stage.shape(bucket.shape);
                self.variants(of, Bucket { shape, ..bucket }, at, tuning)
            });
            let each: Vec<Vec<Contender>> = each.collect::<Result<_, _>>()?;
            if each.iter().any(Vec::is_empty) {
                continue;
            }
            let row = |changed: Option<(usize, usize)>| {
                let chosen = each.iter().enumerate().map(|(stage, of)| match changed {
                    Some((at, other)) if at == stage => &of[other],
                    Some(_) | None => &of[0],
                });
                let seconds = chosen.clone().map(|one| one.seconds).sum::<f64>();
                let choices: Vec<_> = chosen.map(|one| one.choices.clone()).collect();
                (candidate.named_choices(&choices), seconds)
            };
            firsts.push(row(None));
            for (stage, of) in each.iter().enumerate() {
                rows.extend((1..of.len()).map(|other| row(Some((stage, other)))));
            }
        }
        let faster = |a: &Row, b: &Row| a.1.total_cmp(&b.1);
        firsts.sort_by(faster);
        rows.sort_by(faster);
        // No candidate is left out because another one has many variants.
        firsts.append(&mut rows);
        Ok(firsts)
    }

    /// The times of those candidates that can be loaded, with their places. None where the memory for it is not there.
    fn times(
        &self,
        candidates: &[Proven],
        tuning: Tuning,
        alone: bool,
    ) -> Result<Option<Vec<(usize, Times)>>, Error> {
        let Some(memory) = self.memory_for(candidates, alone)? else {
            return Ok(None);
        };
        let mut loaded = Vec::new();
        for (at, candidate) in candidates.iter().enumerate() {
            // Where a rank cannot load it, the others hear of that here at the latest.
            let kernels = self.loaded(candidate, "candidates").and_then(|kernels| {
                match alone {
                    true => Ok(()),
                    false => self.rank.barrier(),
                }?;
                Ok(kernels)
            });
            match kernels {
                Ok(kernels) => loaded.push((at, kernels)),
                Err(error) if self.rank.alive().is_ok() => {
                    info!(rank = self.rank.rank(), %error, "a candidate is left out");
                }
                Err(error) => return Err(error),
            }
        }
        if loaded.len() < 2 {
            return Ok(None);
        }
        let machine = |program: &Program| {
            Ok::<_, Error>(Machine {
                sms: self.sms(program)?,
                ..Machine::of(self.rank.gpu().name())
            })
        };
        let all: f64 = loaded
            .iter()
            .map(|(at, _)| candidates[*at].predicted(&machine))
            .sum::<Result<f64, Error>>()?;
        // By the model, so that all ranks launch as often. An emulated launch takes milliseconds.
        let launches = match self.rank.gpu().is_emulated() {
            true => 1,
            false => (tuning.budget() / (f64::from(SAMPLES) * all)).clamp(1.0, LAUNCHES) as u32,
        };
        let launch = |(at, kernels): &(usize, Vec<Loaded>)| {
            let stages = candidates[*at].stages.iter().zip(kernels);
            let mut stages = stages.zip(memory.tensors(&candidates[*at]));
            stages.try_for_each(|((proof, loaded), tensors)| {
                loaded.launch(self.rank, &proof.largest, &tensors)
            })
        };
        loaded.iter().try_for_each(launch)?;
        self.rank.synchronize()?;
        let stream = self.rank.own_stream();
        let mut samples = vec![Vec::new(); loaded.len()];
        for _ in 0..SAMPLES {
            let mut events = Vec::new();
            for one in &loaded {
                let start = Event::record(stream)?;
                (0..launches).try_for_each(|_| launch(one))?;
                events.push((start, Event::record(stream)?));
            }
            self.rank.synchronize()?;
            for (samples, (start, end)) in samples.iter_mut().zip(events) {
                let each = end.since(&start)?.as_secs_f64() / f64::from(launches);
                samples.push(each * 1e6);
            }
        }
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

/// The place and the times of the winner. The first is the model's favourite of those that were measured.
fn best(times: &[(usize, Times)]) -> (usize, Times) {
    let each: Vec<Times> = times.iter().map(|(_, time)| *time).collect();
    times[fastest(&each)]
}

fn text(of: &impl serde::Serialize) -> String {
    serde_json::to_string(of).unwrap_or_default()
}

/// What another rank said.
fn read<T: serde::de::DeserializeOwned>(said: &str, rank: u32) -> Result<T, Error> {
    serde_json::from_str(said).map_err(|_| Error::Mismatch {
        what: format!("rank {rank} says of candidates what this version does not understand"),
        help: "run one version of counterflow in all processes".into(),
    })
}

/// Of each tensor of the front kernel that is no scratch, its name, its bytes in the candidate that needs most, and whether it is
/// in the heap.
fn needs(candidates: &[Proven]) -> Vec<Option<(String, u64, bool)>> {
    let kernel = candidates[0].front.series.kernel();
    let each = kernel.buffers.iter().zip(0..).map(|(buffer, id)| {
        let sizes = candidates.iter().map(|candidate| {
            let front = &candidate.front;
            let needs = Needs::of(front.series.kernel(), &front.largest, TensorId(id));
            (needs.bytes(), needs.in_heap)
        });
        let (bytes, in_heap) = sizes.fold((0, false), |a, b| (a.0.max(b.0), a.1 | b.1));
        (!buffer.is_scratch()).then(|| (buffer.name.clone(), bytes, in_heap))
    });
    each.collect()
}

/// A tensor for candidates' launches.
enum Given {
    Heap(UserBuffer<u8>),
    Own(Arc<Local<u8>>),
}

/// Tensors that candidates' launches are given, as large as the largest of each.
struct Memory {
    given: Vec<Option<Given>>,
    between: Option<Arc<Local<u8>>>,
}

impl Memory {
    /// Symmetric tensors first: all ranks have these, or none.
    fn new(rank: &Communicator, candidates: &[Proven]) -> Result<Memory, Error> {
        let needs = needs(candidates);
        let heap = needs.iter().map(|needs| {
            let (name, bytes, _) = needs.as_ref().filter(|(.., in_heap)| *in_heap)?;
            Some(rank.allocate::<u8>(&format!("{name} of candidates"), [*bytes as usize]))
        });
        let heap: Vec<Option<_>> = heap.map(Option::transpose).collect::<Result<_, _>>()?;
        let _turn = rank.own().settled()?;
        let given = needs.into_iter().zip(heap).map(|(needs, heap)| {
            let given = match (needs, heap) {
                (Some((_, bytes, _)), None) => {
                    Given::Own(Arc::new(Local::zeros(rank.own_stream(), bytes as usize)?))
                }
                (Some(_), Some(heap)) => Given::Heap(heap),
                (None, _) => return Ok(None),
            };
            given.fill(rank)?;
            Ok(Some(given))
        });
        Ok(Memory {
            given: given.collect::<Result<_, Error>>()?,
            between: None,
        })
    }

    /// The tensors of each stage.
    fn tensors<'m>(&'m self, candidate: &'m Proven) -> impl Iterator<Item = Tensors> + 'm {
        let given = |at: usize, id: TensorId, tensors: &mut Tensors| match &self.given[at] {
            Some(Given::Heap(buffer)) => tensors.shared(id, buffer),
            Some(Given::Own(local)) => tensors.own(id, local, u64::MAX),
            None => {}
        };
        let wires = candidate.wires.iter();
        wires.map(move |(sources, _)| tensors_of(sources, given, self.between.as_ref()))
    }
}

impl Given {
    /// Fills it with numbers of every sign whose products neither vanish nor overflow, in every type: what switches in the
    /// multipliers costs power, and so time.
    fn fill(&self, rank: &Communicator) -> Result<(), Error> {
        const BLOCK: usize = 1 << 20;
        let (at, bytes) = match self {
            Given::Heap(buffer) => (buffer.address(), buffer.len()),
            Given::Own(local) => (local.address(), local.len()),
        };
        let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(rank.rank());
        let words = (0..BLOCK / 2).flat_map(|_| {
            // Xorshift: any bits serve that do not repeat in a tile.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // No element of e4m3 is NaN, and all of 16 bits are below one.
            (((state as u16) & 0x83bf) | 0x3800).to_le_bytes()
        });
        let block: Vec<u8> = words.take(BLOCK.min(bytes)).collect();
        for begin in (0..bytes).step_by(BLOCK) {
            let part = &block[..BLOCK.min(bytes - begin)];
            write(rank.own_stream(), at.plus(begin as u64), part)?;
        }
        Ok(())
    }
}
