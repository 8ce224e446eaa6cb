//! Measures a few candidates of a bucket and tells the winner.

use super::super::typed::Launcher;
use super::OpBuilder;
use super::proofs::{Bucket, Measured, Proven, needs, sizes_of_own};
use super::trial::{Contest, any, first_said};
use crate::error::Error;
use crate::family::{self, Family};
use crate::held::HeapUse;
use crate::low_latency::Sizes;
use crate::machines;
use crate::op::workspace::Workspace;
use crate::proof::Bits;
use crate::rotation;
use crate::tuned::{self, Key, Tuned, Winner};
use crate::tuning::{Contender, Effort, Times, Tuning, contenders, read, text};
use counterflow_codegen::bits::BitsClass;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::{Program, Setting};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use std::cell::Cell;
use std::collections::BTreeMap;
use tracing::{info, warn};

/// Candidates that are measured, the model's favourite first, and how often they are launched.
type Candidates = (Vec<Proven>, Effort);

/// Choices as a table has them, and the model's time of a launch, in seconds.
type Row = (BTreeMap<String, String>, f64);

impl<S: Launcher> OpBuilder<'_, S> {
    /// Extent of the measurement.
    ///
    /// # Errors
    /// What the environment says that is no word of [`Tuning`].
    pub(super) fn measures(&self) -> Result<Tuning, Error> {
        match self.tuning {
            Some(tuning) => Ok(tuning),
            // Emulated GPUs have no speed worth knowing.
            None if self.rank.gpu().is_emulated() => Ok(Tuning::Off),
            None => Ok(Tuning::unless_asked(
                Tuning::from_env()?,
                self.rank.any_shares_gpu(),
            )),
        }
    }

    /// The winner of a measurement, if `found`, the choice without one, is not to be taken: all ranks take what rank 0 knows, and
    /// where that is nothing, what is fastest. Collective, unless each rank builds the op by itself.
    pub(super) fn measured(&self, bucket: Bucket<'_>, found: &Proven) -> Result<Measured, Error> {
        let tuning = self.measures()?;
        if tuning == Tuning::Off || self.first_options {
            return Ok(Measured::Stays);
        }
        let alone = found.is_alone();
        let class = self.class_of_alone(found)?;
        let bits = |stage| match &class {
            Some(class) => Bits::Of(class.clone()),
            None => (bucket.bits)(stage),
        };
        let bucket = Bucket {
            bits: &bits,
            ..bucket
        };
        let measured = self.rank.proven().measured();
        let asked = self.asked(bucket);
        let own = match found.is_predicted() {
            true => measured.winner(&asked),
            false => Some(self.winner(bucket.shape, found)),
        };
        let known = match alone {
            true => own.clone(),
            false => self.of_first(&own)?,
        };
        if let Some(known) = known {
            let is_found = !found.is_predicted() && own.as_ref() == Some(&known);
            return Ok(match is_found {
                true => Measured::Stays,
                false => Measured::Winner(known.into()),
            });
        }
        let not = |why: String| {
            info!(
                rank = self.rank.rank(),
                op = %self.program.name,
                most = %bucket.shape,
                %why,
                "no candidates are measured"
            );
            Ok(Measured::Not(why))
        };
        let own = self.may_not_measure(self.is_asked_to_measure()?)?;
        if let Some(why) = first_said(self.rank, alone, &own)? {
            return not(why);
        }
        let undisturbed = self.is_for_all();
        let contest = self.contest(bucket, tuning)?;
        self.must_agree(alone, tuning, contest.as_ref())?;
        let Some((candidates, effort)) = contest else {
            return not("there are no two candidates that the budget has time for".into());
        };
        let tried = self.times(Contest {
            candidates: &candidates,
            least: self.memory(std::slice::from_ref(found)).heap,
            tuning,
            effort,
            alone,
        })?;
        let times = match tried {
            Ok(times) => times,
            Err(gave_up) => {
                if gave_up.stalled {
                    self.rank.proven().measured().stalls(&gave_up.why);
                }
                return not(gave_up.why);
            }
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
        measured.put(asked, winner.clone());
        let kept = undisturbed && self.is_for_all();
        if !any(self.rank, alone, !kept)?
            && (alone || self.rank.rank() == 0)
            && let Some(path) = Tuned::place()
            && let Err(error) = Tuned::keep(&path, [winner.clone()])
        {
            // It serves this op all the same.
            warn!(rank = self.rank.rank(), %error, "the winner is not kept");
        }
        Ok(Measured::Winner(winner.into()))
    }

    /// True if somebody said that it measures.
    fn is_asked_to_measure(&self) -> Result<bool, Error> {
        Ok(self.tuning.is_some() || Tuning::from_env()?.is_some())
    }

    /// Reason that this rank measures nothing now; `asked` if somebody said that it measures. Where a stream records a graph, or the
    /// program may replay one that it captured, work that nobody sees may run, and wait for a peer.
    fn may_not_measure(&self, asked: bool) -> Result<Option<String>, Error> {
        let own = self.rank.own();
        let current = self.rank.gpu().current()?;
        if own.may_record_or_replay() || current.is_capturing(own.stream()) {
            return Ok(Some("a stream records a graph, or may replay one".into()));
        }
        // What runs there may disturb the times, or wait for a peer behind a candidate.
        if !asked && self.rank.has_company() {
            let why = "another communicator of the program is on one of the GPUs; `.tuning(Tuning::Quick)` measures all the same";
            return Ok(Some(why.into()));
        }
        // Who asks for it again by name may know that it is over.
        let stalled = self.rank.proven().measured().stalled();
        Ok(stalled.filter(|_| self.tuning.is_none()))
    }

    /// The class of bits of an op that ranks build by themselves. They may measure different winners, so that the same product had
    /// other bits on another rank, if those were not all of one class.
    fn class_of_alone(&self, found: &Proven) -> Result<Option<BitsClass>, Error> {
        match found.is_alone() && self.rank.world() > 1 {
            true => Ok(Some(BitsClass::of(found.stages[0].series.kernel())?)),
            false => Ok(None),
        }
    }

    /// All that decides which candidates there are.
    fn asked(&self, Bucket { shape, bits, only }: Bucket<'_>) -> String {
        let of = match &self.family {
            Some(family) => format!("{family:?}"),
            None => format!("{:?}", self.program),
        };
        let asked = (&self.variant, shape, bits(0), only, self.left);
        blake3::hash(format!("{of} {asked:?}").as_bytes()).to_string()
    }

    /// True if a winner that is measured now is one for every op of its key. A table's row says nothing of what a caller settled or
    /// left to others, nor of constants, nor of what else runs on the GPUs.
    fn is_for_all(&self) -> bool {
        let gpu = self.rank.gpu();
        let free = counts_for_its_key(&self.variant) && self.only.is_none();
        let whole = self.left == 0 && !self.rank.any_shares_gpu();
        free && whole && !self.rank.has_company() && !self.batch_invariant && !gpu.is_emulated()
    }

    /// Rejects ranks that measure other candidates, or in another way.
    fn must_agree(
        &self,
        alone: bool,
        tuning: Tuning,
        contest: Option<&Candidates>,
    ) -> Result<(), Error> {
        if alone {
            return Ok(());
        }
        let all = contest.iter().flat_map(|(candidates, _)| candidates);
        let names = all.map(|candidate| {
            let variants = candidate.stages.iter();
            variants.map(|proof| proof.variant.to_string()).collect()
        });
        let names: Vec<Vec<String>> = names.collect();
        let effort = contest.map(|(_, effort)| (effort.samples, effort.launches));
        let said = self
            .rank
            .shares(&text(&(tuning.to_string(), effort, names)))?;
        let other = said.iter().position(|other| *other != said[0]);
        other.map_or(Ok(()), |other| {
            Err(Error::Mismatch {
                what: format!("rank {other} measures other candidates than rank 0"),
                help: "set COUNTERFLOW_TUNE, or `tuning`, alike on all ranks".into(),
            })
        })
    }

    /// Memory that building takes.
    pub(super) fn memory_to_build(&self) -> Result<Workspace, Error> {
        let tuning = self.measures()?;
        let most = Cell::new(0);
        // What the winner of each bucket may take beyond the model's choice.
        let more = Cell::new([0, 0]);
        let asks = |bucket: Bucket<'_>, found: &Proven| {
            if tuning != Tuning::Off && !self.first_options && found.is_predicted() {
                let contest = self.contest(bucket, tuning)?;
                let candidates = contest.map_or_else(Vec::new, |(candidates, _)| candidates);
                if !candidates.is_empty() {
                    most.set(self.memory_to_measure(&candidates).max(most.get()));
                }
                let each = candidates.iter();
                let each = each.map(|one| self.memory(std::slice::from_ref(one)));
                let least = self.memory(std::slice::from_ref(found));
                let largest = each.fold(least, Workspace::or);
                let (known, beyond) = (more.get(), largest.beyond(least));
                more.set([known[0] + beyond[0], known[1] + beyond[1]]);
            }
            Ok(Measured::Stays)
        };
        let mut memory = self.memory(&self.proofs(&asks)?);
        let [heap, own] = more.get();
        memory.heap += heap;
        memory.own += own;
        memory.tuning = most.get();
        Ok(memory)
    }

    /// Bytes of the GPU's memory that measuring takes: the candidates are loaded together, and each rank's own tensors take turns.
    fn memory_to_measure(&self, candidates: &[Proven]) -> u64 {
        let heap = match candidates.iter().all(Proven::is_alone) {
            true => 0,
            false => self.rank.control_bytes() + self.heap_to_measure(candidates),
        };
        let own: u64 = sizes_of_own(candidates).map(|(_, bytes)| bytes).sum();
        let sets = rotation::sets(own, self.rank.gpu().l2());
        heap + self.memory(candidates).own + sets * own
    }

    /// Bytes of that in a heap of its own.
    pub(super) fn heap_to_measure(&self, candidates: &[Proven]) -> u64 {
        let tensors = needs(candidates).into_values();
        let tensors = tensors.filter(|(_, in_heap)| *in_heap);
        let tensors: u64 = tensors.map(|(bytes, _)| HeapUse::by(bytes)).sum();
        self.memory(candidates).heap + tensors
    }

    /// Winner of rank 0, by what each rank knows.
    fn of_first(&self, own: &Option<Winner>) -> Result<Option<Winner>, Error> {
        let said = self.rank.shares(&text(own))?;
        read(&said[0], 0)
    }

    /// A row of a table with these choices.
    fn winner(&self, shape: &Shape, of: &Proven) -> Winner {
        let choices = of.stages.iter().map(|proof| proof.variant.choices.clone());
        let choices: Vec<_> = choices.collect();
        let named = match (&self.family, of.candidate()) {
            (Some(family), Some(at)) => family.candidates()[at].named_choices(&choices),
            (Some(_) | None, _) => choices.into_iter().flatten().map(named).collect(),
        };
        Winner {
            microseconds: of.microseconds(),
            ..self.row(shape, named)
        }
    }

    /// Winner with choices that were not measured.
    fn row(&self, shape: &Shape, choices: BTreeMap<String, String>) -> Winner {
        let gpu = self.rank.gpu().name();
        Winner {
            key: match &self.family {
                Some(family) => family.key(gpu, &self.variant),
                None => Key::new(gpu, &self.program, &self.variant),
            },
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

    /// The candidates of a bucket that there is time to measure, and how. None of fewer than two.
    pub(super) fn contest(
        &self,
        bucket: Bucket<'_>,
        tuning: Tuning,
    ) -> Result<Option<Candidates>, Error> {
        let mut candidates = self.candidates(bucket, tuning)?;
        let machine = |program: &Program| self.machine(program);
        let seconds = candidates.iter().map(|one| one.predicted(&machine));
        let seconds = seconds.collect::<Result<Vec<_>, Error>>()?;
        let effort = Effort::within(tuning.budget(), &seconds);
        Ok(effort.map(|effort| {
            candidates.truncate(effort.candidates);
            (candidates, effort)
        }))
    }

    /// The part of the GPU that a launch of that schedule has.
    fn machine(&self, program: &Program) -> Result<Machine, Error> {
        Ok(Machine {
            sms: self.sms(program)?,
            ..machines::machine(self.rank.gpu().name())?
        })
    }

    /// The candidates of a bucket, proven, the model's favourite first.
    fn candidates(&self, bucket: Bucket<'_>, tuning: Tuning) -> Result<Vec<Proven>, Error> {
        let rows = match &self.family {
            None => {
                let found = self.variants((&self.program, &self.variant), bucket, 0, tuning)?;
                let rows = found.into_iter();
                let rows =
                    rows.map(|one| (one.choices.into_iter().map(named).collect(), one.seconds));
                rows.collect()
            }
            Some(family) => self.combined(family, bucket, tuning)?,
        };
        let mut proven: Vec<Proven> = Vec::new();
        for (choices, _) in rows {
            if proven.len() == tuning.most() {
                break;
            }
            // What is rejected closely is no candidate.
            let Ok(one) = self.proven(bucket, Some(&self.row(bucket.shape, choices))) else {
                continue;
            };
            if !proven.iter().any(|known| known.like(&one)) {
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
        let machine = self.machine(program)?;
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
                let mut found = self.variants(of, Bucket { shape, ..bucket }, at, tuning)?;
                if let Some(collective) = stage.collective() {
                    let sizes = Sizes::of_shape(collective, self.variant.world, shape);
                    let machine = self.machine(stage.program())?;
                    // What is not of few rows is no candidate.
                    found.truncate(usize::from(sizes.are_few().is_ok()));
                    found
                        .iter_mut()
                        .for_each(|one| one.seconds = sizes.seconds(&machine));
                }
                Ok(found)
            });
            let each: Vec<Vec<Contender>> = each.collect::<Result<_, Error>>()?;
            if each.iter().any(Vec::is_empty) {
                continue;
            }
            let counts: Vec<usize> = each.iter().map(Vec::len).collect();
            let all = family::mixtures(&counts).into_iter().map(|which| {
                let chosen = each.iter().zip(which).map(|(of, which)| &of[which]);
                let seconds = chosen.clone().map(|one| one.seconds).sum::<f64>();
                let choices: Vec<_> = chosen.map(|one| one.choices.clone()).collect();
                (candidate.named_choices(&choices), seconds)
            });
            let mut all = all.collect::<Vec<Row>>().into_iter();
            firsts.extend(all.next());
            rows.extend(all);
        }
        let faster = |a: &Row, b: &Row| a.1.total_cmp(&b.1);
        firsts.sort_by(faster);
        rows.sort_by(faster);
        // No candidate is left out because another one has many variants.
        firsts.append(&mut rows);
        Ok(firsts)
    }
}

