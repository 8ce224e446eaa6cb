//! `predict`: the timeline of a checked plan on a machine.

use super::args::Request;
use super::render::Console;
use super::{Outcome, check};
use crate::error::Error;

pub(super) fn predict(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    let _ready = check::ready(request, &request.shape, console)?;
    Err(Error::NotYet {
        what: "predict".into(),
        help: "check".into(),
    })
}
