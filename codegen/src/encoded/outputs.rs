//! Scales of FP8 outputs: what is stored in one is multiplied by a number in the GPU's memory before it is rounded.
//!
//! Each item that stores there loads the scale. If the output has an amax, too, each store measures what it computed before it
//! multiplies. Or each store computes the scales.

use super::beside::{Loads, Numbered, begins_product, load_before};
use crate::diag::{Diagnostic, Rule};
use crate::encoding::{Along, Encoding, Scaling};
use crate::program::{Amax, AtEnd, Numbers, Program, Stmt, StmtKind, Tensor, TensorId};
use crate::value::Value;
use crate::variant::{Tensors, Variant};

/// Asks for the scales and amaxes of outputs.
pub(super) fn ask(
    program: &Program,
    variant: &Variant,
    found: &mut [Encoding],
) -> Result<(), Diagnostic> {
    asked_for(program, variant)?;
    let asked = variant.asked(&Tensors::Outputs);
    let Some(output) = asked.element else {
        return Ok(());
    };
    let outputs = outputs(program);
    if outputs.is_empty() {
        let message = format!(
            "outputs of {output} for {}, which has none of its first type",
            program.name
        );
        return Err(Diagnostic::new(Rule::Shape, program.at, message)
            .hint("an `Out` of the type of the first parameter, or no type for outputs"));
    }
    for of in outputs.into_iter().filter(|_| output.is_fp8()) {
        let given = Scaling::Given(Along::All);
        found[of.index()] = Encoding {
            element: output,
            scale: asked.scale.or(Some(given)),
            amax: asked.amax,
        };
    }
    Ok(())
}

/// Multiplies what is stored in outputs with scales.
pub(super) fn attach(program: &mut Program, encodings: &[Encoding]) {
    for (of, encoding) in (0..).map(TensorId).zip(encodings) {
        let is_output = program.tensors[of.index()].usage.is_output();
        if let Some(scaling) = encoding.scale.filter(|_| is_output) {
            program.beside(of, Numbers::Scale(scaling));
            encoding.amax.then(|| program.beside(of, Numbers::Amax));
        }
    }
    let mut numbered = Numbered::of(program);
    program
        .items_mut()
        .for_each(|item| multiply(&mut numbered, item));
    program.accs = numbered.accs;
}

/// Multiplies what an item stores by given scales, and measures it.
fn multiply(numbered: &mut Numbered, item: &mut Vec<Stmt>) {
    let mut loads = Loads::new();
    for stmt in item.iter_mut().flat_map(Stmt::leaves_mut) {
        let StmtKind::Store {
            dst, value, amax, ..
        } = &mut stmt.kind
        else {
            continue;
        };
        let of = dst.tensor;
        let given = numbered.find(of, |it| matches!(it, Numbers::Scale(Scaling::Given(_))));
        let Some(scale) = given else {
            continue;
        };
        let acc = numbered.load(scale, &mut loads, stmt.at);
        let measured = value.clone();
        *value = measured.clone() * Value::Acc(acc);
        let to = numbered.find(of, |it| it == Numbers::Amax);
        *amax = to.map(|to| Amax { of: measured, to });
    }
    loads.sort_by_key(|(scale, ..)| *scale);
    let computes = |stmt: &StmtKind| matches!(stmt, StmtKind::Store { .. }) || begins_product(stmt);
    load_before(item, computes, loads);
}

/// Refuses numbers beside outputs that have no use for them.
fn asked_for(program: &Program, variant: &Variant) -> Result<(), Diagnostic> {
    let asked = variant.asked(&Tensors::Outputs);
    let outputs = || match asked.element {
        Some(output) => output.to_string(),
        None => "the schedule's type".into(),
    };
    let rule = asked.scale.and_then(Scaling::rule);
    let (message, hint) = match rule {
        Some(rule) if asked.element != Some(rule.to.dtype()) => (
            format!(
                "scales of {} for outputs of {} in {}",
                rule.to.dtype(),
                outputs(),
                program.name
            ),
            "outputs of the type that the rule of their scales is of",
        ),
        Some(rule) if !rule.has_finite_eps() => (
            format!("scales by an eps of {} in {}", rule.eps, program.name),
            "a finite eps of 0 or more",
        ),
        Some(_) if asked.amax => (
            format!(
                "amaxes beside scales that a launch makes in {}",
                program.name
            ),
            "one of them: an amax is for the next scale, and here every launch makes its own",
        ),
        None if asked.amax && asked.element.is_none_or(|output| !output.is_fp8()) => (
            format!("amaxes of outputs of {} in {}", outputs(), program.name),
            "outputs of e4m3 or e5m2, which have a scale: an amax is for the next one",
        ),
        Some(_) | None => return Ok(()),
    };
    Err(Diagnostic::new(Rule::Shape, program.at, message).hint(hint))
}

/// The outputs whose type the variant replaces.
pub(super) fn outputs(program: &Program) -> Vec<TensorId> {
    let is_out = |tensor: &Tensor| tensor.usage.is_output() && tensor.usage.at_end == AtEnd::Own;
    let replaced = program.tensors.first().map(|first| first.dtype);
    let tensors = program.tensors.iter().enumerate();
    let outputs = tensors.filter(|(_, tensor)| is_out(tensor) && Some(tensor.dtype) == replaced);
    outputs.map(|(at, _)| TensorId(at as u16)).collect()
}
