//! What a schedule must be for an exchange to take its kernel's place: this one, but for names and choices. Whatever differs may have
//! other results, so it is refused without a look at what it means.

use crate::error::Error;
use counterflow_codegen::builder::{ScheduleBuilder, me, others, ranks, world};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::{
    Block, Choice, Loc, Program, RoleKind, Setting, Stmt, StmtKind,
};
use counterflow_codegen::variant::Variant;
use std::panic::Location;

/// Stands for every choice.
const CHOSEN: Choice = Choice::Fixed(Setting::One(1));

/// True if the kernel's schedule is that one.
///
/// # Errors
/// [`Error::Rejected`], in a world that no schedule has.
pub(super) fn is(own: &Program, kernel: &Kernel) -> Result<bool, Error> {
    // Lowering completes what is written.
    let own = lower(own, &Variant::new(kernel.variant.world))?;
    Ok(bare(&own.program) == bare(&kernel.program))
}

/// All rows come to every rank.
pub(super) fn gathers() -> Program {
    let mut s = ScheduleBuilder::new("all_gather");
    let x = s.gathered("x", Dtype::Bf16);
    let chunks = s.chunks("chunks", x, 64);
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(1, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            s.for_items("c", chunks.of(&shard), |s, c| s.wait(arrived.at(c)));
        });
    });
    s.finish()
}

/// The sum over ranks: on the rank that owns the rows, or on all.
pub(super) fn adds_up(everywhere: bool) -> Program {
    let mut s = ScheduleBuilder::new("adds_up");
    let g = s.local("g", Dtype::Bf16);
    let y = match everywhere {
        true => s.all_reduced("y", Dtype::Bf16),
        false => s.reduce_scattered("y", Dtype::Bf16),
    };
    let tiles = s.tiles("tiles", y, (128, 128));
    let partial = s.symmetric("partial", Dtype::Bf16, y.shard(), world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let done = everywhere.then(|| s.counters("done", [tiles.into()]));
    s.comm(1, |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let part = s.load(g.at(t));
                s.store(partial.on(&owner).at(me()).at(t), part);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let own = s.load(g.at(t));
            s.wait(landed.at(others()).at(t));
            let sum = own + s.sum(partial.at(others()).at(t));
            s.store(y.at(t), sum.clone());
            if let Some(done) = &done {
                s.for_ranks("peer", ranks().after_me(), |s, peer| {
                    s.store(y.on(&peer).at(t), sum.clone());
                    s.signal(done.on(&peer).at(t), 1);
                });
            }
        });
        if let Some(done) = &done {
            s.for_ranks("owner", ranks().after_me(), |s, owner| {
                s.for_items("t", tiles.of(&owner), |s, t| s.wait(done.at(t)));
            });
        }
    });
    s.finish()
}

/// A program's text without what results do not depend on: names, places in the source, choices, and the author's own reference.
/// Element types are another check's.
fn bare(program: &Program) -> String {
    let at = Location::caller();
    let mut program = program.clone();
    program.name.clear();
    program.at = at;
    program.reference = None;
    program.tunables.clear();
    for tensor in &mut program.tensors {
        tensor.name.clear();
        tensor.at = at;
        tensor.dtype = Dtype::Bf16;
    }
    for partition in &mut program.partitions {
        partition.name.clear();
        partition.at = at;
        match &mut partition.block {
            Block::Chunks { rows: chosen }
            | Block::Panels { columns: chosen }
            | Block::Tiles { shape: chosen } => *chosen = CHOSEN,
        }
    }
    for counter in &mut program.counters {
        counter.name.clear();
        counter.at = at;
    }
    for var in &mut program.vars {
        var.name.clear();
        var.at = at;
    }
    program.accs.iter_mut().for_each(|acc| acc.name = None);
    for role in &mut program.roles {
        role.name.clear();
        role.at = at;
        if let RoleKind::Comm { ctas } = &mut role.kind {
            *ctas = CHOSEN;
        }
        role.body.iter_mut().for_each(|stmt| place(stmt, at));
    }
    format!("{program:?}")
}

/// Puts a statement there, with those inside.
fn place(stmt: &mut Stmt, at: Loc) {
    stmt.at = at;
    let inside: &mut [&mut Vec<Stmt>] = match &mut stmt.kind {
        StmtKind::ForRanks { body, .. } | StmtKind::ForItems { body, .. } => &mut [body],
        StmtKind::If {
            then, otherwise, ..
        } => &mut [then, otherwise],
        StmtKind::Wait { .. }
        | StmtKind::Signal { .. }
        | StmtKind::Copy { .. }
        | StmtKind::Dot { .. }
        | StmtKind::Sum { .. }
        | StmtKind::Load { .. }
        | StmtKind::Store { .. } => return,
    };
    let inside = inside.iter_mut().flat_map(|body| body.iter_mut());
    inside.for_each(|stmt| place(stmt, at));
}
