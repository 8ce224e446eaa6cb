//! Every rank's memory at once: the warps of copies, stores, adds, sums and signals, and what keeps each of them from being
//! right when one node is missing or elsewhere.

use crate::fixtures::multicast::{self, REAL, Sizes};
use counterflow_codegen::cuda;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_codegen::warp::Pipeline;

fn built(program: &Program, world: u32) -> Pipeline {
    let kernel = lower(program, &Variant::new(world)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|found| panic!("{}: {found}", program.name));
    sm90::build(&kernel).unwrap_or_else(|found| panic!("{}: {found}", program.name))
}

#[test]
fn each_word_has_right_warps() {
    for program in multicast::all(REAL) {
        for world in [1, 2, 3, 8] {
            let pipeline = built(&program, world);
            let name = &program.name;
            if let Err(found) = verify::pipeline(pipeline.clone()) {
                panic!("{name}, {world} ranks: {found}\n{pipeline}");
            }
            if world == 3 { println!("{}", cuda::emit(&verify::pipeline(pipeline).unwrap()).text); }
        }
    }
}
