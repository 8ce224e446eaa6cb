//! Traced kernels: their results stay right, every tile and signal is on the trace, and the clocks of GPUs are aligned.

use crate::case::{self, Case};
use crate::fine;
use crate::fused::TRACE;
use crate::gpus as machine;
use crate::right::KINDS;
use counterflow::codegen::cuda::SiteKind;
use counterflow::codegen::trace::{self, Alone, Events, Phase};
use counterflow::jit::Compiler;
use counterflow::{Program, Shape, gpus};
use std::collections::BTreeSet;

fn is_traced(schedule: fn() -> Program) {
    let Some(count) = machine::here() else { return };
    let ranks = count.clamp(2, 4);
    let Some(world) = machine::world(ranks) else {
        return;
    };
    let compiler = fine(Compiler::find());
    let shape = [Shape::new(512 * ranks, 1024, 1024)];
    let program = schedule();
    let variant = case::variant_of(&program, ranks, KINDS[0]);
    let case = Case::new(&program, &variant, &shape, world.sharing);
    let (name, plan) = (&case.kernel.name, &case.plans[0]);

    let probed = compiler.clone().with_probes(TRACE);
    let ran = gpus::run(
        &world.ranks,
        &probed,
        &case.pipeline,
        &case.series,
        vec![plan],
        5,
    );
    for result in fine(fine(ran).run.compare_all()) {
        let compared = result.unwrap_or_else(|error| panic!("{name} with probes: {error}"));
        assert!(compared.elements > 0, "{name}");
    }

    let launch = gpus::traced(
        &world.ranks,
        &compiler,
        &case.pipeline,
        &case.series,
        plan,
        5,
    );
    let launch = fine(launch);
    for (rank, events) in launch.ranks.iter().enumerate() {
        // Tiles by loop and place: each was begun by somebody who multiplies, and multiplied as often.
        let (mut tiles, mut multiplied) = (BTreeSet::new(), 0);
        for strand in &events.strands {
            assert_eq!(strand.lost, 0, "{name} on rank {rank}");
            for mark in &strand.marks {
                let site = &launch.sites[mark.site as usize];
                match site.kind {
                    SiteKind::Tile { .. } if site.role == "multiply" => {
                        tiles.insert(mark.number);
                    }
                    SiteKind::Multiplied => multiplied += 1,
                    _ => {}
                }
            }
        }
        assert!(
            tiles.len() as u64 == plan.grid.tiles && multiplied >= tiles.len(),
            "{name} on rank {rank}: {} tiles of {}, {multiplied} multiplied",
            tiles.len(),
            plan.grid.tiles
        );
    }
    let events = Events {
        sites: &launch.sites,
        ranks: &launch.ranks,
    };
    let trace = trace::measured(name.clone(), &events);
    let trace = trace.unwrap_or_else(|error| panic!("{name}: {error}"));
    for (rank, clock) in trace.clocks.iter().enumerate() {
        println!("  {name}: clock of rank {rank}: {clock:?}");
    }
    let alone = Alone {
        gemm: None,
        communication: 0.0,
        launch: Some(launch.plain.as_secs_f64()),
    };
    let report = trace::report(&trace, &alone);
    let multiply = report.phases[Phase::Multiply.index()];
    assert!(multiply > 0.0 && multiply < trace.total, "{name}");
    for (phase, seconds) in Phase::ALL.iter().zip(report.phases) {
        println!("  {name}: {:8} {:.1} us", phase.name(), seconds * 1e6);
    }
    println!(
        "  {name}: {:.1} us traced; back to back {:.1} us, with probes {:.1} us",
        trace.total * 1e6,
        launch.plain.as_secs_f64() * 1e6,
        launch.probed.as_secs_f64() * 1e6
    );
}

mod schedules {
    use super::is_traced;

    crate::each_schedule!(is_traced: gemm, ag_gemm, ag_gemm_pull, gemm_rs, rs_ring, gemm_ar);
}
