//! House rules as tests: who may depend on whom, what a crate must not touch, how long a file may be.

mod circles;
mod crates;
mod examples;
mod features;
mod findings;
mod glossary;
mod guide;
mod multicast;
mod public;
mod readme;
mod sampled;
mod security;
mod soundness;
mod stable;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files below `dir` whose name ends in one of `ends`, without build output.
fn files(dir: &str, ends: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(dir)];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for path in entries.map(|entry| entry.expect("readable").path()) {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or("");
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    open.push(path);
                }
            } else if ends.iter().any(|end| name.ends_with(end)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn short(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}

/// Code without comments and without unit tests, which stand last in a file.
fn code(path: &Path) -> String {
    let text = text(path);
    // A module of tests in a file of its own is declared among the others.
    let own = text.match_indices("#[cfg(test)]").find(|(at, _)| {
        let ends = text[*at..].find(['{', ';']);
        ends.is_some_and(|end| text[at + end..].starts_with('{'))
    });
    let code = own.map_or(&text[..], |(at, _)| &text[..at]);
    let lines = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    lines.collect::<Vec<_>>().join("\n")
}

fn sources() -> Vec<PathBuf> {
    [
        "src",
        "macros/src",
        "codegen/src",
        "emitter/src",
        "emulator/src",
        "timeline/src",
        "runtime/src",
        "quantise/src",
        "workbench/src",
        "launcher/src",
        "layers/src",
    ]
    .iter()
    .flat_map(|dir| files(dir, &[".rs", ".cuh"]))
    .collect()
}

#[test]
fn crates_depend_downwards_only() {
    let allowed: [(&str, &[&str]); 14] = [
        ("macros/Cargo.toml", &[]),
        // They compile schedules as users do.
        ("macros/tests/Cargo.toml", &["counterflow"]),
        ("codegen/Cargo.toml", &[]),
        // What prints, what checks and what predicts: the compiler knows none of them.
        ("emitter/Cargo.toml", &["counterflow-codegen"]),
        ("emulator/Cargo.toml", &["counterflow-codegen"]),
        // Events of a traced text have the numbers of its probes.
        (
            "timeline/Cargo.toml",
            &["counterflow-codegen", "counterflow-emitter"],
        ),
        (
            "codegen/tests/Cargo.toml",
            &[
                "counterflow-codegen",
                "counterflow-emitter",
                "counterflow-emulator",
                "counterflow-timeline",
            ],
        ),
        // It starts any program.
        ("launcher/Cargo.toml", &[]),
        // Its examples are what users write.
        (
            "runtime/Cargo.toml",
            &[
                "counterflow",
                "counterflow-codegen",
                "counterflow-emitter",
                "counterflow-emulator",
                "counterflow-timeline",
            ],
        ),
        (
            "runtime/tests/Cargo.toml",
            &[
                "counterflow",
                "counterflow-codegen",
                "counterflow-emitter",
                "counterflow-emulator",
                "counterflow-runtime",
                "counterflow-timeline",
            ],
        ),
        (
            "quantise/Cargo.toml",
            &[
                "counterflow-codegen",
                "counterflow-emitter",
                "counterflow-emulator",
                "counterflow-runtime",
            ],
        ),
        (
            "workbench/Cargo.toml",
            // Operands of FP8 are quantised as users do it.
            &[
                "counterflow-codegen",
                "counterflow-emitter",
                "counterflow-emulator",
                "counterflow-quantise",
                "counterflow-runtime",
                "counterflow-timeline",
            ],
        ),
        // Over what users have, and nothing else.
        ("layers/Cargo.toml", &["counterflow"]),
        (
            "Cargo.toml",
            &[
                "counterflow-codegen",
                // By the feature `unstable`.
                "counterflow-emitter",
                "counterflow-emulator",
                "counterflow-timeline",
                "counterflow-macros",
                // By a feature that is off by default.
                "counterflow-quantise",
                "counterflow-runtime",
                // For examples and tests; see `who_embeds_compiles_no_tool`.
                "counterflow-workbench",
                // Itself, with every feature, for these.
                "counterflow",
            ],
        ),
    ];
    for (manifest, allowed) in allowed {
        let parsed: toml::Table = text(&root().join(manifest)).parse().expect("a manifest");
        let mut ours = BTreeSet::new();
        for table in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let names = parsed.get(table).and_then(toml::Value::as_table);
            ours.extend(names.into_iter().flat_map(|names| names.keys().cloned()));
        }
        ours.retain(|name| name.starts_with("counterflow"));
        let allowed: BTreeSet<String> = allowed.iter().map(ToString::to_string).collect();
        assert!(
            ours.is_subset(&allowed),
            "{manifest} depends on {ours:?}, but may on {allowed:?} only"
        );
    }
}

