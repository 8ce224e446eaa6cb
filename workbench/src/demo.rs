//! `demo`: prove, run and predict, on one page.

use super::args::Request;
use super::outcome::Outcome;
use super::render::Console;
use super::{check, predict, ready, run};
use counterflow_runtime::Error;

pub(super) fn demo(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    let request = &run::settled(request, console)?;
    let ready = ready::ready(request, &request.shape, console)?;
    let mut fields = check::proven(request, &ready, console);
    console.say("");
    let Outcome { good, fields: ran } = run::on_device(request, &ready, console)?;
    fields.extend(ran);
    console.say("");
    fields.extend(predict::timeline(request, &ready, console)?);
    if !console.is_json() && request.shape.m < 4096 {
        predict::at_scale(request, &ready.kernel, console);
    }
    Ok(Outcome { good, fields })
}
