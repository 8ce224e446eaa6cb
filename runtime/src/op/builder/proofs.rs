//! What a builder proves, bucket by bucket, and loads.

use super::super::built::{Bucket, Stage};
use super::super::typed::Launcher;
use super::super::workspace::Workspace;
use super::OpBuilder;
use crate::driver::Local;
use crate::error::Error;
use crate::family::{self, Chosen, Reason, Source, sources};
use crate::launch::Loaded;
use crate::proof::{Asked, Bits, Proof};
use crate::tuned::Tuned;
use counterflow_codegen::bits::BitsClass;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::program::{Program, RoleKind, TensorId};
use counterflow_codegen::shape::Shape;
use std::sync::Arc;
use tracing::info;

/// A bucket, proven.
pub(super) struct Proven {
    /// Its kernel has the tensors that launches are given.
    pub front: Arc<Proof>,
    /// One after another.
    pub stages: Vec<Arc<Proof>>,
    /// Of an op of a family: which candidate, its name, and why.
    chosen: Option<(usize, String, Reason)>,
    /// Of each stage, where its tensors come from, and whether it moves rows of the result.
    wires: Vec<(Vec<Option<Source>>, bool)>,
}

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
        }
    }

    /// Whether both are launched alike.
    fn like(&self, other: &Proven) -> bool {
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
    fn sms(&self, program: &Program) -> Result<u32, Error> {
        let mut roles = program.roles.iter();
        let copied = roles.any(|role| matches!(role.kind, RoleKind::CopyEngine));
        let share = self.rank.share(copied);
        let sms = share.checked_sub(self.left).filter(|sms| *sms > 0);
        sms.ok_or_else(|| Error::Usage {
            what: format!("{} of {share} SMs left to others", self.left),
            legal: format!("0 to {}", share - 1),
        })
    }

    /// Of each bucket whose choices are not those of the next, the most rows first.
    pub(super) fn proofs(&self) -> Result<Vec<Proven>, Error> {
        let largest = self.shape.clone().ok_or_else(|| Error::Usage {
            what: format!("{} built for no shape", self.program.name),
            legal: "say the largest launch: `up_to(m, n, k)`".into(),
        })?;
        let smaller = self.buckets.range(..largest.m).rev();
        let only = self.only.as_deref();
        if !self.batch_invariant {
            let any = |_| Bits::Any;
            let first = self.proven(largest.clone(), &any, only)?;
            let proven = |shape| self.proven(shape, &any, only);
            return unlike(first, &largest, smaller, proven);
        }
        let first = self.proven(largest.clone(), &|_| Bits::Invariant, only)?;
        // Buckets have the classes of the largest, whose choices count most; those of a family are of one candidate then.
        let stages = first.stages.iter();
        let classes = stages.map(|proof| BitsClass::of(proof.series.kernel()));
        let classes = classes.collect::<Result<Vec<_>, _>>()?;
        let bits = |stage: usize| Bits::Of(classes[stage].clone());
        let chosen = first.chosen.clone();
        let proven = |shape| {
            let named = chosen.as_ref().map(|(_, name, _)| &name[..]);
            let mut proven = self.proven(shape, &bits, named)?;
            proven.chosen.clone_from(&chosen);
            Ok(proven)
        };
        unlike(first, &largest, smaller, proven)
    }

    fn proven(
        &self,
        shape: Shape,
        bits: &dyn Fn(usize) -> Bits,
        only: Option<&str>,
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
                variant: self.variant.clone(),
                shape,
                gpu: self.rank.gpu().name(),
                sms: self.sms(&self.program)?,
                first_options: self.first_options,
                bits: bits(0),
                known: None,
            });
            return proof.map(Proven::alone);
        };
        let tables = [Tuned::of_user()?, Tuned::embedded()?];
        let asked = family::Asked {
            tables: &tables,
            family,
            variant: &self.variant,
            shape: &shape,
            gpu: self.rank.gpu().name(),
            sms: &|program| self.sms(program),
            first_options: self.first_options,
            only,
            bits,
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
        })
    }

    /// What these take.
    pub(super) fn memory(&self, all: &[Proven]) -> Workspace {
        let kernels = all.iter().flat_map(|bucket| &bucket.stages);
        let between = all.iter().map(Proven::between).max();
        let kernels = kernels.map(|proof| Workspace::of(proof));
        Workspace::of_kernels(kernels, between.unwrap_or(0))
    }

    /// Memory for what stages hand over, if there is any.
    pub(super) fn between(&self, all: &[Proven]) -> Result<Option<Arc<Local<u8>>>, Error> {
        let bytes = all.iter().map(Proven::between).max().unwrap_or(0);
        if bytes == 0 {
            return Ok(None);
        }
        let made = || {
            // The driver may let the stream wait for memory that another stream frees.
            let _turn = self.rank.own().settled()?;
            Local::zeros(self.rank.own_stream(), bytes as usize)
        };
        // Its peers would wait for it.
        let made = made().map_err(|error| self.rank.refuses(error))?;
        Ok(Some(Arc::new(made)))
    }

    /// Compiles or takes from the cache, and loads. `rows` are the most rows of each bucket: all ranks have the same.
    pub(super) fn load(&self, bucket: Proven, rows: &str) -> Result<Bucket, Error> {
        let several = bucket.stages.len() > 1;
        let load = |(proof, (sources, of_result)): (Arc<Proof>, (Vec<Option<Source>>, bool))| {
            let kernel = proof.series.kernel();
            let loaded = || {
                let (pipeline, series) = (&proof.pipeline, &proof.series);
                let loaded = Loaded::load_beside(self.rank, self.compiler, pipeline, series, rows)?;
                loaded.admit(self.rank, &proof.largest)?;
                Ok(loaded)
            };
            // A kernel that no peer waits for is loaded by each rank alone, and the next stage is not.
            let loaded = loaded().map_err(|error| match several && kernel.counters.is_empty() {
                true => self.rank.refuses(error),
                false => error,
            })?;
            let counted = self.rank.metrics().built(kernel, proof.why);
            info!(
                rank = self.rank.rank(),
                schedule = %kernel.name,
                variant = %proof.variant,
                why = %proof.why,
                fused = counted.fused,
                most = %proof.shape,
                heap_bytes = Workspace::of(&proof).heap,
                "op built"
            );
            Ok::<_, Error>(Stage {
                loaded: Arc::new(loaded),
                counted,
                sources,
                of_result,
                proof,
            })
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
        Ok(Bucket {
            proof: bucket.front,
            stages: stages.map(load).collect::<Result<_, _>>()?,
            chosen: bucket.chosen.map(|(_, name, why)| (name, why)),
        })
    }
}

/// The largest bucket, and those of `smaller` that are not launched like the next larger one.
fn unlike<'m>(
    first: Proven,
    largest: &Shape,
    smaller: impl Iterator<Item = &'m u32>,
    proven: impl Fn(Shape) -> Result<Proven, Error>,
) -> Result<Vec<Proven>, Error> {
    let mut found = vec![first];
    for m in smaller {
        let proven = proven(Shape {
            m: *m,
            ..largest.clone()
        })?;
        if found.last().is_some_and(|next| !next.like(&proven)) {
            found.push(proven);
        }
    }
    Ok(found)
}
