//! The numbers: every element is an f32 rounded to its dtype, in the layout of device memory.
//!
//! Leading dimensions and transposed operands have the plan's layout. The gaps between lines are NaN and stay so.

mod evaluate;
mod layout;
mod short;
mod tile;

pub(super) use evaluate::evaluate;
pub(super) use tile::Tile;

use super::blocks::Summing;
use super::outcome::Input;
use super::policy::Numbers;
use super::setup::Setup;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::ScaleBlock;
use counterflow_codegen::program::{AtStart, TensorId};
use counterflow_codegen::region::{Rectangle, Span};
use counterflow_codegen::shape::Extent;
use layout::Layout;
use ndarray::{ArrayView2, ArrayViewMut2, Axis, CowArray, Ix2, ShapeBuilder, concatenate};
use std::ops::Range;

#[derive(Clone, Debug)]
struct Store {
    layout: Layout,
    dtype: Dtype,
    values: Vec<f32>,
}

/// The memory of all ranks. Empty if the run tracks no numbers.
#[derive(Clone)]
pub(super) struct Data {
    stores: Vec<Store>,
    buffers: usize,
    /// The elements of a copy.
    line: Vec<f32>,
    /// Order in which the switch adds.
    switch: Numbers,
}

impl Data {
    pub fn new(setup: &Setup<'_>, wanted: bool) -> Data {
        let buffers = setup.kernel.buffers.len();
        let mut data = Data {
            stores: Vec::new(),
            buffers,
            line: Vec::new(),
            switch: Numbers::new(0),
        };
        if wanted && setup.launches() > 0 {
            for rank in 0..setup.world as u16 {
                for index in 0..buffers {
                    data.stores
                        .push(poisoned(setup, 0, rank, TensorId(index as u16)));
                }
            }
        }
        data
    }

    /// Draws the orders in which the switch adds from a seed.
    pub fn draw_from(&mut self, seed: u64) {
        self.switch = Numbers::new(seed);
    }

    /// True if numbers are tracked.
    pub fn wanted(&self) -> bool {
        !self.stores.is_empty()
    }

    fn store(&self, home: u16, buffer: TensorId) -> &Store {
        &self.stores[usize::from(home) * self.buffers + buffer.index()]
    }

    fn store_mut(&mut self, home: u16, buffer: TensorId) -> &mut Store {
        &mut self.stores[usize::from(home) * self.buffers + buffer.index()]
    }

