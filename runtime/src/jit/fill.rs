//! A cache that emulated ranks fill, for GPUs that are elsewhere or later.

use super::Compiler;
use crate::error::Error;
use std::sync::OnceLock;

/// The variable that has emulated ranks compile.
const VARIABLE: &str = "COUNTERFLOW_FILL";

/// The most ranks of a communicator whose emulated ranks compile what they would load on GPUs: a number in `COUNTERFLOW_FILL`. None
/// compile by default.
///
/// # Errors
/// [`Error::Usage`] for another text than a number.
pub(crate) fn ranks_that_fill() -> Result<u32, Error> {
    let Some(text) = std::env::var_os(VARIABLE) else {
        return Ok(0);
    };
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Error::Usage {
        what: format!("{VARIABLE}={}", text.display()),
        legal:
            "give the most ranks of a communicator whose kernels are compiled ahead, or unset it"
                .into(),
    })
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
