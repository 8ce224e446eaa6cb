//! Code of a rank's GPU: machine code, or the plan itself on an emulated GPU, for which nothing is compiled.

use super::cells::Cells;
use super::compile::{compile, compile_all};
use crate::communicator::Communicator;
use crate::cuda::{Function, Module};
use crate::error::Error;
use crate::group::{Awaited, Names};
use crate::jit::{self, Compiler};
use crate::low_latency::{self, Collective, Sizes};
use crate::slots;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::{Kernel, OpKind, visit};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::verify::Checked;
use counterflow_codegen::warp::Pipeline;
use counterflow_emitter::{self as cuda, CudaSource, Site};
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
    /// An exchange of few rows in place of the schedule's kernel. On an emulated GPU it has no function.
    LowLatency {
        largest: Sizes,
        dtype: Dtype,
        function: Option<Function>,
    },
}

/// A kernel's text, and its probes if the compiler is to trace.
fn text(compiler: &Compiler, pipeline: &Checked<Pipeline>) -> (CudaSource, Vec<Site>) {
    match compiler.probes().trace {
        true => {
            let traced = cuda::emit_traced(pipeline);
            (traced.source, traced.sites)
        }
        false => (cuda::emit(pipeline), Vec::new()),
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
    /// Compiles and loads, unless the rank's GPU is emulated: then it compiles at most, where the cache is to be filled. Without a compiler it
    /// finds this machine's.
    pub fn load(
        rank: &Communicator,
        compiler: Option<&Compiler>,
        pipeline: &Checked<Pipeline>,
    ) -> Result<Code, Error> {
        rank.own().loads();
        if rank.gpu().is_emulated() {
            let kernel = &pipeline.kernel;
            if rank.fills()? && !kernel.needs_multicast() {
                let compiler = jit::filling()?;
                compile(&compiler, &text(&compiler, pipeline).0)?;
            }
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

    /// As [`Code::load`], of an exchange whose largest launch has that plan.
    pub fn low_latency(
        rank: &Communicator,
        compiler: Option<&Compiler>,
        collective: Collective,
        (kernel, largest): (&Kernel, &Plan),
    ) -> Result<Code, Error> {
        let (sizes, _) = Sizes::of_plan(collective, kernel, largest)?;
        sizes.are_few()?;
        collective.admits(kernel)?;
        let dtype = collective.dtype(kernel)?;
        let compile = || {
            let found;
            let compiler = match compiler {
                Some(compiler) => compiler,
                None => {
                    found = Compiler::find()?;
                    &found
                }
            };
            if !rank.gpu().is_emulated() {
                rank.gpu().cuda()?.must_be_hopper()?;
            }
            low_latency::compile_exchange(compiler, collective, sizes.world, dtype)
        };
        let module = rank.load(compile)?;
        let function = module.map(|module| module.function(low_latency::NAME, 0));
        Ok(Code::LowLatency {
            largest: sizes,
            dtype,
            function: function.transpose()?,
        })
    }

    /// Names for the stall records of that kernel.
    pub fn names(&self, pipeline: &Pipeline, cells: &Cells) -> Names {
        match self {
            Code::Cuda { source, .. } => names(pipeline, (&source.roles, &source.waits), cells),
            Code::Emulated { roles, waits } => names(pipeline, (roles, waits), cells),
            Code::LowLatency { largest, .. } => slots::names(&pipeline.kernel.name, largest.world),
        }
    }

    /// The probes of a traced kernel; none of others.
    pub fn sites(&self) -> &[Site] {
        match self {
            Code::Cuda { sites, .. } => sites,
            Code::Emulated { .. } | Code::LowLatency { .. } => &[],
        }
    }

    /// The loaded function, which must stay until its launches are done.
    pub fn function(&self) -> Option<&Function> {
        match self {
            Code::Cuda { function, .. } => Some(function),
            Code::LowLatency { function, .. } => function.as_ref(),
            Code::Emulated { .. } => None,
        }
    }
}

/// Names for stall records of this kernel.
fn names(pipeline: &Pipeline, (roles, waits): (&[String], &[String]), cells: &Cells) -> Names {
    let kernel = &pipeline.kernel;
    let barriers = waits.len() - kernel.counters.len();
    let waits = waits.iter().enumerate().map(|(what, name)| {
        let counter = what.checked_sub(barriers);
        let mut at = None;
        for role in kernel.roles.iter().filter(|_| counter.is_some()) {
            visit(&role.body, &mut |op| {
                if let OpKind::Wait { cells, .. } = &op.kind
                    && Some(cells.counter.index()) == counter
                {
                    let loc = kernel.loc(op.id);
                    at.get_or_insert_with(|| format!("{}:{}", loc.file(), loc.line()));
                }
            });
        }
        Awaited {
            name: name.clone(),
            first: counter.map_or(0, |counter| cells.at(counter)),
            at,
        }
    });
    Names {
        kernel: kernel.name.clone(),
        roles: roles.to_vec(),
        waits: waits.collect(),
    }
}
