//! Our side of a measurement: one schedule's kernels, or a family's candidates.

use super::apart::Taken;
use super::candidates::Candidates;
use super::family::FamilyCandidates;
use super::setup::Setup;
use crate::args::Request;
use crate::suite::Case;
use counterflow_codegen::variant::Variant;
use counterflow_emitter::CudaSource;
use counterflow_runtime::Error;

pub(super) enum Ours<'a> {
    Schedule(Candidates<'a>),
    Family(FamilyCandidates<'a>),
}

impl<'a> Ours<'a> {
    pub(super) fn new(request: &'a Request, base: &Variant) -> Result<Ours<'a>, Error> {
        let options = &request.bench;
        match &request.family {
            Some(family) => FamilyCandidates::new(family, base, options).map(Ours::Family),
            None if !options.candidates.is_empty() => Err(Error::Usage {
                what: format!("--candidates for {}", request.program.name),
                legal: "families have candidates; a schedule has --variants".into(),
            }),
            None => Candidates::new(&request.program, base.clone(), options).map(Ours::Schedule),
        }
    }

    /// Chooses for the next product. Gives the first rejection, if any.
    pub(super) fn choose(&mut self, case: &Case, setup: &Setup) -> Result<Option<Error>, Error> {
        match self {
            Ours::Schedule(candidates) => candidates.choose(case, setup),
            Ours::Family(candidates) => candidates.choose(case, setup),
        }
    }

    /// Ours for a product, by its index.
    pub(super) fn take(&self, at: usize, case: &Case, setup: &Setup) -> Result<Taken<'_>, Error> {
        match self {
            Ours::Schedule(candidates) => Ok(Taken {
                ours: candidates.take(at, case, setup)?,
                apart: Vec::new(),
            }),
            Ours::Family(candidates) => candidates.take(at, case, setup),
        }
    }

    /// As [`Candidates::plain`]. A family has none: its schedules have.
    pub(super) fn plain(&self) -> Result<Option<(String, Candidates<'a>)>, Error> {
        match self {
            Ours::Schedule(candidates) => candidates.plain(),
            Ours::Family(_) => Ok(None),
        }
    }

    /// The candidates' names for a product, by its index.
    pub(super) fn names(&self, at: usize) -> String {
        match self {
            Ours::Schedule(candidates) => candidates.names(at),
            Ours::Family(candidates) => candidates.names(at),
        }
    }

    /// The texts of all chosen kernels.
    pub(super) fn sources(&self) -> Result<Vec<CudaSource>, Error> {
        match self {
            Ours::Schedule(candidates) => candidates.sources(),
            Ours::Family(candidates) => candidates.sources(),
        }
    }

    /// Choice of an op of a family, and its reason, product by product.
    pub(super) fn whys(&self) -> &[String] {
        match self {
            Ours::Schedule(_) => &[],
            Ours::Family(candidates) => &candidates.whys,
        }
    }
}
