//! Schedules as users write them: what the macros and the builder make of them, the library, its neighbours that break a
//! rule, and the variants they run in.

mod backward;
mod builder;
#[path = "../common/candidates.rs"]
mod candidates;
mod choice;
#[path = "../common/constants.rs"]
mod constants;
mod families;
#[path = "../common/few_rows.rs"]
mod few_rows;
mod filled;
mod fp8;
mod library;
mod low_latency;
mod macros;
mod measured;
mod measured_families;
mod near;
mod negative;
mod no_depth;
mod no_rows;
mod outsiders;
#[path = "../common/parallel.rs"]
mod parallel;
mod refused;
mod tuned;
#[path = "../../codegen/tests/fixtures/wide.rs"]
mod wide;
