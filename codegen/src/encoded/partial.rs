//! Partial sums of tiles that travel in FP8: scratch of whose tiles a schedule takes a sum, with scales of 1×128 that each store
//! makes of what it computed.
//!
//! Such scratch has a plane of scratch beside it, with as many slots. Who stores a tile writes both before it signals, and who adds
//! one reads both behind its wait.

use crate::diag::{Diagnostic, Rule};
use crate::encoding::{Encoding, Scaling};
use crate::program::{
    HeldRows, Loc, Numbers, Program, Stmt, StmtKind, StoreMode, Tensor, TensorId,
};
use crate::variant::{Tensors, Variant};

/// Asks for the scales of partial sums.
pub(super) fn ask(
    program: &Program,
    variant: &Variant,
    found: &mut [Encoding],
) -> Result<(), Diagnostic> {
    let rule = variant
        .asked(&Tensors::PartialSums)
        .scale
        .and_then(Scaling::rule);
    let Some(rule) = rule else {
        return Ok(());
    };
    let of = partial_sums(program);
    if of.is_empty() {
        let (name, to) = (&program.name, rule.to.dtype());
        let message = format!("partial sums of {to} for {name}, which adds up no tiles of scratch");
        return Err(Diagnostic::new(Rule::Shape, program.at, message).hint(
            "a schedule that sends tiles once and adds them by `partial[others()][t].sum()`; what adds on its way, or in memory, rounds at each addition",
        ));
    }
    if !rule.has_finite_eps() {
        let message = format!("partial sums by an eps of {} in {}", rule.eps, program.name);
        return Err(
            Diagnostic::new(Rule::Shape, program.at, message).hint("a finite eps of 0 or more")
        );
    }
    let outputs = variant.asked(&Tensors::Outputs).scale;
    if outputs.and_then(Scaling::rule).is_some() {
        let message = format!(
            "partial sums of FP8 in {}, beside outputs whose scales launches make",
            program.name
        );
        return Err(
            Diagnostic::new(Rule::Shape, program.at, message).hint("one of them in a launch")
        );
    }
    for of in of {
        let Tensor {
            name, usage, at, ..
        } = &program.tensors[of.index()];
        if usage.placement.rows == HeldRows::Whole {
            let message =
                format!("`{name}` has all rows on each rank, and its partial sums are to be FP8");
            return Err(Diagnostic::new(Rule::Shape, *at, message).hint("scratch with the rows that a rank adds up: `symmetric(y.shard(), slots = world())`"));
        }
        found[of.index()].scale = Some(Scaling::Computed(rule));
    }
    Ok(())
}

/// Gives partial sums their scales, which whoever stores them computes.
pub(super) fn attach(program: &mut Program, encodings: &[Encoding]) -> Result<(), Diagnostic> {
    let mut scaled = Vec::new();
    for (of, encoding) in (0..).map(TensorId).zip(encodings) {
        let usage = program.tensors[of.index()].usage;
        let computed = encoding.scale.filter(|scaling| scaling.rule().is_some());
        if let Some(scaling) = computed.filter(|_| usage.is_scratch()) {
            program.beside(of, Numbers::Scale(scaling));
            scaled.push(of);
        }
    }
    let lost = program.stmts().find_map(|stmt| {
        let (tensor, does) = lost(stmt, &scaled)?;
        Some((tensor, does, stmt.at))
    });
    let name = |tensor: TensorId| &program.tensors[tensor.index()].name;
    lost.map_or(Ok(()), |(tensor, does, at)| {
        Err(refused(name(tensor), does, at))
    })
}

/// The scratch of whose tiles a program takes a sum.
pub(super) fn partial_sums(program: &Program) -> Vec<TensorId> {
    let sums = program.stmts().filter_map(|stmt| {
        let StmtKind::Sum { from, .. } = &stmt.kind else {
            return None;
        };
        Some(from.tensor)
    });
    let mut found: Vec<TensorId> = sums.collect();
    found.sort();
    found.dedup();
    let scratch = |of: &TensorId| {
        let tensor = program.tensors.get(of.index());
        tensor.is_some_and(|tensor| tensor.usage.is_scratch())
    };
    found.into_iter().filter(scratch).collect()
}

/// Action of a statement that loses the scales of partial sums.
fn lost(stmt: &Stmt, scaled: &[TensorId]) -> Option<(TensorId, &'static str)> {
    let partial = |tensor: TensorId| scaled.contains(&tensor).then_some(tensor);
    match &stmt.kind {
        StmtKind::Store { dst, mode, .. } => {
            let of = partial(dst.tensor)?;
            (*mode == StoreMode::Add).then_some((of, "is added to"))
        }
        StmtKind::Copy { dst, src } => {
            let of = partial(dst.tensor).or(partial(src.tensor))?;
            Some((of, "is copied"))
        }
        StmtKind::Load { from, .. } => Some((partial(from.tensor)?, "is read by itself")),
        StmtKind::Dot { a, b, .. } => {
            let of = partial(a.tensor).or(partial(b.tensor))?;
            Some((of, "is multiplied"))
        }
        StmtKind::Sum { .. }
        | StmtKind::Wait { .. }
        | StmtKind::Signal { .. }
        | StmtKind::ForRanks { .. }
        | StmtKind::ForItems { .. }
        | StmtKind::If { .. } => None,
    }
}

fn refused(name: &str, does: &str, at: Loc) -> Diagnostic {
    let message = format!("`{name}` {does}, and its partial sums are to be FP8");
    let hint = "tiles that are stored once, by who computed them, and then only added up: nothing else has their scales; or \
                partial sums of the schedule's type";
    Diagnostic::new(Rule::Shape, at, message).hint(hint)
}
