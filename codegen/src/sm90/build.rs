//! `Checked<Kernel>` → [`Pipeline`]: which warp does what, through which ring, with which fence.
//!
//! What a Hopper pipeline cannot do yet is refused here, with the numbers, before any text is made.

use super::branches::lifted;
use super::builder::{Alike, Builder, clustered, depth, refuse};
use super::cta;
use super::everywhere::added_at_two_addresses;
use super::lanes::converge;
use super::names::once_each;
use super::nodes::why;
use super::scheduler::{self, GEMM, Work, schedulers};
use super::waiters::Counters;
use super::walk::{Walk, WarpRole};
use crate::checked::Checked;
use crate::diag::{Diagnostic, Diagnostics};
use crate::kernel::{Block, Cells, Kernel, OpKind, Purpose, Role, RoleKind, visit};
use crate::program::Loc;
use crate::tiling::{Tiling, first_step};
use crate::warp::{BATCH, Comm, CommRole, Expr, Field, Node, Pipeline, RunBy, Symbol, Test, Warp};
use std::collections::BTreeSet;

/// The pipeline of `kernel` on its architecture.
///
/// # Errors
/// What the architecture, or this version, cannot do: a tile, type, layout, role or epilogue, each with what it can.
pub fn build(kernel: &Checked<Kernel>) -> Result<Pipeline, Diagnostics> {
    let Some(cta) = kernel.decided().runs()? else {
        let at = kernel.roles.first().and_then(|role| first(kernel, role));
        let gemm = role(kernel, |kind| matches!(kind, RoleKind::Gemm(_)));
        let message = match gemm {
            Some(_) => "#[gemm] loops that compute no tile",
            None => "a schedule without CTAs: copy engines and spare warps have none",
        };
        let hint =
            "a `#[comm]` role that copies, waits or signals, or a `#[gemm]` loop that stores tiles";
        return Err(refuse(at, message, hint).into());
    };
    let comm = comm(kernel);
    let counters = Counters::of(kernel);
    let mut builder = Builder {
        kernel,
        cta,
        stage: super::rings::stage(kernel, cta),
        alike: Alike::of(kernel, cta),
        comm: comm.clone(),
        counters,
        maps: Vec::new(),
        orders: Vec::new(),
        epilogues: Vec::new(),
        scale: Vec::new(),
        found: Vec::new(),
    };
    builder.found.extend(between_others(kernel));
    let gemm = role(kernel, |kind| matches!(kind, RoleKind::Gemm(_)));
    let beside = role(kernel, |kind| kind == RoleKind::SpareWarps);
    let of = |role: usize, body| Work {
        role,
        body: lifted(kernel, body),
    };
    let before_join = |role: usize| of(role, head(&kernel.roles[role]));
    let work = gemm.map_or(
        Work {
            role: 0,
            body: Vec::new(),
        },
        before_join,
    );
    let movers: Vec<usize> = comm
        .iter()
        .flat_map(|comm| &comm.roles)
        .map(|of| of.role)
        .collect();
    let both = movers.iter().map(|role| {
        let (moves, sums) = cta::moves_and_sums(head(&kernel.roles[*role]));
        (of(*role, moves), of(*role, sums))
    });
    let (moves, sums): (Vec<Work>, Vec<Work>) = both.unzip();
    let spare = beside.map(before_join);
    let schedulers = schedulers(
        (kernel, cta),
        comm.as_ref(),
        &work,
        [&moves, &sums],
        spare.as_ref(),
    );
    let mut warps = Vec::new();
    for warp in cta.warps() {
        let run_by = warp.run_by;
        let (name, which, before) = match warp.role {
            cta::Role::Load => ("load", WarpRole::Load, Some(WarpRole::Fetch)),
            cta::Role::Store => ("store", WarpRole::Store, Some(WarpRole::Send)),
            cta::Role::Multiply => ("multiply", WarpRole::Multiply, None),
            cta::Role::Spare => {
                let id = scheduler::spare(comm.as_ref());
                let spare = spare.as_ref().map_or(&[][..], |work| &work.body);
                let body = Walk::new(&mut builder, WarpRole::Spare).role(id, spare);
                let name = "spare";
                warps.push(Warp { name, run_by, body });
                continue;
            }
        };
        let mut body = Vec::new();
        if let Some(comm) = &comm {
            for (at, (moves, sums)) in moves.iter().zip(&sums).enumerate() {
                let mut moved = match before.filter(|_| !moves.body.is_empty()) {
                    Some(which) => Walk::of_comm(&mut builder, which, at)
                        .role(scheduler::comm(at), &moves.body),
                    None => Vec::new(),
                };
                if run_by == (RunBy::Threads { first: 1 }) && !moved.is_empty() {
                    let test = Test::Equal(Expr::var("consumer"), 0.into());
                    moved = vec![Node::If { test, body: moved }];
                }
                let computed = match sums.body.is_empty() {
                    false => {
                        let id = scheduler::sums(comm, spare.is_some(), at);
                        Walk::of_comm(&mut builder, which, at).role(id, &sums.body)
                    }
                    true => Vec::new(),
                };
                // Each has a scheduler, and so a scope, of its own.
                let then = computing_words(at, !moved.is_empty());
                let parts = [(first_words(comm, at, moves), moved), (then, computed)];
                for (words, part) in parts.into_iter().filter(|(_, part)| !part.is_empty()) {
                    let test = of_role(comm, at);
                    body.extend([why(&words), Node::If { test, body: part }]);
                }
            }
        }
        let mut multiplied = Walk::new(&mut builder, which).role(GEMM, &work.body);
        let beside = comm
            .as_ref()
            .filter(|comm| !comm.join_late && !multiplied.is_empty());
        if let Some(comm) = beside {
            let test = Test::AtLeast(Expr::Block, comm.count());
            let body = multiplied;
            multiplied = vec![why("The other CTAs multiply."), Node::If { test, body }];
        }
        body.append(&mut multiplied);
        warps.push(Warp { name, run_by, body });
    }
    let ends: Vec<&Block> = (movers.into_iter().chain(gemm).chain(beside))
        .flat_map(|role| after_join(&kernel.roles[role]))
        .collect();
    let mut end = Walk::new(&mut builder, WarpRole::End).end(&ends);
    if cta.ctas() > 1 {
        end.push(Node::SyncCluster);
    }
    for warp in &mut warps {
        once_each(&mut warp.body);
        converge(warp);
    }
    once_each(&mut end);
    let counted = super::comm::counted_twice(kernel, &builder.scale);
    builder.found.extend(counted);
    builder.found.extend(added_at_two_addresses(kernel));
    let rings = super::rings::lay_out(&builder);
    let lets = lets(&builder);
    let Builder {
        maps,
        orders,
        epilogues,
        scale,
        found,
        ..
    } = builder;
    Diagnostics::check(once(found), ())?;
    let dependent_launch = cta.dependent_launch();
    let early = !cta::dependent_launch::loaded_early(kernel).is_empty();
    // The warp that loads awaits earlier launches behind its early loads.
    for warp in warps.iter_mut().filter(|warp| early && warp.name != "load") {
        warp.body.insert(0, Node::AwaitLaunches);
    }
    let pipeline = Pipeline {
        kernel: kernel.clone(),
        cta: cta.clone(),
        comm,
        schedulers,
        maps,
        rings,
        orders,
        lets,
        epilogues,
        scale,
        dependent_launch,
        start: Vec::from_iter((dependent_launch && !early).then_some(Node::AwaitLaunches)),
        warps,
        end,
    };
    let (needs, has) = (pipeline.shared_bytes(), kernel.variant.arch.shared_memory());
    if needs > has {
        let message = format!("{needs} bytes of shared memory a CTA");
        let at = gemm.and_then(|gemm| first(kernel, &kernel.roles[gemm]));
        return Err(refuse(at, message, format!("an SM has {has}")).into());
    }
    Ok(pipeline)
}

