//! On real GPUs: the heap, every schedule against the f64 reference and the emulator, with pauses where only luck could
//! order anything, a thousand launches in a row, launches that each read what the one before wrote, that kernels are
//! fused, and how a stall ends.
//!
//! Without a GPU the emulator runs the same bodies on small shapes, and the rest says that it was skipped; with
//! `REQUIRE_GPU=n` a machine of fewer GPUs fails instead. On a machine without Rust the built binary runs alone:
//! `.ci/pack` makes a folder that has it, with its kernels. Ops whose choices are open measure candidates on GPUs: set
//! `COUNTERFLOW_TUNE=off`, as the folder's script does, so that every run has the same kernels. `trials` asks for what it measures.

#[path = "../../runtime/tests/common/mod.rs"]
mod nvidia;

#[path = "../../runtime/tests/common/children.rs"]
mod children;

#[path = "../../runtime/tests/common/groups.rs"]
mod groups;

#[path = "../common/epilogues.rs"]
mod epilogues;

#[path = "../common/halves.rs"]
mod halves;

#[path = "../../codegen/tests/fixtures/copies.rs"]
mod ways;

#[path = "../../codegen/tests/fixtures/handed.rs"]
#[expect(dead_code, reason = "columns that are rows have no M of 1")]
mod handed_over;
#[path = "../../codegen/tests/fixtures/slabs.rs"]
mod slabs_of;
#[path = "../../codegen/tests/fixtures/square.rs"]
#[expect(dead_code, reason = "an adapter has its sizes' names alone")]
mod square_of;
#[path = "../../codegen/tests/fixtures/strangers.rs"]
mod strangers;

#[path = "../common/newcomers.rs"]
mod newcomers;
#[path = "../common/outsiders.rs"]
mod outsiders;

#[path = "../common/gathered.rs"]
mod gatherers;

#[path = "../../codegen/tests/tile/generator/mod.rs"]
mod generator;

mod accumulate;
mod adopted;
mod agree;
mod back_to_back;
mod batch_invariant;
mod beside;
#[path = "../common/candidates.rs"]
mod candidates;
mod capture;
mod case;
mod chain;
#[path = "../common/constants.rs"]
mod constants;
mod copies;
mod doctor;
mod drops;
mod epilogue;
mod families;
#[path = "../common/few_rows.rs"]
mod few_rows;
mod fused;
mod gathered;
mod gpus;
mod graph;
mod heap;
mod host;
mod jobs;
mod litmus;
mod low_latency;
mod memory;
mod mlp;
mod nccl;
mod no_depth;
mod norms;
mod op;
mod own_shard;
#[path = "../common/parallel.rs"]
mod parallel;
mod prebuilt;
mod probes;
mod processes;
mod pulls;
mod queues;
mod random;
mod right;
mod scratch;
mod sharing;
mod soak;
mod stall;
mod tiles;
mod traced;
mod trials;
mod turns;
#[path = "../../codegen/tests/fixtures/wide.rs"]
mod wide;

use counterflow::{Error, codegen};

fn fine<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}\n{}", error.help().unwrap_or_default()))
}

/// A test of each schedule that GPUs run: `body` with its constructor.
macro_rules! each_schedule {
    ($body:path) => {
        crate::each_schedule!($body: gemm, swiglu, ag_gemm, ag_gemm_across, ag_gemm_pull, ag_gemm_ring, ag_gemm_double_ring, ag_gemm_slabs, ag_swiglu, fsdp_gemm, experts, gemm_rs, gemm_rs_across, gemm_rs_add, rs_ring, gemm_ar, gemm_ar_one_shot, gemm_ag, all_to_all, mlp, bulk, bulk_rs);
    };
    ($body:path: $($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                $body(counterflow::schedules::$name);
            }
        )*
    };
}
pub(crate) use each_schedule;

/// The same list, for what compiles all of them.
const SCHEDULES: [fn() -> counterflow::Program; 22] = {
    use counterflow::schedules::*;
    [
        gemm,
        swiglu,
        ag_gemm,
        ag_gemm_across,
        ag_gemm_pull,
        ag_gemm_ring,
        ag_gemm_double_ring,
        ag_gemm_slabs,
        ag_swiglu,
        fsdp_gemm,
        experts,
        gemm_rs,
        gemm_rs_across,
        gemm_rs_add,
        rs_ring,
        gemm_ar,
        gemm_ar_one_shot,
        gemm_ag,
        all_to_all,
        mlp,
        bulk,
        bulk_rs,
    ]
};
