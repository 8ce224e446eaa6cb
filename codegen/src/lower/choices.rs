//! Turns open choices into numbers.

use super::mistake::mistake;
use crate::diag::{Diagnostic, Rule};
use crate::kernel::{GemmKind, RoleKind};
use crate::program::{Choice, Loc, Program, Setting};
use crate::variant::Variant;

/// The settled value of every open choice.
pub(super) struct Choices<'a> {
    program: &'a Program,
    settings: Vec<Setting>,
}

pub(super) fn settle<'a>(
    program: &'a Program,
    variant: &Variant,
    found: &mut Vec<Diagnostic>,
) -> Choices<'a> {
    for name in variant.choices.keys() {
        if !program.tunables.iter().any(|tunable| tunable.name == *name) {
            let names: Vec<_> = program
                .tunables
                .iter()
                .map(|tunable| tunable.name.as_str())
                .collect();
            let hint = if names.is_empty() {
                "it has no open choices".into()
            } else {
                format!("it has {}", names.join(", "))
            };
            found.push(
                Diagnostic::new(
                    Rule::Shape,
                    None,
                    format!("{} has no choice `{name}`", program.name),
                )
                .hint(hint),
            );
        }
    }
    let settings = program
        .tunables
        .iter()
        .map(|tunable| {
            let Some(default) = tunable.options.first().copied() else {
                found.push(mistake(
                    tunable.at,
                    format!("`{}` has no options", tunable.name),
                ));
                return Setting::One(1);
            };
            if let Some(other) = tunable
                .options
                .iter()
                .find(|option| !same_kind(**option, default))
            {
                found.push(
                    mistake(
                        tunable.at,
                        format!(
                            "`{}` has both {default} and {other} as options",
                            tunable.name
                        ),
                    )
                    .hint("make all options numbers, or all pairs"),
                );
            }
            let chosen = variant
                .choices
                .get(&tunable.name)
                .copied()
                .unwrap_or(default);
            if !same_kind(chosen, default) {
                found.push(
                    Diagnostic::new(
                        Rule::Shape,
                        tunable.at,
                        format!("`{}` is set to {chosen}", tunable.name),
                    )
                    .hint(format!("set it to a {}, such as {default}", kind(default))),
                );
                return default;
            }
            chosen
        })
        .collect();
    Choices { program, settings }
}

fn same_kind(a: Setting, b: Setting) -> bool {
    kind(a) == kind(b)
}

fn kind(setting: Setting) -> &'static str {
    match setting {
        Setting::One(_) => "number",
        Setting::Pair(..) => "pair",
    }
}

impl Choices<'_> {
    fn setting(&self, choice: Choice) -> Setting {
        match choice {
            Choice::Fixed(setting) => setting,
            Choice::Open(index) => self
                .settings
                .get(usize::from(index))
                .copied()
                .unwrap_or(Setting::One(0)),
        }
    }

    /// Place at which the open choice was declared.
    pub(super) fn at(&self, choice: Choice, otherwise: Loc) -> Loc {
        match choice {
            Choice::Fixed(_) => otherwise,
            Choice::Open(index) => self
                .program
                .tunables
                .get(usize::from(index))
                .map_or(otherwise, |tunable| tunable.at),
        }
    }

    /// A number of at least one.
    pub(super) fn one(
        &self,
        choice: Choice,
        what: &str,
        at: Loc,
        found: &mut Vec<Diagnostic>,
    ) -> u32 {
        match self.setting(choice) {
            Setting::One(value) if (1..=MOST).contains(&value) => value,
            other => {
                found.push(
                    Diagnostic::new(Rule::Shape, at, format!("{what} is {other}"))
                        .hint(format!("give a number from 1 to {MOST}")),
                );
                1
            }
        }
    }

    /// Yes or no.
    pub(super) fn flag(
        &self,
        choice: Choice,
        what: &str,
        at: Loc,
        found: &mut Vec<Diagnostic>,
    ) -> bool {
        let setting = self.setting(choice);
        if !matches!(setting, Setting::One(0 | 1)) {
            found.push(
                Diagnostic::new(Rule::Shape, at, format!("{what} is {setting}"))
                    .hint("give true (1) or false (0)"),
            );
        }
        setting == Setting::One(1)
    }

    /// A pair of numbers of at least one.
    pub(super) fn pair(
        &self,
        choice: Choice,
        what: &str,
        at: Loc,
        found: &mut Vec<Diagnostic>,
    ) -> (u32, u32) {
        match self.setting(choice) {
            Setting::Pair(a, b) if (1..=MOST).contains(&a) && (1..=MOST).contains(&b) => (a, b),
            other => {
                found.push(
                    Diagnostic::new(Rule::Shape, at, format!("{what} is {other}")).hint(format!(
                        "give a pair of numbers from 1 to {MOST}, such as 128x256"
                    )),
                );
                (1, 1)
            }
        }
    }
}

/// The largest number of a choice. Larger blocks have no use, and products of two numbers fit in 32 bits.
pub(super) const MOST: u32 = 1 << 16;

/// The settings of two loops of one role, if they agree. What is given replaces a default.
pub(super) fn same_ctas(a: RoleKind, b: RoleKind, whole_row: u32) -> Option<RoleKind> {
    match (a, b) {
        (RoleKind::Gemm(a), RoleKind::Gemm(b)) => Some(RoleKind::Gemm(GemmKind {
            k: agreed(a.k, b.k, whole_row)?,
            cluster: agreed(a.cluster, b.cluster, (1, 1))?,
            split: agreed(a.split, b.split, 1)?,
            stages: agreed(a.stages, b.stages, None)?,
            subtiles: agreed(a.subtiles, b.subtiles, None)?,
            ping_pong: agreed(a.ping_pong, b.ping_pong, false)?,
        })),
        (a, b) => (a == b).then_some(a),
    }
}

fn agreed<T: PartialEq + Copy>(a: T, b: T, default: T) -> Option<T> {
    if a == default || a == b {
        Some(b)
    } else {
        (b == default).then_some(a)
    }
}
