//! `run`: several launches on emulated ranks, M changing, each compared with an f64 reference.

use super::args::Request;
use super::render::Console;
use super::{Outcome, check};
use crate::error::Error;

pub(super) fn run(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    request.device.open()?;
    let _ready = check::ready(request, &request.shape, console)?;
    Err(Error::NotYet {
        what: "run".into(),
        help: "check".into(),
    })
}
