//! Command lines without meaning: each is answered, none panics.

use super::{AG, ALL, bad, good, has, tell, tell_with};
use counterflow_workbench::{GOOD, REJECTED, Surroundings, USAGE};
use proptest::prelude::*;
use serde_json::Value as Json;

#[test]
fn every_bad_input_names_the_value_and_what_is_legal() {
    let usage: [(&str, &[&str]); 23] = [
        ("chek", &["`chek`", "did you mean `check`"]),
        ("check run", &["check", "run", "one verb"]),
        ("check --world many", &["'many'", "--world", "whole number"]),
        ("check --world -1", &["'-1'", "--world"]),
        ("check --world 0", &["'0'", "--world", "1 to 128"]),
        ("check --world 129", &["'129'", "--world", "1 to 128"]),
        ("run --seed -1", &["'-1'", "--seed", "whole number"]),
        ("emit --trace out.json", &["--trace", "emit", "predict"]),
        ("bench --multicast", &["--multicast", "`bench`", "predict"]),
        ("check --world", &["--world"]),
        (
            "check --m 4294967296",
            &["'4294967296'", "up to 2147483647"],
        ),
        ("check --dtype bf17", &["'bf17'", "bf16, f16, f32"]),
        ("check --scales row", &["'row'", "whole, rows"]),
        ("check --output fp8", &["'fp8'", "e4m3, e5m2"]),
        (
            "check --output-scales ours",
            &["'ours'", "te, deepgemm", "te+pow2"],
        ),
        ("check --partial bf16", &["'bf16'", "e4m3, e5m2"]),
        ("check --layout tt", &["'tt'", "nt, nn, tn"]),
        ("check --arch sm999", &["'sm999'", "sm90, cpu"]),
        ("run --device tpu", &["'tpu'", "cpu, cuda"]),
        ("predict --machine abacus", &["'abacus'", "h200", "this"]),
        ("check --set tiles", &["'tiles'", "tiles=128x256"]),
        ("check --set tiles=axb", &["'tiles=axb'", "128x256"]),
        ("check --wrld 4", &["--wrld", "--world"]),
    ];
    for (words, wanted) in usage {
        bad(&tell(AG, words), USAGE, wanted);
    }
    let rejected: [(&str, &[&str]); 17] = [
        ("check --m 0", &["m is 0", "from 1"]),
        (
            "check --output e4m3 --n 1048",
            &["1048 e4m3 = 1048 bytes", "multiple of 16"],
        ),
        (
            "check --output-scales te --output bf16",
            &["scales of e4m3 for outputs of bf16"],
        ),
        (
            "check --output-scales te --set tiles=128x192",
            &["tiles of 192 columns", "multiple of 128"],
        ),
        ("check --partial e4m3", &["adds up no tiles"]),
        ("check --amax", &["amaxes", "e4m3 or e5m2"]),
        (
            "check --n 7",
            &["7 bf16 = 14 bytes", "multiple of 16 bytes"],
        ),
        (
            "check --set tils=1",
            &["`tils`", "chunks, tiles, comm.ctas"],
        ),
        ("check --set tiles=64", &["`tiles` is set to 64", "pair"]),
        ("check --set tiles=0x64", &["0x64", "1 to 65536"]),
        (
            "check --set tiles=100x256",
            &["100x256", "64 (in ping-pong), 128 or 256"],
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
            "check --m 2000000000 --arch cpu --set tiles=1x1 --set chunks=1",
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
        "--second",
        "--scales",
        "--output",
        "--output-scales",
        "te+pow2",
        "--partial",
        "--amax",
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
        "chunks=8",
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
