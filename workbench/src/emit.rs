//! `emit`: the kernel as one CUDA text. The prelude replaces the `#include` of the checked-in kernels.

use super::args::Request;
use super::outcome::Outcome;
use super::ready;
use super::render::Console;
use counterflow_codegen::verify;
use counterflow_emitter as cuda;
use counterflow_runtime::Error;
use serde_json::{Map, json};

pub(super) fn emit(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    let ready = ready::ready(request, &request.shape, console)?;
    let source = counterflow_emitter::emit(&verify::warps(&ready.kernel)?);
    let whole = cuda::headers(&source)
        .iter()
        .fold(source.text.clone(), |whole, (name, header)| {
            let include = format!("#include \"{name}\"");
            whole.replacen(&include, header.trim_end(), 1)
        });
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