/// What a package is compiled of, tests aside: each package with the features that it has there.
fn tree(package: &str) -> String {
    let cargo = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["tree", "--offline", "--locked", "--edges", "normal,build"])
        .args(["--prefix", "none", "--format", "{p} {f}"])
        .args(["--package", package])
        .output()
        .expect("cargo starts");
    let told = String::from_utf8_lossy(&cargo.stderr);
    assert!(cargo.status.success(), "cargo tree: {told}");
    String::from_utf8(cargo.stdout).expect("text")
}

/// Who depends on `counterflow` gets the language, the compiler and the runtime.
#[test]
fn who_embeds_compiles_no_tool() {
    let tool = [
        "counterflow-workbench ",
        "counterflow-quantise ",
        "clap ",
        "indicatif ",
        "comfy-table ",
        "nvml-wrapper ",
        "cublaslt",
        "nccl",
    ];
    let embedded = tree("counterflow");
    for ours in [
        "macros", "codegen", "emitter", "emulator", "timeline", "runtime",
    ] {
        assert!(embedded.contains(&format!("counterflow-{ours} ")), "{ours}");
    }
    for word in tool {
        assert!(!embedded.contains(word), "`{word}` in:\n{embedded}");
    }
    // This would see them. NCCL is no feature of any package: its few functions are bound by hand.
    let tree = tree("counterflow-workbench");
    for word in tool.iter().filter(|word| **word != "nccl") {
        assert!(tree.contains(word), "no `{word}` in:\n{tree}");
    }
    for path in files("runtime/src", &[".rs"]) {
        let code = code(&path).to_lowercase();
        for word in ["libcublas", "cublaslt::", "libnccl"] {
            // One file looks for an NCCL that the program has loaded, and loads none.
            let looks = word == "libnccl" && short(&path) == "runtime/src/cuda/nccl.rs";
            assert!(looks || !code.contains(word), "{} has {word}", short(&path));
        }
    }
}

#[test]
fn the_compiler_and_what_prints_checks_and_predicts_are_pure() {
    let forbidden = [
        "unsafe ",
        "std::env",
        "std::fs",
        "std::net",
        "std::time",
        "std::process",
        "std::thread",
        "Instant::",
        "SystemTime",
        "println!",
        "eprintln!",
        "File::",
        "include_bytes!",
    ];
    let pure = ["codegen/src", "emitter/src", "emulator/src", "timeline/src"];
    for path in pure.iter().flat_map(|dir| files(dir, &[".rs"])) {
        let code = code(&path);
        // A product has one result, however many threads divide it.
        let divides = short(&path) == "emulator/src/threads.rs";
        for word in forbidden {
            let allowed = divides && word == "std::thread";
            assert!(
                allowed || !code.contains(word),
                "{} has `{word}`",
                short(&path)
            );
        }
    }
    for lib in pure.iter().chain(&["src"]) {
        let lib = format!("{lib}/lib.rs");
        let text = text(&root().join(&lib));
        assert!(
            text.contains("#![forbid(unsafe_code)]"),
            "{lib} does not forbid unsafe code"
        );
    }
}

