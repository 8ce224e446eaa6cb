//! Every public safe function that a program can call is in the table that says why it is sound.

use super::public::{Kind, runtime};
use super::{root, text};
use std::collections::BTreeSet;

const TABLE: &str = "runtime/src/op/soundness.md";
/// Above the table of tests.
const TESTS: &str = "## What shows it";

/// The calls that the tables name: `a::{b, c}` as `a::b` and `a::c`.
fn told(tables: &str) -> BTreeSet<String> {
    let table = tables.split(TESTS).next().unwrap_or_default();
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let calls = rows.filter_map(|row| row.split('|').nth(1));
    let quoted = calls.flat_map(|call| call.split('`').skip(1).step_by(2));
    let mut all = BTreeSet::new();
    for call in quoted {
        match call.split_once('{') {
            Some((before, names)) => {
                let names = names.trim_end_matches('}').split(',');
                all.extend(names.map(|name| format!("{before}{}", name.trim())));
            }
            None => _ = all.insert(call.to_owned()),
        }
    }
    all
}

#[test]
fn every_public_safe_function_is_in_the_table_that_says_why_it_is_sound() {
    let told = told(&text(&root().join(TABLE)));
    let safe = runtime()
        .into_iter()
        .filter(|item| item.kind == Kind::Function);
    let there: BTreeSet<String> = safe.map(|item| item.path).collect();
    assert!(
        there.len() > 150,
        "only {} functions: {there:?}",
        there.len()
    );
    let absent: Vec<_> = there.difference(&told).collect();
    assert!(absent.is_empty(), "not in the table: {absent:?}");
    let gone: Vec<_> = told.difference(&there).collect();
    assert!(
        gone.is_empty(),
        "in the table, but no public safe function: {gone:?}"
    );
}

/// The tests that the last table names, each with its file.
fn tests(tables: &str) -> Vec<(String, String)> {
    let (_, table) = tables.split_once(TESTS).unwrap_or_default();
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.split('|').nth(2));
    let quoted = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let parts = quoted.filter_map(|test| test.split_once("::"));
    let owned = parts.map(|(file, name)| (file.to_owned(), name.to_owned()));
    owned.collect()
}

#[test]
fn each_test_that_the_table_names_is_there() {
    let named = tests(&text(&root().join(TABLE)));
    assert!(named.len() > 25, "only {} tests", named.len());
    let gone = named.iter().filter(|(file, name)| {
        let places = ["runtime/src", "runtime/tests", "tests"];
        let mut files = places.iter().map(|place| root().join(place).join(file));
        let found = files.find(|file| file.is_file());
        found.is_none_or(|file| !text(&file).contains(&format!("fn {name}(")))
    });
    let gone: Vec<_> = gone.collect();
    assert!(
        gone.is_empty(),
        "in the table of tests, but not there: {gone:?}"
    );
}

#[test]
fn the_check_for_the_table_sees_rows() {
    let rows = "| `A::{b, c}`, `d` | `E::f` |\n| `G::h` | why |\n";
    let table = format!("{rows}{TESTS}\n\n| what | `x.rs::y` |\n");
    assert_eq!(tests(&table), [("x.rs".to_owned(), "y".to_owned())]);
    let told = told(&table);
    let wanted = ["A::b", "A::c", "G::h", "d"].map(str::to_owned);
    assert_eq!(told, BTreeSet::from(wanted));
}
