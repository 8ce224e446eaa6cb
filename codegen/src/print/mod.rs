//! Programs, kernels, pipelines and plans as text for people: what `DUMP` shows and what snapshots hold.
//!
//! Reads like the language, with the user's names. Deliberately absent: source locations, hashes, addresses, and
//! running numbers wherever the user gave a name, so that a refactoring of a schedule's file changes no text.

mod kernel;
mod plan;
mod program;

pub(crate) use kernel::statement;

use crate::program::{CellIndex, CounterDim, CounterId, Home, PartitionId, Pick, TensorId, Var};
use crate::rank::{Cond, RankExpr};
use crate::value::AccId;

/// Lines under indentation of two spaces a level.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) text: String,
    pub(crate) depth: usize,
}

impl Page {
    pub(crate) fn line(&mut self, line: impl AsRef<str>) {
        let line = line.as_ref();
        if !line.is_empty() {
            self.text.extend(std::iter::repeat_n("  ", self.depth));
            self.text.push_str(line);
        }
        self.text.push('\n');
    }

    pub(crate) fn nested(&mut self, body: impl FnOnce(&mut Self)) {
        self.depth += 1;
        body(self);
        self.depth -= 1;
    }

    /// Rows of columns, each column as wide as its widest cell.
    pub(crate) fn table(&mut self, rows: &[Vec<String>]) {
        let count = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..count).map(width).collect();
        for row in rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:width$}  ", width = *width));
            }
            self.line(line.trim_end());
        }
    }
}

/// The names of a program's or a kernel's tables. An id beyond its table belongs to another schedule; lowering
/// reports that, and the text shows `?`.
struct Names {
    vars: Vec<String>,
    tensors: Vec<String>,
    partitions: Vec<String>,
    counters: Vec<String>,
    accs: Vec<String>,
}

fn name(names: &[String], index: usize) -> String {
    names.get(index).cloned().unwrap_or_else(|| "?".into())
}

impl Names {
    fn var(&self, var: Var) -> String {
        name(&self.vars, var.index())
    }

    fn tensor(&self, id: TensorId) -> String {
        name(&self.tensors, id.index())
    }

    fn partition(&self, id: PartitionId) -> String {
        name(&self.partitions, id.index())
    }

    fn counter(&self, id: CounterId) -> String {
        name(&self.counters, id.index())
    }

    fn acc(&self, id: AccId) -> String {
        name(&self.accs, usize::from(id.0))
    }

    fn rank(&self, expr: &RankExpr) -> String {
        expr.text(&|var| self.var(var))
    }

    fn cond(&self, cond: &Cond) -> String {
        cond.text(&|var| self.var(var))
    }

    /// `.on(peer)`, or nothing for my own.
    fn home(&self, home: &Home) -> String {
        match home {
            Home::Me => String::new(),
            Home::On(rank) => format!(".on({})", self.rank(rank)),
            Home::Everywhere => ".everywhere".into(),
        }
    }

    fn pick(&self, pick: &Pick) -> String {
        match pick {
            Pick::One(rank) => self.rank(rank),
            Pick::Others => "others".into(),
            Pick::All => "all".into(),
        }
    }

    /// `arrived.on(peer)[c]`.
    fn cells(&self, counter: CounterId, home: &Home, index: &[CellIndex]) -> String {
        let mut text = format!("{}{}", self.counter(counter), self.home(home));
        for index in index {
            let index = match index {
                CellIndex::Rank(pick) => self.pick(pick),
                CellIndex::Item(var) => self.var(*var),
                CellIndex::Along(var, side) => format!("{}.{}", self.var(*var), side.word()),
            };
            text.push_str(&format!("[{index}]"));
        }
        text
    }

    /// `[world][tiles]`.
    fn axes(&self, dims: &[CounterDim]) -> String {
        let axis = |dim: &CounterDim| match dim {
            CounterDim::World => "[world]".into(),
            CounterDim::Items(partition) => format!("[{}]", self.partition(*partition)),
            CounterDim::Count(count) => format!("[{count}]"),
        };
        dims.iter().map(axis).collect()
    }
}
