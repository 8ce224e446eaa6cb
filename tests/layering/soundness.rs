//! Every public safe function that a program can call is in the table that says why it is sound.

use super::public::{Kind, runtime};
use super::{root, text};
use std::collections::BTreeSet;

/// The calls that the table names: `a::{b, c}` as `a::b` and `a::c`.
fn told(table: &str) -> BTreeSet<String> {
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
    let told = told(&text(&root().join("runtime/src/op/soundness.md")));
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

#[test]
fn the_check_for_the_table_sees_rows() {
    let told = told("| `A::{b, c}`, `d` | `E::f` |\n| `G::h` | why |\n");
    let wanted = ["A::b", "A::c", "G::h", "d"].map(str::to_owned);
    assert_eq!(told, BTreeSet::from(wanted));
}
