//! Amaxes: each is made of all of its output, as it is before the scale, by the stores that write it.

use super::Coverage;
use crate::diag::{Diagnostic, Rule};
use crate::kernel::{Amax, Kernel, OpKind, visit};
use crate::program::{Loc, TensorId};
use crate::value::{Binary, Value};

/// Rule about amaxes, as reports say it.
const MEASURES: &str = "every store of an output that has an amax measures it";

impl Coverage<'_, '_> {
    /// Finding in an amax. Every element of an output is written once, and the store that writes it measures it:
    /// where as many are measured as there are, all are.
    pub(super) fn wrong_amax(&self) -> Option<Diagnostic> {
        let (kernel, geometry) = (self.facts.kernel, &self.facts.plan.geometry);
        for (buffer, id) in kernel.buffers.iter().zip(0..) {
            let Some(of) = buffer.usage.amax_of() else {
                continue;
            };
            let (id, output) = (TensorId(id), &kernel.buffers[of.index()]);
            if let Some(found) = misused(kernel, (id, of)) {
                return Some(found);
            }
            for rank in 0..geometry.world {
                let rows = u64::from(geometry.held(output, rank).len());
                let all = rows * u64::from(geometry.size(output.columns));
                let measured = self.amaxes.get(&(id, rank as u16)).copied();
                let measured = measured.unwrap_or_default();
                if measured != all {
                    let message = format!(
                        "{} on rank {rank} is of {measured} of {all} elements of {}",
                        buffer.name, output.name
                    );
                    return Some(Diagnostic::new(Rule::Coverage, None, message).hint(MEASURES));
                }
            }
        }
        None
    }
}

/// The first statement that reads or writes an amax, or makes it of something else than its output.
fn misused(kernel: &Kernel, (amax, of): (TensorId, TensorId)) -> Option<Diagnostic> {
    let mut found: Option<(Loc, Rule, [&str; 2])> = None;
    for role in &kernel.roles {
        visit(&role.body, &mut |op| {
            let used = op.kind.regions().any(|(of, _)| of.buffer == amax);
            let at = kernel.loc(op.id);
            if used {
                let what = "is used in the launch that measures, in no order with it";
                found.get_or_insert((
                    at,
                    Rule::Race,
                    [what, "a launch after this one reads an amax"],
                ));
            }
            let OpKind::Store {
                dst,
                value,
                amax: Some(Amax { of: measured, to }),
                ..
            } = &op.kind
            else {
                return;
            };
            let [value, measured] = [value, measured].map(|it| &kernel.values[usize::from(it.0)]);
            let scaled = |it: &Value| matches!(it, Value::Binary(Binary::Mul, a, b) if **a == *measured && is_scale(kernel, b, of));
            if *to == amax && (dst.buffer != of || !scaled(value)) {
                let what = "is made of something else than what its output gets, before the scale";
                found.get_or_insert((at, Rule::Coverage, [what, MEASURES]));
            }
        });
    }
    let (at, rule, [what, hint]) = found?;
    let name = &kernel.buffers[amax.index()].name;
    Some(Diagnostic::new(rule, at, format!("{name} {what}")).hint(hint))
}

/// True if a value is the scale of an output.
fn is_scale(kernel: &Kernel, value: &Value, output: TensorId) -> bool {
    let Value::Acc(acc) = value else {
        return false;
    };
    let mut is = false;
    for role in &kernel.roles {
        visit(&role.body, &mut |op| {
            if let OpKind::Load { acc: filled, from } = &op.kind {
                let of = kernel.buffers[from.buffer.index()].usage.given_scale_of();
                is |= filled == acc && of == Some(output);
            }
        });
    }
    is
}
