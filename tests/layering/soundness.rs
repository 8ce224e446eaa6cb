//! Every public safe function that a program can call is in the table that says why it is sound.

use super::{files, root, short, text};
use std::collections::BTreeSet;
use std::path::Path;

/// Modules that the facade gives its users, and the types that it gives without a module.
const MODULES: [&str; 6] = ["cpu", "cuda", "driver", "jit", "op", "tuned"];
const PLAIN: [&str; 9] = [
    "Communicator",
    "Device",
    "Error",
    "Graph",
    "Op",
    "OpBuilder",
    "Pending",
    "Tensor",
    "UserBuffer",
];
/// Given away for the bench and for tests alone.
const HIDDEN: [&str; 1] = ["Local"];

/// Code without its module of tests, which stands last, and without comments.
fn code(path: &Path) -> String {
    let text = text(path);
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
    let lines = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    lines.collect::<Vec<_>>().join("\n")
}

/// Names between commas and braces of every `pub use` in a file, and of what it declares itself.
fn given(path: &Path) -> BTreeSet<String> {
    let code = code(path);
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices("pub use ") {
        let used = code[at..].split(';').next().unwrap_or("");
        let last = used.rsplit("::").next().unwrap_or("");
        let list = used.split_once('{').map_or(last, |(_, list)| list);
        let words = list.split([',', '{', '}', ' ', '\n']);
        names.extend(words.map(|word| word.rsplit("::").next().unwrap_or(word).to_owned()));
    }
    names.extend(declared(&code));
    names
}

/// Types, traits and functions that code declares as public.
fn declared(code: &str) -> impl Iterator<Item = String> {
    code.lines().filter_map(|line| {
        let rest = line.strip_prefix("pub ")?;
        let rest = rest.strip_prefix("const ").unwrap_or(rest);
        let kinds = ["fn ", "struct ", "enum ", "trait "];
        let rest = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
        Some(name(rest).to_owned())
    })
}

fn name(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// What a block at the start of a line is of: `impl Type<..>`, or `pub trait Type`.
fn owner(line: &str) -> Option<String> {
    if let Some(rest) = line.strip_prefix("pub trait ") {
        return Some(name(rest).to_owned());
    }
    let rest = line.strip_prefix("impl")?;
    // Of a trait's functions the trait has the row.
    if rest.contains(" for ") {
        return Some(String::new());
    }
    let mut depth = 0;
    let mut from = 0;
    for (at, c) in rest.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            ' ' if depth == 0 => {
                from = at + 1;
                break;
            }
            _ => {}
        }
    }
    Some(name(&rest[from..]).to_owned())
}

/// The safe functions that a file gives, as the table writes them.
fn functions(path: &Path) -> Vec<String> {
    let inside = short(path);
    let inside = inside
        .strip_prefix("runtime/src/")
        .expect("of the run time");
    let module = inside.split(['/', '.']).next().unwrap_or("").to_owned();
    let folder = root().join("runtime/src").join(&module);
    let public = match MODULES.contains(&module.as_str()) && folder.is_dir() {
        true => given(&folder.join("mod.rs")),
        false => BTreeSet::new(),
    };
    // `pub mod sass` has its own name in paths.
    let part = inside
        .split('/')
        .nth(1)
        .and_then(|file| file.strip_suffix(".rs"));
    let own =
        part.filter(|part| text(&folder.join("mod.rs")).contains(&format!("\npub mod {part};")));
    let (public, prefix) = match own {
        Some(part) => (
            declared(&code(path)).collect(),
            format!("{module}::{part}::"),
        ),
        None => (public, format!("{module}::")),
    };
    let mut found = Vec::new();
    let (mut of, mut trait_of) = (String::new(), false);
    let mut hidden = false;
    for line in code(path).lines() {
        // An attribute stands on the line before.
        let aside = std::mem::replace(&mut hidden, line.trim() == "#[doc(hidden)]");
        if aside {
            continue;
        }
        if !line.starts_with([' ', '}', ')'])
            && let Some(owner) = owner(line)
        {
            (of, trait_of) = (owner, line.starts_with("pub trait"));
        }
        let rest = line.trim_start();
        let free = rest.len() == line.len();
        let method = line
            .strip_prefix("    ")
            .is_some_and(|rest| !rest.starts_with(' '));
        let public_here = match rest.strip_prefix("pub ") {
            Some(rest) => Some(rest),
            None => Some(rest).filter(|_| trait_of && method),
        };
        let Some(rest) = public_here else { continue };
        let rest = rest.strip_prefix("const ").unwrap_or(rest);
        let Some(rest) = rest.strip_prefix("fn ") else {
            continue;
        };
        let function = name(rest);
        if free && public.contains(function) {
            found.push(format!("{prefix}{function}"));
        } else if method && PLAIN.contains(&of.as_str()) && !ambiguous(&module, &of) {
            found.push(format!("{of}::{function}"));
        } else if method && public.contains(&of) && !HIDDEN.contains(&of.as_str()) {
            found.push(format!("{prefix}{of}::{function}"));
        }
    }
    found
}

/// A type of the run time's own that has the name of one without a module.
fn ambiguous(module: &str, of: &str) -> bool {
    matches!((module, of), ("emulated", _)) || (of == "Graph" && module != "graph")
}

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
    let mut there = BTreeSet::new();
    for path in files("runtime/src", &[".rs"]) {
        // Of the crate alone, for tests, or hidden.
        let inside = short(&path);
        let aside = [
            "emulated",
            "fuzz",
            "group",
            "gpu_order",
            "launch",
            "streams",
        ];
        let aside = aside
            .iter()
            .any(|dir| inside.starts_with(&format!("runtime/src/{dir}")));
        if !aside && inside != "runtime/src/gpus.rs" {
            there.extend(functions(&path));
        }
    }
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
fn the_check_for_the_table_sees_functions_and_rows() {
    assert_eq!(
        owner("impl<'a, S: Launcher> OpBuilder<'a, S> {").as_deref(),
        Some("OpBuilder")
    );
    assert_eq!(
        owner("impl Communicator {").as_deref(),
        Some("Communicator")
    );
    assert_eq!(
        owner("impl<T: Element> Tensor<T> {").as_deref(),
        Some("Tensor")
    );
    assert_eq!(owner("impl Drop for Graph {").as_deref(), Some(""));
    let told = told("| `A::{b, c}`, `d` | `E::f` |\n| `G::h` | why |\n");
    let wanted = ["A::b", "A::c", "G::h", "d"].map(str::to_owned);
    assert_eq!(told, BTreeSet::from(wanted));
}
