//! What `cargo test` leaves out runs in `.ci/run`.

use super::{files, root, short, text};

/// A step's function in `.ci/run`.
fn function<'a>(script: &'a str, name: &str) -> &'a str {
    let body = script.split(&format!("\n{name}() {{")).nth(1);
    let body = body.unwrap_or_else(|| panic!("no step {name}"));
    body.split("\n}").next().unwrap_or("")
}

#[test]
fn the_whole_matrices_run_in_ci() {
    let script = text(&root().join(".ci/run"));
    let wide = script.find("\nexport WIDE=1\n").expect("it is set");
    let test = script.find("\nstep test both").expect("the step");
    assert!(wide < test, "it is set before the tests");
    let both = function(&script, "both");
    assert!(
        both.contains("    tests ") && both.contains("    long "),
        "{both}"
    );
    let tests = script.lines().find(|line| line.starts_with("tests() {"));
    let tests = tests.expect("in one line");
    assert!(tests.contains("cargo test --workspace;"), "{tests}");
    assert!(text(&root().join("CONTRIBUTING.md")).contains("`WIDE=1`"));
}

/// Who samples asks one function.
#[test]
fn one_file_reads_the_variable() {
    let read = format!("(\"{}\")", "WIDE");
    let readers = files("", &[".rs"])
        .into_iter()
        .filter(|path| text(path).contains(&read));
    let readers: Vec<String> = readers.map(|path| short(&path)).collect();
    assert_eq!(readers, ["codegen/tests/fixtures/wide.rs"]);
}

/// What one command of `long` skips is what its next one runs, from the schedule on that the step `test` ends at.
#[test]
fn random_schedules_are_parted_in_ci() {
    let script = text(&root().join(".ci/run"));
    let long = function(&script, "long");
    let after = |mark: &str| {
        let rest = long.split(mark).nth(1).unwrap_or_else(|| panic!("{mark}"));
        rest.split_whitespace().next().unwrap_or_default()
    };
    let (skipped, run) = (after("-- --ignored --skip "), after("-- --ignored r"));
    assert_eq!(long.matches("--skip").count(), 1, "{long}");
    assert_eq!(skipped, format!("r{run}"));
    let code = text(&root().join("tests/kernels/random.rs"));
    let checked = format!("if wide() {{ {} }} else", after("RANDOM_FROM="));
    assert!(code.contains(&checked), "{checked}");
}

/// Tests that say by their attribute that `.ci/run` runs them are in targets that its step `long` names.
#[test]
fn what_takes_minutes_runs_in_ci() {
    let script = text(&root().join(".ci/run"));
    let long = function(&script, "long");
    assert!(long.contains("-- --ignored"), "{long}");
    let mut seen = 0;
    for path in files("", &[".rs"]) {
        let own = path.ends_with("tests/layering/sampled.rs");
        let code = text(&path);
        let lines = code.lines().map(str::trim_start);
        let ignored = lines.filter(|line| line.starts_with("#[ignore") && line.contains(".ci/run"));
        let count = ignored.count();
        if own || count == 0 {
            continue;
        }
        seen += count;
        let path = short(&path);
        let target = path.split("tests/").nth(1).and_then(|rest| {
            let first = rest.split(['/', '.']).next()?;
            Some(format!("--test {first} "))
        });
        let target = target.unwrap_or_else(|| panic!("{path}: of which target?"));
        assert!(long.contains(&target), "{path}: `long` does not name it");
    }
    assert!(seen > 10, "only {seen}");
}
