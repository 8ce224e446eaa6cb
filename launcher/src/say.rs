//! Lines of the launcher on standard error, which it shares with its ranks.

use std::fmt::Display;
use std::io::Write;

/// Writes one line in one call: launcher and ranks write at the same time, and `eprintln!` writes a line in pieces.
pub fn say(text: &dyn Display) {
    let line = format!("counterflow-run: {text}\n");
    // Who closed standard error does not read it.
    let _unread = std::io::stderr().write_all(line.as_bytes());
}
