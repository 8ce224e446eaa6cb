//! Lines of at most [`COLUMNS`] columns: a longer one is broken where a reader would.

/// As wide as a line may be.
const COLUMNS: usize = 120;

/// Indentation of a line that continues another.
const DEEPER: usize = 4;

/// A line as it is printed, with so many spaces before it; several if it is too long.
pub(super) fn wrapped(line: &str, indent: usize) -> Vec<String> {
    let mut lines = Vec::new();
    fill(line, indent, &mut lines);
    lines
}

fn fill(line: &str, indent: usize, lines: &mut Vec<String>) {
    if indent + line.chars().count() <= COLUMNS {
        lines.push(indented(line, indent));
    } else if line.starts_with("//") {
        comment(line, indent, lines);
    } else if let Some((code, words)) = line.split_once("  // ") {
        comment(&format!("// {words}"), indent, lines);
        fill(code, indent, lines);
    } else if let Some((head, body)) = after_head(line) {
        fill(head, indent, lines);
        fill(body, indent + DEEPER, lines);
    } else if let Some(Break { at, depth }) = best(line, COLUMNS - indent, 0) {
        lines.push(indented(line[..at].trim_end(), indent));
        rest(line[at..].trim_start(), indent + DEEPER, depth, lines);
    } else {
        lines.push(indented(line, indent));
    }
}

/// Breaks the rest of a line, from so deep in its parentheses: all of it has the same indentation.
fn rest(line: &str, indent: usize, depth: u32, lines: &mut Vec<String>) {
    match best(line, COLUMNS - indent, depth) {
        Some(Break { at, depth }) if indent + line.chars().count() > COLUMNS => {
            lines.push(indented(line[..at].trim_end(), indent));
            rest(line[at..].trim_start(), indent, depth, lines);
        }
        Some(_) | None => lines.push(indented(line, indent)),
    }
}

fn indented(line: &str, indent: usize) -> String {
    let indent = if line.is_empty() { 0 } else { indent };
    format!("{:indent$}{line}", "")
}

/// A comment, word by word.
fn comment(line: &str, indent: usize, lines: &mut Vec<String>) {
    let mut current = String::from("//");
    for word in line.trim_start_matches('/').split_whitespace() {
        let wide = indent + current.chars().count() + 1 + word.chars().count();
        if wide > COLUMNS && current != "//" {
            lines.push(indented(&current, indent));
            current = String::from("//");
        }
        current.push(' ');
        current.push_str(word);
    }
    lines.push(indented(&current, indent));
}

/// The head of a loop or branch, and its only statement.
fn after_head(line: &str) -> Option<(&str, &str)> {
    if !(line.starts_with("for (") || line.starts_with("if (")) {
        return None;
    }
    let mut depth = 0;
    let closes = |(_, c): &(usize, char)| {
        depth += i32::from(*c == '(') - i32::from(*c == ')');
        *c == ')' && depth == 0
    };
    let (end, _) = line.char_indices().find(closes)?;
    let (head, body) = line.split_at(end + 1);
    let body = body.trim_start();
    (!body.is_empty() && body != "{").then_some((head, body))
}

/// Place at which a line is broken.
#[derive(Clone, Copy)]
struct Break {
    at: usize,
    /// Number of parentheses that are open there.
    depth: u32,
}

/// Finds the break of a line of which so many columns fit: as far out of its parentheses as possible, behind what
/// separates rather than before a sum, before a sum rather than within a product, and as late as possible; never
/// within the arguments of a template. Where the line continues another, so many parentheses are open at its start.
fn best(line: &str, fits: usize, mut depth: u32) -> Option<Break> {
    let mut found: Option<(u32, Break)> = None;
    let mut consider = |rank: u32, at: usize, depth: u32| {
        if found.is_none_or(|(best, _)| rank <= best) {
            found = Some((rank, Break { at, depth }));
        }
    };
    let mut template = 0u32;
    let bytes = line.as_bytes();
    for (columns, (at, c)) in line
        .char_indices()
        .enumerate()
        .take_while(|(columns, _)| *columns < fits)
    {
        let before = if at > 0 { bytes[at - 1] } else { b' ' };
        match c {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth = depth.saturating_sub(1),
            // Other signs of comparison have spaces around them.
            '<' if before != b' ' && before != b'<' => template += 1,
            '>' if before != b' ' && before != b'>' => template = template.saturating_sub(1),
            ' ' if columns > 0 && template == 0 => {
                let next = &line[at..];
                let starts = |signs: &[&str]| signs.iter().any(|sign| next.starts_with(sign));
                if before == b',' || next.starts_with(" = ") && depth == 0 {
                    let at = if before == b',' { at } else { at + 2 };
                    consider(3 * depth, at, depth);
                } else if starts(&[" + ", " ? ", " : ", " && "]) {
                    consider(3 * depth + 1, at, depth);
                } else if starts(&[" * ", " / "]) {
                    consider(3 * depth + 2, at, depth);
                }
            }
            _ => {}
        }
    }
    found.map(|(_, found)| found)
}
