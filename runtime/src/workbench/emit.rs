//! `emit`: the kernel's CUDA text. Not built yet, but what would be emitted is checked all the same.

use super::args::Request;
use super::render::Console;
use super::{Outcome, check};
use crate::error::Error;

pub(super) fn emit(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    check::ready(request, &request.shape, console)?;
    Err(Error::NotYet {
        what: format!(
            "{} passes every check, but this build emits no CUDA",
            request.program.name
        ),
        help: "DUMP=kernel,plan shows the checked kernel and its numbers".into(),
    })
}
