//! A program whose tensors are encoded as its variant asks.
//!
//! A schedule says nothing about scales; its variant does. Each tensor gets its [`Encoding`] first. What that asks for is then an
//! ordinary program: scales and amaxes are tensors beside theirs, items load and multiply by them, copies move them. So all that is
//! known about tensors, copies, loads and values holds for scales.

mod beside;
mod copies;
mod elements;
mod hidden;
mod operands;
mod outputs;
mod partial;

use crate::diag::Diagnostic;
use crate::encoding::Encoding;
use crate::program::Program;
use crate::variant::Variant;
pub(crate) use elements::distinct_operands;
pub use elements::elements;
pub use operands::scale_of;
use std::borrow::Cow;

/// The encodings of a program's tensors in a variant, in their order.
///
/// # Errors
/// What a variant asks for that the program has no place for.
pub(crate) fn encodings(program: &Program, variant: &Variant) -> Result<Vec<Encoding>, Diagnostic> {
    let plain = |element| Encoding {
        element,
        scale: None,
        amax: false,
    };
    let mut found: Vec<Encoding> = elements(program, variant).into_iter().map(plain).collect();
    operands::ask(program, variant, &mut found)?;
    outputs::ask(program, variant, &mut found)?;
    partial::ask(program, variant, &mut found)?;
    hidden::ask(program, variant, &mut found)?;
    Ok(found)
}

/// The program with the scales and amaxes of its tensors. One that has them is as it is.
///
/// # Errors
/// What a variant asks for that the program has no place for, and statements that would lose a scale.
pub fn encoded<'p>(
    program: &'p Program,
    variant: &Variant,
) -> Result<Cow<'p, Program>, Diagnostic> {
    if program
        .tensors
        .iter()
        .any(|tensor| tensor.usage.plane.is_some())
    {
        return Ok(Cow::Borrowed(program));
    }
    let encodings = encodings(program, variant)?;
    let plain = encodings.iter().all(|of| of.scale.is_none());
    if plain && !copies::are_named(program) {
        return Ok(Cow::Borrowed(program));
    }
    let mut made = program.clone();
    operands::attach(&mut made, &encodings)?;
    let mut made = copies::with_planes(made)?;
    outputs::attach(&mut made, &encodings);
    partial::attach(&mut made, &encodings)?;
    // A reference of the user's own knows nothing of scales of parameters.
    let mut scales = made
        .tensors
        .iter()
        .filter(|tensor| !tensor.usage.is_scratch());
    if scales.any(|tensor| tensor.usage.plane.is_some()) {
        made.reference = None;
    }
    Ok(Cow::Owned(made))
}
