//! What a foreign function's text may be: arithmetic on its arguments. The verifier takes its calls for numbers that depend
//! on nothing else, always come, and leave nothing behind; so does the order in which a kernel computes elements.
//!
//! The text is read word by word. What is not known to be harmless is refused: this is no compiler of C++.

use super::names::{is_identifier, is_taken};

/// What a value may be.
const TYPES: [&str; 4] = ["float", "int", "unsigned", "bool"];
const STATEMENTS: [&str; 6] = ["const", "if", "else", "return", "true", "false"];
/// The functions that a text may call: NVIDIA's compiler knows them without a header, and they need no memory.
pub(super) const FUNCTIONS: &str = "abs acos acosf acosh acoshf asin asinf asinh asinhf atan atan2 atan2f atanf atanh atanhf cbrt cbrtf ceil \
    ceilf copysignf cos cosf cosh coshf erf erfc erfcf erff exp exp2f expf expm1 expm1f fabsf fdimf floor floorf \
    fma fmaf fmax fmaxf fmin fminf hypot hypotf isfinite isinf isnan log log10f log1p log1pf log2f logf max min \
    pow powf rhypot rhypotf rint rintf round roundf rsqrt rsqrtf sin sinf sinh sinhf sqrt sqrtf tan tanf tanh \
    tanhf trunc truncf __cosf __expf __fdividef __frcp_rn __frsqrt_rn __fsqrt_rn __log2f __logf __powf __sinf \
    __float_as_int __float_as_uint __int_as_float __uint_as_float __clz __brev __popc";

fn is_function(word: &str) -> bool {
    FUNCTIONS.split_whitespace().any(|known| known == word)
}

#[derive(Clone, Copy, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Number,
    Sign(char),
}

/// Why a function of that name, arguments and text cannot be called in a kernel, if it cannot.
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

/// How long the number is that a text begins with.
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

/// Why a word or sign is none of arithmetic's, if one is not.
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

/// Why that sign is none of arithmetic's, if it is not.
fn foreign_sign(sign: char, after: Option<&Token<'_>>) -> Option<String> {
    let why = match (sign, after) {
        ('#' | '"' | '\\', _) => "its text needs a header or a macro: a function includes nothing",
        ('[' | ']', _) => "it reads or writes memory: keep what that holds in variables",
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

/// Why that word is not arithmetic.
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

/// Why those are not the statements of a function that always returns, if they are not.
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