/// A run takes the profile of its own GPU. Cards by name are for tests, docs, and predictions without a GPU.
#[test]
fn no_path_that_runs_names_a_card() {
    let dirs = [
        "codegen/src",
        "emitter/src",
        "emulator/src",
        "timeline/src",
        "runtime/src",
        "workbench/src",
        "quantise/src",
        "layers/src",
        "src",
        "examples",
        "benches",
    ];
    let asks = [
        ("Machine::h100", &["benches/pipeline.rs"][..]),
        ("Machine::h200", &["benches/pipeline.rs"]),
        // Those of the package, for a GPU that nobody has measured.
        (
            "shipped(",
            &[
                "codegen/src/machine/shipped.rs",
                "runtime/src/machines.rs",
                "runtime/src/probes/mod.rs",
                "workbench/src/profile.rs",
            ],
        ),
        ("machines::named(", &["workbench/src/args/values.rs"]),
    ];
    let mut seen = BTreeSet::new();
    for path in dirs.iter().flat_map(|dir| files(dir, &[".rs"])) {
        let (name, code) = (short(&path), code(&path));
        if name.contains("/tests") || name.contains("/fuzz/") {
            continue;
        }
        for (words, allowed) in asks.iter().filter(|(words, _)| code.contains(words)) {
            assert!(allowed.contains(&&name[..]), "{name} has {words}");
            seen.insert(*words);
        }
    }
    // The check sees who asks.
    assert_eq!(seen.len(), asks.len() - 1, "{seen:?}");
}

/// Device pointers and other libraries' functions stay where they are looked at: each use says why it is sound.
#[test]
fn unsafe_code_has_few_places_and_a_reason_each() {
    let places = [
        "runtime/src/cuda/",
        "runtime/src/dlpack.rs",
        "runtime/src/jit/nvrtc.rs",
        "runtime/src/launch/mod.rs",
        // A test of launches beside a step.
        "runtime/src/op/beside.rs",
        "runtime/src/shared/peer.rs",
        "runtime/src/shared/segment.rs",
        "runtime/src/user_buffer/window.rs",
        "quantise/src/all_reduce_norm/launch.rs",
        "quantise/src/launch.rs",
        "quantise/src/builder.rs",
        "quantise/src/histories.rs",
        "workbench/src/cuda/",
        "layers/src/side/",
    ];
    let paths = [
        files("runtime/src", &[".rs"]),
        files("quantise/src", &[".rs"]),
        files("workbench/src", &[".rs"]),
        files("layers/src", &[".rs"]),
    ]
    .concat();
    for path in &paths {
        let name = short(path);
        let allowed = places.iter().any(|place| name.starts_with(place));
        let uses = code(path)
            .lines()
            .filter(|line| line.contains("unsafe {") || line.contains("unsafe impl"))
            .count();
        let reasons = text(path).matches("// SAFETY:").count();
        assert!(allowed || uses == 0, "{name} has unsafe code");
        assert!(reasons >= uses, "{name}: {uses} uses, {reasons} reasons");
    }
    for lib in [
        "runtime/src/lib.rs",
        "quantise/src/lib.rs",
        "workbench/src/lib.rs",
        "layers/src/lib.rs",
    ] {
        let lib = text(&root().join(lib));
        assert!(lib.contains("#![deny(unsafe_code, clippy::undocumented_unsafe_blocks)]"));
    }
}

#[test]
fn only_codegen_knows_the_ir_and_only_diag_formats_its_errors() {
    let dirs = ["codegen/src", "emitter/src", "emulator/src", "timeline/src"];
    for path in dirs.iter().flat_map(|dir| files(dir, &[".rs"])) {
        if !path.ends_with("diag.rs") {
            let code = code(&path);
            assert!(
                !code.contains("\"error"),
                "{} formats an error",
                short(&path)
            );
        }
    }
    for path in files("macros/src", &[".rs"]) {
        let code = code(&path);
        assert!(
            !code.contains("counterflow_codegen") && !code.contains("counterflow_runtime"),
            "{} names a crate of ours outside the tokens it writes",
            short(&path)
        );
    }
}

#[test]
fn files_are_short() {
    let length = |path: &PathBuf| text(path).lines().count();
    let mut long: Vec<_> = sources()
        .into_iter()
        .map(|path| (length(&path), short(&path)))
        .filter(|(lines, _)| *lines > 400)
        .collect();
    long.sort();
    for (lines, path) in &long {
        println!("{lines:5} {path}");
    }
    long.retain(|(lines, _)| *lines > 600);
    assert!(long.is_empty(), "files beyond 600 lines: {long:?}");
    let facade = text(&root().join("src/lib.rs")).lines().count();
    assert!(facade < 100, "the facade has {facade} lines");
    for path in files("examples", &[".rs"]) {
        let lines = length(&path);
        assert!(lines < 100, "{} has {lines} lines", short(&path));
    }
}

