//! Compiles what is emitted and passes every SASS check, for the test binaries that do.

#[path = "../../runtime/tests/common/mod.rs"]
pub mod nvidia;

use crate::parallel::in_parallel;
use counterflow::codegen::cuda::{self, expected};
use counterflow::codegen::lower::lower;
use counterflow::codegen::sm90;
use counterflow::codegen::verify;
use counterflow::codegen::warp::Pipeline;
use counterflow::jit::sass_checks;
use counterflow::{Checked, Program, Variant, launch};

pub fn checked(program: &Program, variant: &Variant) -> Checked<Pipeline> {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let pipeline = kernel
        .and_then(|kernel| sm90::build(&kernel))
        .and_then(verify::pipeline);
    pipeline.unwrap_or_else(|error| panic!("{} {variant}: {error}", program.name))
}

/// What the SASS checks find in a kernel.
pub struct Findings {
    /// Spills, and what the compiler says of slow code.
    pub slow: Vec<String>,
    /// Instructions, registers or parameters that are others than the statements ask for.
    pub wrong: Vec<String>,
}

/// Compiles, and says what the SASS checks find.
fn findings(name: &str, pipeline: &Checked<Pipeline>) -> Option<Findings> {
    let compiler = nvidia::compiler()?;
    let source = cuda::emit(pipeline);
    let compiled = launch::compile(&compiler, &source).unwrap_or_else(|error| panic!("{error}"));
    let sass = nvidia::sass(compiled.cubin())?;
    let slow = sass_checks::findings(&compiled, Some(&sass));
    let mut wrong = sass_checks::in_counts(&sass, &expected::instructions(pipeline));
    let facts = &compiled.facts[0];
    // The ceiling of 384 threads: setmaxnreg reallocates registers from there.
    if facts.registers > 168 || facts.threads != Some(source.threads) {
        wrong.push(format!("{facts:?}"));
    }
    let parameters = parameters(&source);
    if facts.parameters != parameters || facts.parameter_count as usize != source.params.len() {
        wrong.push(format!(
            "{} bytes of parameters, but the host passes {parameters}",
            facts.parameters
        ));
    }
    println!(
        "{name:40} {:3} registers, {} instructions, {} bytes shared, {:.0} ms",
        facts.registers,
        sass.instructions.len(),
        source.shared_bytes,
        compiled.took.as_secs_f64() * 1000.0
    );
    Some(Findings { slow, wrong })
}

/// Bytes of the parameters as the host lays them out. They start at 0x210 of the constant bank, and are aligned there.
fn parameters(source: &cuda::CudaSource) -> u32 {
    const BASE: u32 = 0x210;
    let end = source.params.iter().fold(BASE, |at: u32, param| {
        let (bytes, align) = match param {
            cuda::Param::Map { .. } => (128, 128),
            cuda::Param::EveryCopy { .. } => (cuda::EVERY_COPY_BYTES as u32, 8),
            cuda::Param::Plan { bytes, fields } => (
                *bytes,
                if fields.iter().any(|at| at.field.wide()) {
                    8
                } else {
                    4
                },
            ),
            cuda::Param::Watch => (cuda::WATCH_BYTES as u32, 8),
        };
        at.next_multiple_of(align) + bytes
    });
    end - BASE
}

/// What the checks find in each case, with its name. `None` where there is no compiler.
pub fn each(cases: &[(Program, Variant)]) -> Option<Vec<Findings>> {
    let of_one = |(program, variant): &(Program, Variant)| {
        let name = format!("{} {variant}", program.name);
        let Findings { slow, wrong } = findings(&name, &checked(program, variant))?;
        let named = |found: Vec<String>| {
            found
                .iter()
                .map(|found| format!("{name}: {found}"))
                .collect()
        };
        Some(Findings {
            slow: named(slow),
            wrong: named(wrong),
        })
    };
    let found = in_parallel(cases.len(), |case| of_one(&cases[case]));
    found.into_iter().collect()
}

pub fn all_pass(cases: &[(Program, Variant)]) {
    let Some(found) = each(cases) else { return };
    let found = found
        .into_iter()
        .flat_map(|Findings { slow, wrong }| [slow, wrong].concat());
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}
