//! Every public function and type that a program can name is in an example: in its own docs, in its type's, or, where it
//! stands in a module by itself, in the module's. The examples compile: they are tests of the documentation.

use super::public::{Item, Kind, codegen, facade, runtime};

/// The examples on the page of that path and on those below it.
fn below(all: &[Item], path: &str) -> String {
    let inside = all.iter().filter(|item| {
        let rest = item.path.strip_prefix(path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    });
    inside.map(|item| &item.examples[..]).collect()
}

/// Whether an example names a type, or calls or passes a function.
fn names(example: &str, kind: Kind, name: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    example.match_indices(name).any(|(at, _)| {
        let (before, after) = (&example[..at], &example[at + name.len()..]);
        let called = kind == Kind::Type
            || before.ends_with(['.', ':'])
            || after.starts_with('(')
            || after.starts_with("::<");
        called && !before.ends_with(part) && !after.starts_with(part)
    })
}

/// Whether users find an example of it.
fn shown(all: &[Item], item: &Item) -> bool {
    if !item.examples.is_empty() || (item.kind == Kind::Type && !below(all, &item.path).is_empty())
    {
        return true;
    }
    let Some((around, name)) = item.path.rsplit_once("::") else {
        return false;
    };
    // A stage of the compiler is also where the crate shows all of them.
    let top = item.path.split("::").next().unwrap_or("");
    let root = all.iter().filter(|item| item.path == top);
    let root: String = root.map(|item| &item.examples[..]).collect();
    names(&(below(all, around) + &root), item.kind, name)
}

#[test]
fn every_public_function_and_type_is_in_an_example() {
    let mut without = Vec::new();
    for (all, least) in [(runtime(), 230), (codegen(), 200), (facade(), 25)] {
        assert!(all.len() >= least, "only {} items", all.len());
        let absent = all.iter().filter(|item| !shown(&all, item));
        without.extend(absent.map(|item| item.path.clone()));
    }
    assert!(without.is_empty(), "no example has {without:?}");
}

#[test]
fn the_check_for_examples_sees_who_is_in_none() {
    let item = |path: &str, kind, examples: &str| Item {
        path: path.into(),
        kind,
        signature: String::new(),
        examples: examples.into(),
    };
    let all = [
        item(
            "m::A",
            Kind::Type,
            "let a = A::new();\na.lens();\nuse_up(b);\n",
        ),
        item("m::A::new", Kind::Function, ""),
        item("m::A::len", Kind::Function, ""),
        item("m::B", Kind::Type, ""),
        item("m::use_up", Kind::Function, ""),
        item("m::b", Kind::Function, ""),
        item("n::A::new", Kind::Function, ""),
    ];
    let without = all.iter().filter(|item| !shown(&all, item));
    let without: Vec<_> = without.map(|item| &item.path[..]).collect();
    assert_eq!(without, ["m::A::len", "m::B", "m::b", "n::A::new"]);
}
