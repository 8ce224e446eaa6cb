//! Gathers of a size that the warp level takes, and what each of its threads must have waited for before it reaches
//! into another rank: told by reading its statements in their order, whatever the warp level's own verifier says.

use super::draw::Draw;
use super::gather::{self, Sizes};
use counterflow_codegen::builder::ScheduleBuilder;
use counterflow_codegen::kernel::Purpose;
use counterflow_codegen::pipeline::{Expr, Node, Pipeline};
use counterflow_codegen::program::Program;
use std::collections::HashSet;

/// The gather that those bytes are, and its world.
pub fn gather(bytes: &[u8]) -> (Program, u32) {
    let mut draw = Draw::new(bytes);
    let world = [4, 2, 3][draw.of(3)];
    let mut s = ScheduleBuilder::new("random");
    let sizes = Sizes {
        piece: 128,
        tile: (128, 128),
    };
    gather::all_gather(&mut draw, &mut s, sizes);
    (s.finish(), world)
}

/// A thread that loads another rank's rows of a parameter before it has itself waited until that rank lets it.
pub fn loads_too_early(pipeline: &Pipeline) -> Option<String> {
    let counters = &pipeline.kernel.counters;
    pipeline.warps.iter().find_map(|warp| {
        let (mut waited, mut early) = (HashSet::new(), None);
        for node in &warp.body {
            node.visit(&mut |node| match node {
                Node::CounterWait { counter, .. } => {
                    waited.insert(counters[counter.index()].name.clone());
                }
                Node::Load { map, at, .. } => {
                    let tensor = pipeline.map(*map).tensor;
                    let remote = matches!(at.rank, Expr::Var(_) | Expr::Binary(..));
                    let credit = counters
                        .iter()
                        .find(|counter| counter.purpose == Purpose::Ready(tensor));
                    if let Some(credit) = credit.filter(|_| remote)
                        && !waited.contains(&credit.name)
                    {
                        let name = &pipeline.kernel.buffers[tensor.index()].name;
                        early.get_or_insert(format!(
                            "the {} thread loads {name} of another rank, and waits for {} later or not at all",
                            warp.name, credit.name
                        ));
                    }
                }
                _ => {}
            });
        }
        early
    })
}
