//! Which CTAs have which items: one scheduler for all loops of the GEMM, one for those that move data.

use super::cta::{Cta, Mode};
use crate::kernel::Block;
use crate::order::TileOrder;
use crate::program::Var;
use crate::warp::{Comm, Ctas, Scheduler, SchedulerId, cluster};

pub(super) const GEMM: SchedulerId = SchedulerId(0);
pub(super) const COMM: SchedulerId = SchedulerId(1);

/// The one of the spare warps: after that of the CTAs that move data, if there are any.
pub(super) const fn spare(comm: Option<Comm>) -> SchedulerId {
    SchedulerId(1 + comm.is_some() as u16)
}

/// The schedulers, by their ids: of the GEMM's loops, then of those of the CTAs that move data, if there are any, and of the
/// spare warps.
pub(super) fn schedulers(
    cta: &Cta,
    comm: Option<Comm>,
    [gemm, mover, spare]: [&[Block]; 3],
) -> Vec<Scheduler> {
    let of_gemm = Scheduler {
        ctas: match comm {
            None => Ctas::All,
            Some(comm) if comm.join_late => Ctas::LateComm(comm.ctas),
            Some(comm) => Ctas::Others(comm.ctas),
        },
        cluster: (cta.ctas() > 1).then(|| cluster(cta.multicast_group(), cta.split())),
        ping_pong: cta.mode() == Mode::PingPong,
        loops: orders(gemm),
    };
    let of_comm = comm.map(|comm| Scheduler {
        ctas: Ctas::Comm(comm.ctas),
        cluster: None,
        ping_pong: false,
        loops: orders(mover),
    });
    let of_spare = (!spare.is_empty()).then(|| Scheduler {
        ctas: Ctas::Spare,
        cluster: None,
        ping_pong: false,
        loops: orders(spare),
    });
    let others = of_comm.into_iter().chain(of_spare);
    [of_gemm].into_iter().chain(others).collect()
}

/// The order of each loop over items, in the order in which a role's loops are walked: each once, though it may stand in
/// several branches.
fn orders(body: &[Block]) -> Vec<TileOrder> {
    fn go(body: &[Block], found: &mut Vec<(Var, TileOrder)>) {
        for block in body {
            match block {
                Block::Items { var, order, .. } => {
                    if !found.iter().any(|(known, _)| known == var) {
                        found.push((*var, *order));
                    }
                }
                Block::ForRanks { body, .. } => go(body, found),
                Block::If {
                    then, otherwise, ..
                } => {
                    go(then, found);
                    go(otherwise, found);
                }
                Block::Once { .. } | Block::Join => {}
            }
        }
    }
    let mut found = Vec::new();
    go(body, &mut found);
    found.into_iter().map(|(_, order)| order).collect()
}
