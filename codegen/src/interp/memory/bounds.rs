//! Checks that a rectangle is in a rank's memory.

use super::who::{Mode, Who};
use crate::interp::failure::Check;
use crate::interp::failure::FailureKind;
use crate::interp::setup::Setup;
use crate::shape::Extent;
use crate::unroll::Span;

/// The rows must be held, and within one chunk. The slot and the columns must exist.
pub(super) fn bounds(
    setup: &Setup<'_>,
    who: &Who<'_>,
    span: &Span,
    home: u16,
    mode: Mode,
) -> Check<()> {
    let fail = |inside: (Extent, Extent)| {
        Err(Box::new(FailureKind::OutOfBounds {
            by: setup.site(&who.at, mode.verb()),
            what: setup.rect(span, home),
            inside,
        }))
    };
    let nothing = Extent::default();
    if usize::from(home) >= setup.world {
        return fail((nothing, nothing));
    }
    let buffer = &setup.kernel.buffers[span.buffer.index()];
    let geometry = &setup.plan(who.at.launch, who.at.rank).geometry;
    let mut rows = geometry.held(buffer, u32::from(home));
    let columns = Extent {
        start: 0,
        end: geometry.size(buffer.columns),
    };
    if u32::from(span.slot) >= buffer.slots(setup.world as u32) {
        return fail((nothing, nothing));
    }
    if geometry.chunks(buffer.rows) > 1 {
        let chunk = geometry.chunk(
            buffer.rows,
            span.rows.start / geometry.chunk_rows(buffer.rows),
        );
        rows = Extent {
            start: rows.start.max(chunk.start),
            end: rows.end.min(chunk.end),
        };
    }
    let inside =
        |inner: Extent, outer: Extent| inner.start >= outer.start && inner.end <= outer.end;
    if span.rows.is_empty()
        || span.columns.is_empty()
        || (inside(span.rows, rows) && inside(span.columns, columns))
    {
        Ok(())
    } else {
        fail((rows, columns))
    }
}
