//! The compiler's input.

/// Text to compile.
///
/// ```
/// use counterflow::jit::Source;
///
/// let headers = [("two.cuh", "#define TWO 2")];
/// let source = Source::new("twice", "#include \"two.cuh\"\nint two() { return TWO; }").with(&headers);
/// assert_eq!((source.name, source.headers.len()), ("twice", 1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source<'a> {
    /// Name in messages: an identifier, without an extension.
    pub name: &'a str,
    /// The whole text except [`Source::headers`]. Nothing is read from files.
    pub text: &'a str,
    /// Texts that it may include, by name.
    pub headers: &'a [(&'a str, &'a str)],
}

impl<'a> Source<'a> {
    /// A text and its name, without headers.
    pub const fn new(name: &'a str, text: &'a str) -> Self {
        let headers = &[];
        Source {
            name,
            text,
            headers,
        }
    }

    /// Adds the texts that it may include.
    #[must_use]
    pub const fn with(self, headers: &'a [(&'a str, &'a str)]) -> Self {
        Source { headers, ..self }
    }
}
