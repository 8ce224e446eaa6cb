//! The steps of an agent.

use crate::kernel::{Amax, Kernel, OpId, ValueId};
use crate::program::{CounterId, StoreMode};
use crate::region::{Access, Rectangle, Span};
use crate::shape::Geometry;
use crate::value::AccId;

/// All steps of one agent in one launch.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Agent {
    /// The rank.
    pub rank: u16,
    /// The index of its role in [`Kernel::roles`](crate::kernel::Kernel::roles).
    pub role: u16,
    /// The steps, item after item.
    pub steps: Vec<Step>,
    /// The items, in the order they are claimed.
    pub items: Vec<Item>,
}

/// One unit of work: a range of an agent's steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    /// Index of its first step.
    pub start: u32,
    /// One past its last step.
    pub end: u32,
    /// Number of joins that came before it: items of an earlier phase happen before items of a later one.
    pub phase: u32,
}

/// One concrete operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Step {
    /// The op of the kernel that it is an instance of.
    pub op: OpId,
    /// Action of the step.
    pub kind: StepKind,
}

/// Action of a step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum StepKind {
    /// Block until my cell grew by its target.
    Wait {
        /// The set.
        counter: CounterId,
        /// The cell.
        cell: u32,
        /// By how much in this launch; `None`: by all that arrives in one launch.
        at_least: Option<u32>,
    },
    /// Add to a cell of `home`.
    Signal {
        /// The set.
        counter: CounterId,
        /// Rank whose memory holds the cell.
        home: u16,
        /// The cell.
        cell: u32,
        /// Number that is added.
        amount: u32,
    },
    /// Move data unchanged.
    Copy {
        /// To where.
        dst: Rectangle,
        /// Source of the copy.
        src: Rectangle,
    },
    /// `acc += a · bᵀ`.
    Dot {
        /// The accumulator.
        acc: AccId,
        /// Rows of the result.
        a: Rectangle,
        /// Columns of the result (its rows) over the same K.
        b: Rectangle,
    },
    /// `acc += from`; over all ranks where that is in every rank's memory.
    Reduce {
        /// The accumulator.
        acc: AccId,
        /// Rectangle that is added.
        from: Rectangle,
    },
    /// `acc += ` this rank's term of a sum over the others, rounded as theirs are.
    OwnTerm {
        /// The accumulator.
        acc: AccId,
        /// The term.
        value: ValueId,
        /// This rank's place in the scratch that has the others' terms. Nobody writes or reads it; its type is theirs.
        of: Rectangle,
    },
    /// `acc = from`.
    Load {
        /// The accumulator.
        acc: AccId,
        /// Source of the load; one row of a vector.
        from: Rectangle,
    },
    /// Write or add to an item.
    Store {
        /// To where.
        dst: Rectangle,
        /// Replace or add.
        mode: StoreMode,
        /// Value that is stored.
        value: ValueId,
        /// Number that is measured of it.
        amax: Option<Amax>,
    },
}

impl StepKind {
    /// The rectangle of each plane that it touches, in order: what it names, and the scales beside that.
    pub fn planes(&self, kernel: &Kernel) -> impl Iterator<Item = (Access, Rectangle)> + use<> {
        let read = |of: &Rectangle| Some((Access::Read, *of));
        let planes: [Option<(Access, Rectangle)>; 4] = match self {
            StepKind::Wait { .. } | StepKind::Signal { .. } | StepKind::OwnTerm { .. } => [None; 4],
            StepKind::Copy { dst, src } => [read(src), Some((Access::Write, *dst)), None, None],
            StepKind::Dot { a, b, .. } => {
                let scales = |of| kernel.operand_scales(of).map(|it| (Access::Read, it));
                [read(a), read(b), scales(a), scales(b)]
            }
            StepKind::Reduce { from, .. } => {
                let scales = kernel.tile_scales(from).map(|it| (Access::Read, it));
                [read(from), scales, None, None]
            }
            StepKind::Load { from, .. } => [read(from), None, None, None],
            StepKind::Store { dst, mode, .. } => {
                let scales = kernel.tile_scales(dst).map(|it| (Access::Write, it));
                [Some((mode.access(), *dst)), scales, None, None]
            }
        };
        planes.into_iter().flatten()
    }

    /// The boxes that a step of rank `me` touches, in order.
    pub fn boxes(
        &self,
        kernel: &Kernel,
        geometry: &Geometry,
        me: u16,
    ) -> impl Iterator<Item = (Access, Span)> {
        let kept = match self {
            StepKind::Copy { dst, src } => dst.kept_by(src, me),
            StepKind::Wait { .. }
            | StepKind::Signal { .. }
            | StepKind::Dot { .. }
            | StepKind::Reduce { .. }
            | StepKind::OwnTerm { .. }
            | StepKind::Load { .. }
            | StepKind::Store { .. } => None,
        };
        self.planes(kernel).flat_map(move |(access, plane)| {
            let boxes = plane.boxes(kernel, geometry);
            let touched = boxes.filter(move |it| access == Access::Read || Some(it.home) != kept);
            touched.map(move |it| (access, it))
        })
    }
}