/// Copies of a copy engine between the memory of two other ranks. Their driver may put them into queues of a GPU that is
/// not the rank's, behind copies of other ranks that wait: nothing of ours orders those.
fn between_others(kernel: &Kernel) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let engines = kernel.roles.iter().filter(|role| role.kind.sequential());
    for role in engines {
        visit(&role.body, &mut |op| {
            if let OpKind::Copy { dst, src } = &op.kind
                && dst.home.is_remote()
                && src.home.is_remote()
            {
                let at = Some(kernel.loc(op.id));
                let message = "a #[copy_engine] copies between the memory of two other ranks";
                let hint = "from or to this rank's own memory; `#[comm]` copies between any two";
                found.push(refuse(at, message, hint));
            }
        });
    }
    found
}

/// Each finding once: every warp walks the same statements.
fn once(found: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let mut seen = BTreeSet::new();
    let mut new = |one: &Diagnostic| seen.insert((one.at, one.message.clone()));
    found.into_iter().filter(|one| new(one)).collect()
}

/// Place of a role's first statement.
fn first(kernel: &Kernel, role: &Role) -> Option<Loc> {
    role.body.iter().find_map(|block| kernel.block_loc(block))
}

fn role(kernel: &Kernel, is: impl Fn(RoleKind) -> bool) -> Option<usize> {
    kernel.roles.iter().position(|role| is(role.kind))
}

