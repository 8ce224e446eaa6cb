//! Compiles what is emitted and passes every SASS check, for the test binaries that do.

#[path = "../../runtime/tests/common/mod.rs"]
pub mod nvidia;

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

/// Compiles and passes every SASS check, or says what is wrong.
fn passes(name: &str, pipeline: &Checked<Pipeline>) -> Option<Vec<String>> {
    let compiler = nvidia::compiler()?;
    let source = cuda::emit(pipeline);
    let compiled = launch::compile(&compiler, &source).unwrap_or_else(|error| panic!("{error}"));
    let sass = nvidia::sass(compiled.cubin())?;
    let mut found = sass_checks::findings(&compiled, Some(&sass));
    found.extend(sass_checks::in_counts(
        &sass,
        &expected::instructions(pipeline),
    ));
    let facts = &compiled.facts[0];
    // The ceiling of 384 threads: setmaxnreg reallocates registers from there.
    if facts.registers > 168 || facts.threads != Some(source.threads) {
        found.push(format!("{facts:?}"));
    }
    let parameters = parameters(&source);
    if facts.parameters != parameters || facts.parameter_count as usize != source.params.len() {
        found.push(format!(
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
    Some(found)
}

/// Bytes of the parameters as the host lays them out. They start at 0x210 of the constant bank, and are aligned there.
fn parameters(source: &cuda::CudaSource) -> u32 {
    const BASE: u32 = 0x210;
    let end = source.params.iter().fold(BASE, |at: u32, param| {
        let (bytes, align) = match param {
            cuda::Param::Map { .. } => (128, 128),
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

pub fn all_pass(cases: &[(Program, Variant)]) {
    let mut wrong = Vec::new();
    for (program, variant) in cases {
        let name = format!("{} {variant}", program.name);
        let Some(found) = passes(&name, &checked(program, variant)) else {
            return;
        };
        wrong.extend(found.into_iter().map(|found| format!("{name}: {found}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
