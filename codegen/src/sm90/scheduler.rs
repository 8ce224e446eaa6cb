//! Schedulers, which give items to CTAs: one for all loops of the GEMM, one for each role that moves data.

use super::cta::{Cta, Mode};
use crate::kernel::{Block, Kernel};
use crate::program::Var;
use crate::warp::{Comm, Ctas, ItemLoop, Scheduler, SchedulerId, cluster};

pub(super) const GEMM: SchedulerId = SchedulerId(0);

/// Scheduler of a role that moves data, by its index among them.
pub(super) const fn comm(at: usize) -> SchedulerId {
    SchedulerId(1 + at as u16)
}

/// Scheduler of the spare warps: after those of the roles that move data.
pub(super) fn spare(roles: Option<&Comm>) -> SchedulerId {
    comm(roles.map_or(0, |comm| comm.roles.len()))
}

/// Scheduler of what a role that moves data computes: behind the others, by the same index.
pub(super) fn sums(roles: &Comm, beside: bool, at: usize) -> SchedulerId {
    comm(roles.roles.len() + usize::from(beside) + at)
}

/// Work of a role before its join, or a part of that, with branches around its loops.
pub(super) struct Work {
    /// The role's index among the kernel's.
    pub role: usize,
    pub body: Vec<Block>,
}

/// The schedulers, by their ids: of the GEMM's loops, then of those of each role that moves data, of the spare warps, and of
/// what those roles compute, if one of them does.
pub(super) fn schedulers(
    (kernel, cta): (&Kernel, &Cta),
    comm: Option<&Comm>,
    gemm: &Work,
    [moves, sums]: [&[Work]; 2],
    spare: Option<&Work>,
) -> Vec<Scheduler> {
    let of_gemm = Scheduler {
        role: gemm.role,
        ctas: match comm {
            None => Ctas::All,
            Some(comm) if comm.join_late => Ctas::LateComm(comm.count()),
            Some(comm) => Ctas::Others(comm.count()),
        },
        cluster: (cta.ctas() > 1).then(|| cluster(cta)),
        ping_pong: cta.mode() == Mode::PingPong,
        loops: loops(kernel, cta, &gemm.body),
    };
    let alone = |work: &Work, ctas| Scheduler {
        role: work.role,
        ctas,
        cluster: None,
        ping_pong: false,
        loops: loops(kernel, cta, &work.body),
    };
    let of_comm = |works| {
        let alone = &alone;
        comm.into_iter().flat_map(move |comm| {
            let roles = Iterator::zip(<[Work]>::iter(works), &comm.roles).enumerate();
            roles.map(move |(at, (work, role))| {
                let (first, count) = (comm.before(at), role.count());
                alone(work, Ctas::Comm { first, count })
            })
        })
    };
    let of_spare = spare.map(|work| alone(work, Ctas::Spare));
    let computed = sums.iter().any(|work| !work.body.is_empty());
    let sums = if computed { sums } else { &[] };
    let others = of_comm(moves).chain(of_spare).chain(of_comm(sums));
    [of_gemm].into_iter().chain(others).collect()
}

/// The loops over items, in the order in which a role's loops are walked: each once, though it may stand in several
/// branches.
fn loops(kernel: &Kernel, cta: &Cta, body: &[Block]) -> Vec<ItemLoop> {
    fn go((kernel, cta): (&Kernel, &Cta), body: &[Block], found: &mut Vec<(Var, ItemLoop)>) {
        for block in body {
            match block {
                Block::Items {
                    var,
                    partition,
                    order,
                    ..
                } => {
                    if !found.iter().any(|(known, _)| known == var) {
                        let (order, tiling) = (*order, cta.tiling_of(kernel, *var, *partition));
                        found.push((*var, ItemLoop { order, tiling }));
                    }
                }
                Block::ForRanks { body, .. } => go((kernel, cta), body, found),
                Block::If {
                    then, otherwise, ..
                } => {
                    go((kernel, cta), then, found);
                    go((kernel, cta), otherwise, found);
                }
                Block::Once { .. } | Block::Join => {}
            }
        }
    }
    let mut found = Vec::new();
    go((kernel, cta), body, &mut found);
    found.into_iter().map(|(_, each)| each).collect()
}