    /// Before a launch: poisons the parameters, then fills those whose contents count. A tensor that a launch adds to
    /// starts with what the launch before left, if that had as many rows and columns.
    pub fn start(
        &mut self,
        setup: &Setup<'_>,
        rank: u16,
        launch: u32,
        inputs: &mut dyn FnMut(Input<'_>, &mut [f32]),
    ) {
        let mut values = Vec::new();
        for (index, buffer) in setup.kernel.buffers.iter().enumerate() {
            let id = TensorId(index as u16);
            if buffer.is_scratch() {
                continue;
            }
            let left = self.left(setup, launch, rank, id);
            *self.store_mut(rank, id) = poisoned(setup, launch, rank, id);
            if !buffer.usage.counts_before() {
                continue;
            }
            let geometry = &setup.plan(launch, rank).geometry;
            let rows = match buffer.usage.at_start() {
                AtStart::Shard => geometry.owned(buffer.rows, u32::from(rank)),
                AtStart::Whole | AtStart::Nothing => setup.held(launch, rank, id),
            };
            let columns = Extent {
                start: 0,
                end: geometry.size(buffer.columns),
            };
            values.clear();
            values.resize(rows.len() as usize * columns.len() as usize, 0.0);
            if let Some(left) = left.filter(|left| (left.0, left.1.len()) == (rows, values.len())) {
                values.copy_from_slice(&left.1);
            }
            let input = Input {
                launch: launch as usize,
                rank: u32::from(rank),
                tensor: id,
                name: &buffer.name,
                rows,
                columns: columns.end,
            };
            inputs(input, &mut values);
            let span = Span {
                buffer: id,
                home: rank,
                slot: 0,
                rows,
                columns,
            };
            self.write(&span, &values, false);
        }
    }

    /// The contents of outputs that a launch goes on with.
    fn left(
        &self,
        setup: &Setup<'_>,
        launch: u32,
        rank: u16,
        id: TensorId,
    ) -> Option<(Extent, Vec<f32>)> {
        let usage = setup.kernel.buffers[id.index()].usage;
        let goes_on = usage.counts_before() && !usage.is_input();
        let before = launch.checked_sub(1).filter(|_| goes_on)?;
        Some(self.take(setup, before, rank, id))
    }

    /// Clears scratch for a launch of another shape.
    pub fn divide(&mut self, setup: &Setup<'_>, launch: u32, home: u16, buffer: TensorId) {
        let layout = Layout::new(setup, launch, home, buffer);
        if self.wanted() && self.store(home, buffer).layout != layout {
            *self.store_mut(home, buffer) = poisoned(setup, launch, home, buffer);
        }
    }

    /// A rank's tensor, row by row: all its slots, one below the other.
    pub fn take(
        &self,
        setup: &Setup<'_>,
        launch: u32,
        rank: u16,
        id: TensorId,
    ) -> (Extent, Vec<f32>) {
        let buffer = &setup.kernel.buffers[id.index()];
        let rows = setup.held(launch, rank, id);
        let columns = setup.plan(launch, rank).geometry.size(buffer.columns) as usize;
        let store = self.store(rank, id);
        let mut values = Vec::with_capacity(rows.len() as usize * columns);
        let slots = 0..buffer.slots(setup.world as u32) as usize;
        for (slot, row) in slots.flat_map(|slot| rows.range().map(move |row| (slot, row))) {
            let at = store.layout.at(slot, row, 0);
            let stride = store.layout.strides.1;
            if stride == 1 {
                values.extend_from_slice(&store.values[at..at + columns]);
            } else {
                values.extend((0..columns).map(|column| store.values[at + column * stride]));
            }
        }
        (rows, values)
    }

    fn view(&self, span: &Span) -> ArrayView2<'_, f32> {
        let store = self.store(span.home, span.buffer);
        let shape = (span.rows.len() as usize, span.columns.len() as usize);
        let view = match store.layout.begin(span) {
            None => ArrayView2::from_shape(shape, &[]),
            Some(at) => {
                let shape = shape.strides(store.layout.strides);
                ArrayView2::from_shape(shape, &store.values[at..])
            }
        };
        view.expect("the rectangle was checked to be inside")
    }

