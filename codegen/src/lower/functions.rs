//! The functions that a stored value calls.

use super::mistake::mistake;
use super::placer::Placer;
use crate::program::Loc;
use crate::value::{Body, Value};

impl Placer<'_> {
    /// A name is one function's if another language has one of that name; what is no arithmetic is refused.
    pub(super) fn functions(&mut self, value: &Value, at: Loc) {
        let mut called = Vec::new();
        value.functions(&mut called);
        for function in called {
            if self.functions.contains(function) {
                continue;
            }
            if let Some(why) = function.refusal() {
                let name = function.name;
                self.found.push(mistake(
                    at,
                    format!("`{name}` cannot follow a product: {why}"),
                ));
            }
            let foreign = |body: &Body| matches!(body, Body::Foreign(_));
            let mut others = self.functions.iter();
            if others.any(|other| {
                other.name == function.name && (foreign(&other.body) || foreign(&function.body))
            }) {
                let message = format!("two different functions are called `{}`", function.name);
                self.found.push(
                    mistake(at, message)
                        .hint("reports and the kernel know them by name: rename one"),
                );
            }
            self.functions.push(function.clone());
        }
    }
}
