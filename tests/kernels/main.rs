//! What is emitted, compiled for Hopper: no spill, no slow code, and as many instructions of each sort as the tile asks for.

mod amaxes;
mod beside;
mod blocks;
mod computed_scales;
#[path = "../common/epilogues.rs"]
mod epilogues;
mod foreign;
#[path = "../../codegen/tests/fixtures/foreign.rs"]
mod foreign_functions;
mod fp8;
#[path = "../common/gathered.rs"]
mod gathered;
#[path = "../../codegen/tests/tile/generator/mod.rs"]
mod generator;
#[path = "../common/halves.rs"]
mod halves;
mod handed;
#[path = "../../codegen/tests/fixtures/handed.rs"]
#[expect(dead_code, reason = "what is refused is not compiled")]
mod handed_over;
mod hidden;
mod kinds;
mod multicast;
#[path = "../../codegen/tests/fixtures/multicast.rs"]
#[expect(dead_code, reason = "the emulator has sizes of its own")]
mod multicast_of;
#[path = "../common/newcomers.rs"]
mod newcomers;
#[path = "../common/outsiders.rs"]
mod outsiders;
#[path = "../common/parallel.rs"]
mod parallel;
mod partial;
mod random;
mod sass;
mod shares;
mod slabs;
#[path = "../../codegen/tests/fixtures/slabs.rs"]
mod slabs_of;
mod square;
#[path = "../../codegen/tests/fixtures/square.rs"]
#[expect(dead_code, reason = "an adapter has its sizes' names alone")]
mod square_of;
#[path = "../../codegen/tests/fixtures/strangers.rs"]
mod strangers;
mod tiles;
mod traced;
#[path = "../../codegen/tests/fixtures/wide.rs"]
mod wide;

use counterflow::codegen;
