//! Credits: signals between launches that make it safe to launch again. They are inferred from the accesses.
//!
//! - A parameter that other ranks access: its owner grants *ready* at the start of its launch, and the others wait for
//!   it before their first access. If they read it, they grant *returned* after their last read, and the owner's
//!   launch does not end before that.
//! - Scratch: its readers grant *free* after their last read of the launch, and its writers wait for that in the next
//!   launch. If the owner reads it, a writer waits for the owner; if other ranks read it remotely, the writer waits for
//!   every rank.
//!
//! Every rank grants to every other rank in every launch, whatever the shape, so a launch with fewer rows (or none
//! on some rank) keeps the count. The verifier does not trust this file: it checks every access across two launches.

use crate::kernel::{Access, Block, Cells, Counter, Kernel, Op, OpId, OpKind, Purpose, visit};
use crate::order::RankOrder;
use crate::program::{CellIndex, CounterDim, CounterId, Home, Loc, Pick, TensorId, Var};
use crate::rank::RankExpr;
use std::collections::{BTreeMap, BTreeSet};

const AFTER_ME: RankOrder = RankOrder::FromMe {
    start: 1,
    stride: 1,
    skipped: 1,
    but_last: Vec::new(),
};

/// Roles that access a buffer.
#[derive(Default)]
struct Touched {
    remote_write: Option<OpId>,
    remote_read: Option<OpId>,
    /// Roles that read it, locally or remotely.
    readers: BTreeSet<usize>,
    /// Roles that read it remotely.
    remote_readers: BTreeSet<usize>,
}

/// The kernel with its credits.
pub(super) fn infer(mut kernel: Kernel) -> Kernel {
    let mut touched: BTreeMap<TensorId, Touched> = BTreeMap::new();
    for (role, index) in kernel.roles.iter().zip(0..) {
        visit(&role.body, &mut |op| {
            for (region, access) in op.kind.regions() {
                let remote = region.home.is_remote();
                let entry = touched.entry(kernel.lent_with(region.buffer)).or_default();
                match access {
                    Access::Read => {
                        entry.readers.insert(index);
                        if remote {
                            entry.remote_read.get_or_insert(op.id);
                            entry.remote_readers.insert(index);
                        }
                    }
                    Access::Write | Access::Add if remote => {
                        entry.remote_write.get_or_insert(op.id);
                    }
                    Access::Write | Access::Add => {}
                }
            }
        });
    }

    // A kernel may be queued behind its rank's copies in a hardware queue. So the copies' stream grants what lets peers
    // begin, before anything waits there. The kernel, which comes after both, waits for the peers to finish.
    let of = |copies: bool| {
        let mut roles = kernel.roles.iter();
        roles.position(|role| role.kind.sequential() == copies)
    };
    let (kernels, copies) = (of(false).unwrap_or(0), of(true));
    let granter = copies.unwrap_or(kernels);
    let mut heads: Vec<Vec<Op>> = vec![Vec::new(); kernel.roles.len()];
    let mut ends: Vec<Vec<Op>> = vec![Vec::new(); kernel.roles.len()];
    let mut last: Vec<Op> = Vec::new();
    let mut guards: Vec<Guard> = Vec::new();
    for (buffer, touched) in touched {
        let Some(first) = touched.remote_write.or(touched.remote_read) else {
            continue;
        };
        let at = kernel.loc(first);
        if kernel.buffers[buffer.index()].is_scratch() {
            let free = add_counter(&mut kernel, Purpose::Free(buffer), at);
            let everyone = touched.remote_read.is_some();
            guards.push(Guard {
                buffer,
                counter: free,
                writes: true,
                reads: false,
                everyone,
            });
            let roles = if touched.readers.is_empty() {
                BTreeSet::from([kernels])
            } else {
                touched.readers
            };
            for role in roles {
                let grant = for_others(&mut kernel, at, |kernel, peer| {
                    signal(kernel, free, peer, at)
                });
                ends[role].push(grant);
            }
        } else {
            let ready = add_counter(&mut kernel, Purpose::Ready(buffer), at);
            guards.push(Guard {
                buffer,
                counter: ready,
                writes: true,
                reads: true,
                everyone: false,
            });
            let grant = for_others(&mut kernel, at, |kernel, peer| {
                signal(kernel, ready, peer, at)
            });
            heads[granter].push(grant);
            if touched.remote_read.is_some() {
                let returned = add_counter(&mut kernel, Purpose::Returned(buffer), at);
                for role in touched.remote_readers {
                    let release = for_others(&mut kernel, at, |kernel, peer| {
                        signal(kernel, returned, peer, at)
                    });
                    ends[role].push(release);
                }
                let cells = Cells {
                    counter: returned,
                    home: Home::Me,
                    index: vec![CellIndex::Rank(Pick::Others)],
                };
                last.push(new_op(
                    &mut kernel,
                    OpKind::Wait {
                        cells,
                        at_least: None,
                        slabs: None,
                    },
                    at,
                ));
            }
        }
    }

    let mut roles = std::mem::take(&mut kernel.roles);
    for (index, role) in roles.iter_mut().enumerate() {
        let mut body = Vec::new();
        if !heads[index].is_empty() {
            body.push(Block::Once {
                body: std::mem::take(&mut heads[index]),
            });
        }
        body.extend(
            std::mem::take(&mut role.body)
                .into_iter()
                .map(|block| guard_block(block, &guards, &mut kernel)),
        );
        let mut end = std::mem::take(&mut ends[index]);
        if index == kernels {
            // Behind a join whatever else the role does: a CTA that waits for peers before it holds up the grants of all.
            end.append(&mut last);
        }
        if !end.is_empty() {
            body.push(Block::Join);
            body.push(Block::Once { body: end });
        }
        role.body = body;
    }
    kernel.roles = roles;
    kernel
}

