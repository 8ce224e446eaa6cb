//! What the facade gives its users, read from the sources: types and functions, with the examples in their docs.

use super::{files, root, short, text};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Given away for the bench and for tests alone, or of the crate alone.
const HIDDEN: [&str; 2] = ["Local", "Kind"];
const ASIDE: [&str; 8] = [
    "emulated",
    "fuzz",
    "gpu_order",
    "gpus",
    "group",
    "launch",
    "shared",
    "streams",
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Type,
    Function,
    /// One whose call is `unsafe`.
    Unsafe,
}

/// A type or function, by the path that the facade gives it.
#[derive(Debug)]
pub struct Item {
    pub path: String,
    pub kind: Kind,
    /// How it is declared, without its body; of a type, its variants and public fields, too.
    pub signature: String,
    /// The examples in its docs, without their hidden lines.
    pub examples: String,
}

/// Modules and types of that crate that the facade gives its users by their own names.
fn given_by_facade(crate_name: &str) -> BTreeSet<String> {
    let code = code(&root().join("src/lib.rs"));
    let code = code.split("#[doc(hidden)]\npub mod ").next().unwrap_or("");
    let uses = code.match_indices("pub use ");
    let shown = uses.filter(|(at, _)| !code[..*at].trim_end().ends_with("#[doc(hidden)]"));
    let of_crate = shown.filter(|(at, word)| code[at + word.len()..].starts_with(crate_name));
    of_crate.flat_map(|(at, _)| used(&code[at..])).collect()
}

/// Modules of the compiler of which users call what is not a method: the builder, and the arrows from one stage to the next.
const STAGES: [&str; 4] = ["lower", "sm90", "verify", "builder"];

/// What users name of `codegen`: the types that the facade gives, the user's own references, the builder, and the
/// functions that lead from one stage to the next. Other types are what these give: data.
pub fn codegen() -> Vec<Item> {
    let own = given_by_facade("counterflow_codegen");
    let inside = |path: &Path| short(path)["codegen/src/".len()..].to_owned();
    let each = files("codegen/src", &[".rs"]).into_iter().map(|path| {
        let file = inside(&path);
        let module = file.split(['/', '.']).next().unwrap_or("").to_owned();
        let top = path.with_file_name("mod.rs");
        let public = match &module[..] {
            "given" => given(&path),
            // Its own folder, not one below.
            stage if STAGES.contains(&stage) && file.matches('/').count() == 1 => given(&top),
            _ => BTreeSet::new(),
        };
        let mut found = items(&path, |name| match own.contains(name) {
            true => Some(name.to_owned()),
            false => public
                .contains(name)
                .then(|| format!("codegen::{module}::{name}")),
        });
        if file == "lib.rs" {
            found.push(page("codegen", &path));
        }
        found
    });
    each.flatten().chain(above()).collect()
}

/// What the crates above the compiler give: the emitter, the emulator, the model of time.
fn above() -> Vec<Item> {
    let crates = [
        ("emitter/src", "lib.rs", "codegen::cuda"),
        ("emulator/src", "lib.rs", "codegen::interp"),
        ("timeline/src/model", "mod.rs", "codegen::model"),
    ];
    let each = crates.map(|(dir, top, module)| {
        let top = root().join(dir).join(top);
        let public = given(&top);
        let paths = files(dir, &[".rs"]).into_iter();
        // Its own folder, not one below.
        let paths = paths.filter(|path| path.parent() == top.parent());
        let found = paths.flat_map(|path| {
            let given = |name: &str| public.contains(name).then(|| format!("{module}::{name}"));
            items(&path, given)
        });
        found.chain([page(module, &top)]).collect::<Vec<_>>()
    });
    each.into_iter().flatten().collect()
}

/// The facade's own: the macros, the words of a schedule, the library.
pub fn facade() -> Vec<Item> {
    let places = [
        ("macros/src/lib.rs", "macros"),
        ("src/prelude.rs", "prelude"),
        ("src/schedules", "schedules"),
    ];
    let each = places.map(|(place, module)| {
        let paths = match place.ends_with(".rs") {
            true => vec![root().join(place)],
            false => files(place, &[".rs"]),
        };
        let own = paths
            .iter()
            .flat_map(|path| items(path, |name| Some(format!("{module}::{name}"))));
        own.chain(paths[..1].iter().map(|path| page(module, path)))
            .collect::<Vec<_>>()
    });
    each.into_iter().flatten().collect()
}

/// The page of a module.
fn page(module: &str, path: &Path) -> Item {
    let text = text(path);
    let docs = text.lines().map_while(|line| line.strip_prefix("//!"));
    let docs: Vec<_> = docs
        .map(|doc| doc.strip_prefix(' ').unwrap_or(doc))
        .collect();
    Item {
        path: module.into(),
        kind: Kind::Type,
        signature: String::new(),
        examples: examples(&docs),
    }
}

