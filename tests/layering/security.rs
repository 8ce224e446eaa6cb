//! Each line of `SECURITY.md` is held by tests that exist.

use super::{root, text};

/// The lines of the first table, each with the tests that it names: file and function.
fn lines(page: &str) -> Vec<(&str, Vec<(&str, &str)>)> {
    let table = page.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = table.skip(1).take_while(|line| line.starts_with("| "));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let quoted = cells.last().copied().unwrap_or_default();
        let quoted = quoted.split('`').skip(1).step_by(2);
        (
            cells[0].trim(),
            quoted.filter_map(|test| test.split_once("::")).collect(),
        )
    })
    .collect()
}

#[test]
fn each_line_names_tests_that_are_there() {
    let page = text(&root().join("SECURITY.md"));
    let lines = lines(&page);
    assert!(lines.len() > 15, "only {} lines", lines.len());
    for (attack, tests) in lines {
        assert!(!tests.is_empty(), "no test for: {attack}");
        for (file, name) in tests {
            let places = ["runtime/src", "runtime/tests"];
            let mut files = places.iter().map(|place| root().join(place).join(file));
            let found = files.find(|file| file.is_file());
            let found = found.unwrap_or_else(|| panic!("there is no {file}"));
            let wanted = format!("#[test]\nfn {name}() {{");
            let tests = text(&found);
            // However deep its module is.
            let tests: Vec<&str> = tests.lines().map(str::trim_start).collect();
            assert!(
                tests.join("\n").contains(&wanted),
                "{file} has no test {name}"
            );
        }
    }
}

#[test]
fn the_check_sees_lines_without_a_test() {
    let page = "| attack | what | test |\n|---|---|---|\n| a | b | `x/y.rs::z`, `w.rs::v` |\n| c | `d` | none |\n\n| e |\n";
    let wanted = [("a", vec![("x/y.rs", "z"), ("w.rs", "v")]), ("c", vec![])];
    assert_eq!(lines(page), wanted);
}