/// A credit that accesses of a buffer wait for.
struct Guard {
    buffer: TensorId,
    counter: CounterId,
    /// Remote writes wait; with `everyone`, local writes too.
    writes: bool,
    /// Remote reads wait.
    reads: bool,
    /// Wait for every rank, not only the one whose memory is written.
    everyone: bool,
}

fn guard_block(block: Block, guards: &[Guard], kernel: &mut Kernel) -> Block {
    let mut guard_all = |body: Vec<Block>| {
        body.into_iter()
            .map(|block| guard_block(block, guards, kernel))
            .collect()
    };
    match block {
        Block::ForRanks {
            at,
            var,
            order,
            body,
        } => Block::ForRanks {
            at,
            var,
            order,
            body: guard_all(body),
        },
        Block::If {
            at,
            cond,
            then,
            otherwise,
        } => {
            let (then, otherwise) = (guard_all(then), guard_all(otherwise));
            Block::If {
                at,
                cond,
                then,
                otherwise,
            }
        }
        Block::Items {
            at,
            var,
            partition,
            shard,
            order,
            selection,
            body,
        } => Block::Items {
            at,
            var,
            partition,
            shard,
            order,
            selection,
            body: guard_ops(body, guards, kernel, Vec::new()),
        },
        Block::Once { body } => Block::Once {
            body: guard_ops(body, guards, kernel, Vec::new()),
        },
        Block::Join => Block::Join,
    }
}

/// Puts a credit's wait before the first access in an item that needs it; `held` are those already waited for.
fn guard_ops(
    body: Vec<Op>,
    guards: &[Guard],
    kernel: &mut Kernel,
    mut held: Vec<(CounterId, Pick)>,
) -> Vec<Op> {
    let mut out = Vec::with_capacity(body.len());
    for op in body {
        let at = kernel.loc(op.id);
        for (region, access) in op.kind.regions() {
            let lent = kernel.lent_with(region.buffer);
            for guard in guards.iter().filter(|guard| guard.buffer == lent) {
                let remote = region.home.is_remote();
                let needed = match access {
                    Access::Write | Access::Add => guard.writes && (remote || guard.everyone),
                    Access::Read => guard.reads && remote,
                };
                let whom = match &region.home {
                    Home::On(rank) if !guard.everyone => Pick::One(rank.clone()),
                    Home::Me | Home::On(_) | Home::Everywhere => Pick::Others,
                };
                if needed && !held.contains(&(guard.counter, whom.clone())) {
                    let index = vec![CellIndex::Rank(whom.clone())];
                    let cells = Cells {
                        counter: guard.counter,
                        home: Home::Me,
                        index,
                    };
                    out.push(new_op(
                        kernel,
                        OpKind::Wait {
                            cells,
                            at_least: None,
                            slabs: None,
                        },
                        at,
                    ));
                    held.push((guard.counter, whom));
                }
            }
        }
        let Op { id, kind } = op;
        let kind = match kind {
            OpKind::ForRanks { var, order, body } => OpKind::ForRanks {
                var,
                order,
                body: guard_ops(body, guards, kernel, held.clone()),
            },
            OpKind::If {
                cond,
                then,
                otherwise,
            } => {
                let then = guard_ops(then, guards, kernel, held.clone());
                let otherwise = guard_ops(otherwise, guards, kernel, held.clone());
                OpKind::If {
                    cond,
                    then,
                    otherwise,
                }
            }
            leaf => leaf,
        };
        out.push(Op { id, kind });
    }
    out
}

fn add_counter(kernel: &mut Kernel, purpose: Purpose, at: Loc) -> CounterId {
    let (word, buffer) = match purpose {
        Purpose::Ready(buffer) => ("ready", buffer),
        Purpose::Returned(buffer) => ("returned", buffer),
        Purpose::Free(buffer) => ("free", buffer),
        Purpose::Data => unreachable!("only credits are inferred"),
    };
    let taken = |name: &str| kernel.counters.iter().any(|counter| counter.name == name);
    let mut name = format!("{word}_{}", kernel.buffers[buffer.index()].name);
    while taken(&name) {
        name.push('_');
    }
    kernel.counters.push(Counter {
        name,
        dims: vec![CounterDim::World],
        purpose,
        at,
    });
    CounterId((kernel.counters.len() - 1) as u16)
}

fn new_op(kernel: &mut Kernel, kind: OpKind, at: Loc) -> Op {
    let id = OpId(kernel.locs.len() as u16);
    kernel.locs.push(at);
    Op { id, kind }
}

fn signal(kernel: &mut Kernel, counter: CounterId, peer: Var, at: Loc) -> Op {
    let cells = Cells {
        counter,
        home: Home::On(RankExpr::Var(peer)),
        index: vec![CellIndex::Rank(Pick::One(RankExpr::Me))],
    };
    new_op(kernel, OpKind::Signal { cells, amount: 1 }, at)
}

fn for_others(kernel: &mut Kernel, at: Loc, body: impl FnOnce(&mut Kernel, Var) -> Op) -> Op {
    let var = Var(kernel.vars.len() as u16);
    kernel.vars.push("peer".into());
    let inner = body(kernel, var);
    new_op(
        kernel,
        OpKind::ForRanks {
            var,
            order: AFTER_ME,
            body: vec![inner],
        },
        at,
    )
}
