//! `docs/stable.md` lists what the facade gives without the feature `unstable`, and nothing else.

use super::{public, root, text};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Names that a `pub use` or `pub mod` gives, unless an attribute above hides it or asks for `unstable`.
fn given(code: &str) -> BTreeSet<String> {
    let code = code.split("#[doc(hidden)]\npub mod ").next().unwrap_or("");
    let mut names = BTreeSet::new();
    let mut aside = false;
    let mut statement = String::new();
    for line in code.lines().map(str::trim) {
        if line.starts_with("#[") && statement.is_empty() {
            aside |= ["\"unstable\"", "doc(hidden)", "doctest"]
                .iter()
                .any(|word| line.contains(word));
        } else if !statement.is_empty() || line.starts_with("pub ") {
            statement += line;
            if !line.ends_with(';') {
                continue;
            }
            let last = statement.trim_end_matches(';');
            let list = last.split_once('{').map_or_else(
                || last.rsplit([' ', ':']).next().unwrap_or(last),
                |(_, list)| list,
            );
            let list = list.split(',').map(|name| name.trim_matches(['}', ' ']));
            let list: Vec<_> = list.filter(|name| !name.is_empty() && !aside).collect();
            names.extend(list.into_iter().map(str::to_owned));
            (aside, statement) = (false, String::new());
        } else if !line.starts_with("//") {
            aside = false;
        }
    }
    names
}

/// The first column of the page's table.
fn listed(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let names = rows.filter_map(|row| row.split('|').nth(1));
    let quoted = names.flat_map(|names| names.split('`').skip(1).step_by(2));
    quoted.map(str::to_owned).collect()
}

#[test]
fn what_is_stable_is_listed_and_nothing_else() {
    let given = given(&text(&root().join("src/lib.rs")));
    let listed = listed(&text(&root().join("docs/stable.md")));
    assert!(given.len() > 30, "{given:?}");
    let absent: Vec<_> = given.difference(&listed).collect();
    assert!(absent.is_empty(), "stable, and not listed: {absent:?}");
    let gone: Vec<_> = listed.difference(&given).collect();
    assert!(gone.is_empty(), "listed, and not given: {gone:?}");
}

/// One line for each stable function and type: the baseline that a release is compared with. What a line loses or changes is a
/// break: it takes the second number of the version, and a line in CHANGELOG.md.
#[test]
fn the_stable_surface_changes_on_purpose() {
    let listed = listed(&text(&root().join("docs/stable.md")));
    let first = |item: &public::Item| item.path.split("::").next().map(str::to_owned);
    let all = [public::runtime(), public::codegen(), public::facade()];
    let stable = all.into_iter().flatten();
    let stable = stable.filter(|item| first(item).is_some_and(|first| listed.contains(&first)));
    let lines: BTreeSet<String> = stable
        .filter(|item| !item.signature.is_empty())
        .map(|item| format!("{}: {}", item.path, item.signature))
        .collect();
    assert!(lines.len() > 300, "{} items", lines.len());
    let mut found = String::new();
    for line in &lines {
        let _ = writeln!(found, "{line}");
    }
    let baseline = root().join("docs/stable.api");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&baseline, &found).expect("written");
    }
    let known: BTreeSet<String> = text(&baseline).lines().map(str::to_owned).collect();
    // What is new breaks nobody.
    let gone: Vec<_> = known.difference(&lines).collect();
    assert!(
        gone.is_empty(),
        "gone or changed; if it is meant, `UPDATE_DOCS=1 cargo test --test layering stable`: {gone:#?}"
    );
}

/// What compares with the last release is ready before there is one: a step of the public CI, which has the tags.
#[test]
fn a_release_is_compared_with_the_last_one() {
    let ci = text(&root().join(".github/workflows/ci.yml"));
    let step = ci.split("  versions:").nth(1).expect("the step");
    let step = step.split("\n\n").next().unwrap_or("");
    assert!(step.contains("fetch-depth: 0"), "no tags:{step}");
    assert!(step.contains("- run: .ci/semver.sh"), "{step}");
    let script = text(&root().join(".ci/semver.sh"));
    assert!(script.contains("--baseline-rev \"$release\""), "{script}");
    let contributing = text(&root().join("CONTRIBUTING.md"));
    for word in ["docs/stable.api", ".ci/semver.sh"] {
        assert!(contributing.contains(&format!("`{word}`")), "{word}");
    }
}

#[test]
fn the_check_sees_what_is_given() {
    let code = "pub use a::{B, c};\n#[cfg(feature = \"unstable\")]\npub use d as e;\npub use f as g;\n\
                pub use k::{\n    L,\n    M,\n};\npub mod n;\n#[doc(hidden)]\npub mod h {\n    pub use i::J;\n}\n";
    let wanted = ["B", "L", "M", "c", "g", "n"].map(str::to_owned);
    assert_eq!(given(code), BTreeSet::from(wanted));
    assert_eq!(
        listed("| `A`, `b` | of `c` |\n"),
        BTreeSet::from(["A", "b"].map(str::to_owned))
    );
}
