//! The candidate kernels of one schedule, product by product.

use super::setup::Setup;
use super::variants::{self, Built, Planned};
use crate::args::{Many, Options};
use crate::suite::Case;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_emitter::CudaSource;
use counterflow_runtime::Error;
use counterflow_runtime::family::{Collective, Stage};
use counterflow_runtime::tuned;
use counterflow_runtime::tuning::Tuning;
use std::collections::{BTreeMap, BTreeSet};

/// The candidate kernels of one schedule.
pub(super) struct Candidates<'a> {
    program: &'a Program,
    base: Variant,
    built: Vec<Built>,
    many: Option<Many>,
    /// The exchange of few rows that is launched instead of its kernels.
    collective: Option<Collective>,
    build: fn(&Program, &Variant) -> Result<Built, Error>,
    /// For each product, its candidates among those built.
    taken: Vec<Vec<usize>>,
}

impl<'a> Candidates<'a> {
    /// The candidates by the command line: given choices, all, or the model's favourites; otherwise the choice for each
    /// shape.
    pub(super) fn new(
        program: &'a Program,
        base: Variant,
        given: &Options,
    ) -> Result<Candidates<'a>, Error> {
        let many = match given.variants {
            Some(many) => Some(many),
            // As many as an op measures that may take its time.
            None if given.sweep => Some(Many::Best(Tuning::Full.most())),
            None if !given.open.is_empty() => Some(Many::All),
            None => return Ok(Candidates::chosen(program, base)),
        };
        let every = given.variants.is_some() || given.sweep;
        let known = tuned::choices(program);
        if let Some(name) = given
            .open
            .keys()
            .find(|name| !known.contains_key(&name[..]))
        {
            return Err(Error::Usage {
                what: format!("{} has no choice `{name}`", program.name),
                legal: format!(
                    "it has {}",
                    known.into_keys().collect::<Vec<_>>().join(", ")
                ),
            });
        }
        let mut base = base;
        for (name, options) in known {
            if !every
                && !given.open.contains_key(name)
                && let Some(first) = options.first()
            {
                base.choices.entry(name.into()).or_insert(*first);
            }
        }
        let mut built = Vec::new();
        let mut refused = None;
        for variant in tuned::combinations(program, &base, &given.open) {
            match variants::build(program, &variant) {
                Ok(one) => built.push(one),
                Err(error) => {
                    refused.get_or_insert(error);
                }
            }
        }
        match refused {
            Some(error) if built.is_empty() || !every => Err(error),
            Some(_) | None => Ok(Candidates {
                program,
                base,
                built,
                many,
                collective: None,
                build: variants::build,
                taken: Vec::new(),
            }),
        }
    }

    /// One variant for each shape: a measured winner nearby, or the model's favourite.
    pub(super) fn chosen(program: &'a Program, base: Variant) -> Candidates<'a> {
        Candidates {
            program,
            base,
            built: Vec::new(),
            many: None,
            collective: None,
            build: variants::build,
            taken: Vec::new(),
        }
    }

    /// Kernels of a stage of a family's candidate, which may only move data.
    pub(super) fn stage(stage: &'a Stage, base: &Variant) -> Candidates<'a> {
        Candidates {
            build: variants::build_stage,
            collective: stage.collective(),
            ..Candidates::chosen(stage.program(), stage.variant(base))
        }
    }

    /// So many of the model's favourites for a product: which of the kernels. There is one at least.
    pub(super) fn favourites(
        &mut self,
        few: usize,
        case: &Case,
        setup: &Setup,
        machine: &Machine,
    ) -> Result<Vec<usize>, Error> {
        if few == 1 {
            let [m, n, k] = case.size;
            let shape = Shape::new(m, n, k);
            let (tables, gpu) = (&setup.tables, setup.gpu());
            let choice = tuned::select(tables, gpu, self.program, &self.base, &shape, machine)?;
            return Ok(vec![self.built(&choice.variant)?]);
        }
        if self.built.is_empty() {
            let all = tuned::combinations(self.program, &self.base, &BTreeMap::new());
            let built = all
                .iter()
                .map(|variant| (self.build)(self.program, variant));
            self.built = built.filter_map(Result::ok).collect();
        }
        let (mut found, refused) =
            variants::contenders(&self.built, case, machine, Many::Best(few));
        found.truncate(few);
        match found.is_empty() {
            true => Err(refused.unwrap_or_else(|| Error::Usage {
                what: format!("{} at {case}", self.program.name),
                legal: "another product".into(),
            })),
            false => Ok(found),
        }
    }

    /// Chooses for the next product. Gives the first rejection, if any.
    pub(super) fn choose(&mut self, case: &Case, setup: &Setup) -> Result<Option<Error>, Error> {
        let machine = &setup.machine(self.program);
        if let Some(many) = self.many {
            let (taken, refused) = variants::contenders(&self.built, case, machine, many);
            return match refused {
                Some(error) if taken.is_empty() => Err(error),
                refused => {
                    self.taken.push(taken);
                    Ok(refused)
                }
            };
        }
        let [m, n, k] = case.size;
        let shape = Shape::new(m, n, k);
        let (tables, gpu) = (&setup.tables, setup.gpu());
        let choice = tuned::select(tables, gpu, self.program, &self.base, &shape, machine)?;
        let at = self.built(&choice.variant)?;
        self.taken.push(vec![at]);
        Ok(None)
    }

    /// The candidates of a product, by its index.
    pub(super) fn take(
        &self,
        at: usize,
        case: &Case,
        setup: &Setup,
    ) -> Result<Vec<Planned<'_>>, Error> {
        let machine = &setup.machine(self.program);
        let taken = self.taken[at].iter();
        taken
            .map(|which| self.built[*which].plan(case, machine))
            .collect()
    }

    /// Kernels without the options whose cost is measured, and a name for them; none if there are no such options.
    pub(super) fn plain(&self) -> Result<Option<(String, Candidates<'a>)>, Error> {
        let Some((unlike, base)) = variants::plain(&self.base) else {
            return Ok(None);
        };
        let mut plain = Candidates::chosen(self.program, base);
        for taken in &self.taken {
            let mut same = Vec::new();
            for which in taken {
                let choices = self.built[*which].kernel.variant.choices.clone();
                let variant = Variant {
                    choices,
                    ..plain.base.clone()
                };
                same.push(plain.built(&variant)?);
            }
            plain.taken.push(same);
        }
        Ok(Some((unlike, plain)))
    }

    /// One of the kernels for a product.
    pub(super) fn planned(
        &self,
        which: usize,
        case: &Case,
        machine: &Machine,
    ) -> Result<Planned<'_>, Error> {
        Ok(Planned {
            collective: self.collective,
            ..self.built[which].plan(case, machine)?
        })
    }

    /// Index of that variant's kernel.
    pub(super) fn built(&mut self, variant: &Variant) -> Result<usize, Error> {
        let same = |built: &Built| built.kernel.variant == *variant;
        if let Some(at) = self.built.iter().position(same) {
            return Ok(at);
        }
        self.built.push((self.build)(self.program, variant)?);
        Ok(self.built.len() - 1)
    }

    /// The candidates' names for a product, by its index.
    pub(super) fn names(&self, at: usize) -> String {
        let taken = self.taken[at].iter();
        let names = taken.map(|which| &self.built[*which].name[..]);
        names.collect::<Vec<_>>().join("; ")
    }

    /// The texts of all chosen kernels.
    pub(super) fn sources(&self) -> Result<Vec<CudaSource>, Error> {
        self.sources_of(self.taken.iter().flatten().copied())
    }

    /// The texts of those kernels, each once.
    pub(super) fn sources_of(
        &self,
        which: impl Iterator<Item = usize>,
    ) -> Result<Vec<CudaSource>, Error> {
        // The text of an exchange of low latency is another, and compiles in no time.
        let which = which.filter(|_| self.collective.is_none());
        let each: BTreeSet<usize> = which.collect();
        each.into_iter()
            .map(|which| Ok(counterflow_emitter::emit(self.built[which].pipeline()?)))
            .collect()
    }
}
