//! Guarantee 1, continued to the hardware: the host's part of a launch is a program like any role's, and it too ends.
//!
//! # What a hardware queue does
//!
//! A context has a number of queues (`CUDA_DEVICE_MAX_CONNECTIONS`: 1 to 32, 8 if nobody says). A stream holds one while
//! it has work pending. As long as no more streams than queues do, each has one of its own; beyond that, which of them
//! share one is not known, so any may. Only the first work of a stream may be put into a taken queue although others are
//! free: every stream has had some before anything waits.
//!
//! A queue hands out what was submitted first first. What cannot begin yet stands at its head, and all behind it stands
//! too, of whichever stream. What begins when:
//!
//! - a kernel, copy, store or mark, when all that is before it in its stream is over;
//! - a wait for a cell, when the cell counts enough; the wait for another stream's mark, when that stream came there.
//!
//! A kernel that runs is out of the queue: it holds up what follows in its own stream, and with that whatever stands
//! behind it in the same queue, but nothing else.
//!
//! Measured so on H200 with 1, 2, 4, 8 and 32 queues. Other streams of the process count too, but nobody knows them here:
//! what is accepted for streams that share a queue stays right beside any of them that waits for nothing but marks.
//!
//! # What is decided
//!
//! Where each stream has a queue of its own nothing stands behind what it does not follow, and the tile level's run
//! ([`crate::verify`]) is the proof. Ranks that share a GPU and may take more queues than there are ([`Queues::taken`]) are
//! refused if any of them waits: in which order their hosts submit is not known. What is left is a rank a GPU whose two
//! streams share a queue: two launches of each rank are put into its one queue and run as far as they get. That run is confluent, as the
//! tile level's is, and a rank's own program is in one order.

mod run;
mod story;

use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{OpKind, visit};
use crate::plan::Plan;
use crate::warp::Pipeline;
use run::Run;
use std::collections::BTreeSet;

pub use run::Submission;

/// What ranks have to submit to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queues {
    /// Hardware queues of each GPU's context.
    pub count: u32,
    /// The GPU of each rank.
    pub gpus: Vec<u32>,
}

impl Queues {
    /// How many ranks are on a GPU.
    fn ranks(&self, gpu: u32) -> u32 {
        self.gpus.iter().filter(|on| **on == gpu).count() as u32
    }

    /// Whether a GPU has a queue for each of so many streams of each of its ranks.
    pub fn one_each(&self, gpu: u32, streams: u32) -> bool {
        self.ranks(gpu) * streams <= self.count
    }

    /// Queues that a GPU's ranks may take, if each has so many streams in which something waits: one a stream. Where ranks
    /// share it and copy engines move data, it is two. That is a margin, not a proof: of five ranks on two GPUs, three on one
    /// of them, whose six streams there had eight queues, one stood within sixty first launches, and none in sixty with 32.
    pub fn taken(&self, gpu: u32, streams: u32) -> u32 {
        let ranks = self.ranks(gpu);
        let a_stream = if ranks > 1 && streams > 1 { 2 } else { 1 };
        ranks * streams * a_stream
    }

    /// GPUs whose ranks may take more queues than there are.
    fn crowded(&self, streams: u32) -> BTreeSet<u32> {
        let all: BTreeSet<u32> = self.gpus.iter().copied().collect();
        all.into_iter()
            .filter(|gpu| self.taken(*gpu, streams) > self.count)
            .collect()
    }

    /// Refuses what no run decides: hosts of several ranks submit to the queues of one GPU in an order of their own.
    fn unknown_order(&self, crowded: &BTreeSet<u32>, streams: u32) -> Option<Diagnostic> {
        let gpu = crowded.iter().find(|gpu| self.ranks(**gpu) > 1)?;
        let (ranks, count) = (self.ranks(*gpu), self.count);
        let message = format!(
            "{ranks} ranks share GPU {gpu} and wait in {} streams, which may take {} queues, but it has {count}: any of them may stand behind another",
            ranks * streams,
            self.taken(*gpu, streams)
        );
        Some(Diagnostic::new(Rule::Progress, None, message))
    }
}

impl Pipeline {
    /// Streams of a rank in which something waits, for peers or for each other.
    pub fn streams(&self) -> u32 {
        1 + u32::from(self.kernel.roles.iter().any(|role| role.kind.sequential()))
    }

