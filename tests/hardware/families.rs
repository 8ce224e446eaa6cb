//! Families on GPUs: every candidate has the bits of the first, in launches of any number of rows across buckets.

use crate::candidates::after;
use crate::constants::Case;
use crate::fine;
use crate::gpus::both_ways;
use counterflow::families;

fn every_candidate_has_the_same_bits(world: u32) {
    for on_gpus in both_ways(world) {
        for family in families::ALL.map(|family| family()) {
            let names = family.candidates().iter().map(|candidate| candidate.name());
            let names: Vec<String> = names.collect();
            let wanted = after(&on_gpus.ranks, &family, Some(&names[0]));
            for only in &names[1..] {
                let found = after(&on_gpus.ranks, &family, Some(only));
                assert!(found == wanted, "{only} on {}", on_gpus.told());
            }
        }
    }
}

#[test]
fn every_candidate_has_the_same_bits_on_one_rank() {
    every_candidate_has_the_same_bits(1);
}

#[test]
fn every_candidate_has_the_same_bits_on_two_ranks() {
    every_candidate_has_the_same_bits(2);
}

#[test]
fn every_candidate_has_the_same_bits_on_four_ranks() {
    every_candidate_has_the_same_bits(4);
}

/// A product's CTAs load weights while the gather before them waits for peers, or while one of low latency ends.
fn weights_first(world: u32, candidate: &'static str) {
    let case = Case {
        candidate,
        rows: &[1, 16, 64, 100, 256],
        columns: 2560,
        depth: 1024,
        rounds: 40,
    };
    for on_gpus in both_ways(world) {
        const LAUNCHES: usize = 10_000;
        fine(case.run(&on_gpus.ranks));
        fine(case.back_to_back(&on_gpus.ranks, LAUNCHES));
        println!(
            "  {LAUNCHES} launches of {candidate} with weights first: {}",
            on_gpus.told()
        );
    }
}

#[test]
fn a_gather_and_a_product_that_loads_its_weights_first_on_two_ranks() {
    weights_first(2, "all_gather+gemm");
    weights_first(2, "low_latency_all_gather+gemm");
}

#[test]
fn a_gather_and_a_product_that_loads_its_weights_first_on_four_ranks() {
    weights_first(4, "all_gather+gemm");
    weights_first(4, "low_latency_all_gather+gemm");
}
