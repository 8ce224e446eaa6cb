//! What readers of papers write, but for what has no kernel.

use super::strangers::strangers;
use crate::outsiders::ALL;
use crate::strangers::Stranger;

/// Those that have none.
pub const REFUSED: [&str; 1] = ["adapter"];

fn run(name: &str) {
    let of = |(schedule, _): &Stranger| schedule().name == name;
    strangers(
        *ALL.iter()
            .find(|stranger| of(stranger))
            .expect("a schedule of that name"),
    );
}

#[test]
fn micro_batches() {
    run("micro_batches");
}

#[test]
fn expert_by_parity() {
    run("expert_by_parity");
}

#[test]
fn adapter_in_two_loops() {
    run("adapter_in_two_loops");
}

#[test]
fn owners_of_tiles() {
    run("owners_of_tiles");
}

#[test]
fn doubling() {
    run("doubling");
}

#[test]
fn dispatch() {
    run("dispatch");
}

#[test]
fn gated_output() {
    run("gated_output");
}

#[test]
fn pipeline_stage() {
    run("pipeline_stage");
}

#[test]
fn two_paths() {
    run("two_paths");
}
