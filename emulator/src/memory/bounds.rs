//! Checks that what a step touches is in a rank's memory.

use super::who::Who;
use crate::failure::Check;
use crate::failure::FailureKind;
use crate::setup::Setup;
use counterflow_codegen::region::{Access, Span};
use counterflow_codegen::shape::Extent;

/// The rows must be held, and within one shard, as those of a box are. The slot and the columns must exist.
pub(crate) fn bounds(setup: &Setup<'_>, who: &Who<'_>, span: &Span, mode: Access) -> Check<()> {
    let fail = |inside: (Extent, Extent)| {
        Err(Box::new(FailureKind::OutOfBounds {
            by: setup.site(&who.at, mode.verb()),
            what: setup.rect(span),
            inside,
        }))
    };
    let nothing = Extent::default();
    if usize::from(span.home) >= setup.world {
        return fail((nothing, nothing));
    }
    let buffer = &setup.kernel.buffers[span.buffer.index()];
    let geometry = &setup.plan(who.at.launch, who.at.rank).geometry;
    let mut rows = geometry.held(buffer, u32::from(span.home));
    let columns = Extent {
        start: 0,
        end: geometry.size(buffer.columns),
    };
    if u32::from(span.slot) >= buffer.slots(setup.world as u32) {
        return fail((nothing, nothing));
    }
    if geometry.shards(buffer.rows) > 1 {
        let shard = geometry.shard_at(buffer.rows, span.rows.start);
        let shard = geometry.shard(buffer.rows, shard);
        rows = Extent {
            start: rows.start.max(shard.start),
            end: rows.end.min(shard.end),
        };
    }
    if span.rows.is_empty()
        || span.columns.is_empty()
        || (rows.contains(span.rows) && columns.contains(span.columns))
    {
        Ok(())
    } else {
        fail((rows, columns))
    }
}
