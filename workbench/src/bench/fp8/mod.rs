//! FP8 products beside cuBLASLt: with our kind of scales, and with every other kind that it has. Every element of each is
//! compared with the exact product of the numbers that codes and scales stand for.

mod operands;
mod peers;
#[cfg(test)]
pub(super) mod tests;
mod theirs;

use super::check::{Check, Checks};
use super::contenders::rounded;
use super::interleaved::Contender;
use super::room::Room;
use super::task::{Measured, Set, Task};
use super::timed::timed;
use super::worker::Worker;
use crate::cuda::{Difference, Fp8, Pieces, Scaled};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::variant::Scales;
use counterflow_runtime::{Communicator, Error};
use operands::{Both, draw, own_sets, spoil};
use peers::Joined;
use std::time::Instant;
use theirs::Theirs;

impl Task<'_> {
    /// The kind that our kernels have.
    fn own_kind(&self) -> Scaled {
        let variant = &self.ours[0].built.kernel.variant;
        let pieces = match variant.operand_scales() {
            None => [Pieces::Nothing; 2],
            Some(Scales::PerTensor) => [Pieces::Whole; 2],
            Some(Scales::PerRow) => [Pieces::Rows; 2],
            Some(Scales::Blocks1d2d) => [Pieces::OneBy128, Pieces::Square],
            Some(Scales::Blocks2d1d) => [Pieces::Square, Pieces::OneBy128],
            Some(Scales::Blocks1d1d) => [Pieces::OneBy128; 2],
        };
        let fast = !variant.promotes();
        Scaled { pieces, fast }
    }

    /// The types of both operands.
    fn dtypes(&self) -> [Dtype; 2] {
        let built = self.ours[0].built;
        (built.operands()).map(|tensor| built.kernel.buffers[tensor.index()].dtype)
    }
}

impl Worker {
    /// As [`Worker::measure`], of FP8 operands.
    pub(super) fn measure_fp8(
        &self,
        rank: &Communicator,
        fp8: &Fp8,
        task: &Task<'_>,
        begin: Instant,
    ) -> Result<Measured, Error> {
        let own = task.own_kind();
        let room = &task.room(rank, task.sets())?;
        let count = task.sets() as usize;
        let mut both = Both::new();
        draw((rank, &self.numbers), task, own, count, &mut both)?;
        let sets = own_sets((room, fp8), task, own, &mut both)?;

        let mut absent = Vec::new();
        let mut theirs = Vec::new();
        let whole = Scaled {
            pieces: [Pieces::Whole; 2],
            fast: true,
        };
        // Where the library has not our kind, its fastest one is the baseline.
        for kind in [own, whole] {
            theirs.extend(self.theirs(rank, task, kind, &sets, &mut both)?);
            if !theirs.is_empty() {
                break;
            }
            absent.push(kind.name());
        }
        let Some(baseline) = theirs.first().map(|first| first.kind) else {
            return Err(Error::Toolkit {
                what: format!(
                    "cuBLASLt has no algorithm for FP8 products of {}",
                    task.case
                ),
                help: "give another shape".into(),
            });
        };
        // Where ranks communicate, their scales do, too: other kinds are no peers.
        let every = task.every_scale && rank.world() == 1;
        let more = Scaled::ALL.into_iter().filter(|_| every);
        for kind in more {
            if kind == baseline || kind == own {
                continue;
            }
            match self.theirs(rank, task, kind, &sets, &mut both)? {
                Some(found) => theirs.push(found),
                None => absent.push(kind.name()),
            }
        }
        let kernels = task.kernels(room, &sets)?;
        let joined = Joined::new(rank, task, &both, own)?;
        let peers = self.peers((rank, fp8), task, (own, &sets, &joined), &theirs)?;

        // cuBLASLt with our kind, our product alone, ours, those with NCCL, cuBLASLt with other kinds.
        let rows = task.case.size[0];
        let set = &sets[0];
        let mut contenders = Vec::new();
        let mut checks = Vec::new();
        let of_theirs = |one: &Theirs<'_>| Check {
            pieces: one.kind.pieces,
            written: set.theirs(one.result, rows),
            rounded: 0,
        };
        let (first, rest) = theirs.split_at(1);
        for one in first {
            contenders.push(contender(rank, |set| one.product.run(&one.operands[set])));
            checks.push(of_theirs(one));
        }
        for ready in &kernels {
            contenders.push(contender(rank, |set| ready.launch(rank, set)));
            checks.push(Check {
                pieces: own.pieces,
                written: ready.result(rank, set),
                rounded: rounded(ready.kernel(), rank.world()),
            });
        }
        for (peer, _) in &peers {
            contenders.push(contender(rank, |set| peer.launch(set)));
            checks.push(Check {
                pieces: own.pieces,
                written: peer.result(rank, set),
                // It adds what it received, and passes that on.
                rounded: rank.world(),
            });
        }
        for one in rest {
            contenders.push(contender(rank, |set| one.product.run(&one.operands[set])));
            checks.push(of_theirs(one));
        }
        rank.barrier()?;
        let differences =
            self.differences((room, fp8), task, (set, &both), (&contenders, &checks))?;
        let name = |one: &Theirs<'_>| one.name(task);
        let measured = Measured {
            differences,
            algorithms: first[0].product.tried(),
            baseline: name(&first[0]),
            products: 1,
            peers: peers.iter().map(|(_, name)| name.clone()).collect(),
            beside: rest.iter().map(name).collect(),
            absent,
            ..Measured::default()
        };
        timed(rank, task, (begin, sets.len()), &contenders, measured)
    }

    /// Each contender's result beside the exact product of its operands. What is gathered is NaN before each launch, but for a rank's
    /// own share. Collective.
    fn differences(
        &self,
        (room, fp8): (&Room<'_>, &Fp8),
        task: &Task<'_>,
        (set, both): (&Set, &Both),
        (contenders, all): (&[Contender<'_>], &[Check<'_>]),
    ) -> Result<Vec<Difference>, Error> {
        let rank = room.rank;
        let mut checks = Checks::new((room, fp8, &self.numbers), task)?;
        let mut found = vec![Difference::default(); contenders.len()];
        let mut known: Option<[Pieces; 2]> = None;
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        order.sort_by_key(|which| all[*which].pieces);
        for which in order {
            let check = &all[which];
            if known != Some(check.pieces) {
                let drawn = [0, 1].map(|side| &both[&(side, check.pieces[side])]);
                let [x, w] = drawn.map(|drawn| (drawn.matrix, drawn.places[0]));
                checks.of_product(|to| fp8.exactly(x, w, to))?;
                known = Some(check.pieces);
            }
            for (side, operand) in set.operands.iter().enumerate() {
                let matrix = both[&(side, task.own_kind().pieces[side])].matrix;
                spoil((rank, fp8), &task.ours[0], (side, matrix), operand)?;
            }
            found[which] = checks.one(&contenders[which], check)?;
        }
        Ok(found)
    }
}

fn contender<'a>(
    rank: &Communicator,
    launch: impl Fn(usize) -> Result<(), Error> + 'a,
) -> Contender<'a> {
    Contender {
        launch: Box::new(launch),
        together: rank.world() > 1,
    }
}
