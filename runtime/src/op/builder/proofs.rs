//! Proofs of a builder, bucket by bucket, and what it loads.

use super::super::built::{Bucket as Built, Stage, in_heap};
use super::super::typed::Launcher;
use super::super::workspace::Workspace;
use super::OpBuilder;
use crate::communicator::Communicator;
use crate::driver::Local;
use crate::error::Error;
use crate::family::{self, Chosen, Reason, Source, sources};
use crate::jit::Compiler;
use crate::launch::{self, Loaded, is_alone};
use crate::metrics::Why;
use crate::op::argument::Needs;
use crate::proof::{Asked, Bits, Proof};
use crate::tuned::{Tuned, Winner};
use counterflow_codegen::bits::BitsClass;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::{Program, RoleKind, TensorId};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90::cta::dependent_launch::loaded_early;
use std::collections::BTreeMap;
use std::sync::Arc;
use tracing::info;

/// Request for a bucket.
#[derive(Clone, Copy)]
pub(super) struct Bucket<'a> {
    pub shape: &'a Shape,
    /// Bits that results may have, by the stage.
    pub bits: &'a dyn Fn(usize) -> Bits,
    /// The only candidate of a family that it may be.
    pub only: Option<&'a str>,
}

/// A bucket, proven.
#[derive(Clone)]
pub(super) struct Proven {
    /// Proof of the kernel whose tensors launches are given.
    pub front: Arc<Proof>,
    /// One after another.
    pub stages: Vec<Arc<Proof>>,
    /// Candidate of an op of a family: its index, its name, and why it was chosen.
    chosen: Option<(usize, String, Reason)>,
    /// Origins of each stage's tensors, and true if the stage moves rows of the result.
    pub wires: Vec<(Vec<Option<Source>>, bool)>,
    /// Reason that the model's choice was not measured, where it was to be.
    pub unmeasured: Option<Arc<str>>,
}

/// Outcome of a measurement of a bucket.
pub(super) enum Measured {
    /// The choice without one stays.
    Stays,
    /// This one is taken instead.
    Winner(Box<Winner>),
    /// The model's choice stays, since nothing was measured, for this reason.
    Not(String),
}

/// Measures a bucket, of which the second is the choice without a measurement.
pub(super) type Measure<'m> = dyn Fn(Bucket<'_>, &Proven) -> Result<Measured, Error> + 'm;

impl Proven {
    /// A schedule's own op.
    fn alone(proof: Arc<Proof>) -> Proven {
        let buffers = proof.series.kernel().buffers.iter().enumerate();
        let sources =
            buffers.map(|(at, buffer)| (!buffer.is_scratch()).then_some(Source::Given(at)));
        Proven {
            wires: vec![(sources.collect(), false)],
            stages: vec![proof.clone()],
            front: proof,
            chosen: None,
            unmeasured: None,
        }
    }

    /// True if one of its kernels needs that tensor of a launch in the heap.
    fn is_in_heap(&self, id: TensorId) -> bool {
        let mut stages = self.stages.iter().zip(&self.wires);
        stages.any(|(proof, (sources, _))| in_heap(proof.series.kernel(), sources, id))
    }

    /// Index of the candidate in its family. None of a schedule's own op.
    pub fn candidate(&self) -> Option<usize> {
        self.chosen.as_ref().map(|(candidate, ..)| *candidate)
    }

    /// True if the model chose it, or a part of it.
    pub fn is_predicted(&self) -> bool {
        match &self.chosen {
            Some((_, _, Reason::Measured { .. })) => false,
            Some((_, _, Reason::Model { .. })) => true,
            Some((_, _, Reason::Named | Reason::FirstOptions)) | None => {
                self.stages.iter().any(|proof| proof.why == Why::Model)
            }
        }
    }

    /// True if each rank builds it by itself.
    pub fn is_alone(&self) -> bool {
        let mut kernels = self.stages.iter().map(|proof| proof.series.kernel());
        self.chosen.is_none() && kernels.all(|kernel| is_alone(kernel))
    }

    /// The time by which it was chosen, in microseconds; 0 where none is known.
    pub fn microseconds(&self) -> f64 {
        match &self.chosen {
            Some((_, _, Reason::Measured { microseconds, .. })) => *microseconds,
            Some((_, _, Reason::Named | Reason::FirstOptions | Reason::Model { .. })) | None => 0.0,
        }
    }

