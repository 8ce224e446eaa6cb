//! Names in cubecl's text: an argument has the user's, a variable the next number, a type the language's own.

/// Words that cubecl has for types, which a header of its own declares.
const TYPES: [(&str, &str); 2] = [("int32", "int"), ("uint32", "unsigned")];

/// The text with other names: what cubecl calls a variable depends on what else it compiled.
pub(crate) fn renamed(text: &str, arguments: &[(&str, &str)]) -> String {
    let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut variables: Vec<(&str, String)> = Vec::new();
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let length = match rest.find(|c| !in_word(c)) {
            Some(0) => rest.find(in_word).unwrap_or(rest.len()),
            Some(length) => length,
            None => rest.len(),
        };
        let (word, after) = rest.split_at(length);
        rest = after;
        let other = arguments
            .iter()
            .chain(&TYPES)
            .find(|(from, _)| *from == word);
        if let Some((_, to)) = other {
            out.push_str(to);
        } else if is_variable(word) {
            let known = variables.iter().position(|(from, _)| *from == word);
            let index = known.unwrap_or_else(|| {
                variables.push((word, free(variables.last(), arguments)));
                variables.len() - 1
            });
            out.push_str(&variables[index].1);
        } else {
            out.push_str(word);
        }
    }
    let lines = out.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| format!("{line}\n")).collect()
}

/// `l_7`, `l_mut_7` or `_tmp_7`.
fn is_variable(word: &str) -> bool {
    ["l_mut_", "l_", "_tmp_"].iter().any(|prefix| {
        word.strip_prefix(prefix)
            .is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// The name after a variable's that no argument has.
fn free(last: Option<&(&str, String)>, arguments: &[(&str, &str)]) -> String {
    let number = |(_, name): &(&str, String)| name[1..].parse::<usize>().map_or(0, |last| last + 1);
    let first = last.map_or(0, number);
    (first..)
        .map(|number| format!("v{number}"))
        .find(|name| arguments.iter().all(|(_, argument)| argument != name))
        .unwrap_or_default()
}
