//! Times of larger shapes, without comparing.

use crate::case::Case;
use crate::fine;
use crate::gpus::world;
use counterflow::jit::Compiler;
use counterflow::{Shape, Variant, gpus, schedules};

#[test]
#[ignore = "takes long; prints times"]
fn times() {
    let Some(world) = world(1) else { return };
    let compiler = fine(Compiler::find());
    for (m, n, k) in [
        (4096, 4096, 4096),
        (2048, 7168, 8192),
        (8192, 8192, 2048),
        (512, 7168, 8192),
    ] {
        for tile in [(128, 256), (128, 128)] {
            let shapes = [Shape::new(m, n, k), Shape::new(m - 100, n, k)];
            let case = Case::new(
                &schedules::gemm(),
                &Variant::new(1).set("tiles", tile),
                &shapes,
                1,
            );
            let launched = fine(gpus::run(
                &world.ranks,
                &compiler,
                &case.pipeline,
                case.plans.iter().collect(),
                &case.kernel,
                3,
            ));
            let time = launched.times[0].as_secs_f64();
            println!(
                "  gemm {m}x{n}x{k} tiles {tile:?}: {:.1} us, {:.0} TFLOP/s; host {:.1} us for new numbers",
                time * 1e6,
                2.0 * f64::from(m) * f64::from(n) * f64::from(k) / time / 1e12,
                launched.host.as_secs_f64() * 1e6
            );
        }
    }
}
