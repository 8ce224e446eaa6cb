//! What is compiled.

/// Text to compile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source<'a> {
    /// What it is called in messages: an identifier, without an ending.
    pub name: &'a str,
    /// All of it but [`Source::headers`]: nothing is read from files.
    pub text: &'a str,
    /// Texts it may include, by the names it includes them under.
    pub headers: &'a [(&'a str, &'a str)],
}

impl<'a> Source<'a> {
    /// That text under that name.
    pub const fn new(name: &'a str, text: &'a str) -> Self {
        let headers = &[];
        Source {
            name,
            text,
            headers,
        }
    }

    /// The same with texts it may include.
    #[must_use]
    pub const fn with(self, headers: &'a [(&'a str, &'a str)]) -> Self {
        Source { headers, ..self }
    }
}
