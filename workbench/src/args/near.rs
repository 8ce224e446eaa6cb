//! Suggests the name that was probably meant.

/// `did you mean run? there are demo, check, …`
pub(super) fn choices<S: AsRef<str>>(word: &str, names: &[S]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let list = format!("there are {}", names.join(", "));
    match near(word, &names) {
        Some(name) => format!("did you mean `{name}`? {list}"),
        None => list,
    }
}

/// The name that was probably meant.
pub(super) fn near<'a>(word: &str, names: &[&'a str]) -> Option<&'a str> {
    names
        .iter()
        .map(|name| (distance(word, name), *name))
        .min()
        .filter(|(distance, name)| *distance * 2 <= name.len())
        .map(|(_, name)| name)
}

/// Edits between two words: insert, delete or change a character.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.chars().take(64).enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, b) in b.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
