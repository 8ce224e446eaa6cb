//! Variants of a schedule that are worth a measurement.

use crate::error::Error;
use crate::tuned::{Ranked, Ranking, alike, combinations, moves};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::program::{Program, Setting};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use std::collections::BTreeMap;

/// Multiple of its favourite's time beyond which the model's candidates are not measured. The model was wrong by up
/// to 1.5 on cards that it was not fitted to.
const SLOWEST: f64 = 1.6;
/// So many of the model's favourites are looked at.
const LOOKED_AT: usize = 256;

/// A variant of a schedule.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    /// All choices settled.
    pub choices: BTreeMap<String, Setting>,
    /// The model's time of a launch.
    pub seconds: f64,
}

/// Up to `most` variants of a schedule, the model's favourite first: the best of each kind of tile, then the best of those that
/// differ from them in anything but the order of tiles, then other orders. Choices that `base` settles stay. Rejected ones are
/// left out, so there may be none. So are those that need multicast: nothing measures them by itself.
pub(crate) fn contenders(
    program: &Program,
    base: &Variant,
    (shape, machine): (&Shape, &Machine),
    most: usize,
    admits: &dyn Fn(&Checked<Kernel>) -> Result<(), Error>,
) -> Vec<Contender> {
    // Without communication every rank does the same, so one is looked at.
    let world = if moves(program) { base.world } else { 1 };
    let all = combinations(program, base, &BTreeMap::new());
    let lowered = all.into_iter().filter_map(|variant| {
        let seen = Variant {
            world,
            ..variant.clone()
        };
        let kernel = lower(program, &seen).and_then(verify::kernel).ok()?;
        admits(&kernel).ok()?;
        if kernel.needs_multicast() {
            return None;
        }
        Some((variant.choices, kernel))
    });
    let (choices, kernels): (Vec<_>, Vec<_>) = lowered.unzip();
    let mut ranking = Ranking::new(&kernels, shape, machine);
    let Some(first) = ranking.next() else {
        return Vec::new();
    };
    let limit = SLOWEST * first.seconds;
    let near = ranking.take_while(|ranked| ranked.seconds <= limit);
    let ranked: Vec<Ranked> = std::iter::once(first).chain(near).take(LOOKED_AT).collect();
    let of = |at: usize| (&*kernels[ranked[at].which], &ranked[at]);
    let new_kind = |at: usize, taken: &[usize]| {
        let own = kind(&choices[ranked[at].which]);
        let mut known = taken.iter();
        known.all(|other| kind(&choices[ranked[*other].which]) != own)
    };
    let unlike = |at: usize, taken: &[usize]| {
        let mut known = taken.iter();
        known.all(|other| !alike(of(*other), of(at)))
    };
    let mut taken: Vec<usize> = Vec::new();
    let mut take = |wanted: &dyn Fn(usize, &[usize]) -> bool| {
        for at in 0..ranked.len() {
            if taken.len() < most && !taken.contains(&at) && wanted(at, &taken) {
                taken.push(at);
            }
        }
    };
    take(&new_kind);
    take(&unlike);
    take(&|_, _| true);
    taken.sort_unstable();
    let taken = taken.into_iter().map(|at| Contender {
        choices: choices[ranked[at].which].clone(),
        seconds: ranked[at].seconds,
    });
    taken.collect()
}

/// The choices of tiles, and of how warpgroups share them: what decides how much is read, and from where.
fn kind(choices: &BTreeMap<String, Setting>) -> Vec<(&String, &Setting)> {
    let of_kind = |name: &str| name.ends_with("tiles") || name.ends_with("ping_pong");
    choices.iter().filter(|(name, _)| of_kind(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedules::gather_of_choices;

    fn found(most: usize) -> Vec<Contender> {
        let machine = Machine::h200();
        let shape = Shape::new(4096, 4096, 4096);
        contenders(
            &gather_of_choices(false),
            &Variant::new(2),
            (&shape, &machine),
            most,
            &|_| Ok(()),
        )
    }

    #[test]
    fn kinds_of_tiles_come_before_orders_of_one() {
        let few = found(3);
        let kinds: Vec<_> = few.iter().map(|one| kind(&one.choices)).collect();
        assert_eq!(kinds.len(), 3);
        for (at, own) in kinds.iter().enumerate() {
            assert!(!kinds[..at].contains(own), "{kinds:?}");
        }
        let more = found(6);
        assert!(few.iter().all(|one| {
            let mut more = more.iter();
            more.any(|other| other.choices == one.choices)
        }));
        assert!(more.len() > 3 && more.is_sorted_by(|a, b| a.seconds <= 1.01 * b.seconds));
    }

    #[test]
    fn what_is_not_admitted_is_no_contender() {
        let machine = Machine::h200();
        let shape = Shape::new(512, 512, 512);
        let none = contenders(
            &gather_of_choices(false),
            &Variant::new(2),
            (&shape, &machine),
            4,
            &|kernel| {
                Err(Error::Usage {
                    what: kernel.name.clone(),
                    legal: "none".into(),
                })
            },
        );
        assert!(none.is_empty());
    }
}
