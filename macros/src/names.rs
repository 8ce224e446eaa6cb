//! The names in scope, and suggestions for misspelt names.

use crate::errors::Errors;
use crate::mistakes::Mistake;
use crate::model::{Axis, Usage};
use proc_macro2::Ident;
use syn::ext::IdentExt;

/// Meaning of a name.
#[derive(Clone)]
pub enum Kind {
    Tensor(Usage),
    Partition,
    Counters(Vec<Axis>),
    Rank,
    Item {
        partition: Ident,
    },
    Value,
    Accumulator {
        mutable: bool,
    },
    /// A name with a wrong declaration. That was reported, so its uses are not.
    Broken,
}

impl Kind {
    /// Description for a sentence.
    pub fn what(&self) -> &'static str {
        match self {
            Kind::Tensor(_) => "a tensor",
            Kind::Partition => "a partition",
            Kind::Counters(_) => "a counter",
            Kind::Rank => "a rank",
            Kind::Item { .. } => "an item",
            Kind::Value => "a value",
            Kind::Accumulator { .. } => "an accumulator",
            Kind::Broken => "unknown",
        }
    }
}

/// The names of the enclosing blocks, innermost last.
pub struct Scope(Vec<Vec<(Ident, Kind)>>);

impl Scope {
    pub fn new() -> Self {
        Scope(vec![Vec::new()])
    }

    pub fn enter(&mut self) {
        self.0.push(Vec::new());
    }

    pub fn leave(&mut self) {
        self.0.pop();
    }

    /// Binds `name`. Shadowing is rejected because the generated kernel and every report use these names.
    pub fn declare(&mut self, name: &Ident, kind: Kind, errors: &Errors) {
        if let Some(earlier) = self.find(name) {
            let was = earlier.what().to_owned();
            let name_text = text(name);
            errors.at(
                name,
                Mistake::Duplicate {
                    name: name_text,
                    was,
                },
            );
            return;
        }
        if let Some(innermost) = self.0.last_mut() {
            innermost.push((name.clone(), kind));
        }
    }

    pub fn find(&self, name: &Ident) -> Option<&Kind> {
        self.all()
            .find(|(known, _)| known == name)
            .map(|(_, kind)| kind)
    }

    /// Suggestion for an unknown name: the nearest one of a fitting kind, or all of them.
    pub fn offer(&self, found: &Ident, fits: impl Fn(&Kind) -> bool) -> String {
        let names = |fits: &dyn Fn(&Kind) -> bool| -> Vec<String> {
            let named = self.all().filter(|(_, kind)| fits(kind));
            named.map(|(name, _)| text(name)).collect()
        };
        let found = text(found);
        // A wrong declaration may be the one that is meant, but should not be suggested.
        let broken = names(&|kind| fits(kind) || matches!(kind, Kind::Broken));
        if let Some(near) = near(&found, broken.iter().map(String::as_str)) {
            return near;
        }
        let known = names(&fits);
        if known.is_empty() {
            return "nothing that fits here is declared".into();
        }
        offer(&found, known.iter().map(String::as_str))
    }

    fn all(&self) -> impl Iterator<Item = &(Ident, Kind)> {
        self.0.iter().rev().flat_map(|block| block.iter().rev())
    }
}

/// A name as the user wrote it.
pub fn text(name: &Ident) -> String {
    name.unraw().to_string()
}

/// "did you mean `gemm`?" if one of `known` is near, otherwise all of them.
pub fn offer<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    if let Some(near) = near(found, known.iter().copied()) {
        return near;
    }
    let quoted: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [] => "there is none".into(),
        [only] => format!("it can be {only}"),
        [first @ .., last] => format!("it can be {} or {last}", first.join(", ")),
    }
}

/// "did you mean `gemm`?" if one of `known` is near.
fn near<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    // A short name with one other letter is a different name, not a misspelt one.
    let limit = (found.chars().count() / 3).max(1);
    let letters = |name: &str| {
        let mut letters: Vec<char> = name.chars().collect();
        letters.sort_unstable();
        letters
    };
    let exchanged = |name: &str| {
        found.len() <= 3 && found.len() == name.len() && letters(found) != letters(name)
    };
    known
        .map(|name| (distance(found, name), name))
        .filter(|(distance, name)| *distance <= limit && !exchanged(name))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| format!("did you mean `{name}`?"))
}

/// The number of letters to insert, drop, change or swap to get from one to the other, ignoring case.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (
        a.to_lowercase().chars().collect(),
        b.to_lowercase().chars().collect(),
    );
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i][j] = if i == 0 || j == 0 {
                i.max(j)
            } else {
                let changed = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut best = changed.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(table[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    table[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_offered_and_far_ones_listed() {
        let roles = ["gemm", "comm", "spare_warps", "copy_engine"];
        let offered = |found| offer(found, roles.into_iter());
        assert_eq!(offered("gem"), "did you mean `gemm`?");
        assert_eq!(offered("gmem"), "did you mean `gemm`?");
        assert_eq!(offered("copyengine"), "did you mean `copy_engine`?");
        assert_eq!(
            offered("mma"),
            "it can be `gemm`, `comm`, `spare_warps` or `copy_engine`"
        );
        assert_eq!(offer("x", std::iter::empty()), "there is none");
        assert_eq!(offer("sin", ["min"].into_iter()), "it can be `min`");
        assert_eq!(offer("dto", ["dot"].into_iter()), "did you mean `dot`?");
    }
}
