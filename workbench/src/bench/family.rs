//! A family's candidates, product by product: the one that its op would be, or a few variants of each.

use super::apart::{Apart, Taken};
use super::candidates::Candidates;
use super::setup::Setup;
use super::variants::Planned;
use crate::args::{Many, Options};
use crate::suite::Case;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_emitter::CudaSource;
use counterflow_runtime::Error;
use counterflow_runtime::family::{self, Candidate, Family};

/// Favourites of each stage that take part, where all candidates do and nobody says otherwise.
const FEW: usize = 2;

/// One candidate for a product.
struct One {
    candidate: usize,
    /// Index of each stage's kernel.
    stages: Vec<usize>,
    /// True if it is a candidate of the measurement, or only says which tensors there are.
    asked: bool,
}

pub(super) struct FamilyCandidates<'a> {
    family: &'a Family,
    base: Variant,
    /// None: as an op chooses.
    few: Option<usize>,
    /// The candidates that take part.
    allowed: Vec<usize>,
    /// The kernels of each candidate's stages.
    kernels: Vec<Vec<Candidates<'a>>>,
    taken: Vec<Vec<One>>,
    /// Reason of an op's choice, product by product.
    pub whys: Vec<String>,
}

impl<'a> FamilyCandidates<'a> {
    pub(super) fn new(
        family: &'a Family,
        base: &Variant,
        given: &Options,
    ) -> Result<FamilyCandidates<'a>, Error> {
        if !given.open.is_empty() {
            return Err(Error::Usage {
                what: "a choice with several values for a family".into(),
                legal: "measure one of its schedules, or the model's favourites of each: --candidates all --variants 4"
                    .into(),
            });
        }
        let names: Vec<String> = family.candidates().iter().map(Candidate::name).collect();
        let wanted = |name: &String| given.candidates.contains(name);
        let all = given.candidates.iter().any(|name| name == "all");
        let unknown = |name: &&String| *name != "all" && !names.contains(name);
        if let Some(unknown) = given.candidates.iter().find(unknown) {
            return Err(Error::Usage {
                what: format!("{} has no candidate `{unknown}`", family.name()),
                legal: format!("all, {}", names.join(", ")),
            });
        }
        let every = all || given.candidates.is_empty();
        let allowed = (0..names.len()).filter(|at| every || wanted(&names[*at]));
        let asked = !given.candidates.is_empty() || given.sweep || given.variants.is_some();
        let few = match given.variants {
            Some(Many::Best(few)) => few,
            None => FEW,
            Some(Many::All) => {
                return Err(Error::Usage {
                    what: "--variants all for a family".into(),
                    legal: "give a number: --variants 4".into(),
                });
            }
        };
        let kernels = family.candidates().iter().map(|candidate| {
            let stages = candidate.stages().iter();
            stages.map(|stage| Candidates::stage(stage, base)).collect()
        });
        Ok(FamilyCandidates {
            family,
            base: base.clone(),
            few: asked.then_some(few),
            allowed: allowed.collect(),
            kernels: kernels.collect(),
            taken: Vec::new(),
            whys: Vec::new(),
        })
    }

    /// Chooses for the next product. Gives the first rejection, if any.
    pub(super) fn choose(&mut self, case: &Case, setup: &Setup) -> Result<Option<Error>, Error> {
        let shape = of(case);
        let sms = |program: &_| setup.machine(program).sms;
        let tables = &setup.tables;
        let chosen = family::choose(tables, setup.gpu(), self.family, &self.base, &shape, sms)?;
        self.whys
            .push(format!("{case}: {}, {}", chosen.name, chosen.why));
        let mut taken = Vec::new();
        let mut refused = None;
        match self.few {
            None => taken.push(self.one(chosen.candidate, &chosen.variants, true)?),
            Some(few) => {
                for candidate in self.allowed.clone() {
                    match self.several(candidate, few, case, setup) {
                        Ok(several) => taken.extend(several),
                        Err(error) => _ = refused.get_or_insert(error),
                    }
                }
            }
        }
        if taken.is_empty() {
            return Err(refused.unwrap_or_else(|| Error::Usage {
                what: format!("{} at {case}", self.family.name()),
                legal: "another product".into(),
            }));
        }
        // Its kernel says which tensors there are.
        if taken.iter().all(|one| one.candidate != 0) {
            let first = self.several(0, 1, case, setup)?;
            taken.extend(first.into_iter().map(|one| One {
                asked: false,
                ..one
            }));
        }
        self.taken.push(taken);
        Ok(refused)
    }

    fn one(&mut self, candidate: usize, variants: &[Variant], asked: bool) -> Result<One, Error> {
        let stages = self.kernels[candidate].iter_mut().zip(variants);
        let stages = stages.map(|(stage, variant)| stage.built(variant));
        Ok(One {
            candidate,
            stages: stages.collect::<Result<_, _>>()?,
            asked,
        })
    }

    /// The first variants of all stages, then the others of each beside the first ones of the rest.
    fn several(
        &mut self,
        candidate: usize,
        few: usize,
        case: &Case,
        setup: &Setup,
    ) -> Result<Vec<One>, Error> {
        let stages = self.family.candidates()[candidate].stages();
        let mut all = stages.iter();
        all.try_for_each(|stage| stage.admits(self.base.world, &of(case)))?;
        let kernels = self.kernels[candidate].iter_mut().zip(stages);
        let each = kernels.map(|(kernels, stage)| {
            let machine = setup.machine(stage.program());
            kernels.favourites(few, &staged(case, stage), setup, &machine)
        });
        let each: Vec<Vec<usize>> = each.collect::<Result<_, _>>()?;
        let counts: Vec<usize> = each.iter().map(Vec::len).collect();
        let all = family::mixtures(&counts).into_iter().map(|which| {
            let chosen = each.iter().zip(which).map(|(of, which)| of[which]);
            chosen.collect()
        });
        let one = |stages| One {
            candidate,
            stages,
            asked: true,
        };
        Ok(all.map(one).collect())
    }

    /// The candidates of a product, by its index.
    pub(super) fn take(&self, at: usize, case: &Case, setup: &Setup) -> Result<Taken<'_>, Error> {
        let mut taken = Taken::default();
        // The first candidate's first: all others are described by its tensors.
        let mut ones: Vec<&One> = self.taken[at].iter().collect();
        ones.sort_by_key(|one| one.candidate != 0);
        for one in ones {
            let candidate = &self.family.candidates()[one.candidate];
            let kernels = self.kernels[one.candidate].iter().zip(candidate.stages());
            let planned = kernels.zip(&one.stages).map(|((kernels, stage), which)| {
                let machine = setup.machine(stage.program());
                kernels.planned(*which, &staged(case, stage), &machine)
            });
            let mut stages: Vec<Planned<'_>> = planned.collect::<Result<_, _>>()?;
            let each: Vec<_> = stages
                .iter()
                .map(|stage| stage.built.choices.clone())
                .collect();
            let choices = one.asked.then(|| candidate.named_choices(&each));
            if each.len() == 1 {
                taken.ours.extend(stages.drain(..).map(|only| Planned {
                    recorded: choices.clone(),
                    ..only
                }));
                continue;
            }
            let front: &Kernel = &taken.ours[0].built.kernel;
            let kernels: Vec<&Kernel> = stages.iter().map(|stage| &*stage.built.kernel).collect();
            let sources = family::sources(candidate, front, &kernels)?;
            let names: Vec<String> = stages.iter().map(Planned::name).collect();
            taken.apart.push(Apart {
                name: names.join(", then "),
                choices,
                sources,
                stages,
            });
        }
        Ok(taken)
    }

    /// The candidates' names for a product, by its index.
    pub(super) fn names(&self, at: usize) -> String {
        let all = self.taken[at].iter();
        let names = all.map(|one| self.family.candidates()[one.candidate].name());
        names.collect::<Vec<_>>().join("; ")
    }

    /// The texts of all chosen kernels.
    pub(super) fn sources(&self) -> Result<Vec<CudaSource>, Error> {
        let mut sources = Vec::new();
        for (candidate, kernels) in self.kernels.iter().enumerate() {
            for (stage, kernels) in kernels.iter().enumerate() {
                let all = self.taken.iter().flatten();
                let own = all.filter(|one| one.candidate == candidate);
                sources.extend(kernels.sources_of(own.map(|one| one.stages[stage]))?);
            }
        }
        Ok(sources)
    }
}

fn of(case: &Case) -> Shape {
    let [m, n, k] = case.size;
    Shape::new(m, n, k)
}

/// A product as a stage sees it.
fn staged(case: &Case, stage: &family::Stage) -> Case {
    let Shape { m, n, k, .. } = stage.shape(&of(case));
    Case {
        size: [m, n, k],
        ..case.clone()
    }
}
