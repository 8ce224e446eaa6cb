//! Measurements of our schedules for a product, and of candidates of several kernels.

use super::variants::{Choices, Planned};
use counterflow_codegen::program::TensorId;
use counterflow_runtime::family::Source;

/// Stages that are launched one behind the other.
pub(super) struct Apart<'a> {
    pub name: String,
    /// As a table has it; none if it only stands beside the others.
    pub choices: Option<Choices>,
    pub stages: Vec<Planned<'a>>,
    /// Sources of each stage's tensors, by the tensors of the family's first candidate.
    pub sources: Vec<Vec<Option<Source>>>,
}

impl Apart<'_> {
    /// The tensor that one stage makes for the next, if there is one: its stage, and its number there.
    pub(super) fn between(&self) -> Option<(usize, TensorId)> {
        let stages = self.sources.iter().enumerate();
        let mut own = stages.flat_map(|(stage, sources)| {
            let own = sources.iter().zip(0..);
            let own = own.filter(|(source, _)| **source == Some(Source::Own));
            own.map(move |(_, id)| (stage, TensorId(id)))
        });
        own.next()
    }
}

/// Ours for a product.
#[derive(Default)]
pub(super) struct Taken<'a> {
    /// Kernels that do all of it. There is one at least.
    pub ours: Vec<Planned<'a>>,
    /// Several kernels each.
    pub apart: Vec<Apart<'a>>,
}
