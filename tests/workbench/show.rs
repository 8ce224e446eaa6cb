//! What is only shown: a demo, timelines, kernels, lists, JSON, stages and colours.

use super::{
    AG, ALL, GEMM, LARGE_TILES, Output, SMALL_AG, bad, good, has, object, schedules, tell,
    tell_with,
};
use counterflow_workbench::{GOOD, REJECTED, Surroundings, USAGE};
use serde_json::Value as Json;

#[test]
fn demo_is_the_default_and_tells_all_three() {
    // In tiles of which a layer has few: the prediction at its size walks through all of them.
    let told = good(tell(AG, LARGE_TILES));
    has(
        &told.out,
        &[
            "ag_gemm is safe",
            "progress",
            "race",
            "coverage",
            "reuse",
            "volume",
        ],
    );
    has(
        &told.out,
        &["launch", "max error", "as promised", "predicted", "exposed"],
    );
    assert!(told.out.lines().count() < 60, "{}", told.out);
    assert!(!told.out.contains('\u{1b}'), "colours without a terminal");
}

#[test]
fn predict_draws_a_timeline_and_writes_a_trace() {
    let path = std::env::temp_dir().join(format!("counterflow-trace-{}.json", std::process::id()));
    let words = ["predict", "--trace", path.to_str().expect("a path")];
    let told = good(tell_with(AG, words, &Surroundings::default()));
    has(
        &told.out,
        &[
            "predicted on NVIDIA H200",
            "in all",
            "exposed",
            "volume",
            "the least is",
        ],
    );
    let trace: Json = serde_json::from_str(&std::fs::read_to_string(&path).expect("written"))
        .expect("a trace is JSON");
    assert!(trace.is_object() || trace.is_array());
    std::fs::remove_file(&path).expect("removable");
}

#[test]
fn predict_says_what_multicast_would_bring_by_published_rates() {
    let told = good(tell(AG, "predict --multicast"));
    let wanted = [
        "multicast by published rates, not measured by us: 344 GB/s by stores, 450 where the switch both sums and stores everywhere",
        "`x.on(peer)[c] = x[c]`\n    one store to every rank: sends 1.6 MB, receives 1.6 -> sends 0.5 MB, receives 2.1; links 4.6 -> 6.1 µs",
        "in all\n    links, not the launch: sends 1.6 MB",
    ];
    has(&told.out, &wanted);
    assert!(!good(tell(AG, "predict")).out.contains("multicast"));
    let told = good(tell(&[schedules::gemm_ar], "predict --multicast --json"));
    let found = &object(&told)["multicast"];
    assert_eq!(found["measured_by_us"], false);
    let ways = found["statements"].as_array().expect("statements").iter();
    let ways: Vec<&str> = ways.filter_map(|of| of["way"].as_str()).collect();
    assert_eq!(
        ways,
        ["one sum of every rank's copy", "one store to every rank"]
    );
    let all = &found["all"];
    let bytes = |name: &str| all[name].as_u64().expect("bytes");
    assert!(bytes("received_bytes_by_switch") < bytes("received_bytes"));
    assert!(bytes("sent_bytes_by_switch") < bytes("sent_bytes"));
    // 1024 rows of 1024 in bf16: 2 MiB.
    let elsewhere = &found["all_reduce_elsewhere"];
    assert_eq!(
        (elsewhere["bytes"].as_f64(), elsewhere["seconds"].as_f64()),
        (Some(2097152.0), Some(26e-6))
    );
    let told = good(tell(GEMM, "predict --multicast"));
    has(&told.out, &["nothing crosses a link"]);
}

#[test]
fn a_trace_that_cannot_be_written_is_an_error() {
    let told = tell(AG, "predict --trace no/such/folder/trace.json");
    assert_eq!(told.code, USAGE);
    has(&told.err, &["--trace no/such/folder/trace.json", "folder"]);
}

#[test]
fn emit_prints_a_kernel_that_needs_no_header() {
    let told = good(tell(AG, "emit --world 8"));
    has(
        &told.out,
        &[
            "extern \"C\" __global__",
            "ag_gemm(",
            "counter_wait(",
            "wgmma_commit",
        ],
    );
    assert!(!told.out.contains("#include"), "{}", told.out);
}

