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
