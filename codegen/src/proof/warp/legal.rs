//! Legality of accesses: what TMA, and 16-byte accesses of threads, cannot do. A GPU calls these illegal instructions or misaligned
//! addresses, and its context is lost; CUDA's encoder of maps refuses some of them at launch.
//!
//! Sources: CUDA driver API, `cuTensorMapEncodeTiled` (addresses, strides, boxes, swizzles); PTX ISA, "Tensor Size" and
//! "Swizzling Modes"; and where both are silent about a store that begins before its tensor, an H100 and an H200.

use super::case::Case;
use super::simulator::{Simulator, Verdict};
use super::step::{Area, Box4};
use super::trace;
use crate::kernel::Buffer;
use crate::program::Loc;
use crate::warp::{Map, MapId, Node, Pipeline, Reaches};

/// Most elements of a box along a side.
const BOX: u32 = 256;
/// Rows after which the swizzle of a box repeats.
const SWIZZLED_ROWS: u32 = 8;
/// Bytes that a stride stays below.
const STRIDE: u64 = 1 << 40;

impl Simulator<'_> {
    /// An access of 16 bytes at a time begins at a multiple of them.
    pub(super) fn begins_aligned(&self, index: usize, at: &Box4) -> Verdict {
        let buffer = &self.case.pipeline.kernel.buffers[at.tensor.index()];
        let (first, what) = match buffer.mn_major {
            true => (at.origin.0, "row"),
            false => (at.origin.1, "column"),
        };
        let bytes = i64::from(first.cast_signed()) * i64::from(buffer.dtype.bytes());
        if bytes % 16 == 0 {
            return Ok(());
        }
        let what = format!("the box begins at a {what} that is no multiple of 16 bytes");
        Err(Box::new(trace::illegal(self, index, &what)))
    }

    /// A box that TMA moves: where it begins in global and in shared memory. A load may begin before its tensor, whose rows there
    /// are zeros. A store may not.
    pub(super) fn tma_takes(&self, index: usize, area: Area, at: &Box4, stored: bool) -> Verdict {
        self.begins_aligned(index, at)?;
        let below = [at.origin.0, at.origin.1].map(|first| first.cast_signed() < 0);
        let side = match below {
            [true, _] => Some("row"),
            [_, true] => Some("column"),
            [false, false] => None,
        };
        if let Some(side) = side.filter(|_| stored) {
            let what =
                format!("the box begins before the tensor's first {side}, as no TMA store may");
            return Err(Box::new(trace::illegal(self, index, &what)));
        }
        let buffer = &self.case.pipeline.kernel.buffers[at.tensor.index()];
        let align = match (self.map_of(index), buffer.usage.blocks()) {
            (Some(map), None) => SWIZZLED_ROWS * line_of(buffer, map),
            (Some(_) | None, _) => 128,
        };
        if area.start.is_multiple_of(align) {
            return Ok(());
        }
        let what = format!("its place in shared memory is no multiple of {align} bytes");
        Err(Box::new(trace::illegal(self, index, &what)))
    }

    /// Map that the step of an agent moves a box by. Partial boxes have lines as long.
    fn map_of(&self, index: usize) -> Option<&Map> {
        let agent = &self.agents[index];
        if let Node::Load { map, .. } | Node::Store { map, .. } = agent.steps[agent.at].node {
            Some(self.case.pipeline.map(*map))
        } else {
            None
        }
    }
}

/// Each map is one that TMA takes, for each shape of the case.
///
/// # Errors
/// The first that is not, at the statement that uses it first.
pub(super) fn maps(case: &Case<'_>) -> Verdict {
    let pipeline = case.pipeline;
    for (map, id) in pipeline.maps.iter().zip(0..) {
        let id = MapId(id);
        let reaches = pipeline.reaches(id);
        let boxes = reaches.by_tma.then(|| illegal_box(pipeline, map)).flatten();
        // Accesses of 16 bytes need whole ones between rows, too.
        let used = reaches != Reaches::default();
        let strides = || used.then(|| illegal_stride(case, map)).flatten();
        if let Some(what) = boxes.or_else(strides) {
            let lists = pipeline.warps.iter().map(|warp| &warp.body);
            let used = lists.flat_map(|list| first_use(list, id, None)).flatten();
            let role = &pipeline.kernel.roles[case.roles.gemm];
            let at = used.into_iter().next().unwrap_or(role.at);
            return Err(Box::new(trace::illegal_map(at, &map.name, &what)));
        }
    }
    Ok(())
}

fn illegal_box(pipeline: &Pipeline, map: &Map) -> Option<String> {
    let buffer = &pipeline.kernel.buffers[map.tensor.index()];
    let mut sides = [(map.box_rows, "rows"), (map.box_columns, "columns")].into_iter();
    if let Some((count, side)) = sides.find(|(side, _)| !(1..=BOX).contains(side)) {
        return Some(format!(
            "its boxes have {count} {side}: 1 to {BOX} are legal"
        ));
    }
    let line = line_of(buffer, map);
    if !line.is_multiple_of(16) {
        return Some(format!(
            "a line of its boxes is {line} bytes, no multiple of 16"
        ));
    }
    // Scales of blocks lie row after row; all else is swizzled by the width of a box.
    let swizzled = buffer.usage.blocks().is_none();
    (swizzled && ![32, 64, 128].contains(&line))
        .then(|| format!("a line of its boxes is {line} bytes: a swizzle spans 32, 64 or 128"))
}

fn illegal_stride(case: &Case<'_>, map: &Map) -> Option<String> {
    let kernel = &case.pipeline.kernel;
    let mut pitches = (0..case.plans()).map(|plan| case.plan(plan).pitch(kernel, map.tensor));
    let wrong = pitches.find(|pitch| !pitch.is_multiple_of(16) || *pitch >= STRIDE)?;
    Some(format!(
        "its rows are {wrong} bytes apart: multiples of 16 below 1 TiB are legal"
    ))
}

/// Bytes of a line of a map's boxes: of the side that is contiguous.
fn line_of(buffer: &Buffer, map: &Map) -> u32 {
    let elements = match buffer.mn_major {
        true => map.box_rows,
        false => map.box_columns,
    };
    elements * buffer.dtype.bytes()
}

/// Statement of the first node of a list that uses a map, if one does; `at` is the statement that the list is of.
fn first_use(list: &[Node], id: MapId, at: Option<Loc>) -> Option<Option<Loc>> {
    let mut at = at;
    for node in list {
        if let Node::Note(note) = node {
            at = note.loc;
        }
        let boxes = if let Node::Load { partial_boxes, .. } = node {
            partial_boxes.as_ref().map(|boxes| boxes.map)
        } else {
            None
        };
        let whole = if let Node::Load { map, .. } | Node::Store { map, .. } = node {
            Some(*map)
        } else {
            None
        };
        if [boxes, whole].contains(&Some(id)) {
            return Some(at);
        }
        if let Some(found) = first_use(node.body(), id, at) {
            return Some(found);
        }
    }
    None
}
