//! Operands of FP8, quantised as users do it, and the exact products that results are compared with.

mod bounds;
mod exact;
mod mistakes;
mod operands;

#[cfg(test)]
pub(crate) use bounds::Term;
pub(crate) use exact::{Exactly, Got, Narrowed, Scale, Terms};
pub use operands::Pieces;
pub(crate) use operands::{Coded, Matrix, OperandSource, Share};

use counterflow_runtime::Error;
use counterflow_runtime::cuda::{Function, Module};
use counterflow_runtime::driver::{Gpu, Stream};
use counterflow_runtime::jit::{Compiled, Compiler, Source, Target};

const TEXT: &str = concat!(include_str!("../numbers.cu"), include_str!("fp8.cu"));

/// Kernels that make operands and check results on one GPU.
#[derive(Debug)]
pub(crate) struct Fp8 {
    share_codes: Function,
    share_scales: Function,
    join_shards: Function,
    exact: Function,
    widened: Function,
    magnitudes: Function,
    differ: Function,
    stream: Stream,
}

impl Fp8 {
    /// Compiles and loads the kernels, and tests them.
    ///
    /// # Errors
    /// What the compiler or the driver refuses.
    pub(crate) fn load(gpu: &Gpu, stream: &Stream, compiler: &Compiler) -> Result<Fp8, Error> {
        let module = Module::load(gpu.cuda()?, &Fp8::compile(compiler)?)?;
        let fp8 = Fp8 {
            share_codes: module.function("share_codes", 0)?,
            share_scales: module.function("share_scales", 0)?,
            join_shards: module.function("join_shards", 0)?,
            exact: module.function("exact", 0)?,
            widened: module.function("widened", 0)?,
            magnitudes: module.function("magnitudes", 0)?,
            differ: module.function("differ_exact", 0)?,
            stream: stream.clone(),
        };
        fp8.see_mistakes()?;
        fp8.see_missing_terms()?;
        Ok(fp8)
    }

    /// The machine code of all.
    ///
    /// # Errors
    /// What the compiler refuses.
    fn compile(compiler: &Compiler) -> Result<Compiled, Error> {
        compiler.compile(&Source::new("fp8", TEXT), Target::Sm90a)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolkit::compiler;

    #[test]
    fn what_measurements_of_fp8_run_on_the_gpu_compiles() {
        let Some(compiler) = compiler() else { return };
        let compiled = Fp8::compile(&compiler).unwrap_or_else(|error| panic!("{error}"));
        let frames = |name: &str| {
            let mut facts = compiled.facts.iter();
            let found = facts.find(|facts| facts.name == name);
            found.map(|facts| (facts.frame, facts.parameter_count))
        };
        let kernels = [
            ("differ_exact", 21),
            ("exact", 8),
            ("join_shards", 4),
            ("magnitudes", 5),
            ("share_codes", 5),
            ("share_scales", 6),
            ("widened", 5),
        ];
        for (name, parameters) in kernels {
            assert_eq!(frames(name), Some((0, parameters)), "{name}");
        }
    }
}
