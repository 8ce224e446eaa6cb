//! Code of a rank's GPU: machine code, or the plan itself on an emulated GPU, for which nothing is compiled.

use super::compile::{compile, compile_all};
use crate::communicator::Communicator;
use crate::cuda::{Function, Module};
use crate::error::Error;
use crate::jit::Compiler;
use counterflow_codegen::cuda::{self, CudaSource, Site};
use counterflow_codegen::target;
use counterflow_codegen::verify::Checked;
use counterflow_codegen::warp::Pipeline;
use tracing::debug;

/// Code that a rank's GPU runs.
#[derive(Debug)]
pub(super) enum Code {
    Cuda {
        source: Box<CudaSource>,
        /// The probes of a traced kernel.
        sites: Vec<Site>,
        function: Function,
    },
    /// The names of roles and of what they wait for, as an emulated kernel numbers them.
    Emulated {
        roles: Vec<String>,
        waits: Vec<String>,
    },
}

/// A kernel's text, and its probes if the compiler is to trace.
fn text(compiler: &Compiler, pipeline: &Checked<Pipeline>) -> (CudaSource, Vec<Site>) {
    match compiler.probes().trace {
        true => {
            let traced = cuda::emit_traced(pipeline);
            (traced.source, traced.sites)
        }
        false => (target::emit(pipeline), Vec::new()),
    }
}

/// Compiles kernels side by side, so that the cache has them. Where one is refused, so will be who loads it.
pub(crate) fn warm<'p>(
    compiler: &Compiler,
    pipelines: impl Iterator<Item = &'p Checked<Pipeline>>,
) {
    let texts = pipelines.map(|pipeline| text(compiler, pipeline).0);
    let texts: Vec<CudaSource> = texts.collect();
    if let Err(error) = compile_all(compiler, &texts) {
        debug!(%error, "a kernel does not compile");
    }
}

impl Code {
    /// Compiles and loads, unless the rank's GPU is emulated. Without a compiler it finds this machine's.
    pub fn load(
        rank: &Communicator,
        compiler: Option<&Compiler>,
        pipeline: &Checked<Pipeline>,
    ) -> Result<Code, Error> {
        if rank.gpu().is_emulated() {
            let kernel = &pipeline.kernel;
            let roles = kernel.roles.iter();
            let waits = kernel.counters.iter();
            return Ok(Code::Emulated {
                roles: roles.map(|role| role.name.clone()).collect(),
                waits: waits.map(|counter| counter.name.clone()).collect(),
            });
        }
        if pipeline.kernel.needs_multicast() {
            rank.must_have_multicast(&pipeline.kernel.name)?;
        }
        let found;
        let compiler = match compiler {
            Some(compiler) => compiler,
            None => {
                found = Compiler::find()?;
                &found
            }
        };
        let (source, sites) = text(compiler, pipeline);
        let compiled = compile(compiler, &source)?;
        let gpu = rank.gpu().cuda()?;
        gpu.must_be_hopper()?;
        let function =
            Module::load(gpu, &compiled)?.function(&source.entry, source.shared_bytes)?;
        Ok(Code::Cuda {
            source: Box::new(source),
            sites,
            function,
        })
    }

    /// The names of its roles, and of what they wait for: barriers, then counters.
    pub fn names(&self) -> (&[String], &[String]) {
        match self {
            Code::Cuda { source, .. } => (&source.roles, &source.waits),
            Code::Emulated { roles, waits } => (roles, waits),
        }
    }

    /// The probes of a traced kernel; none of others.
    pub fn sites(&self) -> &[Site] {
        match self {
            Code::Cuda { sites, .. } => sites,
            Code::Emulated { .. } => &[],
        }
    }

    /// The loaded function, which must stay until its launches are done.
    pub fn function(&self) -> Option<&Function> {
        match self {
            Code::Cuda { function, .. } => Some(function),
            Code::Emulated { .. } => None,
        }
    }
}
