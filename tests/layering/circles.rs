//! Import circles: folders or files of a crate that need each other, directly or by way of others.

use super::{code, files, root, short};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

/// A module by its path from the crate's root: `["bench", "table"]`.
type Module = Vec<String>;

/// A file as this check sees it.
#[derive(Default)]
struct File {
    /// Names that it takes from below, and from which module: files below may take them from here.
    passed: BTreeMap<String, Vec<String>>,
    /// Paths it names, as they are written: `["crate", "render", "Console"]`.
    paths: Vec<Vec<String>>,
}

/// Every path of a `use`: `a::{b, c::{d}}` as `a::b` and `a::c::d`, a name that is given away (`as`) left out.
fn unfold(tree: &str, before: &[String], found: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        let path = path.split("::").map(|word| word.trim().to_owned());
        found.push(before.iter().cloned().chain(path).collect());
        return;
    };
    let words = tree[..open].split("::").map(str::trim);
    let words = words.filter(|word| !word.is_empty()).map(str::to_owned);
    let before: Vec<String> = before.iter().cloned().chain(words).collect();
    let inside = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inside.char_indices().chain([(inside.len(), ',')]) {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == ',' && depth == 0 {
            if !inside[from..at].trim().is_empty() {
                unfold(&inside[from..at], &before, found);
            }
            from = at + 1;
        }
    }
}

/// What a file's code names. `children` are the modules right below it: a plain path may begin with one.
fn read(code: &str, children: &BTreeSet<String>) -> File {
    let mut file = File::default();
    let mut rest = String::new();
    let mut open: Option<String> = None;
    for line in code.lines() {
        let start = line.trim_start();
        let declares = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "];
        if open.is_none() && declares.iter().any(|word| start.starts_with(word)) {
            open = Some(String::new());
        }
        let Some(text) = &mut open else {
            rest.push_str(line);
            rest.push('\n');
            continue;
        };
        text.push_str(line);
        text.push(' ');
        if !line.trim_end().ends_with(';') {
            continue;
        }
        let text = open.take().unwrap_or_default();
        let text = text.trim().trim_end_matches(';');
        let (_, tree) = text.split_once("use ").unwrap_or_default();
        let mut paths = Vec::new();
        unfold(tree, &[], &mut paths);
        for mut path in paths {
            path.retain(|word| word != "self");
            let below = path.first().is_some_and(|first| children.contains(first));
            match path.last().cloned() {
                Some(name) if below => drop(file.passed.insert(name, path)),
                _ => file.paths.push(path),
            }
        }
    }
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    // Who may see a thing does not need it.
    let rest = rest.replace("pub(in crate::", "pub(in ");
    for path in rest.split(|c| !word(c)) {
        let path: Vec<String> = path.split("::").map(str::to_owned).collect();
        match file.passed.get(&path[0]) {
            // What a file passes on and uses itself it needs, too.
            Some(from) => file.paths.push(from.clone()),
            None if path.len() > 1 => file.paths.push(path),
            None => {}
        }
    }
    file
}

/// The files of a crate.
struct Crate(BTreeMap<Module, File>);

impl Crate {
    /// Read once: several tests look at it.
    fn of(dir: &str) -> Arc<Crate> {
        static READ: Mutex<BTreeMap<String, Arc<OnceLock<Arc<Crate>>>>> =
            Mutex::new(BTreeMap::new());
        let mut all = READ.lock().expect("no panic");
        let own = Arc::clone(all.entry(dir.to_owned()).or_default());
        drop(all);
        Arc::clone(own.get_or_init(|| Arc::new(Crate::read(dir))))
    }

    fn read(dir: &str) -> Crate {
        let base = root().join(dir);
        let named = |path: &Path| -> Module {
            let inside = path.strip_prefix(&base).expect("below").with_extension("");
            let words = inside
                .iter()
                .map(|word| word.to_string_lossy().into_owned());
            words
                .filter(|word| word != "mod" && word != "lib")
                .collect()
        };
        let paths = files(dir, &[".rs"]);
        let modules: BTreeSet<Module> = paths.iter().map(|path| named(path)).collect();
        let children = |module: &Module| {
            let below = modules
                .iter()
                .filter(|other| other.len() == module.len() + 1 && other.starts_with(&module[..]));
            below.filter_map(|other| other.last().cloned()).collect()
        };
        let read = |path: &Path| {
            let module = named(path);
            (module.clone(), read(&code(path), &children(&module)))
        };
        Crate(paths.iter().map(|path| read(path)).collect())
    }

