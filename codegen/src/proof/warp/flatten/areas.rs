//! Bytes of shared memory, and the part of a tensor, that a step touches.

use super::super::step::{Area, Box4};
use super::Flattener;
use crate::dtype::Dtype;
use crate::program::TensorId;
use crate::sm90::cta::Mode;
use crate::warp::{At, BLOCK_ROWS, CONSUMERS, Expr, Map, MapId, RingId, View};

impl Flattener<'_> {
    pub(super) fn box_bytes(&self, map: &Map) -> u32 {
        let dtype = self.case.pipeline.kernel.buffers[map.tensor.index()].dtype;
        map.box_rows * map.box_columns * dtype.bytes()
    }

    /// From a box of a part to the next: blocks lie one after another, subtiles each in a place for the widest type.
    pub(super) fn place_bytes(&self, map: MapId) -> u32 {
        let pipeline = self.case.pipeline;
        if !pipeline.cta.computes() {
            // A staging buffer is one box.
            0
        } else if pipeline.mn_major(map) {
            BLOCK_ROWS * pipeline.tile().k * pipeline.dtype().bytes()
        } else {
            pipeline.tiling_of(self.tiling).subtile_bytes()
        }
    }

    /// A subtile's number among all of the tile's.
    pub(in crate::proof::warp) fn subtile_number(&self, part: &Expr) -> u32 {
        let pipeline = self.case.pipeline;
        let before = if pipeline.cta.staggered() {
            self.runner * pipeline.own_subtiles()
        } else {
            0
        };
        before + self.value(part)
    }

    /// This group's share of the rows of a part, or of the slices of a subtile: its offset and bytes.
    pub(in crate::proof::warp) fn share(&self, bytes: u32) -> (u32, u32) {
        match self.case.pipeline.cta.mode() {
            Mode::PingPong => (0, bytes),
            Mode::Cooperative => {
                let half = bytes / CONSUMERS;
                (self.runner * half, half)
            }
        }
    }

    /// This group's share of a subtile in the current slot, its rows or its slices; and all of the subtile.
    pub(in crate::proof::warp) fn subtile(
        &self,
        ring: RingId,
        part: usize,
        index: &Expr,
        dtype: Dtype,
    ) -> (Area, Area) {
        let (pipeline, slot) = (self.case.pipeline, self.cursors[usize::from(ring.0)].slot);
        let tiling = pipeline.tiling_of(self.tiling);
        let bytes = tiling.subtile().elements() * dtype.bytes();
        let (offset, share) = if pipeline.cta.staggered() {
            (0, bytes)
        } else {
            self.share(bytes)
        };
        let place = self.value(index) * tiling.subtile_bytes();
        let area = |offset: u32, bytes| self.area(ring, part, slot, place + offset, bytes);
        (area(offset, share), area(0, bytes))
    }

    /// So many numbers of a scale, from the first up to an end, if others write them in a launch.
    pub(in crate::proof::warp) fn scales(
        &self,
        tensor: TensorId,
        (first, end): (u32, u32),
        count: u32,
    ) -> Option<Box4> {
        let gathered = self.case.pipeline.kernel.buffers[tensor.index()]
            .usage
            .is_gathered();
        let rows = (first.min(end), (first + count).min(end));
        gathered.then(|| {
            self.case
                .scales(self.env.plan, (tensor, self.env.rank), rows)
        })
    }

    /// The scales of those rows and columns of a tile, in a shard's slot on a rank.
    pub(in crate::proof::warp) fn beside_slot(
        &self,
        tensor: TensorId,
        (rank, slot): (u32, u32),
        rows: (u32, u32),
        columns: (u32, u32),
    ) -> Box4 {
        let blocks = self.case.pipeline.kernel.buffers[tensor.index()]
            .usage
            .blocks();
        let block = blocks.map_or(1, |block| block.columns);
        let first = columns.0 / block;
        let columns = match columns.0 < columns.1 {
            true => (first, columns.1.div_ceil(block)),
            false => (first, first),
        };
        self.case.located(Box4 {
            plan: self.env.plan,
            tensor,
            rank,
            shard: slot,
            rows,
            columns,
            origin: (rows.0, columns.0),
            spills: None,
            view: View::SharedSlots,
            lines: (0, 0),
            all: (0, 0),
        })
    }

    /// The rank whose steps these are.
    pub(in crate::proof::warp) const fn rank_of_role(&self) -> u32 {
        self.env.rank
    }

    /// A place of a slot of sums.
    pub(in crate::proof::warp) fn sum(&self, ring: RingId, slot: u32, index: &Expr) -> Area {
        let bytes = self.case.pipeline.partial_subtile_bytes();
        self.area(ring, 0, slot, self.value(index) * bytes, bytes)
    }

    /// Box that is loaded, so many rows below a place, clipped as the map clips it.
    pub(in crate::proof::warp) fn global(&self, id: MapId, at: &At, below: u32) -> Box4 {
        let map = self.case.pipeline.map(id);
        self.clipped(map, at, below, false)
    }

    /// Box that is stored: of the partial shard it is clipped by that one's map.
    pub(super) fn stored_to(&self, id: MapId, at: &At) -> Box4 {
        let map = self.case.pipeline.map(id);
        self.clipped(map, at, 0, true)
    }

    /// Boxes on every rank.
    pub(super) fn everywhere(&self, id: MapId, at: &At, stored: bool) -> Vec<Box4> {
        let map = self.case.pipeline.map(id);
        let on = |rank: u32| {
            let at = At {
                whose: Expr::Const(rank).into(),
                ..at.clone()
            };
            self.clipped(map, &at, 0, stored)
        };
        (0..self.case.world).map(on).collect()
    }

    /// The rows of a box that a shard has, which ends before that row.
    pub(super) fn part_of_shard(&self, id: MapId, at: &At, end: &Expr) -> Box4 {
        let map = self.case.pipeline.map(id);
        let (end, to) = (self.value(end), self.clipped(map, at, 0, false));
        let plane = self
            .case
            .plane(self.env.plan, map.tensor, (map.view, to.shard), to.rank);
        let first = i64::from(to.origin.0.cast_signed());
        let inside = |row: i64| u32::try_from(row.clamp(0, end.into())).unwrap_or(end);
        let rows = (inside(first), inside(first + i64::from(map.box_rows)));
        // Nothing but the shard's rows is the tile's, whatever memory has behind them.
        let spills = (rows.1 > plane.allowed).then_some(plane.allowed);
        self.case.located(Box4 { rows, spills, ..to })
    }

    fn clipped(&self, map: &Map, at: &At, below: u32, stored: bool) -> Box4 {
        let usage = self.case.pipeline.kernel.buffers[map.tensor.index()].usage;
        let [column, row, shard] = [&at.column, &at.row, &at.shard].map(|expr| self.value(expr));
        let rank = at
            .whose
            .rank()
            .map_or(self.env.rank, |rank| self.value(rank));
        let row = row.wrapping_add(below);
        let home = match map.view {
            View::Flat | View::Shards | View::ColumnShards => self.env.rank,
            View::SharedShards
            | View::SharedSlots
            | View::SharedSlotShards
            | View::SharedShard
            | View::SharedRows => rank,
        };
        let plane = self
            .case
            .plane(self.env.plan, map.tensor, (map.view, shard), home);
        let (mut rows, mut columns) = (plane.rows, plane.columns);
        let by_columns = map.view == View::ColumnShards;
        let divided = if by_columns { &mut columns } else { &mut rows };
        // Of a shard without rows the map ends where a full one does.
        if map.clips(usage, stored) && plane.allowed > 0 {
            *divided = plane.allowed.min(*divided);
        }
        // A box may begin below zero, as TMA takes it: what is there is left out.
        let inside = |first: u32, length: u32, all: u32| {
            let first = i64::from(first.cast_signed());
            let inside = |at: i64| u32::try_from(at.clamp(0, all.into())).unwrap_or(all);
            (inside(first), inside(first + i64::from(length)))
        };
        let rows = inside(row, map.box_rows, rows);
        let columns = inside(column, map.box_columns, columns);
        let end = if by_columns { columns.1 } else { rows.1 };
        self.case.located(Box4 {
            plan: self.env.plan,
            tensor: map.tensor,
            rank: home,
            shard,
            rows,
            columns,
            origin: (row, column),
            spills: (map.ends_with_shards(usage, stored) && end > plane.allowed)
                .then_some(plane.allowed),
            view: map.view,
            lines: (0, 0),
            all: (0, 0),
        })
    }
}
