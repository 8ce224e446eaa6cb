//! Compiles what is emitted and passes every SASS check, for the test binaries that do.

#[path = "../../runtime/tests/common/mod.rs"]
pub mod nvidia;

use crate::parallel::in_parallel;
use counterflow::codegen::cuda::{self, CudaSource, expected};
use counterflow::codegen::lower::lower;
use counterflow::codegen::sm90;
use counterflow::codegen::verify;
use counterflow::codegen::warp::Pipeline;
use counterflow::jit::sass::Sass;
use counterflow::jit::{Compiled, Compiler, sass_checks};
use counterflow::{Checked, Program, Variant, launch};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Kernels that are disassembled together.
const AT_ONCE: usize = 32;

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

/// A kernel to compile, and what its machine code must have. What the checks find depends on nothing else.
#[derive(Debug)]
struct Asked {
    source: CudaSource,
    instructions: Vec<(&'static str, u32)>,
}

impl Asked {
    fn new((program, variant): &(Program, Variant)) -> Asked {
        let pipeline = checked(program, variant);
        Asked {
            source: cuda::emit(&pipeline),
            instructions: expected::instructions(&pipeline),
        }
    }

    fn key(&self) -> blake3::Hash {
        blake3::hash(format!("{self:?}").as_bytes())
    }

    fn compiled(&self, compiler: &Compiler) -> Compiled {
        let compiled = launch::compile(compiler, &self.source);
        let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
        println!(
            "{:40} {:3} registers, {} bytes shared, {:.0} ms",
            self.source.entry,
            compiled.facts[0].registers,
            self.source.shared_bytes,
            compiled.took.as_secs_f64() * 1000.0
        );
        compiled
    }

    fn findings(&self, compiled: &Compiled, sass: &Sass) -> Findings {
        let slow = sass_checks::findings(compiled, Some(sass));
        let mut wrong = sass_checks::in_counts(sass, &self.instructions);
        let facts = &compiled.facts[0];
        // The ceiling of 384 threads: setmaxnreg reallocates registers from there.
        if facts.registers > 168 || facts.threads != Some(self.source.threads) {
            wrong.push(format!("{facts:?}"));
        }
        let parameters = parameters(&self.source);
        let count = self.source.params.len();
        if facts.parameters != parameters || facts.parameter_count as usize != count {
            wrong.push(format!(
                "{} bytes of parameters, but the host passes {parameters}",
                facts.parameters
            ));
        }
        Findings { slow, wrong }
    }
}

/// Bytes of the parameters as the host lays them out. They start at 0x210 of the constant bank, and are aligned there.
fn parameters(source: &cuda::CudaSource) -> u32 {
    const BASE: u32 = 0x210;
    let end = source.params.iter().fold(BASE, |at: u32, param| {
        let (bytes, align) = match param {
            cuda::Param::Map { .. } => (128, 128),
            cuda::Param::EveryCopy { .. } => (cuda::EVERY_COPY_BYTES as u32, 8),
            cuda::Param::EachRank { .. } => (cuda::EACH_RANK_BYTES as u32, 8),
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

/// What the checks find in each case, with its name. `None` where there is no compiler. Several tests have some kernels in
/// common: each is compiled once.
pub fn each(cases: &[(Program, Variant)]) -> Option<Vec<Findings>> {
    static FOUND: LazyLock<Mutex<HashMap<blake3::Hash, Findings>>> = LazyLock::new(Mutex::default);
    let found = || FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let compiler = nvidia::caching_compiler()?;
    let asked = in_parallel(cases.len(), |case| Asked::new(&cases[case]));
    let fresh: HashMap<blake3::Hash, &Asked> = {
        let found = found();
        let keyed = asked.iter().map(|asked| (asked.key(), asked));
        keyed.filter(|(key, _)| !found.contains_key(key)).collect()
    };
    let fresh: Vec<(blake3::Hash, &Asked)> = fresh.into_iter().collect();
    let compiled = in_parallel(fresh.len(), |at| fresh[at].1.compiled(&compiler));
    let compiled: Vec<_> = compiled.chunks(AT_ONCE).collect();
    let sass = in_parallel(compiled.len(), |at| {
        let cubins: Vec<&[u8]> = compiled[at].iter().map(Compiled::cubin).collect();
        nvidia::sass_of_all(&cubins)
    });
    let sass: Vec<Vec<Sass>> = sass.into_iter().collect::<Option<_>>()?;
    let judged = compiled
        .concat()
        .into_iter()
        .zip(sass.into_iter().flatten());
    for ((key, asked), (compiled, sass)) in fresh.into_iter().zip(judged) {
        let findings = asked.findings(&compiled, &sass);
        found().insert(key, findings);
    }
    let found = found();
    let all = cases.iter().zip(&asked).map(|((program, variant), asked)| {
        let Findings { slow, wrong } = &found[&asked.key()];
        let named = |found: &Vec<String>| {
            let named = found
                .iter()
                .map(|found| format!("{} {variant}: {found}", program.name));
            named.collect()
        };
        Findings {
            slow: named(slow),
            wrong: named(wrong),
        }
    });
    Some(all.collect())
}

pub fn all_pass(cases: &[(Program, Variant)]) {
    let Some(found) = each(cases) else { return };
    let found = found
        .into_iter()
        .flat_map(|Findings { slow, wrong }| [slow, wrong].concat());
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}
