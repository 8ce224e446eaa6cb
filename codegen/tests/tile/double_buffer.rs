//! A buffer in two halves, whose writers wait until the reader has acknowledged what was there: by counters of the schedule's
//! own, which order it as any other signal does.

use crate::fixtures::strangers::slots::{Edit, few_slots};
use crate::fixtures::wide::sampled;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify;
use counterflow_emulator::{self as interp, Options};

fn verdict(edit: Edit, slots: u32, world: u32) -> Result<(), String> {
    let kernel = lower(
        &few_slots(edit, slots, (4, 8)),
        &Variant::new(world).arch(Arch::Cpu),
    );
    let kernel = kernel.and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    let most = Shape::new(29, 24, 16);
    let series = verify::series(&kernel, &most, &Machine::h200());
    let series = series.map_err(|found| found.first().text(&|_| String::new()))?;
    let plans = [29, 1, 29].map(|m| series.plan(&Shape::new(m, 24, 16)).expect("legal"));
    let launches: Vec<_> = plans.iter().collect();
    for seed in 0..8 {
        let outcome = interp::run(
            &series,
            &launches,
            &Options::seed(seed),
            interp::uniform(seed),
        );
        let outcome = outcome.unwrap_or_else(|failure| panic!("{world}, {seed}: {failure}"));
        for (launch, plan) in plans.iter().enumerate() {
            let expected = interp::reference(&kernel, plan, launch, interp::uniform(seed));
            let expected = expected.unwrap_or_else(|error| panic!("{error}"));
            let same = interp::compare(&outcome, &expected);
            same.unwrap_or_else(|error| panic!("{world}, {seed}: {error}"));
        }
    }
    Ok(())
}

#[test]
fn what_was_acknowledged_may_be_overwritten() {
    let all = [1, 2, 3].into_iter();
    let all = all.flat_map(|slots| (1..=8).map(move |world| (slots, world)));
    for (slots, world) in sampled(all, 5) {
        assert_eq!(
            verdict(Edit::Nothing, slots, world),
            Ok(()),
            "{slots}, {world}"
        );
    }
}

#[test]
fn what_was_not_is_refused() {
    let edits = [Edit::NoWait, Edit::Early, Edit::OtherSlot, Edit::OneSlot];
    let told = edits.map(|edit| {
        // With so few ranks each slot is written once.
        let few = if edit == Edit::OneSlot { 2 } else { 3 };
        if edit != Edit::OtherSlot {
            assert_eq!(verdict(edit, 2, few), Ok(()), "{edit:?}");
        }
        let found = verdict(edit, 2, 5).expect_err("refused");
        format!("{edit:?}: {found}")
    });
    insta::assert_snapshot!(told.join("\n"));
}
