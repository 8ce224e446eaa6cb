//! An op that a layer launches, before it is built.

use counterflow::Setting;
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

/// The rows of what moves beside a weight's gradient.
pub(super) const MOVED: &str = "g.rows";

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

    /// With other rows to sum over, and of what moves beside that.
    fn of_rows(&self, rows: usize) -> Step {
        let mut step = self.clone();
        step.shape.k = size(rows);
        step.shape.dims.insert(MOVED.into(), size(rows));
        step
    }
}

/// An op, with the name of its schedule.
#[derive(Debug)]
pub(super) struct Built {
    pub op: Op,
    pub schedule: String,
}

/// The op of a weight's gradient. Its depth is the rows of a call.
#[derive(Debug)]
pub(super) enum Wgrad {
    /// Nothing moves beside it, and launches state their depth.
    Alone(Arc<Built>),
    /// What moves beside it has the rows of a call, too, and an op is built for a number of those: one for each, of which the
    /// latest few are kept, the latest one last.
    Beside(Box<Step>, Mutex<Vec<(usize, Arc<Built>)>>),
}

impl Wgrad {
    /// Built for the most rows now, so that its memory is there.
    pub fn new(rank: &Communicator, step: &Step, most: usize) -> Result<Wgrad, Error> {
        let built = Arc::new(step.build(rank)?);
        Ok(match step.shape.dims.contains_key(MOVED) {
            false => Wgrad::Alone(built),
            true => Wgrad::Beside(Box::new(step.clone()), Mutex::new(vec![(most, built)])),
        })
    }

    /// Collective where something moves: all ranks call layers with the same rows, in the same order.
    pub fn of(&self, rank: &Communicator, rows: usize) -> Result<Arc<Built>, Error> {
        const KEPT: usize = 8;
        let (step, all) = match self {
            Wgrad::Alone(built) => return Ok(built.clone()),
            Wgrad::Beside(step, all) => (step, all),
        };
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match all.iter().position(|(of, _)| *of == rows) {
            Some(at) => all.remove(at),
            None => (rows, Arc::new(step.of_rows(rows).build(rank)?)),
        };
        if all.len() == KEPT {
            all.remove(0);
        }
        all.push(found.clone());
        Ok(found.1)
    }

    /// The latest that was built.
    pub fn latest(&self) -> Option<Arc<Built>> {
        match self {
            Wgrad::Alone(built) => Some(built.clone()),
            Wgrad::Beside(_, all) => {
                let all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.last().map(|(_, built)| built.clone())
            }
        }
    }
}