/// Description of what the CTAs of the role of that index do first.
fn first_words(comm: &Comm, at: usize, moves: &Work) -> String {
    let which = which_ctas(at);
    let what = match moves_data(&moves.body) {
        true => "move data",
        false => "wait and signal",
    };
    match comm.join_late {
        true => format!("{which} {what} before they take items of the GEMM."),
        false => format!("{which} {what}."),
    }
}

/// Description of what those compute, if they do.
fn computing_words(at: usize, moved: bool) -> String {
    let which = if moved { "Then they" } else { which_ctas(at) };
    format!("{which} compute tiles without a product.")
}

fn moves_data(body: &[Block]) -> bool {
    let mut found = false;
    visit(body, &mut |op| {
        found |= matches!(op.kind, OpKind::Copy { .. })
    });
    found
}

fn which_ctas(at: usize) -> &'static str {
    match at {
        0 => "The first CTAs",
        _ => "The CTAs behind those",
    }
}

/// Test for a CTA of the role that moves data of that index.
fn of_role(comm: &Comm, at: usize) -> Test {
    let end = Test::Less(Expr::Block, comm.before(at + 1));
    match at {
        0 => end,
        _ => Test::And(
            Test::AtLeast(Expr::Block, comm.before(at)).into(),
            end.into(),
        ),
    }
}

/// Blocks of a role before its join.
fn head(role: &Role) -> &[Block] {
    let join = role.body.iter().position(|block| *block == Block::Join);
    &role.body[..join.unwrap_or(role.body.len())]
}

/// Blocks of a role after its join: by then all CTAs are at their end.
fn after_join(role: &Role) -> &[Block] {
    let join = role.body.iter().position(|block| *block == Block::Join);
    &role.body[join.unwrap_or(role.body.len())..]
}

