//! Scales that warps make of what they store: of whole blocks of complete products, multiplied into the subtile that is stored, and
//! written once each.

use super::held::ComputedScales;
use super::simulator::{Simulator, Verdict};
use super::step::{Area, Box4, Scales};
use super::trace;
use crate::diag::Diagnostic;
use crate::program::{TensorId, Usage};
use crate::warp::Elements;

impl Simulator<'_> {
    /// Scales of a subtile's rows are made or written.
    pub(super) fn quantize(
        &mut self,
        index: usize,
        of: (u32, Elements),
        columns: (u32, u32),
        to: Scales,
    ) -> Verdict {
        match to {
            Scales::Registers => self.make_scales(index, of, columns),
            Scales::Plane { tensor, rows, all } => {
                self.write_scales(index, tensor, of, (rows, columns), all)
            }
            Scales::Slot(to) => self.send_scales(index, of, &to, columns),
        }
    }

    /// Scales are made of the rows of a subtile, of those columns of them.
    fn make_scales(
        &mut self,
        index: usize,
        (part, elements): (u32, Elements),
        columns: (u32, u32),
    ) -> Verdict {
        self.is_there(index, elements, part)?;
        let fragment = &mut self.agents[index].fragment;
        fragment
            .computed_scales
            .retain(|made| made.elements != elements);
        fragment.computed_scales.push(ComputedScales {
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
        let mut made = fragment.computed_scales.iter();
        let made = made.find(|made| (made.elements, made.part) == (elements, part));
        match made.filter(|made| made.products == fragment.products) {
            Some(made) => Ok(made.columns),
            None => {
                let what = "no scales were made of what this subtile is";
                Err(Box::new(trace::wrong(self, index, what)))
            }
        }
    }

    /// Reason that a tensor does not get a subtile that is multiplied by scales, or one that is not.
    pub(super) fn unlike_scales(&self, tensor: TensorId, scaled: bool) -> Option<&'static str> {
        let made = self.case.pipeline.kernel.computed_scale_of(tensor);
        match (made.is_some(), scaled) {
            (true, false) => Some("it is not multiplied by its scales"),
            (false, true) => Some("it is multiplied by scales that the tensor does not have"),
            (true, true) | (false, false) => None,
        }
    }

    /// The scales of a block are written beside the slot that its codes are stored to.
    fn send_scales(
        &mut self,
        index: usize,
        (part, elements): (u32, Elements),
        to: &Box4,
        columns: (u32, u32),
    ) -> Verdict {
        let made = self.scales_of(index, elements, part)?;
        let wrong = |what: &str| Err(Box::new(trace::wrong(self, index, what)));
        let buffers = &self.case.pipeline.kernel.buffers;
        let usage = buffers[to.tensor.index()].usage;
        let (true, Some(of)) = (buffers[to.tensor.index()].is_scratch(), usage.scales_of()) else {
            return wrong("it is no plane of scales of partial sums");
        };
        if !self.is_what_is_stored(of, &self.agents[index].fragment, elements) {
            return wrong("the schedule stores another value there");
        }
        let end = self
            .case
            .geometry(to.plan)
            .size(buffers[of.index()].columns);
        if made != columns || !is_whole(usage, columns, end) {
            return wrong("they are not of a whole block");
        }
        if to.rows.0 < to.rows.1 && columns.0 < columns.1 {
            let codes = self.case.located(Box4 {
                tensor: of,
                columns,
                origin: (to.rows.0, columns.0),
                ..*to
            });
            let of_tile = (&self.agents[index].fragment, elements);
            let first = self.row_in_all(&codes, to.rows.0) - self.rows_before(index);
            if let Some(what) = self.elsewhere(index, of_tile, (part, 0), (first, &codes)) {
                return wrong(what);
            }
        }
        self.touch_ordinarily(index, *to, true)
    }

    /// Rows of a subtile that come before those of this group.
    fn rows_before(&self, index: usize) -> u32 {
        let agent = &self.agents[index];
        let tiling = (self.case.pipeline).tiling_of(agent.steps[agent.at].tiling);
        match self.sharing() {
            1 => 0,
            groups => agent.runner * tiling.subtile().rows / groups,
        }
    }

    /// The scales of a tile of partial sums are read.
    pub(super) fn read_tile_scales(&mut self, index: usize, from: &Box4) -> Verdict {
        let (slot, row) = (self.case.slot(from), self.row_in_all(from, from.rows.0));
        let of_tile = (from.tensor, slot, row, from.columns.0);
        self.agents[index].fragment.of_tile = Some(of_tile);
        self.touch_ordinarily(index, *from, false)
    }

    /// Checks that what is added is multiplied by its own scales, if it has some.
    pub(super) fn has_its_scales(
        &self,
        index: usize,
        subtile: Area,
        part: u32,
        scaled: bool,
    ) -> Verdict {
        let wrong = |what: &str| Err(Box::new(trace::wrong(self, index, what)));
        let agent = &self.agents[index];
        let Some(from) = self.stored_subtile(agent.cta, subtile) else {
            return Ok(());
        };
        let plane = self.case.pipeline.kernel.computed_scale_of(from.tensor);
        let of_tile = agent.fragment.of_tile.filter(|_| scaled);
        let (plane, of_tile) = match (plane, scaled, of_tile) {
            (None, false, _) => return Ok(()),
            (Some(plane), true, Some(of_tile)) => (plane, of_tile),
            (Some(_), true, None) => return wrong("no scales were read for it"),
            (Some(_), false, _) => return wrong("its codes are added without their scales"),
            (None, true, _) => return wrong("it has no scales"),
        };
        let tile = self.case.pipeline.subtile_at(part);
        let first = self.row_in_all(&from, from.origin.0);
        let row = first + self.rows_before(index);
        let blocks = (self.case.pipeline.kernel.buffers[plane.index()].usage).blocks();
        let block = (from.origin.1 - tile.1) / blocks.map_or(1, |block| block.columns);
        let exists = row < from.all.1 && from.columns.0 < from.columns.1;
        if exists && of_tile != (plane, self.case.slot(&from), row, block) {
            return wrong("the scales are of another tile");
        }
        Ok(())
    }

    /// The scales of a subtile's rows are written.
    fn write_scales(
        &mut self,
        index: usize,
        tensor: TensorId,
        (part, elements): (u32, Elements),
        (rows, columns): ((u32, u32), (u32, u32)),
        all: (u32, u32),
    ) -> Verdict {
        let made = self.scales_of(index, elements, part)?;
        let wrong = |what: &str| Err(Box::new(trace::wrong(self, index, what)));
        let buffers = &self.case.pipeline.kernel.buffers;
        let plane = &buffers[tensor.index()];
        let Some(of) = plane
            .usage
            .computed_scale_of()
            .filter(|_| !plane.is_scratch())
        else {
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
        if !is_whole(plane.usage, columns, end) {
            return wrong("they are not of a whole block");
        }
        self.taken(index, (tensor, of), (part, elements), (rows, columns))
    }
}

/// True if columns are none, or all that exist of one block of a plane's, before the end.
fn is_whole(plane: Usage, columns: (u32, u32), end: u32) -> bool {
    let each = plane.blocks().map_or(1, |block| block.columns);
    let whole = columns.1 == (columns.0 + each).min(end);
    columns.0 >= columns.1 || whole && columns.0.is_multiple_of(each)
}
