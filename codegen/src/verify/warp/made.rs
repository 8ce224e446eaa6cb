//! Scales that warps make of what they store: of whole blocks of complete products, multiplied into the subtile that is stored, and
//! written once each.

use super::held::Made;
use super::simulator::{Simulator, Verdict};
use super::step::FragmentStep;
use super::trace;
use crate::block::BLOCK;
use crate::diag::Diagnostic;
use crate::program::{TensorId, TensorKind};
use crate::warp::Elements;

impl Simulator<'_> {
    /// Scales are made of the rows of a subtile, of those columns of them.
    pub(super) fn make_scales(
        &mut self,
        index: usize,
        (part, elements): (u32, Elements),
        columns: (u32, u32),
    ) -> Verdict {
        self.is_there(index, elements, part)?;
        let fragment = &mut self.agents[index].fragment;
        fragment.made.retain(|made| made.elements != elements);
        fragment.made.push(Made {
            elements,
            part,
            columns,
            products: fragment.products.clone(),
        });
        Ok(())
    }

    /// The columns that the scales of a subtile are of: they were made of what its elements are now.
    pub(super) fn scales_of(
        &self,
        index: usize,
        elements: Elements,
        part: u32,
    ) -> Result<(u32, u32), Box<Diagnostic>> {
        let fragment = &self.agents[index].fragment;
        let mut made = fragment.made.iter();
        let made = made.find(|made| (made.elements, made.part) == (elements, part));
        match made.filter(|made| made.products == fragment.products) {
            Some(made) => Ok(made.columns),
            None => {
                let what = "no scales were made of what this subtile is";
                Err(Box::new(trace::wrong(self, index, what)))
            }
        }
    }

    /// Why a tensor does not get a subtile that is multiplied by scales, or one that is not.
    pub(super) fn unlike_scales(&self, tensor: TensorId, scaled: bool) -> Option<&'static str> {
        let made = TensorKind::MadeScale { of: tensor };
        let mut buffers = self.case.pipeline.kernel.buffers.iter();
        match (buffers.any(|buffer| buffer.kind == made), scaled) {
            (true, false) => Some("it is not multiplied by its scales"),
            (false, true) => Some("it is multiplied by scales that the tensor does not have"),
            (true, true) | (false, false) => None,
        }
    }

    /// The scales of a subtile's rows are written.
    pub(super) fn write_scales(&mut self, index: usize, step: FragmentStep) -> Verdict {
        let FragmentStep::WriteScales {
            tensor,
            elements,
            part,
            rows,
            all,
            columns,
        } = step
        else {
            return Ok(());
        };
        let made = self.scales_of(index, elements, part)?;
        let wrong = |what: &str| Err(Box::new(trace::wrong(self, index, what)));
        let buffers = &self.case.pipeline.kernel.buffers;
        let plane = &buffers[tensor.index()];
        let TensorKind::MadeScale { of } = plane.kind else {
            return wrong("it is no plane of scales that a launch makes");
        };
        if !self.is_what_is_stored(of, &self.agents[index].fragment, elements) {
            return wrong("the schedule stores another value there");
        }
        let geometry = self
            .case
            .geometry(self.case.plan_of(self.agents[index].who.launch));
        if all != (geometry.size(plane.columns), geometry.contiguous(plane)) {
            return wrong("its lines have other rows, or another padding");
        }
        let end = geometry.size(buffers[of.index()].columns);
        if made != columns {
            return wrong("they were made of other columns");
        }
        let whole = columns.1 == (columns.0 + BLOCK).min(end);
        if columns.0 < columns.1 && !(whole && columns.0.is_multiple_of(BLOCK)) {
            return wrong("they are not of a whole block");
        }
        self.taken(index, (tensor, of), (part, elements), (rows, columns))
    }
}
