//! `trace` without a GPU: the prediction, through the same page as what is measured.

use super::{AG, GEMM, bad, good, has, object, schedules, tell, tell_with};
use counterflow_workbench::{Surroundings, USAGE};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

const SHAPE: &str = "--world 2 --m 512 --n 5120 --k 8192 --set tiles=128x256 --device cpu";

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("counterflow-{}-{name}", std::process::id()))
}

#[test]
fn without_a_gpu_the_page_is_the_prediction_and_says_so() {
    let told = good(tell(AG, &format!("trace {SHAPE}")));
    has(
        &told.out,
        &[
            "traced nothing: without a GPU this page is the model's prediction alone",
            "error band on NVIDIA H200",
            "not known",
            "multiply",
            "last signal seen",
            "wait arrived[t.rows]",
            "exposed communication",
            "overlap efficiency",
        ],
    );
    // A schedule that moves nothing has nothing to hide, and its error is known.
    let told = good(tell(GEMM, "trace --world 1 --device cpu"));
    has(
        &told.out,
        &[
            "no communication to hide",
            "nine of ten of",
            "measured launches",
        ],
    );
}

#[test]
fn the_object_has_every_number_of_the_page_and_phases_add_up() {
    let told = good(tell(AG, &format!("trace {SHAPE} --json")));
    let traced = &object(&told)["traced"];
    assert_eq!(traced["measured"], Json::Null);
    assert_eq!(traced["error_band"], Json::Null);
    let found = &traced["predicted"];
    let number = |of: &Json| of.as_f64().unwrap_or_else(|| panic!("{of} is no number"));
    let phases = found["phase_seconds"].as_object().expect("phases");
    let sum: f64 = phases.values().map(number).sum();
    let end = found["ladders"].as_array().expect("ladders").iter();
    let end = end.map(|ladder| number(&ladder["end"])).fold(0.0, f64::max);
    // Both ranks end at the same moment.
    assert!((sum - end).abs() < 1e-3 * end, "{sum} of {end}");
    assert!(end <= number(&found["seconds"]));
    assert!(number(&found["exposed_seconds"]) > 0.0);
}

#[test]
fn files_are_written_and_can_be_read() {
    let (trace, svg) = (scratch("trace.json"), scratch("trace.svg"));
    let words = format!(
        "trace {SHAPE} --trace {} --svg {}",
        trace.display(),
        svg.display()
    );
    good(tell(&[schedules::ag_gemm], &words));
    let text = std::fs::read_to_string(&trace).expect("written");
    let parsed: Json = serde_json::from_str(&text).expect("a trace is JSON");
    let events = parsed["traceEvents"].as_array().expect("events");
    let count = |ph: &str| events.iter().filter(|event| event["ph"] == ph).count();
    assert!(count("X") > 100 && count("s") > 0 && count("s") == count("f"));
    let drawn = std::fs::read_to_string(&svg).expect("written");
    has(
        &drawn,
        &["<svg", "rank 1", "wait", "last signal seen", "</svg>"],
    );
    for path in [trace, svg] {
        std::fs::remove_file(path).expect("removable");
    }
}

/// The guide's picture is what the code draws: `UPDATE_TRACE=1` draws it again.
#[test]
fn the_guides_picture_is_of_today() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/trace.svg");
    let drawn = scratch("picture.svg");
    let words = format!("trace ag_gemm {SHAPE} --svg {}", drawn.display());
    let words = words.split_whitespace();
    good(tell_with(
        &counterflow::schedules::ALL,
        words,
        &Surroundings::default(),
    ));
    let new = std::fs::read_to_string(&drawn).expect("written");
    std::fs::remove_file(&drawn).expect("removable");
    if std::env::var_os("UPDATE_TRACE").is_some() {
        std::fs::write(&kept, &new).expect("the guide's folder");
    }
    let old = std::fs::read_to_string(&kept).expect("the guide's picture");
    assert!(
        old == new,
        "UPDATE_TRACE=1 draws docs/guide/trace.svg again"
    );
}

#[test]
fn mistakes_are_answered() {
    bad(
        &tell(AG, "predict --svg a.svg"),
        USAGE,
        &["--svg with `predict`", "use it with trace"],
    );
    bad(
        &tell(AG, "bench --trace a.json"),
        USAGE,
        &["--trace with `bench`", "predict, demo or trace"],
    );
    bad(
        &tell(AG, &format!("trace {SHAPE} --svg /nowhere/at/all.svg")),
        USAGE,
        &["--svg /nowhere/at/all.svg", "in an existing folder"],
    );
}
