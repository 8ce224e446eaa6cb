//! Rules that need more than one node: how places may be read or written, whether indices fit their counter, and
//! whether every declaration is used. The verifier has the rules about orders, ranks and shapes.

mod place;
mod uses;

use crate::errors::Errors;
use crate::mistakes::Mistake;
use crate::model::{
    Axis, Cells, Declaration, Home, Index, Param, Read, Schedule, Stmt, StmtKind, Top, Usage,
    Value, WaitCells,
};
use crate::names;
use place::Access;
use proc_macro2::Ident;
use quote::ToTokens;
use std::collections::HashMap;
use uses::{Checker, Uses};

/// Reports every rule that the schedule breaks.
pub fn schedule(schedule: &Schedule, errors: &Errors) {
    let mut checker = Checker {
        errors,
        uses: HashMap::new(),
        slots: HashMap::new(),
        unsure: &schedule.unsure,
    };
    for top in &schedule.body {
        checker.top(top);
    }
    let has_role = schedule.body.iter().any(|top| matches!(top, Top::Role(_)));
    if !has_role {
        if schedule.unsure.is_empty() {
            errors.at(&schedule.name, Mistake::NoRole);
        }
        return;
    }
    for param in &schedule.params {
        checker.param_used(param);
    }
    for top in &schedule.body {
        if let Top::Declare(name, declaration) = top {
            checker.declaration_used(name, declaration);
        }
    }
}

