//! Scales of FP8 outputs: what is stored in one is multiplied by a number in the GPU's memory before it is rounded.
//!
//! As with scales of operands, a schedule says nothing about them; its variant does, and what it becomes is an ordinary
//! program: an output has a scale beside it, which each item that stores there loads. If it has an amax, too, each store measures
//! what it computed before it multiplies. Or it has a plane beside it, of scales that each store makes of what it computed.

use crate::diag::{Diagnostic, Rule};
use crate::dtype::Dtype;
use crate::program::{
    AccDecl, Along, Amax, AtEnd, Home, Loc, Numbers, Place, Planes, Program, Stmt, StmtKind,
    Tensor, TensorId, Usage,
};
use crate::value::{AccId, Value};
use crate::variant::Variant;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A program with scales of the outputs that the variant makes FP8. One that has them is as it is.
pub(crate) fn with_scales_of_outputs<'p>(
    program: Cow<'p, Program>,
    variant: &Variant,
) -> Result<Cow<'p, Program>, Diagnostic> {
    asked_for(&program, variant)?;
    let Some(output) = variant.output else {
        return Ok(program);
    };
    let outputs = outputs(&program);
    let Some(first) = outputs.first() else {
        let message = format!(
            "outputs of {output} for {}, which has none of its first type",
            program.name
        );
        return Err(Diagnostic::new(Rule::Shape, program.at, message)
            .hint("an `Out` of the type of the first parameter, or no type for outputs"));
    };
    let known = |tensor: &Tensor| tensor.usage.scales_of() == Some(*first);
    if !output.is_fp8() || program.tensors.iter().any(known) {
        return Ok(program);
    }
    let mut made = program.into_owned();
    let mut results = Results {
        scales: BTreeMap::new(),
        amaxes: BTreeMap::new(),
        made: BTreeMap::new(),
        accs: std::mem::take(&mut made.accs),
    };
    for of in outputs {
        let (name, at) = (&made.tensors[of.index()].name, made.tensors[of.index()].at);
        let beside = |what: &str, usage: Usage, numbers: Numbers| Tensor {
            name: format!("{name}.{what}"),
            usage: usage.beside(of, numbers),
            like: None,
            dtype: Dtype::F32,
            at,
        };
        let next = TensorId(made.tensors.len() as u16);
        if variant.output_scales.is_some() {
            let plane = beside("scale", Usage::OUT, Numbers::Computed);
            results.made.insert(of, next);
            made.tensors.push(plane);
            continue;
        }
        let scale = beside("scale", Usage::LOCAL, Numbers::Given(Along::All));
        let amax = beside("amax", Usage::OUT, Numbers::Amax);
        results.scales.insert(of, (next, scale.name.clone()));
        made.tensors.push(scale);
        if variant.amax {
            results.amaxes.insert(of, TensorId(next.0 + 1));
            made.tensors.push(amax);
        }
    }
    made.items_mut().for_each(|item| results.multiply(item));
    made.accs = results.accs;
    // It knows nothing of scales.
    made.reference = None;
    Ok(Cow::Owned(made))
}

/// Refuses numbers beside outputs that have no use for them.
fn asked_for(program: &Program, variant: &Variant) -> Result<(), Diagnostic> {
    let outputs = || match variant.output {
        Some(output) => output.to_string(),
        None => "the schedule's type".into(),
    };
    let (message, hint) = match variant.output_scales {
        Some(rule) if variant.output != Some(rule.to.dtype()) => (
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
        Some(_) if variant.amax => (
            format!(
                "amaxes beside scales that a launch makes in {}",
                program.name
            ),
            "one of them: an amax is for the next scale, and here every launch makes its own",
        ),
        None if variant.amax && variant.output.is_none_or(|output| !output.is_fp8()) => (
            format!("amaxes of outputs of {} in {}", outputs(), program.name),
            "outputs of e4m3 or e5m2, which have a scale: an amax is for the next one",
        ),
        Some(_) | None => return Ok(()),
    };
    Err(Diagnostic::new(Rule::Shape, program.at, message).hint(hint))
}

/// The outputs whose type the variant replaces.
pub(crate) fn outputs(program: &Program) -> Vec<TensorId> {
    let is_out = |tensor: &Tensor| tensor.usage.is_output() && tensor.usage.at_end == AtEnd::Own;
    let replaced = program.tensors.first().map(|first| first.dtype);
    let tensors = program.tensors.iter().enumerate();
    let outputs = tensors.filter(|(_, tensor)| is_out(tensor) && Some(tensor.dtype) == replaced);
    outputs.map(|(at, _)| TensorId(at as u16)).collect()
}

/// Scales of outputs with their names, and the accumulators of a program in the making.
struct Results {
    scales: BTreeMap<TensorId, (TensorId, String)>,
    /// Amaxes of outputs, where they are asked for.
    amaxes: BTreeMap<TensorId, TensorId>,
    /// Planes of outputs, where launches make their scales.
    made: BTreeMap<TensorId, TensorId>,
    accs: Vec<AccDecl>,
}

impl Results {
    /// Multiplies what an item stores, or lets it make the scales.
    fn multiply(&mut self, item: &mut Vec<Stmt>) {
        // Each scale once, for the first store that needs it.
        let mut loads = BTreeMap::new();
        for stmt in item.iter_mut().flat_map(Stmt::leaves_mut) {
            let StmtKind::Store {
                dst,
                value,
                amax,
                scales,
                ..
            } = &mut stmt.kind
            else {
                continue;
            };
            *scales = self.made.get(&dst.tensor).copied();
            let Some((scale, name)) = self.scales.get(&dst.tensor) else {
                continue;
            };
            let (acc, _) = *loads.entry(*scale).or_insert_with(|| {
                let name = Some(name.clone());
                self.accs.push(AccDecl { name });
                (AccId(self.accs.len() as u16 - 1), stmt.at)
            });
            let of = value.clone();
            *value = of.clone() * Value::Acc(acc);
            let to = self.amaxes.get(&dst.tensor);
            *amax = to.map(|to| Amax { of, to: *to });
        }
        let computes =
            |stmt: &StmtKind| matches!(stmt, StmtKind::Dot { .. } | StmtKind::Store { .. });
        let loads = loads.into_iter().map(|(scale, (acc, at))| (scale, acc, at));
        load_before(item, computes, loads);
    }
}

/// Loads scales, each into an accumulator, before the first statement of an item that is such a one, or has one within it.
pub(crate) fn load_before(
    item: &mut Vec<Stmt>,
    such: impl Fn(&StmtKind) -> bool,
    loads: impl IntoIterator<Item = (TensorId, AccId, Loc)>,
) {
    let first = item
        .iter()
        .position(|stmt| stmt.all().any(|stmt| such(&stmt.kind)));
    let first = first.unwrap_or(item.len());
    let load = |(tensor, acc, at)| {
        let from = Place {
            tensor,
            home: Home::Me,
            slot: None,
            item: None,
            planes: Planes::All,
        };
        let kind = StmtKind::Load { acc, from };
        Stmt { kind, at }
    };
    item.splice(first..first, loads.into_iter().map(load));
}