/// All that the run time gives.
pub fn runtime() -> Vec<Item> {
    let own = given_by_facade("counterflow_runtime");
    let lent = lent(&own);
    let inside = |path: &Path| short(path)["runtime/src/".len()..].to_owned();
    let paths = files("runtime/src", &[".rs"]).into_iter();
    let paths = paths.filter(|path| {
        let path = inside(path);
        let module = path.split(['/', '.']).next().unwrap_or("");
        !ASIDE.contains(&module)
    });
    let each = paths.map(|path| {
        let inside = inside(&path);
        let module = inside.split(['/', '.']).next().unwrap_or("").to_owned();
        let (public, prefix) = places(&own, &path, &module, inside.split('/').nth(1));
        items(&path, |name| {
            let plain = own.contains(name) && (name != "Graph" || module == "graph");
            match (plain, public.contains(name) && !HIDDEN.contains(&name)) {
                (true, _) => Some(name.to_owned()),
                (false, true) => Some(format!("{prefix}{name}")),
                (false, false) => lent.get(&format!("{module}::{name}")).cloned(),
            }
        })
    });
    each.flatten().collect()
}

/// What a module that the facade gives has of one that it does not give, by both paths.
fn lent(own: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for module in own.iter().filter(|module| !ASIDE.contains(&&module[..])) {
        let top = root().join(format!("runtime/src/{module}/mod.rs"));
        if !top.is_file() {
            continue;
        }
        let code = code(&top);
        let uses = code.split("pub use crate::").skip(1);
        for (from, of) in uses.filter_map(|of| Some((of.split_once("::")?.0, of))) {
            let names = used(of)
                .into_iter()
                .filter(|name| !name.is_empty() && !own.contains(from));
            found
                .extend(names.map(|name| (format!("{from}::{name}"), format!("{module}::{name}"))));
        }
    }
    found
}

/// The names that a file of a module may give, and what stands before them in paths. `part` is the file in its folder.
fn places(
    own: &BTreeSet<String>,
    path: &Path,
    module: &str,
    part: Option<&str>,
) -> (BTreeSet<String>, String) {
    if !own.contains(module) {
        return (BTreeSet::new(), String::new());
    }
    let Some(part) = part.and_then(|file| file.strip_suffix(".rs")) else {
        return (given(path), format!("{module}::"));
    };
    let top = path.with_file_name("mod.rs");
    // `pub mod sass` has its own name in paths.
    match code(&top).contains(&format!("\npub mod {part};")) {
        true => (given(path), format!("{module}::{part}::")),
        false => (given(&top), format!("{module}::")),
    }
}

/// Code without its module of tests, which stands last, and without comments.
fn code(path: &Path) -> String {
    let text = text(path);
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
    let lines = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    lines.collect::<Vec<_>>().join("\n")
}

/// Names between commas and braces of a `pub use`.
fn used(code: &str) -> Vec<String> {
    let used = code.split(';').next().unwrap_or("");
    let last = used.rsplit("::").next().unwrap_or("");
    let list = used.split_once('{').map_or(last, |(_, list)| list);
    let words = list.split([',', '{', '}', ' ', '\n']);
    let names = words.map(|word| word.rsplit("::").next().unwrap_or(word));
    names.map(str::to_owned).collect()
}

/// The names of every `pub use` in a file, and of what it declares itself.
fn given(path: &Path) -> BTreeSet<String> {
    let code = code(path);
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices("pub use ") {
        names.extend(used(&code[at..]));
    }
    names.extend(declared(&code));
    names
}

/// Types, traits and functions that code declares as public.
fn declared(code: &str) -> impl Iterator<Item = String> {
    let found = code.lines().filter_map(declares);
    found.map(|(_, name)| name.to_owned())
}

