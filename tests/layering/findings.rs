//! Findings of the warp level: each has its statement, and what users read of it is about the schedule.

use super::{code, files, root, short, text};

/// Users get them by `Diagnostics::ours`, which says what is wrong at the statement and what to do, and keeps the warps' words as a
/// note. `codegen/tests/fixtures/left_out.rs` looks at what it makes of every node that is left out.
#[test]
fn each_of_the_warp_level_has_its_statement_and_is_told_as_ours() {
    let mut seen = 0;
    for path in files("codegen/src/proof/warp", &[".rs"]) {
        let squeezed: String = code(&path).split_whitespace().collect();
        for made in squeezed.split("Diagnostic::new(Rule::").skip(1) {
            let at = made.split(',').nth(1).unwrap_or("");
            assert!(!at.starts_with("None"), "{}: nowhere", short(&path));
            seen += 1;
        }
    }
    assert!(seen > 15, "only {seen}");
    let verify = text(&root().join("codegen/src/verify.rs"));
    let warps = verify.split("pub fn warps(").nth(1).expect("the door");
    let warps = warps.split("\n}").next().unwrap_or("");
    assert!(warps.contains("Refused::Wrong(found) => found.ours("));
}

/// A program that embeds us has no flags of the tool's: where an error names one, it says whose it is.
#[test]
fn errors_of_libraries_say_whose_flags_they_name() {
    const FLAGS: [&str; 8] = [
        "device", "arch", "seed", "set", "worlds", "rows", "world", "dtype",
    ];
    let mut seen = 0;
    for folder in [
        "codegen/src",
        "emitter/src",
        "emulator/src",
        "timeline/src",
        "runtime/src",
        "quantise/src",
        "layers/src",
    ] {
        for path in files(folder, &[".rs"]) {
            let code = code(&path);
            // Every second part lies between quotes.
            for literal in code.replace("\\\"", "").split('"').skip(1).step_by(2) {
                let named = |flag: &&str| {
                    let flag = format!("--{flag}");
                    literal
                        .split_whitespace()
                        .any(|word| word.trim_matches('`') == flag)
                };
                if FLAGS.iter().any(named) {
                    seen += 1;
                    assert!(
                        literal.contains("of the tool"),
                        "{}: {literal}",
                        short(&path)
                    );
                }
            }
        }
    }
    assert!(seen > 5, "only {seen}");
}
