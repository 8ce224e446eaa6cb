//! Hidden layers in FP8: scratch that products multiply, whose numbers are stored as multiples of one that is given.
//!
//! Who stores a tile multiplies it by that number before it is rounded, and a product of it is divided by it. So the number is an
//! input of its own beside the scratch, which every item that stores or multiplies loads.

use super::elements::products;
use crate::diag::{Diagnostic, Rule};
use crate::encoding::{Along, Encoding, Scaling};
use crate::program::{Program, Stmt, StmtKind, StoreMode, TensorId};
use crate::variant::{Asked, Variant};

/// Asks for the scales of hidden layers.
pub(super) fn ask(
    program: &Program,
    variant: &Variant,
    found: &mut [Encoding],
) -> Result<(), Diagnostic> {
    for (name, asked) in variant.encodings.hidden() {
        let of = find(program, name)?;
        let at = program.tensors[of.index()].at;
        let scale = scale(asked).ok_or_else(|| {
            let message = format!("`{name}` is a hidden layer, and its encoding is not one that a launch can make");
            Diagnostic::new(Rule::Shape, at, message)
                .hint("e4m3 or e5m2 with one given scale: `Variant::hidden`; there is no amax and no scale of blocks yet")
        })?;
        let multiplied = products(program).any(|operands| operands.contains(&of));
        let misuse = match multiplied {
            true => program
                .stmts()
                .find_map(|stmt| Some((misused(stmt, of)?, stmt.at))),
            false => Some(("is multiplied by nothing", at)),
        };
        if let Some((does, at)) = misuse {
            let message = format!("`{name}` {does}, and is to be FP8 with a scale of its own");
            return Err(Diagnostic::new(Rule::Shape, at, message).hint(
                "scratch whose tiles are stored once and then only multiplied; or the type that the schedule says",
            ));
        }
        found[of.index()].scale = Some(scale);
    }
    Ok(())
}

/// The scratch of that name.
fn find(program: &Program, name: &str) -> Result<TensorId, Diagnostic> {
    let mut tensors = program.tensors.iter();
    let found = tensors.position(|tensor| tensor.name == name && tensor.usage.is_scratch());
    found.map(|at| TensorId(at as u16)).ok_or_else(|| {
        let scratch = program.tensors.iter().filter(|it| it.usage.is_scratch());
        let names: Vec<&str> = scratch.map(|tensor| &tensor.name[..]).collect();
        let message = format!("{} has no hidden layer `{name}`", program.name);
        Diagnostic::new(Rule::Shape, program.at, message).hint(match names[..] {
            [] => "it has no scratch of its own".to_owned(),
            _ => format!("its scratch is {}", names.join(", ")),
        })
    })
}

/// The scale that a hidden layer may have.
fn scale(asked: Asked) -> Option<Scaling> {
    let narrow = asked.element.is_some_and(|element| element.is_fp8());
    let given = Scaling::Given(Along::All);
    (narrow && !asked.amax && asked.scale == Some(given)).then_some(given)
}

/// What a statement does with a hidden layer that loses its scale.
fn misused(stmt: &Stmt, of: TensorId) -> Option<&'static str> {
    match &stmt.kind {
        StmtKind::Store { dst, mode, .. } => {
            (dst.tensor == of && *mode == StoreMode::Add).then_some("is added to")
        }
        StmtKind::Copy { dst, src } => [dst, src]
            .iter()
            .any(|place| place.tensor == of)
            .then_some("is copied"),
        StmtKind::Load { from, .. } => (from.tensor == of).then_some("is read by itself"),
        StmtKind::Sum { from, .. } => (from.tensor == of).then_some("is added up"),
        StmtKind::Dot { .. }
        | StmtKind::Wait { .. }
        | StmtKind::Signal { .. }
        | StmtKind::ForRanks { .. }
        | StmtKind::ForItems { .. }
        | StmtKind::If { .. } => None,
    }
}