/// What a line declares as public.
fn declares(line: &str) -> Option<(Kind, &str)> {
    let rest = line.strip_prefix("pub ")?;
    let rest = rest.strip_prefix("const ").unwrap_or(rest);
    let (kind, rest) = match rest.strip_prefix("unsafe ") {
        Some(rest) => (Kind::Unsafe, rest),
        None => (Kind::Function, rest),
    };
    if let Some(rest) = rest.strip_prefix("fn ") {
        return Some((kind, name(rest)));
    }
    let kinds = ["struct ", "enum ", "trait ", "type "];
    let rest = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    Some((Kind::Type, name(rest)))
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

/// What a file gives of the types and functions that have a `path` for users.
fn items(file: &Path, path: impl Fn(&str) -> Option<String>) -> Vec<Item> {
    let text = text(file);
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
    let mut found = Vec::new();
    let (mut of, mut trait_of) = (None, false);
    let (mut docs, mut hidden) = (Vec::<String>::new(), false);
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().copied().enumerate() {
        let rest = line.trim_start();
        if let Some(doc) = rest.strip_prefix("///") {
            docs.push(doc.strip_prefix(' ').unwrap_or(doc).into());
            continue;
        }
        if let Some((page, _)) = rest
            .strip_prefix("#[doc = include_str!(\"")
            .and_then(|page| page.split_once('"'))
        {
            let page = self::text(&file.with_file_name(page));
            docs.extend(page.lines().map(str::to_owned));
            continue;
        }
        if rest.starts_with("//") {
            continue;
        }
        if rest.starts_with("#[") {
            hidden |= rest == "#[doc(hidden)]" || rest.starts_with("#[cfg(");
            continue;
        }
        if let Some(owner) = owner(line) {
            (of, trait_of) = (path(&owner), line.starts_with("pub trait"));
        }
        let free = rest.len() == line.len();
        let method = line.len() - rest.len() == 4;
        let public = match rest.strip_prefix("fn ") {
            Some(rest) if trait_of && method => Some((Kind::Function, name(rest))),
            _ => declares(rest),
        };
        // An attribute of several lines stands between docs and what they are of.
        let ends = rest.ends_with(['{', ';', '(', '<', ',', '}']) || rest.is_empty();
        if let Some((kind, name)) = public.filter(|_| !hidden) {
            let path = match (free, method) {
                (true, _) => path(name),
                (false, true) if kind != Kind::Type => {
                    of.as_ref().map(|of| format!("{of}::{name}"))
                }
                _ => None,
            };
            found.extend(path.map(|path| Item {
                path,
                kind,
                signature: signature(&lines[at..], kind),
                examples: examples(&docs),
            }));
        }
        if public.is_some() || ends {
            docs.clear();
            hidden = false;
        }
    }
    found
}

/// What stands before a function's body, and what users name of a type: in one line.
fn signature(lines: &[&str], kind: Kind) -> String {
    let is_head = |line: &str| !line.ends_with(['{', ';', '}']);
    let head = 1 + lines.iter().take_while(|line| is_head(line)).count();
    let mut said: Vec<&str> = lines[..head.min(lines.len())]
        .iter()
        .map(|line| line.trim())
        .collect();
    if kind == Kind::Type && lines.get(head - 1).is_some_and(|line| line.ends_with('{')) {
        let of_enum = lines[0].contains("enum ");
        let body = lines[head..].iter().take_while(|line| **line != "}");
        let named = body.filter(|line| {
            let word = line.trim_start();
            let one = line.len() - word.len() == 4 && !word.starts_with(['/', '#', '}', ')']);
            one && (of_enum || word.starts_with("pub "))
        });
        said.extend(named.map(|line| line.trim()));
    }
    said.join(" ").trim_end_matches([' ', '{', ';']).to_owned()
}

/// The lines of the code blocks in docs that a reader sees.
fn examples(docs: &[impl AsRef<str>]) -> String {
    let mut inside = false;
    let mut shown = String::new();
    for line in docs.iter().map(AsRef::as_ref) {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            inside = !inside && !language.starts_with("text");
        } else if inside && !line.starts_with("# ") && line != "#" {
            shown.push_str(line);
            shown.push('\n');
        }
    }
    shown
}

#[test]
fn items_have_the_path_of_their_owner_and_the_examples_of_their_docs() {
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
    let docs = ["Says.", "```no_run", "# use a::b;", "b();", "```", "not()"];
    assert_eq!(examples(&docs), "b();\n");
    assert_eq!(examples(&["```text", "b()", "```"]), "");
    let lines = ["pub fn a<T>(", "    b: T,", ") -> c {", "    d();", "}"];
    assert_eq!(
        signature(&lines, Kind::Function),
        "pub fn a<T>( b: T, ) -> c"
    );
    let lines = [
        "pub enum A {",
        "    /// Says.",
        "    B,",
        "    C {",
        "        d: u32,",
        "    },",
        "}",
    ];
    assert_eq!(signature(&lines, Kind::Type), "pub enum A { B, C");
    let all = runtime();
    let path = |path: &str| all.iter().find(|item| item.path == path);
    for (there, kind) in [
        ("Communicator::allocate", Kind::Function),
        ("Communicator::tensor_from_raw", Kind::Unsafe),
        ("tuned::Ranking", Kind::Type),
        ("jit::sass::Sass::of", Kind::Function),
        ("error::Stall", Kind::Type),
    ] {
        let item = path(there).unwrap_or_else(|| panic!("no {there}"));
        assert_eq!(item.kind, kind, "{there}");
    }
    assert!(path("driver::Local").is_none() && path("cuda::Slots").is_none());
}
