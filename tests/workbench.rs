//! The workbench as its users meet it: what each verb prints, and how every mistake is answered.

mod common;
#[path = "../examples/your_own.rs"]
#[allow(dead_code, reason = "its main is the example's")]
mod your_own;

use common::{ALL, Told, schedules, tell, tell_with};
use counterflow::given::{Given, Matrix};
use counterflow::workbench::{GOOD, REJECTED, Schedule, Surroundings, USAGE};
use proptest::prelude::*;
use serde_json::Value as Json;

const GEMM: &[Schedule] = &[schedules::gemm];
const AG: &[Schedule] = &[schedules::ag_gemm];
/// Small enough for an unoptimised emulator.
const SMALL: &str = "--arch cpu --set tiles=16x16 --m 64 --n 32 --k 32";
const SMALL_AG: &str = "--arch cpu --set tiles=16x16 --set pieces=8 --m 64 --n 32 --k 32";

#[track_caller]
fn good(told: Told) -> Told {
    assert_eq!(told.code, GOOD, "{}{}", told.out, told.err);
    assert_eq!(told.err, "");
    told
}

/// The answer to a mistake: its exit code, and every one of `words` on standard error.
#[track_caller]
fn bad(told: &Told, code: u8, words: &[&str]) {
    assert_eq!(told.code, code, "{}{}", told.out, told.err);
    for word in words {
        assert!(told.err.contains(word), "no `{word}` in:\n{}", told.err);
    }
    assert!(
        told.err.contains("help: ") || told.err.contains("  = "),
        "{}",
        told.err
    );
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no `{word}` in:\n{text}");
    }
}

#[track_caller]
fn object(told: &Told) -> Json {
    let mut lines = told.out.lines();
    let object = serde_json::from_str(lines.next().expect("a line")).expect("an object");
    assert_eq!(lines.next(), None, "one object only");
    assert_eq!(told.err, "");
    object
}