    /// The module that a path written in `from` leads to: where the item is, not who passes it on.
    fn leads(&self, from: &Module, path: &[String]) -> Option<Module> {
        let mut at = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            child => {
                let below: Module = from.iter().cloned().chain([child.to_owned()]).collect();
                self.0.get(&below)?;
                below
            }
        };
        let mut rest = path[1..].to_vec();
        while let Some(word) = rest.first().cloned() {
            let below: Module = at.iter().cloned().chain([word.clone()]).collect();
            if word == "super" {
                at.pop()?;
            } else if self.0.contains_key(&below) {
                at = below;
            } else {
                let passed = self.0.get(&at)?.passed.get(&word);
                let Some(path) = passed else { break };
                rest.splice(..1, path.iter().cloned());
                continue;
            }
            rest.remove(0);
        }
        Some(at)
    }

    /// For each file those that it names, itself aside.
    fn edges(&self) -> Edges {
        let each = self.0.iter().map(|(module, file)| {
            let named = file
                .paths
                .iter()
                .filter_map(|path| self.leads(module, path));
            let others = named.filter(|other| other != module).collect();
            (module.clone(), others)
        });
        each.collect()
    }

    /// Files of a crate that need each other.
    fn circles(&self) -> Vec<BTreeSet<Module>> {
        circles(&self.edges())
    }

    /// Folders right below the crate's root that need each other, and files there, and those of [`BELOW`]. Who names a file
    /// that needs no other needs nothing of its folder.
    fn folders(&self) -> Vec<BTreeSet<Module>> {
        let top = |module: &Module| {
            let first = module.first()?;
            Some(below(module).unwrap_or_else(|| vec![first.clone()]))
        };
        let files = self.edges();
        let needs = |module: &&Module| !files.get(*module).is_none_or(BTreeSet::is_empty);
        let mut edges = Edges::new();
        for (from, to) in &files {
            let Some(from) = top(from) else { continue };
            let to = to.iter().filter(needs).filter_map(top);
            let to: Vec<Module> = to.filter(|to| *to != from).collect();
            edges.entry(from).or_default().extend(to);
        }
        circles(&edges)
    }
}

/// Folders that count for themselves, not as parts of the one that they are in: values that the level between reads.
const BELOW: [&[&str]; 1] = [&["sm90", "cta"]];

/// Which of them a module is in.
fn below(module: &Module) -> Option<Module> {
    let mut folders = BELOW.iter().map(|words| {
        words
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Module>()
    });
    folders.find(|folder| module.starts_with(folder))
}

/// Who names whom.
type Edges = BTreeMap<Module, BTreeSet<Module>>;

/// Groups each of which leads from all to all.
fn circles(edges: &Edges) -> Vec<BTreeSet<Module>> {
    let reached = |from: &Module| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from.clone()];
        while let Some(at) = open.pop() {
            for next in edges.get(&at).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        reached
    };
    let all: BTreeMap<&Module, BTreeSet<Module>> = edges
        .keys()
        .map(|module| (module, reached(module)))
        .collect();
    let circles: BTreeSet<BTreeSet<Module>> = all
        .iter()
        .filter(|(module, reached)| reached.contains(**module))
        .map(|(module, reached)| {
            let back = reached.iter().filter(|other| all[other].contains(*module));
            back.cloned().collect()
        })
        .collect();
    circles.into_iter().collect()
}

fn told(circles: &[BTreeSet<Module>]) -> String {
    let each = circles.iter().map(|circle| {
        let names = circle.iter().map(|module| module.join("/"));
        format!("{{{}}}", names.collect::<Vec<_>>().join(", "))
    });
    each.collect::<Vec<_>>().join("\n")
}

#[test]
fn no_folders_of_a_crate_need_each_other() {
    for dir in [
        "macros/src",
        "codegen/src",
        "emitter/src",
        "emulator/src",
        "timeline/src",
        "runtime/src",
        "quantise/src",
        "workbench/src",
        "layers/src",
    ] {
        let circles = Crate::of(dir).folders();
        assert!(circles.is_empty(), "{dir}:\n{}", told(&circles));
    }
}

