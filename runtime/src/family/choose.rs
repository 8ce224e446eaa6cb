//! Choice of the candidate of a family that is built, with its reason.

use super::candidates::{Candidate, Family, SCHEDULE, Wired, fits, sources};
use crate::error::Error;
use crate::machines;
use crate::proof::{self, Bits, Proof, Proven};
use crate::tuned::{self, Key, Tuned, Winner};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use std::fmt;
use std::sync::Arc;

/// Reason that a candidate was chosen.
///
/// ```
/// use counterflow::family::Reason;
///
/// let reason = Reason::Model { seconds: vec![("ag_gemm_pull".into(), 1.04e-3), ("ag_gemm".into(), 1.1e-3)] };
/// assert_eq!(reason.to_string(), "by the model: ag_gemm_pull 1040.0 us, ag_gemm 1100.0 us");
/// ```
#[derive(Clone, PartialEq, Debug)]
pub enum Reason {
    /// The caller named it, or there is no other.
    Named,
    /// The caller asked for first options, and it is the first.
    FirstOptions,
    /// The candidate won a measurement of this shape, or of one nearby.
    Measured {
        /// Shape that was measured: rows over all ranks, columns and depth of one.
        at: [u32; 3],
        /// Median time of its launch.
        microseconds: f64,
    },
    /// The model predicts that it is the fastest.
    Model {
        /// Each candidate's name and time, the fastest first.
        seconds: Vec<(String, f64)>,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Named => f.write_str("the only candidate"),
            Reason::FirstOptions => f.write_str("first options"),
            Reason::Measured {
                at: [m, n, k],
                microseconds,
            } => write!(f, "measured: {microseconds:.1} us at {m}x{n}x{k}"),
            Reason::Model { seconds } => {
                let each = seconds.iter();
                let each = each.map(|(name, seconds)| format!("{name} {:.1} us", seconds * 1e6));
                write!(f, "by the model: {}", each.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// A candidate with its variants, and why it was chosen.
///
/// [`choose`] has an example.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// Index among the family's candidates.
    pub candidate: usize,
    /// Name of the candidate.
    pub name: String,
    /// Variant of each stage.
    pub variants: Vec<Variant>,
    /// Reason that it was chosen.
    pub why: Reason,
}

/// The candidate of a family for that shape, on a GPU of that name whose ranks have so many SMs for a schedule. Choices that
/// `base` settles stay. It is
///
/// 1. the one of the family's nearest winner in the first of `tables` that has one nearby: rows, columns and depth all within
///    half an octave of its own. Its stages have the winner's variants, as [`tuned::select`] takes winners of schedules;
/// 2. otherwise the one whose stages' fastest variants take the least time together by the model.
///
/// Nothing is measured, and the same is chosen in every run. Of [`Family::for_predictions`] no winner counts, since none was
/// measured beside a candidate that needs multicast. Candidates that are not legal there are skipped.
///
/// ```
/// use counterflow::{Shape, Variant, families, family, tuned::Tuned};
///
/// let tables = [Tuned::of_user()?, Tuned::embedded()?]; // the user's winners count first
/// let shape = Shape::new(16, 14336, 8192);
/// let (family, base, gpu) = (families::all_gather_gemm(), Variant::new(2), "NVIDIA H100 80GB HBM3");
/// let choice: family::Choice = family::choose(&tables, gpu, &family, &base, &shape, |_| 132)?;
/// println!("{}: {}", choice.name, choice.why);
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// # Errors
/// Why every candidate is rejected.
pub fn choose(
    tables: &[Tuned],
    gpu: &str,
    family: &Family,
    base: &Variant,
    shape: &Shape,
    sms: impl Fn(&Program) -> u32,
) -> Result<Choice, Error> {
    let asked = Asked {
        tables,
        family,
        variant: base,
        shape,
        gpu,
        sms: &|program| Ok(sms(program)),
        first_options: false,
        only: None,
        known: None,
        bits: &|_| Bits::Any,
        predicts: true,
    };
    let chosen = Chosen::of(&Proven::default(), &asked)?;
    let stages = chosen.stages.iter();
    Ok(Choice {
        candidate: chosen.candidate,
        name: family.candidates()[chosen.candidate].name(),
        variants: stages.map(|proof| proof.variant.clone()).collect(),
        why: chosen.why,
    })
}

/// Question to a family.
pub(crate) struct Asked<'a> {
    /// Tables that may have winners of the family.
    pub tables: &'a [Tuned],
    pub family: &'a Family,
    /// Choices that are made already, types, layout and world.
    pub variant: &'a Variant,
    /// The largest launch.
    pub shape: &'a Shape,
    pub gpu: &'a str,
    /// The part of the GPU that a rank has for a schedule.
    pub sms: &'a dyn Fn(&Program) -> Result<u32, Error>,
    pub first_options: bool,
    /// The candidate that the caller names.
    pub only: Option<&'a str>,
    /// A winner that counts before those of tables.
    pub known: Option<&'a Winner>,
    /// Bits that a stage's results may have, by its place among the stages of its candidate.
    pub bits: &'a dyn Fn(usize) -> Bits,
    /// Nothing is built of what is chosen, so it may need multicast.
    pub predicts: bool,
}

/// A candidate, proven.
pub(crate) struct Chosen {
    pub candidate: usize,
    /// Proof of the kernel whose tensors launches are given: the only stage's, or the first candidate's.
    pub front: Arc<Proof>,
    /// Each stage's.
    pub stages: Vec<Arc<Proof>>,
    pub why: Reason,
}

impl Chosen {
    /// The choice, by tables and the model.
    pub fn of(proven: &Proven, asked: &Asked<'_>) -> Result<Chosen, Error> {
        let all = asked.allowed()?;
        if let Some(winner) = asked.known {
            let named = winner.choices.get(SCHEDULE);
            let mut each = all.iter();
            let at = each.find(|at| named == Some(&asked.family.candidates()[**at].name()));
            let at = *at.ok_or_else(|| asked.none())?;
            let why = Reason::Measured {
                at: [winner.m, winner.n, winner.k],
                microseconds: winner.microseconds,
            };
            return asked.proven(proven, at, Some(winner), why);
        }
        if let [only] = all[..] {
            return asked.proven(proven, only, None, Reason::Named);
        }
        if let (true, [first, ..]) = (asked.first_options, &all[..]) {
            return asked.proven(proven, *first, None, Reason::FirstOptions);
        }
        // None was measured beside what needs multicast.
        let near = match asked.family.predicts() {
            true => Vec::new(),
            false => asked.near(),
        };
        for winner in near {
            let named = winner.choices.get(SCHEDULE);
            let found = all.iter().find(|at| {
                let name = asked.family.candidates()[**at].name();
                named == Some(&name)
            });
            let why = Reason::Measured {
                at: [winner.m, winner.n, winner.k],
                microseconds: winner.microseconds,
            };
            if let Some(at) = found
                && let Ok(chosen) = asked.proven(proven, *at, Some(winner), why)
            {
                return Ok(chosen);
            }
        }
        let mut refused = None;
        let mut found: Vec<(Chosen, f64)> = Vec::new();
        for at in all {
            let chosen = asked.proven(proven, at, None, Reason::Named);
            let timed = chosen.and_then(|chosen| {
                let seconds = asked.predicted(&chosen)?;
                Ok((chosen, seconds))
            });
            match timed {
                Ok(timed) => found.push(timed),
                Err(error) => _ = refused.get_or_insert(error),
            }
        }
        // Of equals the first stays first.
        found.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let candidates = asked.family.candidates();
        let named =
            |(chosen, seconds): &(Chosen, f64)| (candidates[chosen.candidate].name(), *seconds);
        let seconds = found.iter().map(named).collect();
        match (found.into_iter().next(), refused) {
            (Some((chosen, _)), _) => Ok(Chosen {
                why: Reason::Model { seconds },
                ..chosen
            }),
            (None, Some(error)) => Err(error),
            (None, None) => Err(asked.none()),
        }
    }
}

impl Asked<'_> {
    /// Indices of the candidates that may be built.
    fn allowed(&self) -> Result<Vec<usize>, Error> {
        let all = self.family.candidates().iter().enumerate();
        let wanted = |candidate: &Candidate| self.only.is_none_or(|only| candidate.name() == only);
        let allowed: Vec<usize> = all
            .filter(|(_, candidate)| wanted(candidate))
            .map(|(at, _)| at)
            .collect();
        match allowed.is_empty() {
            true => Err(self.none()),
            false => Ok(allowed),
        }
    }

    fn none(&self) -> Error {
        let all = self.family.candidates().iter();
        let all: Vec<_> = all.map(Candidate::name).collect();
        let only = self.only.unwrap_or("another candidate");
        Error::Usage {
            what: format!("{} as {only}", self.family.name()),
            legal: format!("its candidates are {}", all.join(", ")),
        }
    }

    fn by_itself(&self, candidate: &Candidate) -> Error {
        Error::Usage {
            what: format!(
                "{} of {}: it reaches every rank's memory at once, and no family chooses multicast by itself",
                candidate.name(),
                self.family.name()
            ),
            legal: "build it by its own name (`Communicator::op_of`); in a family, `Family::or_predicted`".into(),
        }
    }

    /// The family's winners near the shape: table by table, the nearest first.
    fn near(&self) -> Vec<&Winner> {
        let key = self.family.key(self.gpu, self.variant);
        let size = [self.shape.m, self.shape.n, self.shape.k];
        let tables = self.tables.iter();
        tables.flat_map(|table| table.near(&key, size)).collect()
    }

    /// A candidate's stages, proven, in the variants of a winner if they are legal here, and the tensors that they share.
    fn proven(
        &self,
        proven: &Proven,
        candidate: usize,
        winner: Option<&Winner>,
        why: Reason,
    ) -> Result<Chosen, Error> {
        let all = self.family.candidates();
        let stages = self.stages(proven, &all[candidate], winner, self.bits)?;
        let first = match candidate {
            0 => stages[0].clone(),
            // It is not launched.
            _ => {
                let first = self.stages(proven, &all[0], None, &|_| Bits::Any);
                first?.swap_remove(0)
            }
        };
        let kernels: Vec<&Kernel> = stages
            .iter()
            .map(|proof| &**proof.series.kernel())
            .collect();
        if !(self.predicts && self.family.predicts())
            && kernels.iter().any(|kernel| kernel.needs_multicast())
        {
            return Err(self.by_itself(&all[candidate]));
        }
        let wires = sources(&all[candidate], first.series.kernel(), &kernels)?;
        let each = stages.iter().zip(&wires).map(|(proof, sources)| Wired {
            kernel: proof.series.kernel(),
            plan: &proof.largest,
            sources,
        });
        let front = (&**first.series.kernel(), &*first.largest);
        fits(&all[candidate].name(), front, each)?;
        let front = match &stages[..] {
            [own] => own.clone(),
            _ => first,
        };
        Ok(Chosen {
            candidate,
            front,
            stages,
            why,
        })
    }

    fn stages(
        &self,
        proven: &Proven,
        candidate: &Candidate,
        winner: Option<&Winner>,
        bits: &dyn Fn(usize) -> Bits,
    ) -> Result<Vec<Arc<Proof>>, Error> {
        let several = candidate.stages().len() > 1;
        if several && !(self.shape.ld.is_empty() && self.shape.dims.is_empty()) {
            return Err(Error::Usage {
                what: format!("{} with further sizes", candidate.name()),
                legal: "stages of several launches take contiguous rows".into(),
            });
        }
        let unknown = self.variant.choices.keys().find(|name| {
            let mut stages = candidate.stages().iter();
            !stages.any(|stage| tuned::choices(stage.program()).contains_key(&name[..]))
        });
        if let Some(name) = unknown {
            return Err(Error::Usage {
                what: format!("{} has no choice `{name}`", candidate.name()),
                legal: "name the candidate that has it: `OpBuilder::schedule`".into(),
            });
        }
        let stages = candidate.stages().iter().enumerate();
        let each = stages.map(|(at, stage)| {
            let variant = stage.variant(self.variant);
            let winner = winner.filter(|_| stage.collective().is_none());
            let known = winner.map(|winner| {
                let of = |m, n, k| stage.shape(&Shape::new(m, n, k));
                let Shape { m, n, k, .. } = of(winner.m, winner.n, winner.k);
                let prefix = candidate.prefix(stage);
                let choices = winner.choices.iter().filter_map(|(name, setting)| {
                    let own = name.strip_prefix(&prefix).filter(|own| *own != SCHEDULE)?;
                    Some((own.to_owned(), setting.clone()))
                });
                Winner {
                    key: Key::new(self.gpu, stage.program(), &variant),
                    choices: choices.collect(),
                    m,
                    n,
                    k,
                    ..winner.clone()
                }
            });
            proven.of(&proof::Asked {
                program: stage.program(),
                collective: stage.collective(),
                variant,
                shape: stage.shape(self.shape),
                gpu: self.gpu,
                sms: (self.sms)(stage.program())?,
                first_options: self.first_options,
                bits: bits(at),
                known,
            })
        });
        each.collect()
    }

    /// The model's time of all stages.
    fn predicted(&self, chosen: &Chosen) -> Result<f64, Error> {
        let candidate = &self.family.candidates()[chosen.candidate];
        let stages = candidate.stages().iter().zip(&chosen.stages);
        let each = stages.map(|(stage, proof)| {
            let machine = Machine {
                sms: (self.sms)(stage.program())?,
                ..machines::machine(self.gpu)?
            };
            Ok(proof.predicted(&machine))
        });
        each.sum()
    }
}
