//! What a kernel declares, a line each: its tensor maps and its rings.

use crate::warp::{Map, Ring, View};

/// A tensor map: which part of which tensor it covers, and in boxes of which size.
pub(super) fn map(map: &Map) -> Vec<String> {
    let view = match map.view {
        View::Flat => "mine, in one piece",
        View::Chunks => "mine, in chunks",
        View::SharedChunks => "everyone's chunks",
        View::SharedSlots => "everyone's slots",
        View::SharedSlotChunks => "everyone's slots of all chunks",
        View::SharedChunk => "everyone's own chunk",
    };
    let partial_chunk = if map.partial_chunk {
        "the partial chunk apart"
    } else {
        ""
    };
    vec![
        map.name.clone(),
        view.into(),
        format!("boxes of {}×{}", map.box_rows, map.box_columns),
        partial_chunk.into(),
    ]
}

/// A ring: its slots, what lies in each, and how many arrivals fill and empty one.
pub(super) fn ring(ring: &Ring) -> Vec<String> {
    let parts = ring.parts().iter();
    let parts: Vec<String> = parts
        .map(|part| format!("{} {} B", part.name, part.bytes))
        .collect();
    let at = ring.buffer.as_ref().map_or(0, |buffer| buffer.at);
    vec![
        ring.name.into(),
        format!("{} slots at {at}", ring.slots),
        parts.join(" and "),
        match &ring.empty {
            Some(empty) => format!("{} fill, {} empty", ring.full.arrivals, empty.arrivals),
            None => format!("{} fill", ring.full.arrivals),
        },
    ]
}
