//! Rules for a foreign function's text: it is arithmetic on its arguments. The verifier takes its calls for numbers that depend
//! on nothing else, always come, and leave nothing behind; so does the order in which a kernel computes elements.
//!
//! The text is read word by word. What is not known to be harmless is refused: this is no compiler of C++.

use super::names::{is_function, is_identifier, is_taken};

/// Types of values.
const TYPES: [&str; 4] = ["float", "int", "unsigned", "bool"];
const STATEMENTS: [&str; 6] = ["const", "if", "else", "return", "true", "false"];

#[derive(Clone, Copy, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Number,
    Sign(char),
}

/// Reason that a function of that name, arguments and text cannot be called in a kernel, if it cannot.
pub(super) fn refusal(name: &str, params: &[&str], text: &str) -> Option<String> {
    if !is_identifier(name) {
        return Some("its name is no identifier of C++".into());
    }
    for (index, param) in params.iter().enumerate() {
        if !is_identifier(param) || is_taken(param) || is_function(param) {
            return Some(format!(
                "`{param}` cannot be an argument's name in C++: rename it"
            ));
        }
        if params[..index].contains(param) {
            return Some(format!("two arguments are called `{param}`: rename one"));
        }
    }
    let tokens = tokens(text);
    words(&tokens, params).or_else(|| shape(&tokens))
}