#[test]
fn no_files_of_a_crate_need_each_other() {
    for dir in [
        "src",
        "macros/src",
        "codegen/src",
        "emitter/src",
        "emulator/src",
        "timeline/src",
        "runtime/src",
        "quantise/src",
        "workbench/src",
        "layers/src",
    ] {
        let circles = Crate::of(dir).circles();
        assert!(circles.is_empty(), "{dir}:\n{}", told(&circles));
    }
}

/// The compiler's driver is above what judges and what builds: these know neither it nor each other's steps, and values that
/// were accepted lie below all.
#[test]
fn who_judges_decides_and_builds_nothing() {
    let edges = Crate::of("codegen/src").edges();
    let module = |text: &str| text.split('/').map(str::to_owned).collect::<Module>();
    assert_eq!(edges[&module("checked")], BTreeSet::new());
    let names = |words: &str| -> Vec<String> {
        let all = files("codegen/src", &[".rs"]).into_iter();
        let found = all.filter(|path| code(path).contains(words));
        let mut found: Vec<String> = found.map(|path| short(&path)).collect();
        found.sort();
        found
    };
    let path = |file: &str| format!("codegen/src/{file}.rs");
    assert_eq!(
        names("Checked::new("),
        ["proof/mod", "proof/series"].map(path)
    );
    assert_eq!(names("sm90::build"), ["target"].map(path));
    // A plan of a kernel that nobody judged decides for itself.
    assert_eq!(names("cta::decide"), ["plan", "target"].map(path));
    let verify = module("verify");
    let above = edges.iter().filter(|(_, named)| named.contains(&verify));
    assert_eq!(above.count(), 0);
    let of_proof = edges
        .iter()
        .filter(|(from, _)| from.first().is_some_and(|top| top == "proof"));
    for (from, to) in of_proof {
        let above = |other: &&Module| {
            let top = other.first().map_or("", String::as_str);
            ["verify", "target"].contains(&top) || top == "sm90" && below(other).is_none()
        };
        let above: Vec<&Module> = to.iter().filter(above).collect();
        assert!(above.is_empty(), "{} names {above:?}", from.join("/"));
    }
}

#[test]
fn the_check_for_circles_sees_them() {
    let children = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let none = children(&[]);
    let of = |a: &str, b: &str| {
        let top = "pub use b::{self, Thing};";
        let lib = read(top, &children(&["a", "b"]));
        let name = |name: &str| vec![name.to_owned()];
        let files = [
            (Vec::new(), lib),
            (name("a"), read(a, &none)),
            (name("b"), read(b, &none)),
        ];
        Crate(BTreeMap::from(files)).circles().len()
    };
    let uses = "use std::fmt;\nuse crate::{\n    Thing,\n};\nfn f() {}";
    assert_eq!(of(uses, "use super::a::{x, y as z};"), 1);
    assert_eq!(of(uses, "fn g() { super::a::f() }"), 1);
    assert_eq!(of(uses, "use super::a as other;"), 1);
    assert_eq!(of(uses, "fn g() { std::fmt::f() }"), 0);
    assert_eq!(of("fn f() {}", "use super::a;"), 0);
    assert_eq!(of("pub(in crate::b) fn f() {}", "use super::a;"), 0);
    let top = read("pub use a::Thing;\nfn f(_: Thing) {}", &children(&["a"]));
    let below = read("use super::f;", &none);
    let files = [(Vec::new(), top), (vec!["a".to_owned()], below)];
    assert_eq!(Crate(BTreeMap::from(files)).circles().len(), 1);
    let module = |text: &str| text.split('/').map(str::to_owned).collect::<Module>();
    let files = [
        (module("a"), File::default()),
        (module("b"), File::default()),
        (module("a/x"), read("use crate::b::x;", &none)),
        (module("a/y"), read("use super::x;", &none)),
        (module("b/x"), read("use super::y;", &none)),
        (module("b/y"), read("use crate::a::y;", &none)),
    ];
    let files = Crate(BTreeMap::from(files));
    assert_eq!(files.folders().len(), 1);
}