    /// The model's time of its largest launch, in seconds.
    pub fn predicted(
        &self,
        machine: &dyn Fn(&Program) -> Result<Machine, Error>,
    ) -> Result<f64, Error> {
        let each = self.stages.iter();
        let each = each.map(|proof| Ok(proof.predicted(&machine(&proof.series.kernel().program)?)));
        each.sum()
    }

    /// True if both are launched alike.
    pub fn like(&self, other: &Proven) -> bool {
        let named = |one: &Proven| one.chosen.as_ref().map(|(candidate, ..)| *candidate);
        let variants = self.stages.iter().zip(&other.stages);
        named(self) == named(other) && variants.into_iter().all(|(a, b)| a.variant == b.variant)
    }

    /// Bytes of what one stage makes for the next.
    pub fn between(&self) -> u64 {
        let stages = self.stages.iter().zip(&self.wires);
        let each = stages.flat_map(|(proof, (sources, _))| {
            let own = sources.iter().zip(0..);
            let own = own.filter(|(source, _)| **source == Some(Source::Own));
            own.map(|(_, id)| {
                let kernel = proof.series.kernel();
                proof.largest.bytes(kernel, TensorId(id))
            })
        });
        each.max().unwrap_or(0)
    }
}

impl<S: Launcher> OpBuilder<'_, S> {
    /// The SMs of a launch of that schedule.
    pub(super) fn sms(&self, program: &Program) -> Result<u32, Error> {
        let mut roles = program.roles.iter();
        let copied = roles.any(|role| matches!(role.kind, RoleKind::CopyEngine));
        let share = self.rank.share(copied);
        let sms = share.checked_sub(self.left).filter(|sms| *sms > 0);
        sms.ok_or_else(|| Error::Usage {
            what: format!("{} of {share} SMs left to others", self.left),
            legal: format!("0 to {}", share - 1),
        })
    }

    /// Rejects a constant that the op does not have, or that launches or peers write.
    fn may_be_constant(&self, name: &str) -> Result<(), Error> {
        let program = &self.program;
        let tensor = program.tensors.iter().find(|tensor| tensor.name == name);
        let why = match tensor.map(|tensor| tensor.usage.is_fixed()) {
            Some(true) => return Ok(()),
            Some(false) => "launches or peers write it",
            None => "it has no such tensor",
        };
        let fixed = program.tensors.iter();
        let fixed = fixed.filter(|tensor| tensor.usage.is_fixed());
        let names = fixed.map(|tensor| &tensor.name[..]).collect::<Vec<_>>();
        Err(Error::Usage {
            what: format!("`{name}` of {} as a constant: {why}", program.name),
            legal: format!("an input that stays on its rank: {}", names.join(", ")),
        })
    }

    /// Proofs of each bucket whose choices are not those of the next, the most rows first. `measure` may tell other
    /// choices.
    pub(super) fn proofs(&self, measure: &Measure<'_>) -> Result<Vec<Proven>, Error> {
        let largest = self.shape.clone().ok_or_else(|| Error::Usage {
            what: format!("{} built for no shape", self.program.name),
            legal: "say the largest launch: `up_to(m, n, k)`".into(),
        })?;
        self.variant
            .constants
            .iter()
            .try_for_each(|name| self.may_be_constant(name))?;
        let smaller = self.buckets.range(..largest.m).rev();
        let only = self.only.as_deref();
        let chosen = |bucket: Bucket<'_>| {
            let found = self.proven(bucket, None)?;
            match measure(bucket, &found)? {
                Measured::Stays => Ok(found),
                Measured::Winner(winner) => self.proven(bucket, Some(&winner)),
                Measured::Not(why) => Ok(Proven {
                    unmeasured: Some(why.into()),
                    ..found
                }),
            }
        };
        let first = |bits| {
            chosen(Bucket {
                shape: &largest,
                bits,
                only,
            })
        };
        if !self.batch_invariant {
            let bits = &|_| Bits::Any;
            let proven = |shape: &Shape| chosen(Bucket { shape, bits, only });
            return unlike(first(bits)?, &largest, smaller, proven);
        }
        let first = first(&|_| Bits::Invariant)?;
        // Buckets have the classes of the largest, whose choices count most; those of a family are of one candidate then.
        let stages = first.stages.iter();
        let classes = stages.map(|proof| BitsClass::of(proof.series.kernel()));
        let classes = classes.collect::<Result<Vec<_>, _>>()?;
        let bits = |stage: usize| Bits::Of(classes[stage].clone());
        let of_first = first.chosen.clone();
        let proven = |shape: &Shape| {
            let only = of_first.as_ref().map(|(_, name, _)| &name[..]);
            let mut proven = chosen(Bucket {
                shape,
                bits: &bits,
                only,
            })?;
            proven.chosen.clone_from(&of_first);
            Ok(proven)
        };
        unlike(first, &largest, smaller, proven)
    }

    /// A bucket's choice: that winner, or else what tables and the model say.
    pub(super) fn proven(
        &self,
        Bucket { shape, bits, only }: Bucket<'_>,
        known: Option<&Winner>,
    ) -> Result<Proven, Error> {
        let Some(family) = &self.family else {
            if let Some(only) = only {
                return Err(Error::Usage {
                    what: format!("{} as {only}", self.program.name),
                    legal: "only an op of a family has candidates: `Communicator::op_for`".into(),
                });
            }
            let proof = self.rank.proven().of(&Asked {
                program: &self.program,
                collective: None,
                variant: self.variant.clone(),
                shape: shape.clone(),
                gpu: self.rank.gpu_that_chooses(),
                sms: self.sms(&self.program)?,
                first_options: self.first_options,
                bits: bits(0),
                known: known.cloned(),
            });
            return proof.map(Proven::alone);
        };
        let tables = [Tuned::of_user()?, Tuned::embedded()?];
        let asked = family::Asked {
            tables: &tables,
            family,
            variant: &self.variant,
            shape,
            gpu: self.rank.gpu_that_chooses(),
            sms: &|program| self.sms(program),
            first_options: self.first_options,
            only,
            known,
            bits,
            predicts: false,
        };
        let Chosen {
            candidate,
            front,
            stages,
            why,
        } = Chosen::of(self.rank.proven(), &asked)?;
        let chosen = &family.candidates()[candidate];
        let kernels: Vec<&Kernel> = stages
            .iter()
            .map(|proof| &**proof.series.kernel())
            .collect();
        let wires = sources(chosen, front.series.kernel(), &kernels)?;
        let of_result = chosen.stages().iter().map(family::Stage::is_of_result);
        Ok(Proven {
            wires: wires.into_iter().zip(of_result).collect(),
            chosen: Some((candidate, chosen.name(), why)),
            front,
            stages,
            unmeasured: None,
        })
    }

    /// Proves all buckets, without a measurement, and compiles their kernels side by side.
    pub(super) fn compiles_ahead(&self) -> Result<(), Error> {
        if self.rank.gpu().is_emulated() && !self.rank.fills()? {
            return Ok(());
        }
        let all = self.proofs(&|_, _| Ok(Measured::Stays))?;
        let found = match self.compiler {
            Some(_) => None,
            None => Compiler::find().ok(),
        };
        let compiler = self.compiler.or(found.as_ref());
        if let Some(compiler) = compiler.filter(|compiler| compiler.keeps()) {
            let stages = all.iter().flat_map(|bucket| &bucket.stages);
            // An exchange of low latency has another text, and what needs multicast is refused.
            let stages = stages.filter(|proof| proof.collective.is_none());
            let pipelines = stages.map(|proof| &proof.pipeline);
            launch::warm(
                compiler,
                pipelines.filter(|pipeline| !pipeline.kernel.needs_multicast()),
            );
        }
        Ok(())
    }

    /// Memory that these take.
    pub(super) fn memory(&self, all: &[Proven]) -> Workspace {
        let room = self.rank.room_for_cells();
        let kernels = all.iter().flat_map(|bucket| &bucket.stages);
        let between = all.iter().map(Proven::between).max();
        let kernels = kernels.map(|proof| Workspace::of(proof, room));
        Workspace::of_kernels(kernels, between.unwrap_or(0))
    }

    /// Memory for what stages hand over, if there is any.
    pub(super) fn between(&self, all: &[Proven]) -> Result<Option<Arc<Local<u8>>>, Error> {
        // Its peers would wait for it.
        let made = between(self.rank, all);
        made.map_err(|error| self.rank.refuses(error))
    }

    /// Loads the kernels of a bucket's stages in a communicator of the op's ranks. `rows` are the most rows of each bucket, which
    /// all ranks have alike.
    pub(super) fn loaded(
        &self,
        rank: &Communicator,
        bucket: &Proven,
        rows: &str,
    ) -> Result<Vec<Loaded>, Error> {
        let several = bucket.stages.len() > 1;
        let load = |proof: &Arc<Proof>| {
            let kernel = proof.series.kernel();
            let loaded = || {
                let of = (&proof.pipeline, &proof.series);
                let loaded = Loaded::load_beside(rank, self.compiler, of, proof.collective, rows)?;
                loaded.admit(rank, &proof.largest)?;
                Ok(loaded)
            };
            // A kernel that no peer waits for is loaded by each rank alone, and the next stage is not.
            loaded().map_err(|error| match several && kernel.counters.is_empty() {
                true => rank.refuses(error),
                false => error,
            })
        };
        bucket.stages.iter().map(load).collect()
    }

    /// Compiles or takes from the cache, and loads. `rows` are the most rows of each bucket: all ranks have the same.
    pub(super) fn load(&self, bucket: Proven, rows: &str) -> Result<Built, Error> {
        let loaded = self.loaded(self.rank, &bucket, rows)?;
        let stage = |((proof, (sources, of_result)), loaded): (Wired, Loaded)| {
            let kernel = proof.series.kernel();
            let counted = self.rank.metrics().built(kernel, proof.why);
            info!(
                rank = self.rank.rank(),
                schedule = %kernel.name,
                variant = %proof.variant,
                why = %proof.why,
                fused = counted.fused,
                most = %proof.shape,
                heap_bytes = Workspace::of(&proof, u64::MAX).heap,
                "op built"
            );
            if !proof.variant.constants.is_empty() && loaded_early(kernel).is_empty() {
                info!(
                    rank = self.rank.rank(),
                    schedule = %kernel.name,
                    constants = ?proof.variant.constants,
                    "no constant is loaded early: the kernel communicates, or multiplies none of them"
                );
            }
            Stage {
                loaded: Arc::new(loaded),
                counted,
                sources,
                of_result,
                proof,
            }
        };
        if let (Some(family), Some((_, name, why))) = (&self.family, &bucket.chosen) {
            info!(
                rank = self.rank.rank(),
                family = family.name(),
                schedule = %name,
                why = %why,
                most = %bucket.front.shape,
                "family built"
            );
        }
        let stages = bucket.stages.into_iter().zip(bucket.wires);
        Ok(Built {
            proof: bucket.front,
            stages: stages.zip(loaded).map(stage).collect(),
            chosen: bucket.chosen.map(|(_, name, why)| (name, why)),
            unmeasured: bucket.unmeasured,
        })
    }
}