/// The text's words and signs.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (token, length) = if first.is_ascii_digit() {
            (Token::Number, number(rest))
        } else if in_word(first) {
            let length = rest.find(|c| !in_word(c)).unwrap_or(rest.len());
            (Token::Word(&rest[..length]), length)
        } else {
            (Token::Sign(first), first.len_utf8())
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// Length of the number that a text begins with.
fn number(text: &str) -> usize {
    let hex = text.starts_with("0x");
    let mut before = ' ';
    let ends = |c: char| {
        let sign = matches!(c, '+' | '-') && matches!(before, 'e' | 'E') && !hex;
        before = c;
        !(c.is_ascii_alphanumeric() || c == '.' || sign)
    };
    text.find(ends).unwrap_or(text.len())
}

/// Reason that a word or sign is none of arithmetic's, if one is not.
fn words(tokens: &[Token<'_>], params: &[&str]) -> Option<String> {
    let mut own: Vec<&str> = params.to_vec();
    // How many of them there were before each block that is open.
    let mut blocks = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let word = match token {
            Token::Word(word) => word,
            Token::Sign('{') => {
                blocks.push(own.len());
                continue;
            }
            Token::Sign('}') => {
                own.truncate(blocks.pop().unwrap_or(0));
                continue;
            }
            Token::Sign('&' | '*') if is_of_memory(&tokens[..=index]) => {
                return Some("it takes an address or reads at one: pass values".into());
            }
            Token::Sign(sign) => match foreign_sign(*sign, tokens.get(index + 1)) {
                Some(why) => return Some(why),
                None => continue,
            },
            Token::Number => continue,
        };
        let before = index.checked_sub(1).map(|before| tokens[before]);
        let after = tokens.get(index + 1).copied();
        let declares = matches!(before, Some(Token::Word(before)) if TYPES.contains(&before));
        if TYPES.contains(word) {
            // A declaration or a conversion. Pointers and references have a sign behind the type.
            if !matches!(after, Some(Token::Word(_) | Token::Sign('(' | ')'))) {
                return Some(format!(
                    "it has a pointer or a reference to `{word}`: pass values"
                ));
            }
        } else if declares && !is_function(word) {
            if after != Some(Token::Sign('[')) && !has_value(&tokens[index..]) {
                return Some(format!(
                    "`{word}` has no value at first: assign one where it is declared"
                ));
            }
            own.push(word);
        } else if is_function(word) {
            if after != Some(Token::Sign('(')) {
                return Some(format!(
                    "it names the function `{word}` and does not call it"
                ));
            }
        } else if own.contains(word) {
            if after == Some(Token::Sign('(')) {
                return Some(format!("it calls `{word}`, which is a number"));
            }
        } else if !STATEMENTS.contains(word) {
            return Some(foreign_word(word, after));
        }
    }
    None
}

/// True if the last of these, a `&` or `*`, stands before a value instead of between two.
fn is_of_memory(tokens: &[Token<'_>]) -> bool {
    let [before @ .., sign] = tokens else {
        return false;
    };
    match before {
        // `&&`.
        [first @ .., Token::Sign('&')] if *sign == Token::Sign('&') => {
            first.last() == Some(&Token::Sign('&'))
        }
        // A conversion, `(float)`.
        [.., Token::Sign('('), Token::Word(word), Token::Sign(')')] => TYPES.contains(word),
        [.., Token::Word(word)] => ["else", "return"].contains(word),
        [.., Token::Number | Token::Sign(')')] => false,
        [.., Token::Sign(_)] | [] => true,
    }
}

/// True if a variable that these declare has a value there, or by the next statement.
fn has_value(tokens: &[Token<'_>]) -> bool {
    let assigned = |tokens: &[Token<'_>]| {
        tokens.first() == Some(&Token::Sign('=')) && tokens.get(1) != Some(&Token::Sign('='))
    };
    match tokens {
        [name, Token::Sign(';'), next, rest @ ..] if name == next => assigned(rest),
        [_, rest @ ..] => assigned(rest),
        [] => false,
    }
}

/// Reason that the sign is none of arithmetic's, if it is not.
fn foreign_sign(sign: char, after: Option<&Token<'_>>) -> Option<String> {
    let why = match (sign, after) {
        ('#' | '"' | '\\', _) => "its text needs a header or a macro: a function includes nothing",
        ('[' | ']', _) | ('<', Some(Token::Sign(':'))) => {
            "it reads or writes memory: keep what that holds in variables"
        }
        ('%', _) => {
            "it has a remainder, which CUDA has for integers only: `x - y * (x / y).trunc()`"
        }
        ('/', Some(Token::Sign('/' | '*'))) => "its text has a comment: leave it out",
        (sign, _) if "+-*/<>=!&|^~?:(){},;".contains(sign) => return None,
        _ => return Some(format!("its text has `{sign}`, which no arithmetic needs")),
    };
    Some(why.into())
}

/// Words that are not arithmetic's, or how they begin, and what they are.
const FOREIGN: [(&str, &str); 6] = [
    (
        "for while do goto switch break continue",
        "repeats or jumps, and the verifier must know that a function ends: unroll the loop",
    ),
    (
        "shared* __shared* extern static",
        "is memory that threads share: elements are computed one by one",
    ),
    (
        "__sync* sync* __bar* __threadfence* __shfl* __nanosleep cooperative*",
        "synchronises threads, and not all of them come here",
    ),
    (
        "threadIdx* blockIdx* blockDim* gridDim* warpSize* clock*",
        "depends on who computes an element: pass what it needs as an argument",
    ),
    (
        "double long short char half __half* __nv_* int* uint* float_*",
        "is another type than float, int, unsigned and bool: convert it outside",
    ),
    ("atomic* __ld* __st*", "reads or writes memory"),
];

/// Reason that the word is not arithmetic.
fn foreign_word(word: &str, after: Option<Token<'_>>) -> String {
    let is = |known: &str| match known.strip_suffix('*') {
        Some(begins) => word.starts_with(begins),
        None => word == known,
    };
    let mut known = FOREIGN.iter();
    let known = known.find(|(words, _)| words.split_whitespace().any(is));
    let what = match known {
        Some((_, what)) => what,
        None if after == Some(Token::Sign('[')) => "is memory: keep what it holds in variables",
        None => "is neither an argument or variable nor a function that every kernel has",
    };
    format!("`{word}` {what}")
}

/// Reason that those are not the statements of a function that always returns, if they are not.
fn shape(tokens: &[Token<'_>]) -> Option<String> {
    let mut open = Vec::new();
    let mut last_return = None;
    for (index, token) in tokens.iter().enumerate() {
        match token {
            Token::Sign(sign @ ('(' | '{')) => open.push(*sign),
            Token::Sign(sign @ (')' | '}')) => {
                let wanted = if *sign == ')' { '(' } else { '{' };
                if open.pop() != Some(wanted) {
                    return Some("its brackets do not match".into());
                }
            }
            Token::Word("return") if open.is_empty() => last_return = Some(index),
            Token::Word(_) | Token::Number | Token::Sign(_) => {}
        }
    }
    let ends = |token: &Token<'_>| *token == Token::Sign(';');
    let returns = last_return.is_some_and(|at| {
        // Not the only statement of an `if` without braces.
        let begins = at == 0 || matches!(tokens[at - 1], Token::Sign(';' | '}'));
        let end = tokens[at..].iter().position(ends);
        begins && end == Some(tokens.len() - 1 - at) && end > Some(1)
    });
    match (open.is_empty(), returns) {
        (false, _) => Some("its brackets do not match".into()),
        (true, false) => Some("its last statement does not return a value".into()),
        (true, true) => None,
    }
}