#[test]
fn demo_is_the_default_and_tells_all_three() {
    let told = good(tell(AG, SMALL_AG));
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
fn check_tells_what_was_proven() {
    let told = good(tell(AG, "check"));
    has(
        &told.out,
        &[
            "ag_gemm is safe",
            "152 waits",
            "36 signals",
            "pieces=128 tiles=128x256",
        ],
    );
    has(
        &told.out,
        &[
            "y 1024x1024",
            "32 GEMM + 4 comm CTAs",
            "1.50 MiB out, 1.50 MiB in",
        ],
    );
}

/// Two loops of one role follow each other on the same CTAs, and the GEMM waits for the second.
#[test]
fn check_warns_of_comm_loops_that_wait_for_each_other() {
    const TWO: &[Schedule] = &[schedules::two_gathers];
    let told = tell(TWO, "check");
    assert_eq!(told.code, GOOD, "{}{}", told.out, told.err);
    has(
        &told.err,
        &[
            "warning[time]: this #[comm] loop begins when an earlier one ends, on the same CTAs: predicted ",
            " of the bound; with CTAs of its own ",
            "the earlier loop",
        ],
    );
    let loops = include_str!("common/schedules.rs")
        .split("fn two_gathers")
        .nth(1);
    let before = include_str!("common/schedules.rs")
        .split("fn two_gathers")
        .next();
    let above = before.expect("a schedule").lines().count();
    let mut loops = loops
        .expect("a schedule")
        .lines()
        .zip(above..)
        .filter(|(line, _)| line.contains("s.comm("));
    let second = loops.nth(1).expect("a second loop").1;
    let warned = told.err.lines().find(|line| line.contains("--> "));
    let warned = warned.expect("a place");
    assert!(
        warned.contains(&format!("schedules.rs:{second}:")),
        "not {second}:\n{}",
        told.err
    );
    let told = object(&tell(TWO, "check --json"));
    assert_eq!(told["proven"]["warnings"][0]["rule"], "time", "{told}");

    // One loop that does both, and one that does one thing.
    for one in [schedules::bulk, schedules::ag_gemm] {
        good(tell(&[one], "check"));
        let told = object(&tell(&[one], "check --json"));
        assert_eq!(told["proven"]["warnings"], serde_json::json!([]), "{told}");
    }
}

/// Where a statement of the example is, as a report names it.
fn line_of(statement: &str) -> String {
    let source = include_str!("../examples/your_own.rs");
    let line = source.lines().position(|line| line.contains(statement));
    format!("/examples/your_own.rs:{}", line.expect("a statement") + 1)
}

#[test]
fn check_says_whether_there_is_a_kernel_for_gpus() {
    let told = good(tell(AG, "check"));
    has(
        &told.out,
        &[
            "kernel    emits for sm90",
            "168 registers asked (72 to load and store, 216 to multiply)",
            "KiB shared",
        ],
    );
    good(tell(AG, "check --emit"));
    let kernel = &object(&tell(AG, "check --json"))["proven"]["kernel"];
    assert_eq!(kernel["emits"], true);
    assert_eq!(kernel["registers"], 168);
    assert!(kernel["shared_bytes"].as_u64() > Some(100_000), "{kernel}");

    // Safe, and refused at its statements: once each, with what would be legal.
    let told = good(tell(&[your_own::exchange], "check"));
    let first = line_of("if step != 0");
    let more = format!("{first}, and 1 more");
    has(
        &told.out,
        &[
            "exchange is safe",
            "not yet on GPUs",
            "an `if` between loops, ",
            &more,
        ],
    );
    let told = tell(&[your_own::exchange], "check --emit");
    bad(
        &told,
        REJECTED,
        &[
            "error[resources]: an `if` between loops",
            &first,
            &line_of("if me() ^ (step + world())"),
            "loops over ranks and items",
        ],
    );
    assert_eq!(
        told.err.matches("an `if` between loops").count(),
        2,
        "{}",
        told.err
    );
    has(&told.out, &["exchange is safe"]);
    let rejected = object(&tell(&[your_own::exchange], "check --json"));
    let kernel = &rejected["proven"]["kernel"];
    assert_eq!(kernel["emits"], false);
    assert!(kernel["diagnostics"][0]["at"]["line"].is_u64(), "{kernel}");

    let told = good(tell(AG, &format!("check {SMALL_AG}")));
    has(&told.out, &["not for GPUs", "emulator alone"]);
    bad(
        &tell(AG, &format!("check --emit {SMALL_AG}")),
        USAGE,
        &["--emit with --arch cpu", "--arch sm90"],
    );
    bad(&tell(AG, "run --emit"), USAGE, &["--emit with `run`"]);
}

#[test]
fn check_decides_ranges_of_worlds_and_rows() {
    let told = good(tell(
        AG,
        "check --worlds 1..=3 --rows 1..=300 --n 512 --k 64 --emit",
    ));
    has(
        &told.out,
        &[
            "ag_gemm is safe: every M from 1 to 300 by 512x64, in every world from 1 to 3",
            "first rejected",
            "emits for sm90",
        ],
    );
    let told = tell(AG, "check --worlds 2 --rows 1..=300 --json");
    let world = &object(&told)["ranges"]["worlds"][0];
    assert_eq!(world["shapes"], 300);
    assert_eq!(world["safe"], true);
    let classes = world["classes"].as_u64().expect("a number");
    assert!((3..20).contains(&classes), "{world}");

    // What is wrong somewhere is told with the first shape where it is, and the range is refused.
    let told = tell(&ALL, "check forgets_one_peer --worlds 1..=3 --rows 1..=64");
    bad(&told, REJECTED, &["error[progress]", "arrived"]);
    has(
        &told.out,
        &[
            "forgets_one_peer is not safe",
            "3 of 3 classes rejected: progress",
            "1x1024x1024",
        ],
    );
    let told = tell(
        &ALL,
        "check forgets_one_peer --worlds 3 --rows 1..=64 --json",
    );
    assert_eq!(told.code, REJECTED);
    let world = &object(&told)["ranges"]["worlds"][0];
    assert_eq!(world["safe"], false);
    assert!(world["refused"][0]["rows"][0][0].is_u64(), "{world}");
    assert_eq!(world["refused"][0]["diagnostics"][0]["rule"], "progress");

    let told = tell(
        &[your_own::exchange],
        "check --worlds 1..=2 --rows 1..=9 --emit",
    );
    bad(&told, REJECTED, &["an `if` between loops"]);
    has(&told.out, &["exchange is safe", "not yet on GPUs"]);

    let usage: [(&str, &[&str]); 8] = [
        (
            "check --worlds 0..=3",
            &["'0..=3'", "1..=8", "from 1 to 128"],
        ),
        ("check --worlds 3..=2", &["'3..=2'", "1..=8"]),
        ("check --rows 1..9", &["'1..9'", "1..=4096"]),
        ("check --rows 1,2", &["several --rows", "one range"]),
        ("check --rows 1..=9 --m 3", &["--rows", "cannot be used"]),
        (
            "check --worlds 1..=2 --world 3",
            &["--worlds", "cannot be used"],
        ),
        (
            "run --rows 1..=9",
            &["--rows with `run`", "check decides ranges"],
        ),
        (
            "bench --rows 1..=9",
            &["--rows 1..=9 with `bench`", "512,2048"],
        ),
    ];
    for (words, wanted) in usage {
        bad(&tell(AG, words), USAGE, wanted);
    }
    let told = tell(AG, "check --worlds 1..=128 --rows 1..=2000000000");
    bad(&told, REJECTED, &["shapes", "narrower --rows or --worlds"]);
}

/// Two products of 256x128: together their accumulators do not fit, and no item computes both.
#[counterflow::prelude::schedule]
fn either_product(
    x: counterflow::prelude::Local<counterflow::prelude::bf16>,
    w: counterflow::prelude::Local<counterflow::prelude::bf16>,
    y: counterflow::prelude::Out<counterflow::prelude::bf16>,
) {
    let tiles = y.tiles((256, 128));
    #[gemm]
    for t in tiles {
        if me() == 0 {
            y[t] = dot(x[t], w[t]);
        } else {
            y[t] = dot(x[t], w[t]).relu();
        }
    }
}

#[test]
fn branches_that_exclude_each_other_share_their_registers() {
    let told = good(tell(&[either_product], "check"));
    has(
        &told.out,
        &[
            "either_product is safe",
            "an `if` inside an item, tests/workbench.rs:",
        ],
    );
}

#[test]
fn check_takes_every_schedule() {
    for name in [
        "gemm",
        "ag_gemm",
        "ag_gemm_ring",
        "gemm_rs",
        "gemm_ar",
        "bulk",
    ] {
        for world in [1, 2, 3, 5, 8] {
            let told = good(tell(
                &ALL,
                &format!("check {name} --world {world} --m 1000"),
            ));
            has(&told.out, &[name, "is safe"]);
        }
    }
}

#[test]
fn the_library_is_safe_and_right_in_every_world() {
    for schedule in counterflow::schedules::ALL {
        let program = schedule();
        // Tiles and pieces that an unoptimised emulator is quick with, and that divide nothing evenly.
        let set: Vec<String> = program
            .tunables
            .iter()
            .filter_map(|tunable| match tunable.name.as_str() {
                "tiles" => Some("--set tiles=16x8".to_string()),
                "pieces" => Some("--set pieces=8".to_string()),
                _ => None,
            })
            .collect();
        for world in [1, 2, 3, 5] {
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
fn check_tells_the_story_of_a_wait_that_is_not_met() {
    let told = tell(&ALL, "check forgets_one_peer");
    bad(
        &told,
        REJECTED,
        &["error[progress]", "arrived", "schedules.rs", "gemm", "rank"],
    );
    // The source line itself, with a mark.
    has(
        &told.err,
        &["s.wait_at_least(arrived.at(t.rows()), 1);", "^^^^"],
    );
}

#[test]
fn check_tells_the_story_of_a_race() {
    let told = tell(&ALL, "check does_not_wait");
    bad(
        &told,
        REJECTED,
        &["error[race]", "may read", "of x on rank", "schedules.rs"],
    );
    has(&told.err, &["s.copy(x.on(&peer).at(p), x.at(p));"]);
}

#[test]
fn check_points_at_a_statement_without_meaning() {
    let told = tell(&ALL, "check copies_outside");
    bad(
        &told,
        REJECTED,
        &[
            "error[language]",
            "outside a loop over items",
            "s.copy(x.on(&peer), x);",
        ],
    );
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
    let told = tell(LOGARITHM, SMALL);
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
fn run_refuses_a_device_that_is_not_there() {
    if counterflow::cuda::Gpu::count().is_ok() {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    let told = tell(AG, "run --device cuda");
    bad(&told, REJECTED, &["cuda", "driver", "--device cpu"]);
}

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
            "bulk" => &["measuring bulk", "one output"],
            _ => &["cuda", "driver"],
        };
        bad(&told, REJECTED, wanted);
    }
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
    bad(&three, USAGE, &["`all` is no suite", "2, 4 or 8 ranks"]);
}

#[test]
fn run_refuses_what_does_not_fit_in_memory() {
    let told = tell(GEMM, "run --m 1000000 --n 8 --k 1000");
    bad(&told, REJECTED, &["elements", "at most", "--m"]);
    let told = tell(GEMM, "run --m 100000 --n 100000 --k 100000");
    bad(&told, REJECTED, &["multiply-adds", "at most", "--m"]);
}

#[test]
fn predict_draws_a_timeline_and_writes_a_trace() {
    let path = std::env::temp_dir().join(format!("counterflow-trace-{}.json", std::process::id()));
    let words = ["predict", "--trace", path.to_str().expect("a path")];
    let told = good(tell_with(AG, words, &Surroundings::default()));
    has(
        &told.out,
        &[
            "predicted on H200",
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
    assert_eq!(object(&told)["schedules"][0]["choices"]["pieces"][0], "128");
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

#[test]
fn every_bad_input_names_the_value_and_what_is_legal() {
    let usage: [(&str, &[&str]); 18] = [
        ("chek", &["`chek`", "did you mean `check`"]),
        ("check run", &["check", "run", "one verb"]),
        ("check --world many", &["'many'", "--world", "whole number"]),
        ("check --world -1", &["'-1'", "--world"]),
        ("check --world 0", &["'0'", "--world", "1 to 128"]),
        ("check --world 129", &["'129'", "--world", "1 to 128"]),
        ("run --seed -1", &["'-1'", "--seed", "whole number"]),
        ("emit --trace out.json", &["--trace", "emit", "predict"]),
        ("check --world", &["--world"]),
        (
            "check --m 4294967296",
            &["'4294967296'", "up to 2147483647"],
        ),
        ("check --dtype bf17", &["'bf17'", "bf16, f16, f32"]),
        ("check --layout tt", &["'tt'", "nt, nn, tn"]),
        ("check --arch sm999", &["'sm999'", "sm90, cpu"]),
        ("run --device tpu", &["'tpu'", "cpu, cuda"]),
        ("predict --machine abacus", &["'abacus'", "h200"]),
        ("check --set tiles", &["'tiles'", "tiles=128x256"]),
        ("check --set tiles=axb", &["'tiles=axb'", "128x256"]),
        ("check --wrld 4", &["--wrld", "--world"]),
    ];
    for (words, wanted) in usage {
        bad(&tell(AG, words), USAGE, wanted);
    }
    let rejected: [(&str, &[&str]); 12] = [
        ("check --m 0", &["m is 0", "from 1"]),
        (
            "check --n 7",
            &["7 bf16 = 14 bytes", "multiple of 16 bytes"],
        ),
        (
            "check --set tils=1",
            &["`tils`", "pieces, tiles, comm.ctas"],
        ),
        ("check --set tiles=64", &["`tiles` is set to 64", "pair"]),
        ("check --set tiles=0x64", &["0x64", "1 to 65536"]),
        (
            "check --set tiles=100x256",
            &["100x256", "64 (in turn), 128 or 256"],
        ),
        (
            "check --set comm.ctas=200",
            &["200 comm CTAs", "at most 131"],
        ),
        ("check --dim z.rows=4", &["`z.rows`", "it has"]),
        (
            "check --ld x=8",
            &["leading dimension of x is 8", "at least 1024"],
        ),
        ("check --ld v=8", &["`v`", "it has x, w, y"]),
        (
            "check --ld x=1029",
            &[
                "1029 bf16",
                "give x a leading dimension that is a multiple of 8",
            ],
        ),
        (
            "check --m 2000000000 --arch cpu --set tiles=1x1 --set pieces=1",
            &["2000000000", "cells"],
        ),
    ];
    for (words, wanted) in rejected {
        bad(&tell(AG, words), REJECTED, wanted);
    }
}

#[test]
fn several_schedules_need_a_name() {
    bad(
        &tell(&ALL, "check"),
        USAGE,
        &["`check` takes one schedule", "has 9", "ag_gemm"],
    );
    has(
        &good(tell(&ALL, "")).out,
        &["gemm_rs", "tiles=128x256|256x128"],
    );
    bad(&tell(&ALL, "check gemm ag_gemm"), USAGE, &["one schedule"]);
    bad(
        &tell(&ALL, "--schedule gem check"),
        USAGE,
        &["`gem`", "did you mean `gemm`"],
    );
    good(tell(&ALL, "check --schedule gemm"));
    bad(&tell(&[], "check"), USAGE, &["no schedule"]);
}

fn dump(value: &str, words: &str) -> Told {
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

/// Words that are legal, nearly legal, or nothing of the kind.
fn word() -> impl Strategy<Value = String> {
    let words = [
        "check",
        "predict",
        "emit",
        "list",
        "demo",
        "run",
        "gemm",
        "ag_gemm",
        "gemm_rs",
        "bulk",
        "forgets_one_peer",
        "does_not_wait",
        "--world",
        "--m",
        "--n",
        "--k",
        "--dim",
        "--ld",
        "--set",
        "--dtype",
        "--layout",
        "--arch",
        "--device",
        "--machine",
        "--launches",
        "--seed",
        "--json",
        "--schedule",
        "--help",
        "0",
        "1",
        "2",
        "3",
        "8",
        "16",
        "24",
        "64",
        "129",
        "2147483647",
        "2147483648",
        "18446744073709551616",
        "-1",
        "1e9",
        "",
        "=",
        "tiles=16x16",
        "tiles=8x4294967295",
        "pieces=8",
        "tiles=0x0",
        "x=64",
        "z.rows=8",
        "m=8",
        "cpu",
        "cuda",
        "sm90",
        "bf16",
        "f32",
        "nt",
        "tn",
        "h200",
        "--trace",
        "\u{202e}",
        "日本",
    ];
    prop_oneof![
        9 => proptest::sample::select(words.to_vec()).prop_map(str::to_string),
        1 => any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_command_line_panics(words in proptest::collection::vec(word(), 0..9)) {
        // Small by default, so that a run that is legal stays short; what the words say comes later and wins.
        let small = ["--arch=cpu", "--m=16", "--n=16", "--k=16"];
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        // A trace would be a file of that name here.
        words.retain(|word| !word.starts_with("--t"));
        for option in small {
            let name = option.split('=').next().unwrap_or_default();
            if !words.iter().any(|word| word.starts_with(name)) {
                words.push(option);
            }
        }
        let told = tell_with(&ALL, words.iter().copied(), &Surroundings::default());
        prop_assert!(told.code <= USAGE);
        let json = words.contains(&"--json");
        if told.code != GOOD {
            let said = if json { told.out.contains("error") } else { !told.err.is_empty() };
            prop_assert!(said, "nothing was said");
        }
        if json {
            prop_assert!(serde_json::from_str::<Json>(&told.out).is_ok() || words.contains(&"--help"));
        }
    }
}
