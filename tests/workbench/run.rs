//! `run`: what is compared with what, and what is not.

use super::{
    AG, GEMM, GEMM_RS, LARGE_TILES, SMALL, SMALL_AG, bad, good, has, object, schedules, tell,
};
use crate::fixtures::wide::in_turn;
use counterflow::given::{Given, Matrix};
use counterflow_workbench::{REJECTED, Schedule, USAGE};

#[test]
fn the_library_is_safe_and_right_in_every_world() {
    for (at, schedule) in counterflow::schedules::ALL.into_iter().enumerate() {
        let program = schedule();
        // Tiles and chunks that an unoptimised emulator is quick with, and that divide nothing evenly.
        let set: Vec<String> = program
            .tunables
            .iter()
            .filter_map(|tunable| match tunable.name.as_str() {
                "tiles" => Some("--set tiles=16x8".to_string()),
                "chunks" => Some("--set chunks=8".to_string()),
                _ => None,
            })
            .collect();
        for world in in_turn([1, 2, 3, 5], at) {
            let words = format!(
                "run --arch cpu {} --m 75 --n 24 --k 40 --world {world} --seed {world} --json",
                set.join(" ")
            );
            let told = tell(&[schedule], &words);
            let object = object(&told);
            assert_eq!(object["ok"], true, "{} {words}: {object}", program.name);
            assert_eq!(object["ran"]["launches"].as_array().map(Vec::len), Some(3));
            let off = object["ran"]["launches"][1]["of_allowed"].as_f64();
            assert!(off.is_some_and(|off| off <= 1.0), "{object}");
        }
    }
}

#[test]
fn run_compares_with_a_reference() {
    let told = good(tell(AG, &format!("run {SMALL_AG} --launches 3 --seed 7")));
    has(
        &told.out,
        &["max error", "relative", "seed 7", "3 launches"],
    );
    // M changes between launches.
    has(&told.out, &["64x32x32"]);
    assert!(told.out.contains("43x32x32"), "{}", told.out);
}

#[test]
fn run_says_what_it_compared_with() {
    let told = good(tell(AG, &format!("run {SMALL_AG}")));
    has(
        &told.out,
        &[
            "compared in f64",
            "x with what its type promises",
            "y with the schedule's statements",
            "as promised",
        ],
    );
    let object = object(&tell(
        &[schedules::gemm_rs],
        "run --arch cpu --set tiles=16x16 --m 64 --n 32 --k 32 --json",
    ));
    let launch = &object["ran"]["launches"][0];
    assert_eq!(launch["compared_with"]["y"], "type", "{object}");
    assert!(launch["not_compared"].is_null(), "{object}");
}

/// What nobody can compare is told as such, and is no success.
#[test]
fn run_does_not_promise_what_it_did_not_compare() {
    const LOGARITHM: &[Schedule] = &[schedules::logarithm];
    let told = tell(LOGARITHM, &format!("run {SMALL}"));
    assert_eq!(told.code, REJECTED, "{}{}", told.out, told.err);
    has(
        &told.out,
        &[
            "NOT COMPARED",
            "no reference for y",
            "is NaN",
            ".reference(fn)",
        ],
    );
    assert!(!told.out.contains("as promised"), "{}", told.out);
    let told = tell(LOGARITHM, &format!("run {SMALL} --json"));
    let object = object(&told);
    assert_eq!(
        (&object["ok"], &object["exit"]),
        (&false.into(), &REJECTED.into())
    );
    let why = object["ran"]["launches"][0]["not_compared"].as_str();
    assert!(why.is_some_and(|why| why.contains("is NaN")), "{object}");
    let told = tell(LOGARITHM, LARGE_TILES);
    assert_eq!(told.code, REJECTED, "the demo, too");
}

#[test]
fn run_compares_with_a_reference_of_ones_own() {
    fn product(given: &Given<'_>) -> Result<Matrix, String> {
        let rank = given.rank();
        Ok(given.input("x", rank)?.times(&given.input("w", rank)?))
    }
    fn half_of_it(given: &Given<'_>) -> Result<Matrix, String> {
        product(given).map(|y| y.map(|value| value / 2.0))
    }
    fn nothing(given: &Given<'_>) -> Result<Matrix, String> {
        Err(format!("nobody knows {}", given.output()))
    }
    let words = format!("run {SMALL}");
    let right = good(tell(&[|| schedules::gemm().reference(product)], &words));
    has(&right.out, &["y with your reference", "as promised"]);
    let wrong = tell(&[|| schedules::gemm().reference(half_of_it)], &words);
    bad(&wrong, REJECTED, &["y[", "but the reference is", "--seed"]);
    let none = tell(&[|| schedules::gemm().reference(nothing)], &words);
    assert_eq!(none.code, REJECTED);
    has(&none.out, &["NOT COMPARED", "nobody knows y"]);
}

