//! A cache that emulated ranks fill, for GPUs that are elsewhere or later.

use super::Compiler;
use crate::error::Error;
use std::sync::OnceLock;

/// The variable that has emulated ranks compile.
const VARIABLE: &str = "COUNTERFLOW_FILL";

/// The most ranks of a communicator whose emulated ranks compile what they would load on GPUs: the number in `COUNTERFLOW_FILL`. None
/// compile by default.
///
/// # Errors
/// [`Error::Usage`] for another text than a number, or a number, a colon and a GPU's name.
pub(crate) fn ranks_that_fill() -> Result<u32, Error> {
    let Some(text) = std::env::var_os(VARIABLE) else {
        return Ok(0);
    };
    let parts = text.to_str().map(parts);
    let number = parts.and_then(|(number, _)| number.parse().ok());
    number.ok_or_else(|| Error::Usage {
        what: format!("{VARIABLE}={}", text.display()),
        legal: "give the most ranks of a communicator whose kernels are compiled ahead, and behind a colon the name of the GPU \
                whose winners and profile choose, such as \"2:NVIDIA H200\"; or unset it"
            .into(),
    })
}

/// The GPU for which emulated ranks choose: what `COUNTERFLOW_FILL` names behind its number. None: for none in particular.
pub(crate) fn gpu_that_is_filled_for() -> Option<&'static str> {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    let name = NAME.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        parts(&text).1.map(str::to_owned)
    });
    name.as_deref()
}

/// The number, and the name behind it.
fn parts(text: &str) -> (&str, Option<&str>) {
    match text.split_once(':') {
        Some((number, name)) => (number, Some(name)),
        None => (text, None),
    }
}

/// This machine's compiler, whose cache is sealed for machines without one.
///
/// # Errors
/// As [`Compiler::find`] and [`Compiler::seal`].
pub(crate) fn filling() -> Result<Compiler, Error> {
    static SEALED: OnceLock<()> = OnceLock::new();
    let compiler = Compiler::find()?;
    if SEALED.get().is_none() {
        compiler.seal()?;
        SEALED.get_or_init(|| ());
    }
    Ok(compiler)
}