/// True if a winner for that variant is one for its key, which tells neither choices that a caller settled nor constants.
fn counts_for_its_key(asked: &Variant) -> bool {
    asked.choices.is_empty() && asked.constants.is_empty()
}

/// A choice as a table has it.
fn named((name, setting): (String, Setting)) -> (String, String) {
    (name, setting.to_string())
}

/// The place and the times of the winner. The first is the model's favourite of those that were measured.
fn best(times: &[(usize, Times)]) -> (usize, Times) {
    let each: Vec<f64> = times.iter().map(|(_, time)| time.median).collect();
    times[tuned::winner(&each).unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Communicator;
    use crate::schedules::product;

    /// A communicator beside it may launch at any time. What a trial leaves is not one.
    #[test]
    fn nothing_is_measured_beside_another_communicator_unless_asked() {
        let ranks = Communicator::emulated(2).expect("ranks");
        let done = Communicator::each(&ranks, |rank| {
            let program = product((64, 64));
            let refuses = |rank: &Communicator, asked| rank.op(&program).may_not_measure(asked);
            assert_eq!(refuses(rank, false)?, None);
            let trial = rank.trial(rank.timeout())?;
            assert_eq!(refuses(rank, false)?, None);
            drop(trial);
            let part = rank.split(rank.rank(), 0)?;
            for one in [rank, &part] {
                let why = refuses(one, false)?.expect("a reason");
                assert!(why.starts_with("another communicator"), "{why}");
                assert_eq!(refuses(one, true)?, None);
                assert!(one.has_company());
            }
            rank.barrier()?;
            drop(part);
            rank.barrier()?;
            assert_eq!(refuses(rank, false)?, None);
            assert!(!rank.has_company());
            rank.barrier()
        });
        done.unwrap_or_else(|error| panic!("{error}"));
    }

    #[test]
    fn a_winner_with_constants_or_settled_choices_is_none_for_its_key() {
        let plain = Variant::new(1);
        let constant = plain.clone().constant("w");
        let key = |variant| Key::new("a GPU", &product((64, 64)), variant);
        assert_eq!(key(&plain), key(&constant), "one row for both");
        assert!(counts_for_its_key(&plain));
        assert!(!counts_for_its_key(&constant));
        assert!(!counts_for_its_key(&plain.set("tiles", (64, 64))));
    }
}