/// Memory of a rank for what stages hand over, if there is any. Peers hear nothing of it.
pub(super) fn between(
    rank: &Communicator,
    all: &[Proven],
) -> Result<Option<Arc<Local<u8>>>, Error> {
    let bytes = all.iter().map(Proven::between).max().unwrap_or(0);
    if bytes == 0 {
        return Ok(None);
    }
    // The driver may let the stream wait for memory that another stream frees.
    let _turn = rank.own().settled()?;
    let made = Local::zeros(rank.own_stream(), bytes as usize)?;
    Ok(Some(Arc::new(made)))
}

/// The tensors that launches of candidates are given, by name: bytes in the candidate that needs most, and whether they are in the
/// heap.
pub(super) fn needs(candidates: &[Proven]) -> BTreeMap<String, (u64, bool)> {
    let mut all = BTreeMap::new();
    for candidate in candidates {
        let (kernel, plan) = (candidate.front.series.kernel(), &candidate.front.largest);
        for (buffer, id) in kernel.buffers.iter().zip(0..) {
            if buffer.is_scratch() {
                continue;
            }
            let own = Needs::of(kernel, plan, TensorId(id));
            let most: &mut (u64, bool) = all.entry(buffer.name.clone()).or_default();
            let heap = own.in_heap || candidate.is_in_heap(TensorId(id));
            *most = (most.0.max(own.bytes()), most.1 | heap);
        }
    }
    all
}

/// Those of a rank alone: their names and bytes.
pub(super) fn sizes_of_own(candidates: &[Proven]) -> impl Iterator<Item = (String, u64)> {
    let all = needs(candidates).into_iter();
    all.filter_map(|(name, (bytes, in_heap))| (!in_heap).then_some((name, bytes)))
}

/// A stage's proof, where its tensors come from, and whether it moves rows of the result.
type Wired = (Arc<Proof>, (Vec<Option<Source>>, bool));

/// The largest bucket, and those of `smaller` that are not launched like the next larger one.
fn unlike<'m>(
    first: Proven,
    largest: &Shape,
    smaller: impl Iterator<Item = &'m u32>,
    proven: impl Fn(&Shape) -> Result<Proven, Error>,
) -> Result<Vec<Proven>, Error> {
    let mut found = vec![first];
    for m in smaller {
        let proven = proven(&Shape {
            m: *m,
            ..largest.clone()
        })?;
        if found.last().is_some_and(|next| !next.like(&proven)) {
            found.push(proven);
        }
    }
    Ok(found)
}
