//! What the macros say about what they do not accept. Refresh with
//! `TRYBUILD=overwrite cargo test -p counterflow-macros-tests -- --ignored`.
//!
//! These tests are in this package because trybuild checks all that a package's tests depend on once more: here, that
//! is `counterflow` alone.

use std::fs;

#[test]
#[ignore = "trybuild compiles all that the crate depends on once more, which takes a minute: `.ci/run` runs it"]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("ui/*.rs");
}

/// A user who misspells something did not ask how the builder is made.
#[test]
fn messages_name_no_internals() {
    let mut seen = 0;
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/ui")).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "stderr")
        {
            continue;
        }
        seen += 1;
        let text = fs::read_to_string(&path).unwrap();
        for internal in [
            "__private",
            "ScheduleBuilder",
            "RankExpr",
            "PlaceRef",
            "CellsRef",
            "StmtKind",
        ] {
            assert!(!text.contains(internal), "{internal} in {}", path.display());
        }
    }
    assert!(seen >= 30, "only {seen} cases");
}
