//! Schedules that need multicast on the command line: what needs no GPU reaches them, and no verb runs them on one.

use super::{Output, bad, good, has};
use counterflow::{families, schedules};
use counterflow_workbench::{Schedule, Surroundings, USAGE, run_of};
use serde_json::Value as Json;

/// The whole library, as its example has it.
fn tell(words: &str) -> Output {
    let all: Vec<Schedule> = [&schedules::ALL[..], &schedules::MULTICAST].concat();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = std::iter::once("library").chain(words.split_whitespace());
    let all = (&all[..], &families::ALL[..]);
    let code = run_of(args, all, &Surroundings::default(), &mut out, &mut err);
    Output {
        code,
        out: String::from_utf8(out).expect("text"),
        err: String::from_utf8(err).expect("text"),
    }
}

fn names() -> Vec<String> {
    let all = schedules::MULTICAST.iter();
    all.map(|schedule| schedule().name).collect()
}

#[test]
fn what_needs_no_gpu_reaches_them() {
    for name in names() {
        let shape = "--m 512 --n 512 --k 256";
        has(
            &good(tell(&format!("{name} check --emit {shape}"))).out,
            &["is safe: "],
        );
        has(
            &good(tell(&format!("{name} emit"))).out,
            &["multimem", "multimem.st.weak.global"],
        );
        let told = good(tell(&format!("{name} predict --multicast {shape}"))).out;
        has(
            &told,
            &[
                "by published rates, not measured by us",
                "written so",
                "timed by rates that others published, not measured by us",
            ],
        );
        let small = match &name[..] {
            "ag_gemm_multicast" => "--set chunks=8",
            _ => "",
        };
        let words = format!(
            "{name} run --device cpu --arch cpu --set tiles=16x16 {small} --m 64 --n 32 --k 32"
        );
        good(tell(&words));
        // Nobody says where: nothing asks a GPU.
        let words = words.replace(" --device cpu", "");
        has(
            &good(tell(&words)).out,
            &["is the emulator: no verb makes a multicast object"],
        );
    }
    has(
        &good(tell("list")).out,
        &["ag_gemm_multicast", "all_reduce_multicast"],
    );
}

#[test]
fn no_verb_runs_them_on_a_gpu() {
    for name in names() {
        for (words, code) in [
            ("run --device cuda", USAGE),
            ("demo --device cuda", USAGE),
            ("trace --device cuda", USAGE),
            ("bench --shape 512x512x256", USAGE),
            ("bench --shape 512x512x256 --sweep", USAGE),
        ] {
            let verb = words.split(' ').next().expect("a verb");
            let told = tell(&format!("{name} {words}"));
            let refused = format!("`{verb}` of {name} on GPUs: it needs a multicast object");
            bad(&told, code, &[&refused, "run --device cpu"]);
        }
    }
}

#[test]
fn predictions_of_a_family_compare_the_multicast_forms() {
    let words = "predict all_gather_gemm --world 2 --m 512 --n 512 --k 512 --json";
    let compared = |words: &str| {
        let json: Json = serde_json::from_str(&tell(words).out).expect("an object");
        let why = json["chosen"]["why"].as_str().expect("a reason");
        assert!(why.starts_with("by the model: "), "{why}");
        let published = "by rates that others published, not measured by us";
        let told = json["chosen"]["by_published_rates"] == true;
        assert_eq!(told, why.contains(published), "{why}");
        [why.contains("ag_gemm_multicast "), told]
    };
    assert_eq!(compared(words), [false; 2]);
    // Whichever form is chosen.
    assert_eq!(compared(&format!("{words} --multicast")), [true; 2]);
}
