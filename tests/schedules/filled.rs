//! What emulated ranks choose where they fill a cache for GPUs.

use counterflow::schedules::GemmOp;
use counterflow::tuned::{self, Tuned};
use counterflow::{Communicator, Layout, Machine, Shape, Variant, schedules};
use std::process::Command;

const H100: &str = "NVIDIA H100 80GB HBM3";
const FEW: [usize; 3] = [1, 2560, 8192];

/// Prints the variant of an op.
#[test]
#[ignore = "no test: the next one starts it as a child process"]
fn child() {
    let rank = &Communicator::emulated(1).expect("a rank")[0];
    let [m, n, k] = FEW;
    let op = rank.op_of::<GemmOp>().up_to(m, n, k).build();
    let op = op.unwrap_or_else(|error| panic!("{error}"));
    println!("chosen: {}", op.variant());
}

fn chosen(fill: Option<&str>) -> String {
    let mut run = Command::new(std::env::current_exe().expect("this program"));
    run.args(["--exact", "--ignored", "--nocapture", "filled::child"]);
    run.env_remove("COUNTERFLOW_FILL");
    if let Some(fill) = fill {
        run.env("COUNTERFLOW_FILL", fill);
    }
    let output = run.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = said.lines().find_map(|line| line.split_once("chosen: "));
    let (_, variant) = line.unwrap_or_else(|| panic!("{said}"));
    variant.to_owned()
}

/// They chose as for no GPU in particular, and the cache lacked what an H100 with its own winners asks for.
#[test]
fn a_cache_that_is_filled_for_a_gpu_has_what_such_a_gpu_would_choose() {
    let [m, n, k] = FEW.map(|size| size as u32);
    let (program, base) = (schedules::gemm(), Variant::new(1).layout(Layout::Nt));
    let tables = [
        Tuned::of_user().expect("a table"),
        Tuned::embedded().expect("a table"),
    ];
    let of_h100 = tuned::select(
        &tables,
        H100,
        &program,
        &base,
        &Shape::new(m, n, k),
        &Machine::h100(),
    );
    let of_h100 = of_h100.unwrap_or_else(|error| panic!("{error}"));
    // For communicators of no rank, which is none: nothing is compiled.
    assert_eq!(
        chosen(Some(&format!("0:{H100}"))),
        of_h100.variant.to_string()
    );
    let of_none = chosen(None);
    assert_ne!(
        of_none,
        of_h100.variant.to_string(),
        "the test needs a shape that cards differ at"
    );
    assert_eq!(chosen(Some("0")), of_none);
}
