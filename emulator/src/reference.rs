//! The reference for a launch's outputs, in f64.
//!
//! - If the user gave the program a reference, that is used.
//! - A `Gathered` input is the concatenation of the ranks' shards. A `Gathered` output, `ReduceScattered`, `AllReduced`, `AllToAll` and `Accumulated` are what their type
//!   promises ([`whole`]), whatever the schedule does to keep it. If the promise is open, nothing is compared.
//! - `Out` is what the program's statements compute, one after another ([`super::meaning`]).
//!
//! The error bound of each element follows the statements too: each of their roundings adds to it.

mod held;
mod terms;
mod whole;

use super::expected::{Expected, ExpectedTensor, NoReference, Says};
use super::inputs::{Inputs, Tables};
use super::meaning::evaluate;
use super::outcome::Input;
use super::sizes::Sizes;
use counterflow_codegen::given::{Given, Matrix, Reference};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use whole::Wholes;

/// The expected outputs of launch `launch` of `plan`, for the same `inputs` as [`crate::run`] got.
///
/// # Errors
/// The first tensor without a reference.
pub fn reference(
    kernel: &Kernel,
    plan: &Plan,
    launch: usize,
    inputs: impl FnMut(Input<'_>, &mut [f32]),
) -> Result<Expected, NoReference> {
    reference_in(&mut Tables::default(), kernel, plan, launch, inputs)
}

/// As [`reference()`], with memory of the references before.
///
/// [`Tables`] has an example.
///
/// # Errors
/// As [`reference()`].
pub fn reference_in(
    tables: &mut Tables,
    kernel: &Kernel,
    plan: &Plan,
    launch: usize,
    inputs: impl FnMut(Input<'_>, &mut [f32]),
) -> Result<Expected, NoReference> {
    let program = &*kernel.program;
    let sizes = Sizes::new(program, &kernel.variant, &plan.shape);
    let inputs = Inputs::new(tables, program, &sizes, launch, inputs);
    let expected = of_inputs(program, &sizes, launch, &inputs);
    inputs.give_back(tables);
    expected
}

fn of_inputs(
    program: &Program,
    sizes: &Sizes<'_>,
    launch: usize,
    inputs: &Inputs,
) -> Result<Expected, NoReference> {
    let written = evaluate(program, sizes, inputs)?;
    let mut tensors = written.tensors;
    let mut wholes = Wholes::new(program, sizes, inputs, &written.products)?;
    for expected in &mut tensors {
        let index = expected.tensor.index();
        let name = &program.tensors[index].name;
        let none = |why: String| NoReference {
            of: name.clone(),
            why,
        };
        if program.tensors[index].usage.is_gathered() {
            expected.bounds.fill(0.0);
        }
        if let Some(reference) = program.reference {
            let values = asked(reference, program, sizes, inputs, expected);
            (expected.values, expected.says) = (values.map_err(none)?, Says::User);
        } else if let Some(values) = wholes.of(index, expected.rank) {
            (expected.values, expected.says) = (values.map_err(none)?, Says::Type);
        }
        determined(expected).map_err(none)?;
    }
    Ok(Expected { launch, tensors })
}

/// The user's reference for a tensor.
fn asked(
    reference: Reference,
    program: &Program,
    sizes: &Sizes<'_>,
    inputs: &Inputs,
    expected: &ExpectedTensor,
) -> Result<Vec<f64>, String> {
    let (rows, columns) = (expected.rows, expected.columns);
    let slots = sizes.slots(expected.tensor.index()) as usize;
    let shape = (slots * rows.len() as usize, columns as usize);
    let input = |name: &str, rank: u32| {
        let before = |index: &usize| program.tensors[*index].usage.counts_before();
        let known = (0..program.tensors.len()).filter(before);
        let found = known
            .clone()
            .find(|index| program.tensors[*index].name == name);
        match found {
            _ if rank >= sizes.world => Err(format!(
                "the reference asks for rank {rank} of {}",
                sizes.world
            )),
            Some(tensor) => {
                let seen = inputs.seen(rank, tensor);
                let (rows, columns) = seen.dim();
                Ok(Matrix::of_values(rows, columns, seen.into_iter().collect()))
            }
            None => {
                let names: Vec<&str> = known
                    .map(|index| program.tensors[index].name.as_str())
                    .collect();
                let names = names.join(", ");
                Err(format!(
                    "the reference asks for the input `{name}`; there are {names}"
                ))
            }
        }
    };
    let given = Given::new(
        &program.tensors[expected.tensor.index()].name,
        (expected.rank, sizes.world),
        rows.start..rows.end,
        &input,
        Matrix::of_values(shape.0, shape.1, expected.values.clone()),
    );
    let values = reference(&given)?;
    let got = (values.rows() as usize, values.columns() as usize);
    if got == shape {
        Ok(values.into_values())
    } else {
        Err(format!(
            "the reference gives {} rows of {} columns, but rank {} holds {} of {}",
            got.0, got.1, expected.rank, shape.0, shape.1
        ))
    }
}

/// Checks that every element is a number with a finite error bound: only then can a result be wrong.
fn determined(expected: &ExpectedTensor) -> Result<(), String> {
    let mut elements = expected.values.iter().zip(&expected.bounds);
    let vague = |(value, bound): (&f64, &f64)| !value.is_finite() || !bound.is_finite();
    let Some(at) = elements.position(vague) else {
        return Ok(());
    };
    let columns = expected.columns.max(1) as usize;
    let (row, column) = (expected.rows.start as usize + at / columns, at % columns);
    let (value, rank) = (expected.values[at], expected.rank);
    Err(if value.is_finite() {
        format!("[{row}, {column}] on rank {rank} is {value}, with an unbounded rounding error")
    } else {
        format!("with these inputs [{row}, {column}] on rank {rank} is {value}")
    })
}
