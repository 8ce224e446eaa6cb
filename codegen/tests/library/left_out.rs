//! Which nodes of a good pipeline nobody misses.

use counterflow_codegen::pipeline::{self, Node, Pipeline};

/// Leaf nodes that can be left out unnoticed, by their variant's name.
pub fn unnoticed(new: impl Fn() -> Pipeline) -> String {
    let mut count = 0;
    new().lists(&mut |list| count += list.len());
    let mut passed = Vec::new();
    for victim in 0..count {
        let mut pipeline = new();
        let (mut seen, mut removed) = (0, None);
        pipeline.lists(&mut |list| {
            let here = victim.wrapping_sub(seen);
            seen += list.len();
            if removed.is_none() && here < list.len() && list[here].body().is_empty() {
                removed = Some(list.remove(here));
            }
        });
        // Words, names, and what is not modelled.
        let wanted = removed.filter(|node| {
            !matches!(
                node,
                Node::Note(_)
                    | Node::Let { .. }
                    | Node::Place { .. }
                    | Node::Deal { .. }
                    | Node::Accumulators
                    | Node::SyncWarp
                    | Node::MmaFence
            )
        });
        if let Some(node) = wanted
            && pipeline::verify(pipeline).is_ok()
        {
            let name = format!("{node:?}");
            passed.extend(name.split([' ', '{']).next().map(String::from));
        }
    }
    passed.join(", ")
}
