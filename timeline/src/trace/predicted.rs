//! From the model's timeline to a trace.

use super::span::{Arrow, Lane, Phase, Span, Statement, Trace};
use crate::model::{EventKind, Timeline};
use counterflow_codegen::kernel::{Kernel, OpId};

/// The trace of a launch as the model predicts it.
///
/// [`crate::trace`] has an example.
pub fn predicted(kernel: &Kernel, timeline: &Timeline) -> Trace {
    let each = timeline.lanes.len() as u32;
    let mut trace = Trace {
        title: timeline.title.clone(),
        world: timeline.world,
        lanes: Vec::new(),
        spans: Vec::new(),
        arrows: Vec::new(),
        statements: Vec::new(),
        total: timeline.total,
        ranks: vec![(0.0, 0.0); timeline.world as usize],
        clocks: Vec::new(),
        lost: 0,
    };
    for rank in 0..timeline.world as u16 {
        for (index, lane) in (0..).zip(&timeline.lanes) {
            trace.lanes.push(Lane {
                rank,
                cta: lane.cta.then_some(index),
                name: lane.name.clone(),
            });
        }
    }
    trace.statements = (0..)
        .zip(&timeline.statements)
        .map(|(op, text)| {
            let loc = kernel.loc(OpId(op));
            Statement {
                text: text.clone(),
                place: Some(format!("{}:{}", loc.file(), loc.line())),
            }
        })
        .collect();
    let lane = |(rank, lane): (u16, u16)| u32::from(rank) * each + u32::from(lane);
    for event in &timeline.events {
        let phase = match event.kind {
            EventKind::Dot => Phase::Multiply,
            EventKind::Reduce => Phase::Sum,
            EventKind::Load => Phase::Epilogue,
            EventKind::Wait => Phase::Wait,
            // For items of other CTAs, by no counter.
            EventKind::Join => Phase::Idle,
            EventKind::Drain => Phase::Store,
            EventKind::Local | EventKind::Push | EventKind::Pull => match event.overlapped {
                true => Phase::Store,
                false => Phase::Move,
            },
        };
        let end = &mut trace.ranks[usize::from(event.rank)].1;
        *end = end.max(event.end);
        trace.spans.push(Span {
            lane: lane((event.rank, event.lane)),
            phase,
            statement: Some(u32::from(event.op.0)),
            start: event.start,
            end: event.end,
        });
    }
    for rank in &mut trace.ranks {
        // A rank without work is as long as the launch.
        if rank.1 == 0.0 {
            rank.1 = timeline.total;
        }
    }
    trace.arrows = timeline
        .flows
        .iter()
        .map(|flow| Arrow {
            from: lane(flow.from),
            sent: flow.sent,
            to: lane(flow.to),
            met: flow.met,
        })
        .collect();
    trace
}
