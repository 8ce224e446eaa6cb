//! Orders by closure. Each rank asked its closures once; what they said must be the same on all.

use super::refusal::Refusal;
use counterflow_codegen::order::ByClosure;
use counterflow_codegen::program::{Program, StmtKind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The orders by closure of a schedule that all ranks build.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    schedule: String,
    loops: Vec<Loop>,
}

/// A loop over ranks that follows one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Loop {
    name: String,
    at: String,
    /// The rank at each step: rank by rank, as many steps as there are ranks.
    ranks: Vec<u32>,
}

impl Orders {
    /// Orders of a program as tables; `None` if it has none.
    pub fn of(program: &Program) -> Option<Orders> {
        let loops = program.closures().filter_map(|(stmt, by)| {
            let (StmtKind::ForRanks { var, .. }, ByClosure::Table(table)) = (&stmt.kind, by) else {
                return None;
            };
            let name = program.vars.get(var.index());
            Some(Loop {
                name: name.map(|var| var.name.clone()).unwrap_or_default(),
                at: format!("{}:{}", stmt.at.file(), stmt.at.line()),
                ranks: table.ranks().to_vec(),
            })
        });
        let loops: Vec<Loop> = loops.collect();
        (!loops.is_empty()).then(|| Orders {
            schedule: program.name.clone(),
            loops,
        })
    }
}

/// Reason that ranks which build one schedule cannot: the first order that is not the same on all. None if they build
/// different schedules, or nothing differs.
pub(super) fn differing(all: &[&Orders]) -> Option<Refusal> {
    let first = all.first()?;
    let others = || all.iter().zip(0..).skip(1);
    let (other, rank) = others().find(|(other, _)| *other != first)?;
    let alike = first.schedule == other.schedule && first.loops.len() == other.loops.len();
    let mut loops = first.loops.iter().zip(&other.loops).filter(|_| alike);
    let (mine, theirs) = loops.find(|(mine, theirs)| mine != theirs)?;
    let steps = mine.ranks.iter().zip(&theirs.ranks);
    let (at, (here, there)) = steps.enumerate().find(|(_, (here, there))| here != there)?;
    let (me, step) = (at / all.len(), at % all.len());
    Some(Refusal::mismatch(format!(
        "the order of `{}` in {} ({}) is not the same on all ranks: in step {step} rank {me} visits rank {here} as rank 0 has \
         it, and rank {there} as rank {rank} has it",
        mine.name, first.schedule, mine.at
    ))
    .help(
        "let the closure use nothing but its arguments (me, step, world), or set what it reads before any rank builds: an order \
         is asked once, when an op is built",
    ))
}

impl fmt::Display for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "builds {}", self.schedule)?;
        for Loop { name, at, .. } in &self.loops {
            write!(f, ", `{name}` by closure ({at})")?;
        }
        Ok(())
    }
}
