//! The verifier on good schedules: every library schedule, every world, ragged shapes.

mod library;

use counterflow_codegen::lower::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify;

#[test]
fn every_library_schedule_is_accepted_for_every_world_and_ragged_shapes() {
    let machine = Machine::h200();
    for program in library::all() {
        for world in 1..=8 {
            let variant = Variant::new(world).arch(Arch::Cpu);
            let pieces = program
                .tunables
                .iter()
                .any(|tunable| tunable.name == "pieces");
            let variant = variant.set("tiles", (4, 8));
            let variant = if pieces {
                variant.set("pieces", 3)
            } else {
                variant
            };
            let kernel =
                lower(&program, &variant).unwrap_or_else(|e| panic!("{}: {e}", program.name));
            let kernel = verify::kernel(kernel).unwrap_or_else(|e| panic!("{}: {e}", program.name));
            for m in [1, 2, 7, 8, 31, 64, 100] {
                let shape = Shape::new(m, 24, 16);
                verify::plan(&kernel, &shape, &machine)
                    .unwrap_or_else(|e| panic!("{} world {world} m {m}: {e}", program.name));
            }
        }
    }
}
