//! The history of one grid cell, and the checks of the next access.

use super::who::{NEVER, Who};
use crate::clocks::{Epoch, HOST};
use crate::failure::{Check, FailureKind, Rect};
use crate::setup::Setup;
use crate::tags::Tags;
use counterflow_codegen::region::Access;

#[derive(Clone, Debug, Hash)]
pub(super) struct Cell {
    /// The launch whose data it holds, or [`NEVER`].
    pub launch: u32,
    /// True if a statement wrote it in that launch, or the caller filled it for that launch.
    pub written: bool,
    pub write: Option<Epoch>,
    /// Adds since the write. They commute.
    pub adds: Vec<Epoch>,
    /// Reads since the write.
    pub reads: Vec<Epoch>,
    pub tags: Tags,
}

pub(super) const EMPTY: Cell = Cell {
    launch: NEVER,
    written: false,
    write: None,
    adds: Vec::new(),
    reads: Vec::new(),
    tags: Tags::NOTHING,
};

pub(super) fn unordered(
    setup: &Setup<'_>,
    who: &Who<'_>,
    mode: Access,
    other: &Epoch,
    did: &'static str,
    what: Rect,
) -> Box<FailureKind> {
    let by = setup.site(&who.at, mode.verb());
    let same = other.launch == who.at.launch && other.role != HOST;
    let other = setup.site(other, did);
    Box::new(if same || mode == Access::Read {
        FailureKind::MissingAcquire { by, what, other }
    } else {
        FailureKind::Overwrite { by, what, other }
    })
}

impl Cell {
    /// A read: there must be data of this launch, written before by the clock.
    fn see(
        &self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        mode: Access,
        place: &impl Fn() -> Rect,
    ) -> Check<()> {
        if self.launch == NEVER {
            return Err(Box::new(FailureKind::UninitialisedRead {
                by: setup.site(&who.at, mode.verb()),
                what: place(),
            }));
        }
        if self.launch != who.at.launch {
            let writer = self.write.unwrap_or(who.at);
            return Err(Box::new(FailureKind::StaleRead {
                by: setup.site(&who.at, mode.verb()),
                what: place(),
                writer: setup.site(&writer, "writes"),
            }));
        }
        if let Some(write) = self.write.filter(|write| !who.knows(write)) {
            return Err(unordered(setup, who, mode, &write, "writes", place()));
        }
        Ok(())
    }

    fn after_reads(
        &self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        mode: Access,
        place: &impl Fn() -> Rect,
    ) -> Check<()> {
        match self.reads.iter().find(|read| !who.knows(read)) {
            Some(read) => Err(unordered(setup, who, mode, read, "reads", place())),
            None => Ok(()),
        }
    }

    fn after_adds(
        &self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        mode: Access,
        place: &impl Fn() -> Rect,
    ) -> Check<()> {
        match self.adds.iter().find(|add| !who.knows(add)) {
            Some(add) => Err(unordered(setup, who, mode, add, "adds to", place())),
            None => Ok(()),
        }
    }

    pub fn read(
        &mut self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        place: &impl Fn() -> Rect,
    ) -> Check<()> {
        self.see(setup, who, Access::Read, place)?;
        self.after_adds(setup, who, Access::Read, place)?;
        match self.reads.last_mut() {
            Some(last) if last.same_item(&who.at) => *last = who.at,
            _ => self.reads.push(who.at),
        }
        Ok(())
    }

    pub fn add(
        &mut self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        once: bool,
        tags: &Tags,
        place: &impl Fn() -> Rect,
    ) -> Check<()> {
        self.see(setup, who, Access::Add, place)?;
        self.after_reads(setup, who, Access::Add, place)?;
        if let Some(first) = self.adds.first().filter(|_| once) {
            return Err(Box::new(FailureKind::WrittenTwice {
                by: setup.site(&who.at, Access::Add.verb()),
                what: place(),
                first: setup.site(first, Access::Add.verb()),
            }));
        }
        self.adds.push(who.at);
        self.tags = self.tags.plus(tags, 1);
        Ok(())
    }

    pub fn write(
        &mut self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        output: bool,
        tags: &Tags,
        place: &impl Fn() -> Rect,
    ) -> Check<()> {
        if output && self.written && self.launch == who.at.launch {
            let first = self.write.unwrap_or(who.at);
            return Err(Box::new(FailureKind::WrittenTwice {
                by: setup.site(&who.at, "writes"),
                what: place(),
                first: setup.site(&first, "writes"),
            }));
        }
        self.after_reads(setup, who, Access::Write, place)?;
        self.after_adds(setup, who, Access::Write, place)?;
        if let Some(write) = self.write.filter(|write| !who.knows(write)) {
            return Err(unordered(
                setup,
                who,
                Access::Write,
                &write,
                "writes",
                place(),
            ));
        }
        self.launch = who.at.launch;
        self.written = true;
        self.write = Some(who.at);
        self.adds.clear();
        self.reads.clear();
        self.tags = tags.clone();
        Ok(())
    }
}
