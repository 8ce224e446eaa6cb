//! The element type of each tensor in a variant.

use crate::dtype::Dtype;
use crate::program::{Program, Stmt, StmtKind, TensorId};
use crate::variant::Variant;

/// The element types of a program's tensors, in their order.
///
/// A variant's type replaces that of the first tensor wherever it occurs. FP8 does so only in what products multiply, and in
/// what is copied from or to that: sums are stored in the type that the schedule says.
pub(crate) fn elements(program: &Program, variant: &Variant) -> Vec<Dtype> {
    let written = || program.tensors.iter().map(|tensor| tensor.dtype);
    let (Some(other), Some(replaced)) = (variant.dtype, written().next()) else {
        return written().collect();
    };
    let multiplied = multiplied(program);
    let replace = |(index, dtype)| {
        let replace = dtype == replaced && (!other.is_fp8() || multiplied[index]);
        if replace { other } else { dtype }
    };
    written().enumerate().map(replace).collect()
}

/// Which tensors products multiply, or are copied from or to one that they do. All of them where nothing is multiplied.
fn multiplied(program: &Program) -> Vec<bool> {
    let (mut operands, mut copies) = (Vec::new(), Vec::new());
    for role in &program.roles {
        visit(&role.body, &mut operands, &mut copies);
    }
    let mut found = vec![operands.is_empty(); program.tensors.len()];
    for operand in operands {
        mark(&mut found, operand);
    }
    spread(&mut found, copies);
    found
}

/// Which tensors are copied from or to that one, directly or not, and itself.
pub(crate) fn copied_with(program: &Program, tensor: TensorId) -> Vec<bool> {
    let (mut operands, mut copies) = (Vec::new(), Vec::new());
    for role in &program.roles {
        visit(&role.body, &mut operands, &mut copies);
    }
    let mut found = vec![false; program.tensors.len()];
    mark(&mut found, tensor);
    spread(&mut found, copies);
    found
}

/// What is copied from or to a tensor that is marked is so too.
fn spread(found: &mut [bool], mut copies: Vec<[TensorId; 2]>) {
    loop {
        let known = |of: &TensorId| found.get(of.index()).copied().unwrap_or(true);
        let Some(at) = (copies.iter()).position(|[to, from]| known(to) != known(from)) else {
            return;
        };
        let both = copies.swap_remove(at);
        both.into_iter().for_each(|of| mark(found, of));
    }
}

/// A tensor that does not exist is refused elsewhere.
fn mark(found: &mut [bool], tensor: TensorId) {
    if let Some(found) = found.get_mut(tensor.index()) {
        *found = true;
    }
}

fn visit(body: &[Stmt], operands: &mut Vec<TensorId>, copies: &mut Vec<[TensorId; 2]>) {
    for stmt in body {
        match &stmt.kind {
            StmtKind::ForRanks { body, .. } | StmtKind::ForItems { body, .. } => {
                visit(body, operands, copies);
            }
            StmtKind::If {
                then, otherwise, ..
            } => {
                visit(then, operands, copies);
                visit(otherwise, operands, copies);
            }
            StmtKind::Copy { dst, src } => copies.push([dst.tensor, src.tensor]),
            StmtKind::Dot { a, b, .. } => operands.extend([a.tensor, b.tensor]),
            StmtKind::Wait { .. }
            | StmtKind::Signal { .. }
            | StmtKind::Sum { .. }
            | StmtKind::Load { .. }
            | StmtKind::Store { .. } => {}
        }
    }
}
