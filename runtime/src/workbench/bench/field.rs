//! The kernels of one schedule that take part, product by product.

use super::options::Options;
use super::setup::Setup;
use super::suite::Case;
use super::variants::{self, Built, Many, Planned};
use crate::error::Error;
use crate::tuned;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;

/// How many of the model's favourites a sweep measures, unless it is said.
const FAVOURITES: Many = Many::Best(6);

/// The kernels of one schedule that may take part.
pub(super) struct Field<'a> {
    program: &'a Program,
    base: Variant,
    built: Vec<Built>,
    many: Option<Many>,
}

impl<'a> Field<'a> {
    /// As the command line says: given choices, all of them or the model's favourites; otherwise what is chosen for
    /// each shape.
    pub(super) fn new(
        program: &'a Program,
        base: Variant,
        given: &Options,
    ) -> Result<Field<'a>, Error> {
        let many = match given.variants {
            Some(many) => Some(many),
            None if given.sweep => Some(FAVOURITES),
            None if !given.open.is_empty() => Some(Many::All),
            None => return Ok(Field::chosen(program, base)),
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
            Some(_) | None => Ok(Field {
                program,
                base,
                built,
                many,
            }),
        }
    }

    /// One variant for each shape: what was measured nearby, or the model's favourite.
    pub(super) fn chosen(program: &'a Program, base: Variant) -> Field<'a> {
        Field {
            program,
            base,
            built: Vec::new(),
            many: None,
        }
    }

    /// Those for one product, and the first refusal, if any.
    pub(super) fn take(
        &mut self,
        case: &Case,
        setup: &Setup,
    ) -> Result<(Vec<Planned<'_>>, Option<Error>), Error> {
        let machine = &setup.machine(self.program);
        if let Some(many) = self.many {
            return Ok(variants::contenders(&self.built, case, machine, many));
        }
        let [m, n, k] = case.size;
        let shape = Shape::new(m, n, k);
        let (tables, gpu) = (&setup.tables, setup.gpu());
        let choice = tuned::select(tables, gpu, self.program, &self.base, &shape, machine)?;
        let same = |built: &Built| built.kernel.variant == choice.variant;
        let at = match self.built.iter().position(same) {
            Some(at) => at,
            None => {
                self.built
                    .push(variants::build(self.program, &choice.variant)?);
                self.built.len() - 1
            }
        };
        Ok((vec![self.built[at].plan(case, machine)?], None))
    }
}
