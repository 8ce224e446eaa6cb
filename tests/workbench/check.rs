//! `check`: what is proven, what is refused with which trace, and ranges of shapes.

use super::{AG, ALL, SMALL_AG, bad, good, has, object, rejected, schedules, tell, your_own};
use crate::fixtures::wide::sampled;
use counterflow_workbench::{GOOD, REJECTED, Schedule, USAGE};

#[test]
fn check_tells_what_was_proven() {
    let told = good(tell(AG, "check"));
    has(
        &told.out,
        &[
            "ag_gemm is safe",
            "152 waits",
            "36 signals",
            "chunks=128 tiles=128x256",
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

#[test]
fn the_readme_shows_the_report_of_a_refused_schedule() {
    const NEVER_STARTS: &[Schedule] = &[rejected::never_starts];
    let told = tell(NEVER_STARTS, "");
    assert_eq!(told.code, REJECTED, "{}{}", told.out, told.err);
    // The example is a module of this test: what it prints names the way from here.
    let report = told.err.replace("tests/workbench/../../", "");
    let readme = include_str!("../../README.md");
    let mut blocks = readme
        .split("```text\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("\n```"));
    let (shown, _) = blocks.next().expect("a report in README.md");
    assert_eq!(shown, report.trim_end());
    assert!(blocks.next().is_none(), "another block of text");
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
            " of the bound; with separate CTAs ",
            "the earlier loop",
        ],
    );
    let loops = include_str!("schedules.rs").split("fn two_gathers").nth(1);
    let before = include_str!("schedules.rs").split("fn two_gathers").next();
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

/// Where a statement of the tests' schedules is, as a report names it.
fn line_of(statement: &str) -> String {
    let source = include_str!("schedules.rs");
    let line = source.lines().position(|line| line.contains(statement));
    format!("/workbench/schedules.rs:{}", line.expect("a statement") + 1)
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

    // A schedule of one's own.
    let told = good(tell(&[your_own::exchange], "check --emit"));
    has(&told.out, &["exchange is safe", "emits for sm90"]);

    // Safe, and refused at its statements: once each, with what would be legal.
    const LATE: &[Schedule] = &[schedules::waits_after_copies];
    let told = good(tell(LATE, "check"));
    let first = line_of("s.wait(x_came.at(p))");
    let more = format!("{first}, and 1 more");
    has(
        &told.out,
        &[
            "waits_after_copies is safe",
            "not yet on GPUs",
            "a wait behind a copy or a signal of its own item, ",
            &more,
        ],
    );
    let told = tell(LATE, "check --emit");
    bad(
        &told,
        REJECTED,
        &[
            "error[resources]: a wait behind a copy or a signal of its own item",
            &first,
            &line_of("s.wait(z_came.at(p))"),
            "put the wait into a loop of its own after the copies",
        ],
    );
    assert_eq!(
        told.err
            .matches("a wait behind a copy or a signal of its own item")
            .count(),
        2,
        "{}",
        told.err
    );
    has(&told.out, &["waits_after_copies is safe"]);
    let rejected = object(&tell(LATE, "check --json"));
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

/// The warps of a wrong schedule do what it says, and are found wrong: that is no mistake of the compiler.
#[test]
fn no_kernel_is_asked_of_a_schedule_that_is_not_safe() {
    let words = "check forgets_one_peer --worlds 3 --rows 1..=64 --emit";
    let told = tell(&ALL, words);
    bad(&told, REJECTED, &["error[progress]", "arrived"]);
    assert!(!told.err.contains("our bug"), "{}", told.err);
    assert!(!told.out.contains("not yet on GPUs"), "{}", told.out);
    let told = tell(&ALL, &format!("{words} --json"));
    let world = &object(&told)["ranges"]["worlds"][0];
    assert!(world["kernel"].is_null(), "{world}");
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
        &[schedules::waits_after_copies],
        "check --worlds 1..=2 --rows 1..=9 --emit",
    );
    bad(
        &told,
        REJECTED,
        &["a wait behind a copy or a signal of its own item"],
    );
    has(
        &told.out,
        &["waits_after_copies is safe", "not yet on GPUs"],
    );

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
            &["--rows with `run`", "only check takes ranges"],
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
    has(&told.out, &["either_product is safe", "emits for sm90"]);
}

/// Of the variant that is checked: its class, or why it has none.
#[test]
fn check_says_which_variants_are_batch_invariant() {
    let told = good(tell(&ALL, "check gemm_ar --world 4 --m 1000"));
    has(&told.out, &["batch-invariant", "K in steps of 64"]);
    let whole = &object(&tell(&ALL, "check gemm --world 1 --m 1000 --json"))["proven"];
    assert_eq!(whole["batch_invariant"], true, "{whole}");
    assert_eq!(whole["bits"], "K in steps of 64");
    let words = "check --world 4 --m 1000 --json";
    let adds = tell(&[counterflow::schedules::gemm_rs_add], words);
    let adds = &object(&adds)["proven"];
    assert_eq!(adds["batch_invariant"], false, "{adds}");
    assert_eq!(
        adds["bits"],
        "ranks add to `y` in the order in which they come"
    );
}

#[test]
fn check_takes_every_schedule() {
    let names = [
        "gemm",
        "ag_gemm",
        "ag_gemm_ring",
        "gemm_rs",
        "gemm_ar",
        "bulk",
    ];
    let all = names.map(|name| [1, 2, 3, 5, 8].map(|world| (name, world)));
    for (name, world) in sampled(all.into_iter().flatten(), 4) {
        let words = format!("check {name} --world {world} --m 1000");
        let told = good(tell(&ALL, &words));
        has(&told.out, &[name, "is safe"]);
    }
}

#[test]
fn check_shows_the_trace_of_a_wait_that_is_not_met() {
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
fn check_shows_the_trace_of_a_race() {
    let told = tell(&ALL, "check does_not_wait");
    bad(
        &told,
        REJECTED,
        &["error[race]", "may read", "of x on rank", "schedules.rs"],
    );
    has(&told.err, &["s.copy(x.on(&peer).at(c), x.at(c));"]);
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
