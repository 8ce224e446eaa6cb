//! Walks over statements: all of them to read, and in three ways to edit. Who carries something along, such as the loops around
//! a statement, walks by itself.

use super::{Place, Program, Stmt, StmtKind};
use crate::order::{ByClosure, RankOrder};
use std::borrow::Cow;
use std::iter;

impl Program {
    /// All statements, each before those that it encloses, in the order written.
    pub(crate) fn stmts(&self) -> impl Iterator<Item = &Stmt> {
        let outer = self.roles.iter().flat_map(|role| &role.body);
        outer.flat_map(Stmt::all)
    }

    /// Both sides of each copy, where it goes to first.
    pub(crate) fn copies(&self) -> impl Iterator<Item = [&Place; 2]> {
        self.stmts().filter_map(|stmt| {
            let StmtKind::Copy { dst, src } = &stmt.kind else {
                return None;
            };
            Some([dst, src])
        })
    }

    /// As [`Stmt::items_mut`], of all statements.
    pub(crate) fn items_mut(&mut self) -> impl Iterator<Item = &mut Vec<Stmt>> {
        let outer = self.roles.iter_mut().flat_map(|role| &mut role.body);
        outer.flat_map(Stmt::items_mut)
    }

    /// Orders by closure, with the loops that follow them.
    pub fn closures(&self) -> impl Iterator<Item = (&Stmt, &ByClosure)> {
        self.stmts().filter_map(|stmt| {
            let StmtKind::ForRanks {
                order: RankOrder::Table(by),
                ..
            } = &stmt.kind
            else {
                return None;
            };
            Some((stmt, by))
        })
    }

    /// Puts a table in place of each order by closure: each closure is asked now, once for each step of each rank
    /// of that world, and never again.
    ///
    /// ```
    /// use counterflow_codegen::builder::{ScheduleBuilder, ranks};
    ///
    /// let mut s = ScheduleBuilder::new("mirrored");
    /// s.comm(1, |s| s.for_ranks("peer", ranks().by(|me, step, _| me ^ step), |_, _| {}));
    /// let program = s.finish();
    /// assert_eq!(program.closures().count(), 1);
    /// let tabulated = program.tabulated(2);
    /// assert!(format!("{tabulated:?}").contains("table of 2: [0, 1, 1, 0]"));
    /// ```
    pub fn tabulated(&self, world: u32) -> Cow<'_, Program> {
        let asked = |by: &ByClosure| matches!(by, ByClosure::Closure(_));
        if !self.closures().any(|(_, by)| asked(by)) {
            return Cow::Borrowed(self);
        }
        let mut program = self.clone();
        let outer = program.roles.iter_mut().flat_map(|role| &mut role.body);
        outer.for_each(|stmt| stmt.tabulate(world));
        Cow::Owned(program)
    }
}

impl Stmt {
    /// Puts tables in place of closures, here and within.
    fn tabulate(&mut self, world: u32) {
        if let StmtKind::ForRanks {
            order: RankOrder::Table(by),
            ..
        } = &mut self.kind
        {
            *by = ByClosure::Table(by.table(world));
        }
        let within = self.blocks_mut().into_iter().flatten();
        within.for_each(|stmt| stmt.tabulate(world));
    }

    /// This statement, then all within it, in the order written.
    pub(crate) fn all(&self) -> Box<dyn Iterator<Item = &Stmt> + '_> {
        let within = self.blocks().into_iter().flatten().flat_map(Stmt::all);
        Box::new(iter::once(self).chain(within))
    }

    /// The bodies of outermost loops over items, here and within, to edit.
    fn items_mut(&mut self) -> Vec<&mut Vec<Stmt>> {
        if let StmtKind::ForItems { ref mut body, .. } = self.kind {
            return vec![body];
        }
        let within = self.blocks_mut().into_iter().flatten();
        within.flat_map(Stmt::items_mut).collect()
    }

    /// Statements that enclose none, here and within, to edit.
    ///
    /// ```
    /// use counterflow_codegen::program::{Stmt, StmtKind};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    ///
    /// let mut program = example::ag_gemm();
    /// let outer = program.roles.iter_mut().flat_map(|role| &mut role.body);
    /// let stores = outer.flat_map(Stmt::leaves_mut);
    /// let stores = stores.filter(|stmt| matches!(stmt.kind, StmtKind::Store { .. }));
    /// assert_eq!(stores.count(), 1);
    /// ```
    pub fn leaves_mut(&mut self) -> Vec<&mut Stmt> {
        if self.blocks().is_empty() {
            return vec![self];
        }
        let within = self.blocks_mut().into_iter().flatten();
        within.flat_map(Stmt::leaves_mut).collect()
    }

    /// The blocks that it encloses: a loop's, or both of an `if`.
    pub(crate) fn blocks(&self) -> Vec<&[Stmt]> {
        match &self.kind {
            StmtKind::ForRanks { body, .. } | StmtKind::ForItems { body, .. } => vec![body],
            StmtKind::If {
                then, otherwise, ..
            } => vec![then, otherwise],
            StmtKind::Wait { .. }
            | StmtKind::Signal { .. }
            | StmtKind::Copy { .. }
            | StmtKind::Dot { .. }
            | StmtKind::Sum { .. }
            | StmtKind::Load { .. }
            | StmtKind::Store { .. } => Vec::new(),
        }
    }

    /// As [`Stmt::blocks`], to edit.
    pub(crate) fn blocks_mut(&mut self) -> Vec<&mut Vec<Stmt>> {
        match &mut self.kind {
            StmtKind::ForRanks { body, .. } | StmtKind::ForItems { body, .. } => vec![body],
            StmtKind::If {
                then, otherwise, ..
            } => vec![then, otherwise],
            StmtKind::Wait { .. }
            | StmtKind::Signal { .. }
            | StmtKind::Copy { .. }
            | StmtKind::Dot { .. }
            | StmtKind::Sum { .. }
            | StmtKind::Load { .. }
            | StmtKind::Store { .. } => Vec::new(),
        }
    }
}
