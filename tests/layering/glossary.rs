//! The words of `docs/glossary.md` stand in the sources, and their former names do not.

use super::{files, root, short, text};

const SOURCES: [&str; 12] = [
    "src",
    "codegen/src",
    "emitter/src",
    "emulator/src",
    "timeline/src",
    "runtime/src",
    "quantise/src",
    "layers/src",
    "workbench/src",
    "macros/src",
    "docs",
    "kernels_generated",
];

/// A row of the table: a word, and its former names.
struct Row {
    word: String,
    former: Vec<String>,
}

fn quoted(cell: &str) -> Vec<String> {
    let inside = cell.split('`').skip(1).step_by(2);
    inside.map(str::to_string).collect()
}

fn rows() -> Vec<Row> {
    let table = text(&root().join("docs/glossary.md"));
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let [word, _, former] = cells[..] else {
            panic!("three cells: {line}");
        };
        let word = quoted(word);
        assert_eq!(word.len(), 1, "one word: {line}");
        Row {
            word: word[0].clone(),
            former: quoted(former),
        }
    })
    .collect()
}

/// True if a text has a word that no letter, digit or underscore goes on.
fn has(text: &str, word: &str) -> bool {
    let goes_on = |letter: Option<char>| {
        letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
    };
    text.match_indices(word).any(|(at, _)| {
        let (before, behind) = (&text[..at], &text[at + word.len()..]);
        !goes_on(before.chars().next_back()) && !goes_on(behind.chars().next())
    })
}

#[test]
fn words_are_those_of_the_glossary() {
    let ends = [".rs", ".md", ".api", ".cuh", ".cu"];
    let all = SOURCES.iter().flat_map(|dir| files(dir, &ends));
    let all = all.chain([root().join("README.md"), root().join("ARCHITECTURE.md")]);
    let texts: Vec<(String, String)> = all
        .filter(|path| !path.ends_with("docs/glossary.md"))
        .map(|path| (short(&path), text(&path)))
        .collect();
    let rows = rows();
    assert!(rows.len() > 15, "a glossary: {}", rows.len());
    let unused = rows.iter().map(|row| &row.word);
    let unused: Vec<&String> = unused
        .filter(|word| !texts.iter().any(|(_, text)| has(text, word)))
        .collect();
    assert!(
        unused.is_empty(),
        "words that nothing is named by: {unused:#?}"
    );
    let former = rows.iter().flat_map(|row| &row.former);
    let found: Vec<String> = former
        .flat_map(|name| {
            let in_text = texts.iter().filter(move |(_, text)| has(text, name));
            in_text.map(move |(path, _)| format!("{path}: {name}"))
        })
        .collect();
    assert!(found.is_empty(), "former names: {found:#?}");
}