#[test]
fn run_takes_layouts_types_and_leading_dimensions() {
    for layout in ["nt", "nn", "tn"] {
        for dtype in ["bf16", "f16", "f32"] {
            let words =
                format!("run {SMALL} --layout {layout} --dtype {dtype} --launches 1 --ld y=48");
            good(tell(GEMM, &words));
        }
    }
}

#[test]
fn run_takes_products_of_depth_0() {
    for (schedules, words) in [(GEMM, "--ld x=16"), (GEMM_RS, "--world 3")] {
        let words = format!("run --arch cpu --set tiles=16x16 --m 64 --n 32 --k 0 {words} --json");
        let told = object(&tell(schedules, &words));
        assert_eq!(told["ok"], true, "{told}");
        for launch in told["ran"]["launches"].as_array().expect("launches") {
            assert_eq!(launch["of_allowed"], 0.0, "{told}");
        }
    }
    let gathered = tell(AG, "run --arch cpu --k 0");
    bad(
        &gathered,
        REJECTED,
        &["k is 0", "nothing of it is gathered"],
    );
}

/// As launches of the library that have none, whatever the columns are.
#[test]
fn run_of_no_rows_runs_nothing() {
    for schedules in [GEMM, AG, GEMM_RS] {
        let told = good(tell(schedules, "run --m 0"));
        has(&told.out, &["ran nothing", "no rows"]);
        let told = object(&tell(schedules, "run --m 0 --json"));
        assert_eq!(told["ran"]["launches"].as_array().map(Vec::len), Some(0));
    }
    const GATHERED: &[Schedule] = &[counterflow::schedules::fsdp_gemm];
    let told = tell(GATHERED, "run --m 0 --n 64");
    bad(
        &told,
        USAGE,
        &["--m 0, where w has other rows", "at least one"],
    );
    bad(&tell(GEMM, "run --m 0 --n 0"), REJECTED, &["n is 0"]);
}

#[test]
fn run_takes_types_of_fp8_with_their_scales() {
    for words in [
        "--dtype e4m3",
        "--dtype e5m2 --second e4m3 --scales rows",
        "--dtype e4m3 --scales whole --output e5m2",
        "--output e4m3",
        "--output e5m2 --amax",
    ] {
        let told = good(tell(GEMM, &format!("run {SMALL} {words} --launches 1")));
        let settled = words.replace("--dtype ", "").replace("--", "");
        for word in settled.replace("scales ", "scales=").split(' ') {
            has(&told.out, &[word]);
        }
    }
}

#[test]
fn run_makes_scales_of_outputs() {
    let shape = "--m 40 --n 144 --k 32 --arch cpu --set tiles=16x128";
    for (words, settled) in [
        ("--output-scales te", "output=e4m3 output-scales=te"),
        (
            "--output e5m2 --output-scales te+pow2",
            "output=e5m2 output-scales=te+pow2",
        ),
    ] {
        let told = good(tell(GEMM, &format!("run {shape} {words} --launches 1")));
        has(&told.out, &[settled]);
    }
}

#[test]
fn run_sends_partial_sums_in_fp8() {
    let shape = "--m 40 --n 144 --k 32 --world 3 --arch cpu --set tiles=128x128";
    let told = good(tell(
        GEMM_RS,
        &format!("run {shape} --partial e4m3 --launches 1"),
    ));
    has(&told.out, &["partial=e4m3"]);
}

#[test]
fn run_refuses_a_device_that_is_not_there() {
    if counterflow::cuda::Gpu::count().is_ok() {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    let told = tell(AG, "run --device cuda");
    bad(&told, REJECTED, &["cuda", "driver", "--device cpu"]);
}

#[test]
fn run_refuses_what_does_not_fit_in_memory() {
    let told = tell(GEMM, "run --m 1000000 --n 8 --k 1000");
    bad(&told, REJECTED, &["elements", "at most", "--m"]);
    let told = tell(GEMM, "run --m 100000 --n 100000 --k 100000");
    bad(&told, REJECTED, &["multiply-adds", "at most", "--m"]);
}
