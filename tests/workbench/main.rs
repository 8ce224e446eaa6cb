//! The workbench as its users meet it: what each verb prints, and how every mistake is answered.

mod bench;
mod chart;
mod check;
mod doctor;
mod families;
#[path = "../../codegen/tests/fixtures/mod.rs"]
mod fixtures;
mod multicast;
#[path = "../../examples/rejected.rs"]
#[allow(dead_code, reason = "its main is the example's")]
mod rejected;
mod run;
mod schedules;
mod show;
mod trace;
mod words;
#[path = "../../examples/your_own.rs"]
#[allow(dead_code, reason = "its main is the example's")]
mod your_own;

use counterflow_workbench::{GOOD, Schedule, Surroundings, run_with};
use serde_json::Value as Json;

const GEMM: &[Schedule] = &[schedules::gemm];
const GEMM_RS: &[Schedule] = &[schedules::gemm_rs];
const AG: &[Schedule] = &[schedules::ag_gemm];
/// Small enough for an unoptimised emulator.
const SMALL: &str = "--arch cpu --set tiles=16x16 --m 64 --n 32 --k 32";
/// As small, in tiles as large as users have.
const LARGE_TILES: &str = "--arch cpu --set tiles=128x256 --m 64 --n 32 --k 32";
const SMALL_AG: &str = "--arch cpu --set tiles=16x16 --set chunks=8 --m 64 --n 32 --k 32";

/// What a call of the workbench gave.
#[derive(Debug)]
struct Output {
    code: u8,
    out: String,
    err: String,
}

/// Every schedule of these tests as one binary.
const ALL: [Schedule; 9] = [
    schedules::gemm,
    schedules::ag_gemm,
    schedules::ag_gemm_ring,
    schedules::gemm_rs,
    schedules::gemm_ar,
    schedules::bulk,
    schedules::forgets_one_peer,
    schedules::does_not_wait,
    schedules::copies_outside,
];

/// Calls the workbench with words separated by spaces.
fn tell(schedules: &[Schedule], words: &str) -> Output {
    tell_with(
        schedules,
        words.split_whitespace(),
        &Surroundings::default(),
    )
}

/// As [`tell`], with arguments as they are and surroundings.
fn tell_with<'a>(
    schedules: &[Schedule],
    words: impl IntoIterator<Item = &'a str>,
    surroundings: &Surroundings,
) -> Output {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = std::iter::once("workbench").chain(words);
    let code = run_with(args, schedules, surroundings, &mut out, &mut err);
    Output {
        code,
        out: String::from_utf8(out).expect("text"),
        err: String::from_utf8(err).expect("text"),
    }
}

#[track_caller]
fn good(told: Output) -> Output {
    assert_eq!(told.code, GOOD, "{}{}", told.out, told.err);
    assert_eq!(told.err, "");
    told
}

/// The answer to a mistake: its exit code, and every one of `words` on standard error.
#[track_caller]
fn bad(told: &Output, code: u8, words: &[&str]) {
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
fn object(told: &Output) -> Json {
    let mut lines = told.out.lines();
    let object = serde_json::from_str(lines.next().expect("a line")).expect("an object");
    assert_eq!(lines.next(), None, "one object only");
    assert_eq!(told.err, "");
    object
}