    /// What the host of each rank submits in one launch, in its order: the copies that need no kernel, the kernel, and
    /// the copies that need one.
    ///
    /// # Errors
    /// As [`Pipeline::host_ops`].
    pub fn submissions(&self, plan: &Plan, rank: u32) -> Result<Vec<Submission>, Diagnostics> {
        let ops = self.host_ops(plan, rank)?;
        if ops.is_empty() {
            return Ok(vec![Submission::Kernel]);
        }
        let ahead = if self.copies_need_kernels() {
            self.ahead(plan)?[rank as usize]
        } else {
            ops.len()
        };
        let mut program = vec![Submission::CopiesFollow];
        program.extend(ops[..ahead].iter().copied().map(Submission::Copies));
        program.push(Submission::Kernel);
        program.extend(ops[ahead..].iter().copied().map(Submission::Copies));
        program.push(Submission::RankFollows);
        Ok(program)
    }

    /// Whether launches of a plan get through so many queues.
    ///
    /// # Errors
    /// Who stands behind what, for ever.
    pub fn queued(&self, plan: &Plan, queues: &Queues) -> Result<(), Diagnostics> {
        let crowded = queues.crowded(self.streams());
        let waits = plan.geometry.world > 1 && !self.kernel.counters.is_empty();
        if !waits || crowded.is_empty() {
            return Ok(());
        }
        let ranks = 0..plan.geometry.world;
        let programs = ranks.map(|rank| self.submissions(plan, rank));
        let programs = programs.collect::<Result<Vec<_>, _>>()?;
        let stuck = self.stuck(plan, &programs, queues);
        let found = stuck.or_else(|| queues.unknown_order(&crowded, self.streams()));
        Diagnostics::check(found.into_iter().collect(), ())
    }

    /// The story of two launches of these programs, one a rank, that do not get through so many queues.
    pub fn stuck(
        &self,
        plan: &Plan,
        programs: &[Vec<Submission>],
        queues: &Queues,
    ) -> Option<Diagnostic> {
        let crowded = queues.crowded(self.streams());
        let ranks: Vec<u32> = (0..plan.geometry.world).collect();
        let backwards: Vec<u32> = ranks.iter().rev().copied().collect();
        [ranks, backwards].iter().find_map(|order| {
            let mut run = Run::new(self, plan, true);
            for rank in order {
                let gpu = queues.gpus[*rank as usize];
                let shared = crowded.contains(&gpu).then_some(gpu);
                for launch in 0..2 {
                    run.submit(*rank, launch, &programs[*rank as usize], shared);
                }
            }
            run.go();
            run.story(queues)
        })
    }

    /// Whether a copies' stream waits for what a kernel signals, on this rank or another.
    fn copies_need_kernels(&self) -> bool {
        let (mut waited, mut signalled) = (BTreeSet::new(), BTreeSet::new());
        for role in &self.kernel.roles {
            visit(&role.body, &mut |op| match &op.kind {
                OpKind::Wait { cells, .. } if role.kind.sequential() => {
                    waited.insert(cells.counter);
                }
                OpKind::Signal { cells, .. } if !role.kind.sequential() => {
                    signalled.insert(cells.counter);
                }
                OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::Copy { .. }
                | OpKind::Dot { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Store { .. }
                | OpKind::ForRanks { .. }
                | OpKind::If { .. } => {}
            });
        }
        !waited.is_disjoint(&signalled)
    }

    /// How many of each rank's operations need no kernel: as far as they get without one.
    fn ahead(&self, plan: &Plan) -> Result<Vec<usize>, Diagnostics> {
        let mut run = Run::new(self, plan, false);
        for rank in 0..plan.geometry.world {
            let ops = self.host_ops(plan, rank)?;
            let copies: Vec<_> = ops.into_iter().map(Submission::Copies).collect();
            run.submit(rank, 0, &copies, None);
        }
        run.go();
        let ahead = |rank: u32| {
            let done = run.entries.iter().zip(&run.done);
            done.filter(|(entry, done)| entry.rank == rank && **done)
                .count()
        };
        Ok((0..plan.geometry.world).map(ahead).collect())
    }
}