#[test]
fn emit_refuses_what_the_architecture_cannot_do() {
    let told = tell(AG, "emit --dtype f32 --set tiles=128x128");
    bad(&told, REJECTED, &["f32"]);
}

#[test]
fn list_names_schedules_and_their_choices() {
    let told = good(tell(&ALL, "list"));
    has(
        &told.out,
        &[
            "ag_gemm",
            "gemm_rs",
            "tiles=128x256|256x128",
            "x: Gathered<bf16>",
        ],
    );
}

#[test]
fn help_is_good() {
    let told = good(tell(AG, "--help"));
    has(&told.out, &["--world", "Exit codes", "DUMP="]);
}

#[test]
fn json_is_one_object_with_stable_keys() {
    for verb in ["check", "run", "predict", "demo"] {
        let told = good(tell(AG, &format!("{verb} {SMALL_AG} --launches 1 --json")));
        let object = object(&told);
        assert_eq!(object["verb"], verb);
        assert_eq!(object["schedule"], "ag_gemm");
        assert_eq!(object["ok"], true);
        assert_eq!(object["exit"], 0);
        assert_eq!(object["shape"]["m"], 64);
        assert_eq!(object["variant"]["world"], 4);
        assert_eq!(object["variant"]["choices"]["tiles"], "16x16");
        let parts = ["proven", "ran", "predicted"].map(|part| object.get(part).is_some());
        assert!(parts[0], "{object}");
        assert_eq!(parts[1], matches!(verb, "run" | "demo"), "{object}");
        assert_eq!(parts[2], matches!(verb, "predict" | "demo"), "{object}");
    }
    let told = tell(AG, "list --json");
    assert_eq!(object(&told)["schedules"][0]["choices"]["chunks"][0], "128");
}

#[test]
fn json_carries_errors_too() {
    let told = tell(&ALL, "check copies_outside --json");
    assert_eq!(told.code, REJECTED);
    let rejected = object(&told);
    assert_eq!(rejected["error"]["kind"], "rejected");
    let first = &rejected["error"]["diagnostics"][0];
    assert_eq!(first["rule"], "language");
    assert!(first["at"]["line"].is_u64() && first["help"].is_string());
    let told = tell(AG, "check --world many --json");
    assert_eq!(told.code, USAGE);
    assert_eq!(object(&told)["error"]["kind"], "usage");
}

fn dump(value: &str, words: &str) -> Output {
    let surroundings = Surroundings {
        dump: Some(value.into()),
        ..Surroundings::default()
    };
    tell_with(&ALL, words.split_whitespace(), &surroundings)
}

#[test]
fn dump_prints_any_stage() {
    let told = dump("program,kernel,plan", "check ag_gemm");
    assert_eq!(told.code, GOOD, "{}", told.err);
    has(&told.err, &["ag_gemm", "arrived", "ready"]);
    assert_eq!(dump("plan:gemm_rs", "check ag_gemm").err, "");
    assert_ne!(dump("plan:gemm_rs", "check gemm_rs").err, "");
    bad(
        &dump("plans", "check gemm"),
        USAGE,
        &["`plans`", "program, kernel, pipeline, plan"],
    );
    for nobody in ["plan:nobody", "plan:"] {
        bad(&dump(nobody, "check gemm"), USAGE, &["DUMP", "gemm_rs"]);
    }
    has(
        &dump("pipeline", "check gemm").err,
        &["load stage.x <- x", "acc += stage.x · stage.w"],
    );
    has(&dump("cuda", "check gemm").err, &["__global__", "gemm("]);
}

#[test]
fn colours_only_when_asked() {
    let surroundings = Surroundings {
        colour: true,
        ..Surroundings::default()
    };
    let told = tell_with(&ALL, ["check", "copies_outside"], &surroundings);
    assert!(told.err.contains("\u{1b}[1;31merror"), "{}", told.err);
}
