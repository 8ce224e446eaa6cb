//! Guarantee 1 for hardware queues: the host's part of a launch is a program like any role's, and it ends too.
//!
//! # What a hardware queue does
//!
//! A context has 1 to 32 queues (`CUDA_DEVICE_MAX_CONNECTIONS`, by default 8). A stream holds one while it has work
//! pending. If no more streams than queues have work, each has its own queue. Otherwise it is unknown which streams
//! share a queue, so any may. Only a stream's first work may get a taken queue although others are free; every stream
//! has had some work before anything waits.
//!
//! A queue is first in, first out. If its head cannot begin, it blocks everything behind it, of any stream. An entry
//! can begin:
//!
//! - a kernel, copy, store or mark: when everything before it in its stream is over;
//! - a wait for a cell: when the cell's count is reached; a wait for another stream's mark: when that stream reaches
//!   it.
//!
//! A running kernel is no longer in the queue. It blocks its successors in its own stream, and so whatever is queued
//! behind those, but nothing else.
//!
//! Measured on H200 with 1, 2, 4, 8 and 32 queues. Other streams of the process count too, but they are unknown here.
//! An accepted result for streams that share a queue stays right beside other streams that wait only for marks.
//!
//! Only one communicator's ranks are counted. With a GPU for each rank that is enough: launches of all communicators are in
//! one order on every GPU, so in a shared queue each stands behind launches that end without it. Where ranks share a GPU, the
//! streams of several communicators or groups there may take queues from each other, and two of one communicator may meet
//! in one: there the program must leave a queue for each waiting stream of all of them, four for each rank where copy
//! engines move data. They are not counted together, because which of them will ever wait is not known when one is
//! built: each group of a split has streams, and counting all would refuse programs that are right. What gets stuck ends at the
//! time limit.
//!
//! # What is decided
//!
//! If each stream has its own queue, nothing is queued behind work that it does not follow, and the tile level's run
//! ([`crate::verify`]) is the proof. Ranks that share a GPU and may take more queues than there are ([`Queues::taken`])
//! are rejected if any of them waits, because the order in which their hosts submit is unknown. The remaining case is
//! one rank per GPU whose two streams share a queue: two launches of each rank are put into its one queue and run as
//! far as they get. That run is confluent, as the tile level's is, and a rank's own program is in one order.

mod run;
mod trace;

use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{OpKind, visit};
use crate::plan::Plan;
use crate::warp::Pipeline;
use run::Run;
use std::collections::BTreeSet;

pub use run::Submission;

/// The hardware queues of the ranks' GPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queues {
    /// Hardware queues of each GPU's context.
    pub count: u32,
    /// The GPU of each rank.
    pub gpus: Vec<u32>,
}

impl Queues {
    /// Number of ranks on a GPU.
    fn ranks(&self, gpu: u32) -> u32 {
        self.gpus.iter().filter(|on| **on == gpu).count() as u32
    }

    /// True if a GPU has a queue for each of that many streams of each of its ranks.
    pub fn one_each(&self, gpu: u32, streams: u32) -> bool {
        self.ranks(gpu) * streams <= self.count
    }

    /// Queues that a GPU's ranks may take, if each rank has that many waiting streams: one per stream, or two if ranks
    /// share the GPU and copy engines move data. Two is a margin, not a proof: of five ranks on two GPUs, three on one
    /// of them (six streams, eight queues), one hung within sixty first launches, and none in sixty with 32 queues.
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

    /// Rejects what no run can decide: hosts of several ranks submit to one GPU's queues in an unknown order.
    fn unknown_order(&self, crowded: &BTreeSet<u32>, streams: u32) -> Option<Diagnostic> {
        let gpu = crowded.iter().find(|gpu| self.ranks(**gpu) > 1)?;
        let (ranks, count) = (self.ranks(*gpu), self.count);
        let message = format!(
            "{ranks} ranks share GPU {gpu} and wait in {} streams, which may take {} queues, but it has {count}: any of them may be queued behind another",
            ranks * streams,
            self.taken(*gpu, streams)
        );
        Some(Diagnostic::new(Rule::Progress, None, message))
    }
}

impl Pipeline {
    /// The number of a rank's streams that wait, for peers or for each other.
    pub fn streams(&self) -> u32 {
        1 + u32::from(self.kernel.roles.iter().any(|role| role.kind.sequential()))
    }

    /// Submissions of each rank's host in one launch, in order: the copies that need no kernel, the kernel, and the
    /// copies that need one.
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

    /// Rejects a plan whose launches do not get through that many queues.
    ///
    /// # Errors
    /// What is queued behind what, for ever.
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

    /// The trace of two launches of these programs, one per rank, if they do not get through that many queues.
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
            run.trace(queues)
        })
    }

    /// True if a copies' stream waits for a kernel's signal, on this rank or another.
    fn copies_need_kernels(&self) -> bool {
        let (mut waited, mut signalled) = (BTreeSet::new(), BTreeSet::new());
        for role in &self.kernel.roles {
            let copies = role.kind.sequential();
            visit(&role.body, &mut |op| {
                if let OpKind::Wait { cells, .. } = &op.kind
                    && copies
                {
                    waited.insert(cells.counter);
                }
                if let OpKind::Signal { cells, .. } = &op.kind
                    && !copies
                {
                    signalled.insert(cells.counter);
                }
            });
        }
        !waited.is_disjoint(&signalled)
    }

    /// The number of each rank's operations that run without a kernel.
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
