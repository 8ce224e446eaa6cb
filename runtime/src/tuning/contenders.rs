//! Variants of a schedule that are worth a measurement.

use crate::error::Error;
use crate::tuned::{Ranked, combinations, moves, shortlist};
use crate::warps::warps;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::{Program, Setting};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use std::collections::BTreeMap;

/// A variant of a schedule.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    /// All choices settled.
    pub choices: BTreeMap<String, Setting>,
    /// The model's time of a launch.
    pub seconds: f64,
}

/// The [shortlist] of a schedule's variants, the model's favourite first. Choices that `base` settles stay. Rejected ones are
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
    let kernels: Vec<_> = kernels.iter().collect();
    // A kernel that cannot be made would keep another one from the list.
    let mut fits = |ranked: &Ranked| Ok(warps(kernels[ranked.which]).map(drop)?);
    let list = shortlist(&kernels, (shape, machine), most, &mut fits);
    let taken = list.kernels.into_iter().map(|ranked| Contender {
        choices: choices[ranked.which].clone(),
        seconds: ranked.seconds,
    });
    taken.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedules::{gather_of_choices, product_of_choices};
    use std::collections::BTreeSet;

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
        let of_kind = |name: &str| name.ends_with("tiles") || name.ends_with("ping_pong");
        let kind = |one: &Contender| -> Vec<Setting> {
            let choices = one.choices.iter().filter(|(name, _)| of_kind(name));
            choices.map(|(_, setting)| *setting).collect()
        };
        let kinds: Vec<_> = few.iter().map(kind).collect();
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

    fn settings<'a>(of: &'a Contender, names: &[&str]) -> Vec<&'a Setting> {
        let choices = of.choices.iter();
        let named = choices.filter(|(name, _)| names.iter().any(|end| name.ends_with(end)));
        named.map(|(_, setting)| setting).collect()
    }

    /// Where each CTA has one tile, ping-pong is no other kind; parts of K are.
    #[test]
    fn of_few_rows_tiles_and_parts_of_k_come_before_ping_pong() {
        let machine = Machine::h100();
        let (program, base) = (product_of_choices(), Variant::new(1));
        let kinds = |shape: Shape, most| -> Vec<String> {
            let few = contenders(&program, &base, (&shape, &machine), most, &|_| Ok(()));
            few.iter()
                .map(|one| format!("{:?}", settings(one, &["tiles", "split"])))
                .collect()
        };
        // Three tiles have 128 CTAs, each with one.
        let four = kinds(Shape::new(1, 8192, 4096), 4);
        let distinct: BTreeSet<_> = four.iter().collect();
        assert_eq!((four.len(), distinct.len()), (4, 4), "{four:?}");
        let parts = |kinds: &[String], of: &str| kinds.iter().any(|kind| kind.contains(of));
        let few = kinds(Shape::new(1, 5120, 8192), 8);
        assert!(parts(&few, "One(2)") && parts(&few, "One(4)"), "{few:?}");
    }

    /// Of few rows the model prefers CTAs that share operands and split K at once, and such kernels do not exist yet.
    #[test]
    fn every_contender_has_a_kernel() {
        let machine = Machine::h100();
        let shape = Shape::new(1, 5120, 8192);
        let (program, base) = (product_of_choices(), Variant::new(1));
        let of = (&shape, &machine);
        let few = contenders(&program, &base, of, 8, &|_| Ok(()));
        assert_eq!(few.len(), 8, "others come in their place");
        for one in few {
            let choices = one.choices.clone();
            let variant = Variant {
                choices,
                ..base.clone()
            };
            let kernel = lower(&program, &variant).and_then(verify::kernel);
            let kernel = kernel.expect("a meaning");
            assert!(verify::warps(&kernel).is_ok(), "{variant}");
        }
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
