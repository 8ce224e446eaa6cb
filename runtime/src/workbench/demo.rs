//! `demo`: prove, run and predict, told in one page.

use super::args::Request;
use super::render::Console;
use super::{Outcome, check};
use crate::error::Error;

pub(super) fn demo(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    check::check(request, console)
}
