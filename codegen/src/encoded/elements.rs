//! The element type of each tensor in a variant.

use super::outputs::outputs;
use super::partial::partial_sums;
use crate::diag::{Diagnostic, Rule};
use crate::dtype::Dtype;
use crate::program::{Place, Program, StmtKind, TensorId};
use crate::variant::{Tensors, Variant};

/// The element types of a program's tensors, in their order.
///
/// A variant's type replaces that of the first tensor wherever it occurs. FP8 does so only in what products multiply, and in
/// what is copied from or to that: sums are stored in the type that the schedule says, or in that which the variant has for
/// outputs.
pub fn elements(program: &Program, variant: &Variant) -> Vec<Dtype> {
    let mut found = operands(program, variant);
    if let Some(output) = variant.asked(&Tensors::Outputs).element {
        let outputs = outputs(program).into_iter();
        outputs.for_each(|of| found[of.index()] = output);
    }
    if let Some(element) = variant.asked(&Tensors::PartialSums).element {
        let sums = partial_sums(program).into_iter();
        sums.for_each(|of| found[of.index()] = element);
    }
    for (name, asked) in variant.encodings.hidden() {
        let mut tensors = program.tensors.iter().zip(&mut found);
        let of = tensors.find(|(tensor, _)| tensor.name == name);
        if let (Some((_, found)), Some(element)) = (of, asked.element) {
            *found = element;
        }
    }
    found
}

/// Element types before outputs have a type of their own.
fn operands(program: &Program, variant: &Variant) -> Vec<Dtype> {
    let written = || program.tensors.iter().map(|tensor| tensor.dtype);
    let first = variant.asked(&Tensors::OfFirstType).element;
    let (Some(other), Some(replaced)) = (first, written().next()) else {
        return written().collect();
    };
    let multiplied = multiplied(program);
    let second = variant
        .asked(&Tensors::Rhs)
        .element
        .map(|dtype| (dtype, sides(program)[1].clone()));
    let replace = |(index, dtype): (usize, Dtype)| {
        if dtype != replaced || other.is_fp8() && !multiplied[index] {
            return dtype;
        }
        match &second {
            Some((second, operands)) if operands[index] => *second,
            _ => other,
        }
    };
    written().enumerate().map(replace).collect()
}

impl Program {
    /// The element types that its tensors have in a variant, in their order.
    ///
    /// ```
    /// use counterflow_codegen::builder::ScheduleBuilder;
    /// use counterflow_codegen::dtype::Dtype;
    /// use counterflow_codegen::variant::Variant;
    ///
    /// let mut s = ScheduleBuilder::new("copies");
    /// (s.local("x", Dtype::Bf16), s.out("y", Dtype::Bf16), s.out("z", Dtype::F32));
    /// let found = s.finish().elements(&Variant::new(1).dtype(Dtype::F16));
    /// assert_eq!(found, [Dtype::F16, Dtype::F16, Dtype::F32]);
    /// ```
    pub fn elements(&self, variant: &Variant) -> Vec<Dtype> {
        elements(self, variant)
    }
}

/// Rejects types for both operands of products that cannot be told apart in this program.
pub(crate) fn distinct_operands(program: &Program, variant: &Variant) -> Result<(), Diagnostic> {
    let Some(second) = variant.asked(&Tensors::Rhs).element else {
        return Ok(());
    };
    let first = variant.asked(&Tensors::OfFirstType).element;
    if !second.is_fp8() || !first.is_some_and(Dtype::is_fp8) {
        let first = first.map_or("the schedule's type", Dtype::name);
        let message = format!("second operands of {second}, beside first ones of {first}");
        return Err(Diagnostic::new(Rule::Shape, program.at, message)
            .hint("two types are for FP8: e4m3 and e5m2"));
    }
    let [one, other] = sides(program);
    let both = (0..one.len()).find(|at| one[*at] && other[*at]);
    let Some(tensor) = both.map(|at| &program.tensors[at]) else {
        return Ok(());
    };
    let name = &tensor.name;
    let message = format!("`{name}` is the first operand of a product and the second of one");
    Err(Diagnostic::new(Rule::Shape, tensor.at, message)
        .hint("one type for both, or a tensor for each"))
}

/// Tensors that are the first and the second operands of products, or are copied from or to one that is.
fn sides(program: &Program) -> [Vec<bool>; 2] {
    [0, 1].map(|side| {
        let mut found = vec![false; program.tensors.len()];
        products(program).for_each(|operands| mark(&mut found, operands[side]));
        spread(&mut found, program);
        found
    })
}

/// Tensors that products multiply, or that are copied from or to one that they do. All of them where nothing is
/// multiplied.
fn multiplied(program: &Program) -> Vec<bool> {
    let nothing = products(program).next().is_none();
    let mut found = vec![nothing; program.tensors.len()];
    let operands = products(program).flatten();
    operands.for_each(|operand| mark(&mut found, operand));
    spread(&mut found, program);
    found
}

/// Tensors that are copied from or to that one, directly or not, and itself.
pub(super) fn copied_with(program: &Program, tensor: TensorId) -> Vec<bool> {
    let mut found = vec![false; program.tensors.len()];
    mark(&mut found, tensor);
    spread(&mut found, program);
    found
}

/// Tensors that hold what one rank's memory had and another's has, by a copy or several.
pub(super) fn sent_between_ranks(program: &Program) -> Vec<bool> {
    let mut found = vec![false; program.tensors.len()];
    while let Some([dst, _]) = program.copies().find(|[dst, src]| {
        let remote = dst.home.is_remote() || src.home.is_remote();
        !marked(&found, dst) && (remote || marked(&found, src))
    }) {
        mark(&mut found, dst.tensor);
    }
    found
}

/// Marks tensors that are copied from or to one that is marked.
fn spread(found: &mut [bool], program: &Program) {
    while let Some(both) =
        (program.copies()).find(|[dst, src]| marked(found, dst) != marked(found, src))
    {
        both.into_iter().for_each(|of| mark(found, of.tensor));
    }
}

/// A tensor that does not exist is refused elsewhere.
fn marked(found: &[bool], place: &Place) -> bool {
    found.get(place.tensor.index()).copied().unwrap_or(true)
}

fn mark(found: &mut [bool], tensor: TensorId) {
    if let Some(found) = found.get_mut(tensor.index()) {
        *found = true;
    }
}

/// The operands of each product.
pub(super) fn products(program: &Program) -> impl Iterator<Item = [TensorId; 2]> {
    program.stmts().filter_map(|stmt| {
        let StmtKind::Dot { a, b, .. } = &stmt.kind else {
            return None;
        };
        Some([a.tensor, b.tensor])
    })
}
