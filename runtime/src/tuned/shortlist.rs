//! What is measured, and what wins: one rule for `bench --sweep` and for ops that measure their own candidates.

use super::rank::{Ranked, Ranking, alike};
use crate::error::Error;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Setting;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::verify::Checked;

/// What the model predicts to be slower than this many times its favourite is not measured. The model was wrong by up to 1.5 on
/// cards that it was not fitted to.
const SLOWEST: f64 = 1.6;
/// So many of the model's favourites are looked at.
const LOOKED_AT: usize = 256;
/// Times that differ by less are equal: two runs differ by as much.
const EQUAL: f64 = 1.01;

/// The kernels that are worth a measurement, at most `most`.
///
/// [`shortlist`] has an example.
#[derive(Debug)]
pub struct Shortlist {
    /// In the model's order.
    pub kernels: Vec<Ranked>,
    /// Why the first one that was asked for is not among them.
    pub refused: Option<Error>,
}

/// Up to `most` of the kernels for a shape: the best of each kind, then the best of those that differ from them in anything but the
/// order of tiles, then other orders. A kind is a tile, the number of CTAs that share its K, and, where a CTA has several tiles,
/// whether it is in ping-pong. The model is least sure of tiles and of shared K, and knows little of what caches hold. `fits` is
/// asked before a kernel is taken; what it refuses is left out.
///
/// ```
/// use counterflow::codegen::{lower::lower, verify};
/// use counterflow::tuned::{self, Shortlist};
/// use counterflow::{Error, Machine, Shape, Variant, schedules::ag_gemm};
///
/// let (program, shape, machine) = (ag_gemm(), Shape::new(4096, 1024, 1024), Machine::h200());
/// let variants = [(128, 256), (128, 128)].map(|tiles| Variant::new(2).set("tiles", tiles));
/// let lowered = variants.iter().map(|variant| Ok(verify::kernel(lower(&program, variant)?)?));
/// let kernels = lowered.collect::<Result<Vec<_>, Error>>()?;
/// let all: Vec<_> = kernels.iter().collect();
/// let Shortlist { kernels, .. } = tuned::shortlist(&all, (&shape, &machine), 8, &mut |_| Ok(()));
/// let times: Vec<f64> = kernels.iter().map(|ranked| ranked.seconds).collect(); // or measured ones
/// assert_eq!(tuned::winner(&times), Some(0));
/// # Ok::<(), Error>(())
/// ```
pub fn shortlist(
    kernels: &[&Checked<Kernel>],
    (shape, machine): (&Shape, &Machine),
    most: usize,
    fits: &mut dyn FnMut(&Ranked) -> Result<(), Error>,
) -> Shortlist {
    let mut ranking = Ranking::new(kernels.iter().copied(), shape, machine);
    let first = ranking.next();
    let limit = SLOWEST * first.as_ref().map_or(0.0, |first| first.seconds);
    let near = ranking
        .by_ref()
        .take_while(|ranked| ranked.seconds <= limit);
    let ranked: Vec<Ranked> = first.into_iter().chain(near).take(LOOKED_AT).collect();
    let of = |at: usize| (&**kernels[ranked[at].which], &ranked[at]);
    let new_kind = |at: usize, taken: &[usize]| {
        let mut known = taken.iter();
        known.all(|other| kind(of(*other)) != kind(of(at)))
    };
    let unlike = |at: usize, taken: &[usize]| {
        let mut known = taken.iter();
        known.all(|other| !alike(of(*other), of(at)))
    };
    let mut taken: Vec<usize> = Vec::new();
    let mut left_out = vec![false; ranked.len()];
    let mut refused = None;
    let mut take = |wanted: &dyn Fn(usize, &[usize]) -> bool| {
        for at in 0..ranked.len() {
            if taken.len() == most || left_out[at] || taken.contains(&at) || !wanted(at, &taken) {
                continue;
            }
            match fits(&ranked[at]) {
                Ok(()) => taken.push(at),
                Err(error) => {
                    left_out[at] = true;
                    refused.get_or_insert(error);
                }
            }
        }
    };
    take(&new_kind);
    take(&unlike);
    take(&|_, _| true);
    taken.sort_unstable();
    Shortlist {
        kernels: taken.into_iter().map(|at| ranked[at].clone()).collect(),
        refused: refused.or(ranking.refused()),
    }
}

/// The choices of tiles, and of how CTAs and warpgroups share them: what decides how much is read, when, and from where. In ping-pong
/// a tile's products hide the end of the one before, of which there is none where each CTA has one.
fn kind<'a>((kernel, ranked): (&'a Kernel, &Ranked)) -> Vec<(&'a String, &'a Setting)> {
    let several = ranked.plan.grid.rounds > 1;
    let of_kind = |name: &str| {
        let shared = name.ends_with("tiles") || name.ends_with("split");
        shared || several && name.ends_with("ping_pong")
    };
    let choices = kernel.variant.choices.iter();
    choices.filter(|(name, _)| of_kind(name)).collect()
}

/// Which of the measured times wins: the first within 1 % of the least, as two runs differ by as much. They are in the model's
/// order. None of no times.
///
/// [`shortlist`] has an example.
pub fn winner(times: &[f64]) -> Option<usize> {
    let least = times.iter().copied().reduce(f64::min)?;
    times.iter().position(|time| *time <= EQUAL * least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_in_the_models_order_wins_unless_another_is_clearly_faster() {
        assert_eq!(winner(&[100.0, 120.0, 99.5]), Some(0));
        assert_eq!(winner(&[100.0, 98.0, 97.0]), Some(2));
        assert_eq!(winner(&[5.0]), Some(0));
        assert_eq!(winner(&[]), None);
    }
}