/// The CTAs that move data. They may take items of the GEMM afterwards if none of them computes, and nothing they wait for
/// comes from one: an item is assigned to a CTA in advance, and must not be behind a wait for itself.
fn comm(kernel: &Kernel) -> Option<Comm> {
    let mut roles: Vec<CommRole> = Vec::new();
    for (at, role) in kernel.roles.iter().enumerate() {
        let RoleKind::Comm { ctas } = role.kind else {
            continue;
        };
        let mut symbol = format!("{}_CTAS", role.name.to_uppercase());
        while roles.iter().any(|known| known.symbol == symbol) {
            symbol.insert(0, '_');
        }
        roles.push(CommRole {
            role: at,
            symbol,
            ctas,
        });
    }
    let computes = |of: &CommRole| cta::computes(&kernel.roles[of.role]);
    let has_gemm = role(kernel, |kind| matches!(kind, RoleKind::Gemm(_))).is_some();
    let join_late = has_gemm
        && !roles.iter().any(computes)
        && !wait_for_gemm(kernel, roles.iter().map(|of| of.role).collect());
    (!roles.is_empty()).then_some(Comm { roles, join_late })
}

/// True if one of those roles waits for the GEMM, or for a role that does. Credits are granted before a role's items or
/// after the launch, whoever grants them: nobody waits for an item there.
fn wait_for_gemm(kernel: &Kernel, mut roles: BTreeSet<usize>) -> bool {
    let data = |cells: &Cells| kernel.counters[cells.counter.index()].purpose == Purpose::Data;
    loop {
        let mut waited = BTreeSet::new();
        for role in &roles {
            visit(&kernel.roles[*role].body, &mut |op| {
                if let OpKind::Wait { cells, .. } = &op.kind
                    && data(cells)
                {
                    waited.insert(cells.counter);
                }
            });
        }
        let signals = |role: &Role| {
            let mut found = false;
            visit(&role.body, &mut |op| {
                if let OpKind::Signal { cells, .. } = &op.kind {
                    found |= waited.contains(&cells.counter);
                }
            });
            found
        };
        let before = roles.len();
        let indices = 0..kernel.roles.len();
        roles.extend(indices.filter(|role| signals(&kernel.roles[*role])));
        let gemm = |role: &usize| matches!(kernel.roles[*role].kind, RoleKind::Gemm(_));
        if roles.iter().any(gemm) {
            return true;
        }
        if roles.len() == before {
            return false;
        }
    }
}

/// Numbers all warps use.
fn lets(b: &Builder<'_>) -> Vec<(String, Expr)> {
    let cta = b.cta;
    let Some(tiling) = cta.tilings().first() else {
        return Vec::new();
    };
    let mut lets = Vec::new();
    if b.alike.columns {
        let columns = b.kernel.partitions[tiling.partition().index()].columns;
        lets.push((
            "tiles_n".into(),
            tiles_n(b, Expr::Field(Field::Size(columns)), 0),
        ));
    }
    let Some(steps) = steps(b, tiling).filter(|_| b.alike.steps) else {
        return lets;
    };
    if cta.split() > 1 {
        // Each has its part, and none is without a step: the plan refuses fewer steps than CTAs.
        let split = || Expr::symbol(Symbol::Split, cta.split());
        let start = |split_rank: Expr| first_step(Expr::var("all_steps"), split_rank, split());
        lets.push(("all_steps".into(), steps));
        lets.push(("first_step".into(), start(Expr::var("split_rank"))));
        lets.push((
            "steps".into(),
            start(Expr::var("split_rank") + 1) - Expr::var("first_step"),
        ));
    } else {
        lets.push(("steps".into(), steps));
    }
    lets
}

/// Columns of the grid of a loop's tiles that have so many columns together.
pub(super) fn tiles_n(b: &Builder<'_>, columns: Expr, tiling: usize) -> Expr {
    columns.ceil_div(clustered(b.tile_columns(tiling), b.cta.cluster().1))
}

/// Steps of a loop's products, of all CTAs that share them.
pub(super) fn steps(b: &Builder<'_>, tiling: &Tiling) -> Option<Expr> {
    let k = Expr::Field(Field::Size(depth(b.kernel, tiling)?));
    Some(k.ceil_div(Expr::symbol(Symbol::TileK, tiling.tile().k)))
}

const _: () = assert!(BATCH > 0);
