//! The README is short, and each limit that it names is said by an error of ours in the words that it quotes.

use super::{files, root, text};

/// Numbers, and what a format string has in their place, as one sign.
fn without_numbers(words: &str) -> String {
    let mut plain = String::new();
    let mut rest = words;
    while let Some(first) = rest.chars().next() {
        let argument = rest.strip_prefix('{').and_then(|inside| {
            let end = inside.find(|c: char| !c.is_alphanumeric() && !"_:.?".contains(c))?;
            inside[end..].starts_with('}').then_some(end + 2)
        });
        let number = argument.or_else(|| first.is_ascii_digit().then_some(1));
        if number.is_none() {
            plain.push(first);
        } else if !plain.ends_with('#') {
            plain.push('#');
        }
        rest = &rest[number.unwrap_or(first.len_utf8())..];
    }
    plain
}

/// What the list of limits quotes, links aside.
fn quoted(readme: &str) -> Vec<&str> {
    let (_, limits) = readme.split_once("## Limits\n").expect("a list of limits");
    let limits = limits.split("\n## ").next().unwrap_or_default();
    let quoted = limits
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|words| !words.contains(".md")).collect()
}

#[test]
fn the_readme_is_read_in_two_minutes() {
    let readme = text(&root().join("README.md"));
    let (lines, words) = (readme.lines().count(), readme.split_whitespace().count());
    assert!(lines <= 110, "{lines} lines");
    assert!(words <= 1000, "{words} words");
}

/// What changes is told in 60 lines, one for each feature.
#[test]
fn the_changelog_is_short() {
    let lines = text(&root().join("CHANGELOG.md")).lines().count();
    assert!(lines <= 60, "{lines} lines: one for each feature");
}

#[test]
fn each_limit_of_the_readme_is_an_error_of_ours() {
    let sources = ["codegen/src", "emulator/src", "runtime/src"].map(|dir| files(dir, &[".rs"]));
    let sources = sources
        .concat()
        .iter()
        .map(|path| without_numbers(&text(path)))
        .collect::<Vec<_>>();
    let readme = text(&root().join("README.md"));
    let quoted = quoted(&readme);
    assert!(quoted.len() >= 6, "{quoted:?}");
    for words in quoted {
        let plain = without_numbers(words);
        let said = sources.iter().any(|source| source.contains(&plain));
        assert!(said, "no error says: {words}");
    }
}

#[test]
fn numbers_and_their_places_are_alike() {
    assert_eq!(without_numbers("at most {MOST} of 12"), "at most # of #");
    assert_eq!(without_numbers("{a}{b}"), "#");
    let page = "x `y`\n## Limits\n- a: `b 1`, [`c`](c.md)\n- [`d.md`](d.md)\n## End\n`e`\n";
    assert_eq!(quoted(page), ["b 1", "c"]);
}
