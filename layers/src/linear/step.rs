//! An op that a layer launches, before it is built.

use counterflow::codegen::program::Setting;
use counterflow::op::Workspace;
use counterflow::{Communicator, Error, Layout, Op, OpBuilder, Program, Shape};
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

/// A schedule with its layout, its largest launch and the choices that settings make.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub program: Program,
    pub layout: Layout,
    pub shape: Shape,
    pub choices: Vec<(&'static str, Setting)>,
}

/// The shape of a product. A size that does not fit is refused as too large when the op is built.
pub(super) fn shape(m: usize, n: usize, k: usize) -> Shape {
    Shape::new(size(m), size(n), size(k))
}

pub(super) fn size(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

impl Step {
    fn builder<'a>(&'a self, rank: &'a Communicator) -> OpBuilder<'a> {
        let builder = rank.op(&self.program).layout(self.layout);
        let choices = self.choices.iter();
        let builder = choices.fold(builder, |builder, (name, setting)| {
            builder.set(name, *setting)
        });
        builder.shape(self.shape.clone())
    }

    pub fn workspace(&self, rank: &Communicator) -> Result<Workspace, Error> {
        self.builder(rank).workspace()
    }

    pub fn build(&self, rank: &Communicator) -> Result<Built, Error> {
        Ok(Built {
            op: self.builder(rank).build()?,
            schedule: self.program.name.clone(),
        })
    }

    /// With another depth: the rows that a weight's gradient sums over, and those of what moves beside it.
    fn of_depth(&self, rows: usize) -> Step {
        let mut step = self.clone();
        step.shape.k = size(rows);
        if let Some(moved) = step.shape.dims.get_mut("g.rows") {
            *moved = size(rows);
        }
        step
    }
}

/// An op, with the name of its schedule.
#[derive(Debug)]
pub(super) struct Built {
    pub op: Op,
    pub schedule: String,
}

/// An op whose depth is the rows of a call: one is built for each number of rows, and the latest few are kept.
#[derive(Debug)]
pub(super) struct ByDepth {
    step: Step,
    /// The latest one last.
    built: Mutex<Vec<(usize, Arc<Built>)>>,
}

impl ByDepth {
    /// Built for the most rows now, so that its memory is there.
    pub fn new(rank: &Communicator, step: Step, most: usize) -> Result<ByDepth, Error> {
        let first = step.of_depth(most).build(rank)?;
        Ok(ByDepth {
            step,
            built: Mutex::new(vec![(most, Arc::new(first))]),
        })
    }

    /// Collective where the op is: all ranks call layers with the same rows, in the same order.
    pub fn of(&self, rank: &Communicator, rows: usize) -> Result<Arc<Built>, Error> {
        const KEPT: usize = 8;
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let (depth, op) = match built.iter().position(|(depth, _)| *depth == rows) {
            Some(at) => built.remove(at),
            None => (rows, Arc::new(self.step.of_depth(rows).build(rank)?)),
        };
        if built.len() == KEPT {
            built.remove(0);
        }
        built.push((depth, op.clone()));
        Ok(op)
    }

    pub fn variant(&self) -> String {
        let built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = built
            .last()
            .map(|(_, built)| built.op.variant().to_string());
        latest.unwrap_or_default()
    }

    pub fn schedule(&self) -> &str {
        &self.step.program.name
    }
}
