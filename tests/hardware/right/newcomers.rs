//! What readers of the docs write, but for what is refused.

use super::strangers::strangers;
use crate::newcomers::ALL;
use crate::strangers::Stranger;

fn run(name: &str) {
    let of = |(schedule, _): &Stranger| schedule().name == name;
    strangers(
        *ALL.iter()
            .find(|newcomer| of(newcomer))
            .expect("a schedule of that name"),
    );
}

#[test]
fn over_pairs() {
    run("over_pairs");
}

#[test]
fn by_way_of_the_root() {
    run("by_way_of_the_root");
}

#[test]
fn pushed_or_pulled() {
    run("pushed_or_pulled");
}

#[test]
fn three_experts() {
    run("three_experts");
}

#[test]
fn gated_mlp_with_residual() {
    run("gated_mlp_with_residual");
}

#[test]
fn reduced_by_the_root() {
    run("reduced_by_the_root");
}

#[test]
fn biases_of_the_root() {
    run("biases_of_the_root");
}

#[test]
fn halves_both_ways() {
    run("halves_both_ways");
}

#[test]
fn scaled_by_owners() {
    run("scaled_by_owners");
}
