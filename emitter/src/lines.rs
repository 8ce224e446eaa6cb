//! The text as the compiler reads it: each line of a statement is said to be the schedule's.

use super::CudaSource;

impl CudaSource {
    /// The text with `#line` directives, for the compiler alone: what it, a profiler or a sanitizer says of a statement
    /// names the schedule's line; what they say of the rest names the line of [`CudaSource::text`], as `entry.cu`.
    pub fn with_lines(&self) -> String {
        let mut out = String::with_capacity(self.text.len() * 2);
        let mut named = false;
        for (index, line) in self.text.lines().enumerate() {
            // A directive speaks of the one line after it, and the compiler counts on: a statement takes one a line.
            match self.origins.get(index).copied().flatten() {
                Some(loc) => {
                    let file = loc.file().replace('\\', "\\\\").replace('"', "\\\"");
                    out.push_str(&format!("#line {} \"{file}\"\n", loc.line()));
                    named = true;
                }
                None if named => {
                    out.push_str(&format!("#line {} \"{}.cu\"\n", index + 1, self.entry));
                    named = false;
                }
                None => {}
            }
            out.push_str(line);
            out.push('\n');
        }
        out
    }
}
