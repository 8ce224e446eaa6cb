//! Each crate that is published says what it is, and has its readme and licences; pages for contributors name what is there.

use super::{root, text};
use std::collections::BTreeSet;

const PUBLISHED: [&str; 13] = [
    ".",
    "codegen",
    "emitter",
    "emulator",
    "timeline",
    "macros",
    "runtime",
    "quantise",
    "workbench",
    "launcher",
    "layers",
    "cube",
    "candle",
];

fn manifest(of: &str) -> toml::Table {
    let manifest = text(&root().join(of).join("Cargo.toml"));
    manifest.parse().expect("a manifest")
}

#[test]
fn each_crate_says_what_it_is_and_has_its_licences() {
    let workspace = manifest(".");
    let shared = workspace["workspace"]["package"].as_table();
    let shared = shared.expect("what all packages share");
    for of in PUBLISHED {
        let own = manifest(of);
        let package = own["package"].as_table().expect("a package");
        for field in [
            "description",
            "license",
            "keywords",
            "categories",
            "rust-version",
            "readme",
        ] {
            let value = package.get(field);
            let value = value.unwrap_or_else(|| panic!("{of} has no {field}"));
            let is_shared = value.get("workspace").is_some();
            assert!(!is_shared || shared.contains_key(field), "{of}: {field}");
        }
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            let whole = text(&root().join(of).join(file));
            assert!(!whole.trim().is_empty(), "{of}: {file}");
        }
    }
}

/// The oldest Rust that is said is the one that the public CI compiles with.
#[test]
fn the_oldest_rust_is_tried() {
    let workspace = manifest(".");
    let oldest = workspace["workspace"]["package"]["rust-version"].as_str();
    let oldest = oldest.expect("a version");
    let ci = text(&root().join(".github/workflows/ci.yml"));
    assert!(ci.contains(&format!("cargo +{oldest}.0 check")), "{oldest}");
    let readme = text(&root().join("README.md"));
    assert!(readme.contains(&format!("Rust {oldest}")), "{oldest}");
}

/// Paths in backticks, and what links lead to, without anchors.
fn named(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let quoted = quoted.filter(|word| word.contains('/') && !word.contains([' ', '*', '<']));
    let quoted = quoted.filter(|word| !word.contains("NAME") && !word.starts_with('/'));
    let links = page
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let links = links.filter(|link| !link.starts_with("http") && !link.starts_with('#'));
    quoted
        .chain(links.map(|link| link.split('#').next().unwrap_or(link)))
        .collect()
}

#[test]
fn pages_lead_to_what_is_there() {
    let mut all = 0;
    let guide = super::files("docs", &[".md"]);
    let tops = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|page| root().join(page));
    for page in tops.iter().chain(&guide) {
        let whole = text(page);
        let links = whole.split("](").skip(1);
        let links = links.filter_map(|rest| rest.split([')', '#']).next());
        for link in links.filter(|link| !link.starts_with("http") && !link.is_empty()) {
            let to = page.with_file_name("").join(link);
            assert!(to.exists(), "{}: {link}", page.display());
            all += 1;
        }
    }
    assert!(all > 25, "only {all} links");
    for path in named(&text(&root().join("CONTRIBUTING.md"))) {
        assert!(root().join(path).exists(), "CONTRIBUTING.md: {path}");
    }
}

#[test]
fn the_check_sees_paths() {
    let page = "`a/b.rs`, `c d/e`, [f](g.md#h), [i](https://j), `src/NAME.rs`, `k`\n";
    assert_eq!(named(page), ["a/b.rs", "g.md"]);
}

/// What a package always needs by its manifest.
fn needed(of: &str) -> Vec<String> {
    let own = manifest(of);
    let tables = ["dependencies", "build-dependencies"];
    let tables = tables.iter().filter_map(|name| own.get(*name)?.as_table());
    let always = tables.flatten().filter(|(_, what)| {
        let optional = what.get("optional").and_then(toml::Value::as_bool);
        optional != Some(true)
    });
    // A lock has the name under which a package is published.
    let name = |(name, what): (&String, &toml::Value)| {
        let published = what.get("package").and_then(toml::Value::as_str);
        published.unwrap_or(name).to_owned()
    };
    always.map(name).collect()
}

/// CI builds packages that stand beside the workspace with `--locked`. A new dependency of ours makes their locks stale.
#[test]
fn locks_beside_ours_know_what_our_packages_need() {
    let mut seen = 0;
    for lock in super::files("", &["Cargo.lock"]) {
        let locked: toml::Table = text(&lock).parse().expect("a lock");
        for package in locked["package"].as_array().expect("packages") {
            let name = package["name"].as_str().expect("a name");
            let ours = match name {
                "counterflow" => ".",
                _ => name.strip_prefix("counterflow-").unwrap_or("none"),
            };
            // Of packages of the registry, a lock says where they come from.
            if package.get("source").is_some() || !PUBLISHED.contains(&ours) {
                continue;
            }
            let listed = package.get("dependencies").and_then(toml::Value::as_array);
            let listed = listed.into_iter().flatten().filter_map(toml::Value::as_str);
            let listed: BTreeSet<&str> = listed.filter_map(|one| one.split(' ').next()).collect();
            for need in needed(ours) {
                assert!(
                    listed.contains(need.as_str()),
                    "{}: {name} needs {need}: run `cargo metadata` in that folder",
                    super::short(&lock),
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "only {seen} needs");
}