/// The enums that every consumer must match in full.
const IR: [&str; 16] = [
    "StepKind::",
    "OpKind::",
    "Block::",
    "RoleKind::",
    "Purpose::",
    "Axis::",
    "Pick::",
    "Home::",
    "CellIndex::",
    "TensorRole::",
    "AtEnd::",
    "Numbers::",
    "StoreMode::",
    "CounterDim::",
    "Node::",
    "Field::",
];

/// The bodies of `match … { … }`, by their braces.
fn matches(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("match ") {
        let word = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let Some(open) = code[at..].find('{').filter(|_| word) else {
            continue;
        };
        let body = &code[at + open..];
        let mut depth = 0;
        let end = body.char_indices().find_map(|(index, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            (depth == 0).then_some(index)
        });
        if let Some(end) = end {
            found.push(&body[1..end]);
        }
    }
    found
}

/// The arms of a match at its own depth: nested braces are dropped.
fn own_arms(body: &str) -> String {
    let mut depth = 0;
    let keep = |c: &char| {
        depth += i32::from(*c == '{') - i32::from(*c == '}');
        depth == 0
    };
    body.chars().filter(keep).collect()
}

#[test]
fn consumers_match_the_ir_in_full() {
    let consumers = [
        "warp", "verify", "proof", "target", "unroll", "print", "sm90", "tiling", "host",
    ];
    let above = ["emitter/src", "emulator/src", "timeline/src"];
    let mut paths = above.map(|dir| files(dir, &[".rs"])).concat();
    for consumer in consumers {
        paths.extend(files(&format!("codegen/src/{consumer}"), &[".rs"]));
        let single = root().join(format!("codegen/src/{consumer}.rs"));
        paths.extend(single.exists().then_some(single));
    }
    for path in paths {
        let code = code(&path);
        for body in matches(&code) {
            let arms = own_arms(body);
            let over_ir = IR.iter().find(|name| arms.contains(*name));
            if let (Some(name), true) = (over_ir, arms.contains("_ =>")) {
                panic!(
                    "{}: a match over {name} has a wildcard arm:\n{arms}",
                    short(&path)
                );
            }
        }
    }
}

#[test]
fn the_check_for_wildcards_sees_them() {
    let code = "fn f() { match step { StepKind::Wait { .. } => { g() } _ => {} } }";
    let bodies = matches(code);
    assert_eq!(bodies.len(), 1);
    assert!(own_arms(bodies[0]).contains("_ =>"));
}

#[test]
fn checked_in_text_is_not_positional() {
    let mut paths = files("codegen/tests", &[".snap"]);
    paths.extend(files("tests", &[".snap"]));
    paths.extend(files("kernels_generated", &[".cu"]));
    for path in paths {
        let text = text(&path);
        for (number, line) in text.lines().enumerate() {
            let absolute = [
                "/home/",
                "/root/",
                "/usr/",
                "/tmp/",
                env!("CARGO_MANIFEST_DIR"),
                "C:\\",
            ];
            let place = line
                .split(".rs:")
                .nth(1)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            let hash = line
                .split(|c: char| !c.is_ascii_alphanumeric())
                .any(|word| word.len() >= 16 && word.bytes().all(|b| b.is_ascii_hexdigit()));
            assert!(
                !place && !hash && !absolute.iter().any(|root| line.contains(root)),
                "{} line {}: {line}",
                short(&path),
                number + 1
            );
        }
    }
}

#[test]
fn nothing_names_a_home_directory() {
    let mut paths = sources();
    for dir in [
        "tests",
        "macros/tests",
        "examples",
        "benches",
        "kernels_generated",
    ] {
        paths.extend(files(dir, &[".rs", ".cu", ".md", ".stderr"]));
    }
    paths.extend(
        [
            "README.md",
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "Cargo.toml",
        ]
        .map(|name| root().join(name)),
    );
    for path in paths
        .iter()
        .filter(|path| !path.ends_with("layering/main.rs"))
    {
        let text = text(path);
        for word in [
            "/home/",
            "/root/",
            env!("CARGO_MANIFEST_DIR"),
            "/Users/",
            "/mnt/",
        ] {
            assert!(!text.contains(word), "{} names {word}", short(path));
        }
    }
}
