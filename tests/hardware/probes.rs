//! Probes: on GPUs they measure every number that they can, and leave the GPUs as they were.

use crate::gpus::{here, turn};
use crate::{fine, nvidia};
use counterflow::codegen::model::{Link, Profile, Source};
use counterflow::jit::Compiler;
use counterflow::{Communicator, probes};

/// Numbers of links, which one GPU alone does not have.
fn is_of_links(name: &str) -> bool {
    let of = ["link_", "copy_engine", "signal_latency"];
    of.iter().any(|begin| name.starts_with(begin))
}

#[test]
fn probes_measure_every_number_of_the_gpus_here() {
    let Some(gpus) = here() else { return };
    if fine(Compiler::find()).version().is_none() {
        nvidia::skipped("probes compile their kernels, and here is a cache alone");
        return;
    }
    let _turn = turn();
    for world in 1..=gpus.min(2) {
        let ranks = fine(Communicator::local(world));
        let profile = fine(probes::measure(&ranks));
        assert_eq!(profile.link == Link::Alone, world == 1);
        println!("{}", profile.text());
        for (name, number) in &profile.numbers {
            let measured = number.from == Source::Measured;
            // Where all that is read stays in the cache's reach, no size ends it. No probe is like CTAs of a fused kernel.
            let of_kernels = name == "memory_half" || name.starts_with("loaded_");
            let may_lack = name == "l2_bytes" || of_kernels || (world == 1 && is_of_links(name));
            assert!(measured || may_lack, "{name} is {}", number.from.name());
        }
        assert_eq!(Profile::parse(&profile.text()), Ok(profile));
        // What ranks did before, they can do after.
        fine(Communicator::each(&ranks, |rank| {
            rank.synchronize()?;
            rank.barrier()
        }));
    }
}
