//! `bench` without a GPU: its words, its suites, what it measures.

use super::{AG, GEMM, bad, good, has, tell};
use counterflow_workbench::{REJECTED, USAGE};

#[test]
fn bench_says_what_is_missing_and_which_words_have_no_meaning() {
    for (words, wanted) in [
        ("bench --suite llama7b-tp4", ["llama7b-tp4", "llama70b"]),
        ("bench --suite gpt3-tp3", ["gpt3-tp3", "-tp2"]),
        ("bench --shape 4096", ["4096", "--help"]),
        ("bench --shape 1x2x3x4", ["1x2x3x4", "--help"]),
        ("bench --samples 0", ["0", "--help"]),
        ("bench --variants some", ["some", "--help"]),
        ("bench --sustained -1", ["-1", "--help"]),
    ] {
        bad(&tell(GEMM, words), USAGE, &wanted);
    }
    let other = tell(AG, "bench --world 2 --suite llama70b-tp4");
    bad(&other, USAGE, &["for 4 ranks", "--world 4"]);
    if counterflow::cuda::Gpu::count().is_ok() {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    let told = tell(GEMM, "bench --shape 512x512x512");
    bad(&told, REJECTED, &["cuda", "driver", "`predict` estimates"]);
    assert!(!told.err.contains("--device"), "{}", told.err);
}

#[test]
fn bench_measures_every_schedule_of_one_product() {
    if counterflow::cuda::Gpu::count().is_ok() {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    for schedule in counterflow::schedules::ALL {
        let name = schedule().name;
        let layout = if name == "wgrad" { "tn" } else { "nt" };
        let told = tell(
            &counterflow::schedules::ALL,
            &format!("bench {name} --world 2 --layout {layout} --shape 512x512x512"),
        );
        // It gets as far as asking for a GPU.
        let wanted: &[&str] = match &name[..] {
            "bulk" | "bulk_rs" => &["measuring bulk", "one output"],
            "all_gather" => &["measuring all_gather", "schedules of one product"],
            "reduce_scatter" | "all_reduce" => &["measuring", "schedules of one product"],
            "gemm_ag" => &["measuring gemm_ag", "gathers its result"],
            "experts" => &["measuring experts", "schedules of one product"],
            "mlp" => &["measuring mlp", "schedules of one product"],
            "ag_swiglu" => &["measuring ag_swiglu", "schedules of one rank"],
            _ => &["cuda", "driver"],
        };
        bad(&told, REJECTED, wanted);
    }
}

/// As far as asking for a GPU, with every kind of scales that a schedule takes, on several ranks.
#[test]
fn bench_measures_fp8_on_several_ranks() {
    if counterflow::cuda::Gpu::count().is_ok() {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    for schedule in [
        "gemm",
        "ag_gemm",
        "ag_gemm_pull",
        "ag_gemm_ring",
        "ag_gemm_double_ring",
        "fsdp_gemm",
        "gemm_rs",
        "gemm_rs_add",
        "rs_ring",
        "gemm_ar",
        "all_to_all",
    ] {
        for scales in counterflow::Scales::ALL {
            let tiles = match schedule {
                // A rank's tiles are its own, and those of others.
                "all_to_all" => "",
                _ => "--set tiles=128x128",
            };
            let words = format!(
                "bench {schedule} --world 2 --dtype e4m3 --scales {} {tiles} --shape 512x512x512",
                scales.name()
            );
            let told = tell(&counterflow::schedules::ALL, &words);
            bad(&told, REJECTED, &["cuda", "driver"]);
        }
    }
    let layout = "bench fsdp_gemm --world 2 --layout nn --shape 512x512x512";
    let told = tell(&counterflow::schedules::ALL, layout);
    bad(&told, REJECTED, &["gathers its weight", "--layout nt"]);
    let residual = "bench linear_residual --dtype e4m3 --scales rows --shape 512x512x512";
    let told = tell(&counterflow::schedules::ALL, residual);
    bad(
        &told,
        REJECTED,
        &["more than multiply", "on one rank or several"],
    );
}

/// As far as asking for a GPU: results of FP8, amaxes, scales that launches make, and partial sums in FP8.
#[test]
fn bench_measures_what_options_of_fp8_cost() {
    if counterflow::cuda::Gpu::count().is_ok() {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    for (schedule, options) in [
        ("gemm", "--output e5m2"),
        ("gemm", "--output e4m3 --amax"),
        ("gemm", "--dtype e4m3 --scales whole --output e4m3 --amax"),
        ("gemm", "--output-scales te+pow2"),
        (
            "gemm",
            "--dtype e4m3 --scales 1d2d --output-scales deepgemm",
        ),
        ("ag_gemm", "--output e4m3 --amax"),
        ("ag_gemm", "--dtype e4m3 --scales rows --output-scales te"),
        ("gemm_rs", "--partial e4m3"),
        ("gemm_ar", "--partial e5m2"),
        ("gemm_rs", "--dtype e4m3 --scales 1d2d --partial e4m3"),
    ] {
        let words =
            format!("bench {schedule} --world 2 {options} --set tiles=128x128 --shape 512x512x512");
        let told = tell(&counterflow::schedules::ALL, &words);
        bad(&told, REJECTED, &["cuda", "driver"]);
    }
    let more = "bench linear_residual --output e4m3 --shape 512x512x512";
    let told = tell(&counterflow::schedules::ALL, more);
    bad(&told, REJECTED, &["measuring linear_residual"]);
    let nothing = "bench gemm --world 2 --partial e4m3 --shape 512x512x512";
    let told = tell(&counterflow::schedules::ALL, nothing);
    bad(&told, REJECTED, &["adds up no tiles"]);
}

#[test]
fn bench_tells_its_suites_and_refuses_what_contradicts_itself() {
    let help = good(tell(GEMM, "--help"));
    let wanted = [
        "llama405b-tp2",
        "down 16384x53248 by depth",
        "ragged: rows 1, 7",
    ];
    has(&help.out, &wanted);
    for words in [
        "bench --seconds-a-product 1 --sustained 5",
        "bench --seconds-a-product 1 --sweep",
    ] {
        bad(
            &tell(GEMM, words),
            USAGE,
            &["--seconds-a-product", "cannot be used"],
        );
    }
    bad(
        &tell(GEMM, "bench --seconds-a-product 0"),
        USAGE,
        &["number of seconds"],
    );
    let three = tell(AG, "bench --world 3 --suite all");
    bad(&three, USAGE, &["`all` is not a suite", "2, 4 or 8 ranks"]);
}
