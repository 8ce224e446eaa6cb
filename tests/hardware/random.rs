//! Random schedules that the tile level accepts: with small integers they have the bits of the emulator, in four launches of
//! different M, with pauses in every role and ranks that come late.
//!
//! `RANDOM_CASES` says how many, 8 by default, and `RANDOM_SEED` which. With `RANDOM_SEVERAL` they are kernels of several
//! gathers, products and sums.

use crate::case::{Case, Device, Fill};
use crate::generator::warps::{Accepted, Warps, accepted, accepted_of_several, rule, warps};
use crate::gpus;
use crate::right::JITTER;
use counterflow::{Program, Variant};
use std::collections::BTreeMap;

/// Worlds up to this one, by turns.
const MOST_RANKS: u32 = 8;
/// How late a rank may come, in microseconds.
const LATE: u64 = 300;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// The cases of this run, each in a world of its own and with launches of four M.
fn cases() -> impl Iterator<Item = Accepted> {
    let seed = number("RANDOM_SEED", 18);
    let changed = |number: u64, case: &mut crate::generator::Case| {
        case.world = 1 + (number % u64::from(MOST_RANKS)) as u32;
        let first = case.launches[0].clone();
        let rows = [first.m, 1, first.m * 2 / 3 + 1, first.m];
        case.launches = rows
            .map(|m| {
                let mut shape = first.clone();
                shape.m = m;
                shape
            })
            .into();
    };
    let cases: Box<dyn Iterator<Item = Accepted>> = match std::env::var("RANDOM_SEVERAL") {
        Ok(_) => Box::new(accepted_of_several(seed, changed)),
        Err(_) => Box::new(accepted(seed, changed)),
    };
    // No GPU that others share runs a kernel with multicast.
    let cases = cases.filter(|found| !found.kernel.needs_multicast());
    cases.take(number("RANDOM_CASES", 8) as usize)
}

/// The kernels of those that have one, for what compiles them ahead.
pub fn kernels() -> impl Iterator<Item = (Program, Variant)> {
    let have = cases().filter(|found| matches!(warps(&found.kernel), Warps::Right(_)));
    have.map(|found| (found.case.program, Variant::new(found.case.world)))
}

#[test]
fn integers_have_the_bits_of_the_emulator() {
    let (mut ran, mut found, mut left_out) = (0, 0, 0);
    let mut refused: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for Accepted {
        number,
        case,
        kernel,
    } in cases()
    {
        found += 1;
        match warps(&kernel) {
            Warps::Right(_) => {}
            Warps::Refused(by) => {
                let by = rule(&by.first().message);
                refused.entry(by).or_default().push(number);
                continue;
            }
            Warps::Wrong(found) => panic!("case {number} has wrong warps: {found}"),
        }
        // It says that it is skipped, or left out.
        let Some(world) = gpus::world(case.world) else {
            left_out += u64::from(gpus::here().is_some());
            continue;
        };
        ran += 1;
        println!("  case {number}, world {}", case.world);
        let device = Device::gpus(&world, JITTER, LATE);
        let variant = Variant::new(case.world);
        let on = crate::case::on(&device, &case.program, &variant, &case.launches);
        same_bits(&on, &device, number);
    }
    for (rule, cases) in &refused {
        println!("  refused, cases {cases:?}: {rule}");
    }
    let refused: u64 = refused.values().map(|cases| cases.len() as u64).sum();
    println!("  {ran} of {found} cases ran, {refused} were refused, {left_out} left out");
    assert_eq!(found, number("RANDOM_CASES", 8), "cases were drawn");
    // Without a GPU none runs, and that was said.
    let all = ran + refused + left_out == found || (ran == 0 && gpus::here().is_none());
    assert!(all, "{ran} of {found} cases ran, {refused} were refused");
    assert!(
        refused * 20 <= found.max(20),
        "more than 5 of 100 were refused"
    );
}

fn same_bits(case: &Case, device: &Device<'_>, number: u64) {
    let fill = Fill::Integers(number);
    let (ran, emulated) = (case.run(device, fill), case.run(&Device::Cpu, fill));
    assert!(!ran.outputs.is_empty(), "case {number} has no outputs");
    for output in &ran.outputs {
        let same = emulated.output(output.launch, output.rank, output.tensor);
        assert_eq!(
            same,
            Some(output),
            "case {number} differs from its emulation: {:#?}",
            case.kernel.program
        );
    }
}