    /// The numbers of a rectangle, which may be in several shards: where rows are contiguous, each shard is a matrix of its own.
    fn part(&self, span: &Span) -> CowArray<'_, f32, Ix2> {
        let layout = &self.store(span.home, span.buffer).layout;
        let parts: Vec<_> = layout.matrices(span.rows).collect();
        if parts.len() == 1 {
            return self.view(span).into();
        }
        let views: Vec<_> = (parts.iter())
            .map(|rows| {
                self.view(&Span {
                    rows: *rows,
                    ..*span
                })
            })
            .collect();
        let all = concatenate(Axis(0), &views).expect("they have the same columns");
        all.into()
    }

    fn view_mut(&mut self, span: &Span) -> ArrayViewMut2<'_, f32> {
        let store = self.store_mut(span.home, span.buffer);
        let shape = (span.rows.len() as usize, span.columns.len() as usize);
        let view = match store.layout.begin(span) {
            None => ArrayViewMut2::from_shape(shape, &mut []),
            Some(at) => {
                let shape = shape.strides(store.layout.strides);
                ArrayViewMut2::from_shape(shape, &mut store.values[at..])
            }
        };
        view.expect("the rectangle was checked to be inside")
    }

    /// `tile += a · bᵀ`, in f32. If CTAs share the K steps, each CTA's part is summed separately.
    pub fn dot(
        &self,
        tile: &mut Tile,
        [a, b]: [&Span; 2],
        scales: [Option<Span>; 2],
        shares: &[Range<usize>],
        summing: &Summing,
    ) {
        let parts = [a, b].map(|span| self.part(span));
        let views = parts.each_ref().map(|part| part.view());
        let [of_a, of_b] = [a, b].map(|span| self.store(span.home, span.buffer).dtype);
        let Some(interval) = summing.promoted else {
            tile.dot((&views[0], of_a), (&views[1], of_b), shares);
            return;
        };
        let factors = |at: usize| {
            let (blocks, scales) = (summing.scales[at]?, scales[at]?);
            Some(blocks.factors([a, b][at].rows, &self.part(&scales).view()))
        };
        let factors = [0, 1].map(factors);
        let [left, right] = &views;
        tile.promoted_dot((left, of_a), (right, of_b), shares, (interval, &factors));
    }

    /// `tile += from`. A sum over several ranks' memory is made in f32 and rounded once, as the switch does, in an order that is
    /// drawn. What has scales is multiplied by them first.
    pub fn reduce(
        &mut self,
        tile: &mut Tile,
        from: &Rectangle,
        scales: Option<(&Rectangle, ScaleBlock)>,
        world: usize,
    ) {
        tile.shaped(from.rows.len() as usize, from.columns.len() as usize);
        let homes = from.owner.ranks(world as u32);
        if let Some((scales, block)) = scales {
            let [codes, scales] = [from, scales].map(|it| self.view(&it.on(homes.start)));
            return tile.reduce_scaled(&codes, &scales, block.columns);
        }
        let dtype = self.store(homes.start, from.tensor).dtype;
        let mut order: Vec<u16> = homes.collect();
        self.switch.shuffle(&mut order);
        tile.reduce(order.iter().map(|home| self.view(&from.on(*home))), dtype);
    }

    /// `tile = from`.
    pub fn load(&self, tile: &mut Tile, from: &Span) {
        let view = self.part(from);
        tile.shaped(view.nrows(), view.ncols());
        let mut c = ArrayViewMut2::from_shape((tile.rows, tile.columns), &mut tile.values)
            .expect("the tile was just shaped");
        c.assign(&view);
    }

    /// Moves a rectangle to another of the same size and type (a copy rounds where the types differ).
    pub fn copy(&mut self, dst: &Span, src: &Span) {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        line.extend(self.view(src).iter());
        let [to, from] = [dst, src].map(|it| self.store(it.home, it.buffer).dtype);
        if to == from {
            let view = ArrayView2::from_shape(
                (src.rows.len() as usize, src.columns.len() as usize),
                &line,
            )
            .expect("as many as were read");
            self.view_mut(dst).assign(&view);
        } else {
            self.write(dst, &line, false);
        }
        self.line = line;
    }

    /// Rounds `values`, row by row, and stores them or adds them (which rounds once more).
    pub fn write(&mut self, dst: &Span, values: &[f32], add: bool) {
        let store = self.store_mut(dst.home, dst.buffer);
        let (columns, dtype) = (dst.columns.len() as usize, store.dtype);
        if values.is_empty() {
            return;
        }
        for (row, values) in dst.rows.range().zip(values.chunks_exact(columns)) {
            let at = store
                .layout
                .at(usize::from(dst.slot), row, dst.columns.start as usize);
            let line = store.values[at..].iter_mut();
            for (to, value) in line.step_by(store.layout.strides.1).zip(values) {
                let value = dtype.round(*value);
                *to = if add { dtype.round(*to + value) } else { value };
            }
        }
    }
}

/// A number made as large as the largest absolute value: by their bits as signed integers, by which NaN is larger than any
/// number, and what has its sign bit set is less than any absolute value.
pub(super) fn amax_with(before: f32, values: &[f32]) -> f32 {
    let bits = |value: f32| value.to_bits().cast_signed();
    let each = values.iter().map(|value| bits(value.abs()));
    f32::from_bits(each.fold(bits(before), i32::max).cast_unsigned())
}

impl Data {
    /// Makes a tensor's number as large as the largest absolute value.
    pub fn measure(&mut self, home: u16, to: TensorId, values: &[f32]) {
        for number in &mut self.store_mut(home, to).values {
            *number = amax_with(*number, values);
        }
    }
}

fn poisoned(setup: &Setup<'_>, launch: u32, rank: u16, id: TensorId) -> Store {
    let layout = Layout::new(setup, launch, rank, id);
    Store {
        layout,
        dtype: setup.kernel.buffers[id.index()].dtype,
        values: vec![f32::NAN; layout.len],
    }
}
