//! Schedules of a size that the warp level takes.

use super::draw::Draw;
use super::{Case, TENSOR_CORES, bytes, gather, sized};
use counterflow_codegen::builder::ScheduleBuilder;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};

/// A schedule that the tile level accepts in its world for all of its launches.
pub struct Accepted {
    /// Which of its seed's cases it is.
    pub number: u64,
    pub case: Case,
    pub kernel: Checked<Kernel>,
}

/// The accepted cases of a seed, with tiles that tensor cores have. `change` may give a case another world or other
/// launches first.
pub fn accepted(seed: u64, change: impl Fn(u64, &mut Case)) -> impl Iterator<Item = Accepted> {
    (0..).filter_map(move |number| {
        let mut case = sized(&bytes(seed, number), TENSOR_CORES);
        change(number, &mut case);
        let kernel = lower(&case.program, &Variant::new(case.world)).ok()?;
        for launch in &mut case.launches {
            launch
                .dims
                .retain(|name, _| kernel.dims.iter().any(|dim| dim.name == *name));
        }
        let most = case.most().most(&kernel);
        let kernel = verify::kernel(kernel).ok()?;
        let series = verify::series(&kernel, &most, &Machine::h200()).ok()?;
        let mut launches = case.launches.iter();
        let all = launches.all(|shape: &Shape| series.plan(shape).is_ok());
        all.then_some(Accepted {
            number,
            case,
            kernel,
        })
    })
}

/// The gather that those bytes are, and its world.
pub fn gather(bytes: &[u8]) -> (Program, u32) {
    let mut draw = Draw::new(bytes);
    let world = [4, 2, 3][draw.of(3)];
    let mut s = ScheduleBuilder::new("random");
    gather::all_gather(&mut draw, &mut s, TENSOR_CORES);
    (s.finish(), world)
}