impl Checker<'_> {
    fn top(&mut self, top: &Top) {
        match top {
            Top::Rust(_) | Top::Rank(..) => {}
            Top::Declare(name, declaration) => match declaration {
                // A tensor that is only divided is not used.
                Declaration::Partition { .. } => {}
                Declaration::Counters { axes, .. } => {
                    for axis in axes {
                        self.axis_read(axis);
                    }
                }
                Declaration::Symmetric { like, .. } => {
                    if let Some(like) = like {
                        self.axis_read(&like.slots);
                        self.slots.insert(names::text(name), like.slots.clone());
                    }
                }
            },
            Top::Role(role) => self.block(&role.body),
        }
    }

    fn axis_read(&mut self, axis: &Axis) {
        match axis {
            Axis::Items(name) => self.reads(name, name),
            Axis::World(_) | Axis::Peers(_) | Axis::Count(_) => {}
        }
    }

    fn block(&mut self, stmts: &[Stmt]) {
        let outer = std::mem::take(&mut self.uses);
        for stmt in stmts {
            self.stmt(&stmt.kind);
        }
        for stmt in stmts {
            if let StmtKind::Value(name, _) | StmtKind::Accumulator(name) = &stmt.kind {
                let uses = self.uses.remove(&names::text(name)).unwrap_or_default();
                if self.may_be_unused(name) {
                    continue;
                }
                let name_text = names::text(name);
                if uses.read.is_none() {
                    self.errors
                        .at(name, Mistake::UnusedValue { name: name_text });
                } else if matches!(stmt.kind, StmtKind::Accumulator(_)) && uses.written.is_none() {
                    self.errors
                        .at(name, Mistake::NothingAccumulated { name: name_text });
                }
            }
        }
        let inner = std::mem::replace(&mut self.uses, outer);
        for (name, uses) in inner {
            let known = self.uses.entry(name).or_default();
            known.read = known.read.take().or(uses.read);
            known.written = known.written.take().or(uses.written);
        }
    }

    fn stmt(&mut self, kind: &StmtKind) {
        match kind {
            StmtKind::ForRanks { body, .. } => self.block(body),
            StmtKind::ForItems { items, body, .. } => {
                self.reads(&items.partition, &items.partition);
                self.block(body);
            }
            StmtKind::If {
                then, otherwise, ..
            } => {
                self.block(then);
                self.block(otherwise);
            }
            StmtKind::Wait { cells, .. } => self.wait(cells),
            StmtKind::Signal { cells, .. } => {
                self.writes(&cells.counter, &cells.tokens);
                let indices: Vec<&Index> = cells.indices.iter().collect();
                self.axes(&cells.counter, &cells.axes, &indices, &cells.tokens);
            }
            StmtKind::Copy { dst, src } => {
                self.read(src, Access::CopyFrom);
                self.place(dst, Access::CopyTo);
                self.same_planes(dst, &src.place);
            }
            StmtKind::Store { dst, add, value } => {
                self.value(value);
                self.place(dst, if *add { Access::Add } else { Access::Store });
            }
            StmtKind::Value(_, value) => self.value(value),
            StmtKind::Rank(..) | StmtKind::Accumulator(_) => {}
            StmtKind::Accumulate { into, a, b } => {
                self.writes(into, into);
                self.read(a, Access::Operand);
                self.read(b, Access::Operand);
            }
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Dot { a, b, .. } => {
                self.read(a, Access::Operand);
                self.read(b, Access::Operand);
            }
            Value::Sum { from, .. } => self.read(from, Access::Sum),
            Value::Load(from) => self.read(from, Access::Load),
            Value::Name(name) => self.reads(name, name),
            Value::Number(_) => {}
            Value::Negate(_, value)
            | Value::Unary(value, _)
            | Value::Scale(value, ..)
            | Value::Cast(value, ..) => self.value(value),
            Value::Binary(a, _, b) | Value::Combine(a, _, b) => {
                self.value(a);
                self.value(b);
            }
            Value::Map { first, others, .. } => {
                self.value(first);
                others.iter().for_each(|other| self.value(other));
            }
        }
    }

    fn read(&mut self, read: &Read, access: Access) {
        let place = &read.place;
        for wait in &read.waits {
            match &wait.cells {
                WaitCells::Given(cells) => self.wait(cells),
                WaitCells::Same { counter, axes } => {
                    self.reads(counter, counter);
                    let same: Vec<&Index> = place.indices.iter().collect();
                    match self.cell_among(axes, &same) {
                        Some(cell) => self.axis_of_read(counter, (axes, &same), &cell),
                        None => self.axes(counter, axes, &same, &counter.to_token_stream()),
                    }
                }
            }
        }
        self.place(place, access);
    }

    fn wait(&mut self, cells: &Cells) {
        self.reads(&cells.counter, &cells.tokens);
        if let Home::On(word, _) | Home::Everywhere(word) = &cells.home {
            self.errors.at(word, Mistake::RemoteWait);
        }
        let indices: Vec<&Index> = cells.indices.iter().collect();
        self.axes(&cells.counter, &cells.axes, &indices, &cells.tokens);
    }

    fn may_be_unused(&self, name: &Ident) -> bool {
        let name = names::text(name);
        name.starts_with('_') || self.unsure.contains(&name)
    }

    fn param_used(&mut self, param: &Param) {
        if self.may_be_unused(&param.name) {
            return;
        }
        let name = names::text(&param.name);
        let uses = self.uses.get(&name);
        let written = uses.is_some_and(|uses| uses.written.is_some());
        if param.usage.output && !written {
            let mistake = if param.usage == Usage::ACCUMULATED {
                Mistake::NothingAdded { name }
            } else {
                Mistake::OutputNotWritten { name }
            };
            self.errors.at(&param.name, mistake);
        } else if uses.is_none() {
            self.errors.at(&param.name, Mistake::UnusedInput { name });
        }
    }

    fn declaration_used(&mut self, name: &Ident, declaration: &Declaration) {
        if self.may_be_unused(name) {
            return;
        }
        let name_text = names::text(name);
        let unused = Uses::default();
        let uses = self.uses.get(&name_text).unwrap_or(&unused);
        let (at, mistake) = match (declaration, &uses.read, &uses.written) {
            (_, Some(_), Some(_)) | (Declaration::Partition { .. }, Some(_), None) => return,
            (Declaration::Partition { .. }, None, _) => (
                name.to_token_stream(),
                Mistake::UnusedPartition { name: name_text },
            ),
            (_, None, None) => (
                name.to_token_stream(),
                Mistake::UnusedName { name: name_text },
            ),
            (Declaration::Counters { .. }, Some(wait), None) => {
                (wait.clone(), Mistake::NeverSignalled { name: name_text })
            }
            (Declaration::Counters { .. }, None, Some(signal)) => {
                (signal.clone(), Mistake::NeverWaited { name: name_text })
            }
            (Declaration::Symmetric { .. }, Some(read), None) => {
                (read.clone(), Mistake::NeverWritten { name: name_text })
            }
            (Declaration::Symmetric { .. }, None, Some(write)) => {
                (write.clone(), Mistake::NeverRead { name: name_text })
            }
        };
        self.errors.at(at, mistake);
    }
}
