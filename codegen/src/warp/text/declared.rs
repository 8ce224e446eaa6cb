//! Declarations of a kernel, a line each: its tensor maps, its rings and the CTAs that move data.

use crate::warp::{Map, Part, Pipeline, Ring, View};

/// A tensor map: which part of which tensor it covers, and in boxes of which size.
pub(super) fn map(map: &Map) -> Vec<String> {
    let view = match map.view {
        View::Flat => "mine, in one piece",
        View::Shards => "mine, in shards",
        View::ColumnShards => "mine, in shards of columns",
        View::SharedShards => "everyone's shards",
        View::SharedSlots => "everyone's slots",
        View::SharedSlotShards => "everyone's slots of all shards",
        View::SharedShard => "everyone's own shard",
        View::SharedRows => "everyone's rows",
    };
    let partial_shard = if map.partial_shard {
        "the partial shard apart"
    } else {
        ""
    };
    vec![
        map.name.clone(),
        view.into(),
        format!("boxes of {}×{}", map.box_rows, map.box_columns),
        partial_shard.into(),
    ]
}

/// A ring: its slots, what lies in each, and how many arrivals fill and empty one.
pub(super) fn ring(ring: &Ring) -> Vec<String> {
    let named = |part: &Part| format!("{} {} B", part.name, part.bytes);
    let (parts, at) = match &ring.buffer {
        Some(buffer) => (buffer.held(named), buffer.at),
        None => (String::new(), 0),
    };
    vec![
        ring.of.name().into(),
        format!("{} slots at {at}", ring.slots),
        parts,
        match &ring.empty {
            Some(empty) => format!("{} fill, {} empty", ring.full.arrivals, empty.arrivals),
            None => format!("{} fill", ring.full.arrivals),
        },
    ]
}

/// The CTAs that move data, if there are any.
pub(super) fn comm(pipeline: &Pipeline) -> Option<String> {
    let comm = pipeline.comm.as_ref()?;
    let joins = if comm.join_late {
        ", then join the others"
    } else {
        ""
    };
    let roles = comm.roles.iter().map(|of| {
        let role = &pipeline.kernel.roles[of.role];
        format!("{} of {}", of.ctas, role.name)
    });
    let whose = match comm.roles.as_slice() {
        [_] => String::new(),
        _ => format!(" ({})", roles.collect::<Vec<_>>().join(", then ")),
    };
    let ctas = comm.ctas();
    Some(format!("the first {ctas} CTAs{whose} move data{joins}"))
}
