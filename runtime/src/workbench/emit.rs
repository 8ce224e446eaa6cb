//! `emit`: the kernel as CUDA text, whole: the prelude stands where the checked-in kernels include it.

use super::args::Request;
use super::render::Console;
use super::{Outcome, check};
use crate::error::Error;
use counterflow_codegen::cuda::{self, CudaSource};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::pipeline::{self, Pipeline};
use counterflow_codegen::verify::Checked;
use serde_json::{Map, json};

pub(super) fn emit(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    let ready = check::ready(request, &request.shape, console)?;
    let source = source(&ready.kernel)?;
    let include = format!("#include \"{}\"", cuda::PRELUDE);
    let whole = source
        .text
        .replacen(&include, cuda::prelude().trim_end(), 1);
    console.say(whole.trim_end());
    let fields = json!({
        "entry": source.entry,
        "target": source.arch,
        "threads": source.threads,
        "shared_bytes": source.shared_bytes,
        "comm_ctas": source.comm_ctas,
        "parameters": source.params.iter().map(|param| format!("{param:?}")).collect::<Vec<_>>(),
        "text": whole,
    });
    Ok(Outcome::good(
        fields.as_object().cloned().unwrap_or_else(Map::new),
    ))
}

/// The text of a checked kernel, by way of its checked warp level.
pub(super) fn source(kernel: &Checked<Kernel>) -> Result<CudaSource, Error> {
    Ok(cuda::emit(&pipeline(kernel)?))
}

/// Its checked warp level.
pub(super) fn pipeline(kernel: &Checked<Kernel>) -> Result<Checked<Pipeline>, Error> {
    Ok(pipeline::checked(kernel)?)
}
