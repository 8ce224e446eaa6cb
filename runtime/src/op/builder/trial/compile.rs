//! Compiles candidates before their trial, in rounds after which ranks meet: the limit of a meeting is then one round's, and a host
//! that compiles slowly ends nothing.

use super::super::super::typed::Launcher;
use super::super::OpBuilder;
use super::Contest;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::jit::Compiler;
use crate::launch;

/// Kernels that a rank compiles side by side in a round. The same on all hosts, so that all meet as often.
const A_ROUND: usize = 4;

impl<S: Launcher> OpBuilder<'_, S> {
    /// Compiles all candidates. Ranks that have one cache compile a part each.
    pub(super) fn compiles(&self, contest: Contest<'_>) -> Result<(), Error> {
        let Contest {
            candidates, alone, ..
        } = contest;
        if self.rank.gpu().is_emulated() {
            return Ok(());
        }
        let found = match self.compiler {
            Some(_) => None,
            None => Compiler::find().ok(),
        };
        // Where there is no compiler, no candidate is loaded, which says why.
        let compiler = self.compiler.or(found.as_ref());
        let compiler = compiler.filter(|compiler| compiler.keeps());
        let stages = candidates.iter().flat_map(|one| &one.stages);
        // An exchange of low latency has another text, which compiles in no time.
        let stages = stages.filter(|proof| proof.collective.is_none());
        let kernels: Vec<_> = stages.map(|proof| &proof.pipeline).collect();
        let compiles = |kernels: &[_]| {
            if let Some(compiler) = compiler {
                launch::warm(compiler, kernels.iter().copied());
            }
        };
        match alone || self.rank.world() == 1 {
            true => {
                compiles(&kernels);
                Ok(())
            }
            false => in_rounds(self.rank, &kernels, compiles),
        }
    }
}

/// Lets each rank compile its part, and then all.
fn in_rounds<K: Copy>(
    rank: &Communicator,
    kernels: &[K],
    compiles: impl Fn(&[K]),
) -> Result<(), Error> {
    let (own, world) = (rank.rank() as usize, rank.world() as usize);
    let round = |part: &[K]| {
        compiles(part);
        rank.barrier()
    };
    for all in kernels.chunks(A_ROUND * world) {
        let part: Vec<K> = all.iter().skip(own).step_by(world).copied().collect();
        round(&part)?;
    }
    // Of another host's cache, nothing is here yet.
    kernels.chunks(A_ROUND).try_for_each(round)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::{self, Machine};
    use std::cell::RefCell;
    use std::time::Duration;

    #[test]
    fn a_host_that_compiles_longer_than_ranks_wait_ends_nothing() {
        let limit = Duration::from_millis(if crate::wide::wide() { 4000 } else { 1200 });
        let machine = Machine::new(2, 0, u64::MAX);
        let gpus = (0..2).map(|gpu| emulated::Gpu::of(&machine, gpu).into());
        let ranks = Communicator::of(gpus.collect(), Some(2 << 20), limit).expect("ranks");
        let kernels: Vec<usize> = (0..17).collect();
        let done = Communicator::each(&ranks, |rank| {
            let compiled = RefCell::new(Vec::new());
            in_rounds(rank, &kernels, |part: &[usize]| {
                // Eight rounds of that are longer than a meeting may take.
                if rank.rank() == 1 {
                    std::thread::sleep(limit / 6);
                }
                compiled.borrow_mut().push(part.to_vec());
            })?;
            rank.barrier()?;
            Ok(compiled.into_inner())
        });
        let done = done.unwrap_or_else(|error| panic!("{error}"));
        for (compiled, rank) in done.iter().zip(0..) {
            assert!(compiled.iter().all(|part| part.len() <= A_ROUND));
            let (parts, all) = compiled.split_at(3);
            let part: Vec<usize> = kernels.iter().skip(rank).step_by(2).copied().collect();
            assert_eq!((parts.concat(), all.concat()), (part, kernels.clone()));
        }
    }
}
