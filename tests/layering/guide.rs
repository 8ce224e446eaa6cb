//! The guide's page of errors has a row for each kind of error and for each rule of a rejection.

use super::{root, text};

/// The words in quotes of the match in that function.
fn words(file: &str, function: &str) -> Vec<String> {
    let code = text(&root().join(file));
    let (_, body) = code.split_once(function).expect("the function");
    let body = body.split("\n    }").next().unwrap_or_default();
    let arms = body.lines().filter(|line| line.contains("=>"));
    let quoted = arms.filter_map(|arm| arm.split('"').nth(1));
    quoted.map(str::to_owned).collect()
}

#[test]
fn each_kind_of_error_and_each_rule_has_a_row() {
    let page = text(&root().join("docs/guide/errors.md"));
    let kinds = words("runtime/src/error.rs", "pub const fn kind(&self)");
    let rules = words("codegen/src/diag.rs", "pub const fn name(self)");
    assert!(
        kinds.len() >= 15 && rules.len() >= 11,
        "{kinds:?} {rules:?}"
    );
    for word in kinds.iter().chain(&rules) {
        let row = |line: &&str| {
            let first = line.split('|').nth(1).unwrap_or_default();
            line.starts_with("| `") && first.contains(&format!("`{word}`"))
        };
        assert!(page.lines().any(|line| row(&line)), "no row for {word}");
    }
}
