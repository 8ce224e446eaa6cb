//! Families of schedules on the command line.

use super::{Output, bad, good, has};
use counterflow_workbench::{GOOD, REJECTED, Surroundings, USAGE, run_of};
use serde_json::Value as Json;

/// The whole library, with its families.
fn tell(words: &str) -> Output {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = std::iter::once("library").chain(words.split_whitespace());
    let all = (
        &counterflow::schedules::ALL[..],
        &counterflow::families::ALL[..],
    );
    let code = run_of(args, all, &Surroundings::default(), &mut out, &mut err);
    Output {
        code,
        out: String::from_utf8(out).expect("text"),
        err: String::from_utf8(err).expect("text"),
    }
}

#[test]
fn families_are_listed_with_their_candidates() {
    let told = good(tell("list"));
    has(
        &told.out,
        &[
            "gemm_reduce_scatter",
            "gemm_rs, gemm+low_latency_reduce_scatter, gemm+reduce_scatter",
        ],
    );
    let json: Json = serde_json::from_str(&good(tell("list --json")).out).expect("an object");
    assert_eq!(json["families"].as_array().map(Vec::len), Some(4));
}

#[test]
fn predict_tells_the_choice_and_why() {
    let words = "predict gemm_all_reduce --world 2 --m 512 --n 512 --k 512";
    let told = good(tell(words));
    let wanted = [
        "chosen for gemm_all_reduce at 512x512x512: ",
        "by the model: ",
        "gemm_ar ",
    ];
    has(&told.out, &wanted);
    let told = tell(&format!("{words} --json"));
    assert_eq!((told.code, &told.err[..]), (GOOD, ""));
    let json: Json = serde_json::from_str(&told.out).expect("an object");
    let candidate = json["chosen"]["candidate"].as_str().expect("a name");
    let stages: Vec<&str> = candidate.split('+').collect();
    let told = json["stages"].as_array().expect("stages").iter();
    let told: Vec<&str> = told
        .filter_map(|stage| stage["schedule"].as_str())
        .collect();
    assert_eq!(told, stages);
}

#[test]
fn verbs_of_one_schedule_name_those_of_the_family() {
    let told = tell("check all_gather_gemm");
    bad(
        &told,
        USAGE,
        &[
            "a family of schedules",
            "ag_gemm, ag_gemm_pull, all_gather, gemm",
        ],
    );
}

#[test]
fn bench_measures_a_family() {
    let at = "--world 2 --shape 512x512x512";
    let other = tell(&format!("bench all_gather_gemm {at} --candidates ring"));
    bad(&other, USAGE, &["no candidate `ring`", "all_gather+gemm"]);
    let schedule = tell(&format!("bench ag_gemm {at} --candidates all"));
    bad(&schedule, USAGE, &["--candidates for ag_gemm"]);
    let open = tell(&format!(
        "bench all_gather_gemm {at} --set tiles=128x128 --set tiles=128x256"
    ));
    bad(&open, USAGE, &["several values for a family"]);
    if counterflow::cuda::Gpu::count().is_ok() {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    for family in ["all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce"] {
        let told = tell(&format!(
            "bench {family} {at} --candidates all --variants 1"
        ));
        // It gets as far as asking for a GPU.
        bad(&told, REJECTED, &["cuda", "driver"]);
    }
}
