//! The rings of a pipeline: what their slots hold, and whose arrivals they count. Where they lie is the CTA's to say.

use super::builder::Builder;
use crate::warp::{Barrier, CONSUMERS, Expr, Order, Part, Ring, RingId, Told};

/// The ring of operands.
pub(super) const STAGES: RingId = RingId(0);
/// The ring of output panels.
pub(super) const PANELS: RingId = RingId(1);
/// The ring of sums that CTAs which share a tile's steps send each other. Such a kernel moves no boxes.
pub(super) const SUMS: RingId = RingId(2);
/// The stages together, where sums and panels lie in them: a tile in between is full when all CTAs that share it are
/// done with its steps, and empty when all its panels were read.
pub(super) const TILES: RingId = RingId(3);
/// The ring of boxes on their way to a peer.
pub(super) const BOXES: RingId = RingId(2);

/// The rings, one a region of shared memory, and the one that says whose the stages are where others lie in them.
pub(super) fn lay_out(b: &Builder<'_>) -> Vec<Ring> {
    let (cta, tiling) = (b.cta, b.tiling());
    let lane = || Expr::var("lane");
    // One lane of each warp that takes part in a tile arrives for it.
    let warps = cta.mode().warpgroups() * 4;
    let ring = |name, parts: Vec<Part>| {
        let region = cta.region(name).expect("a region for each ring");
        Ring {
            name,
            slots: region.slots,
            sets: region.sets,
            lifetime: region.lifetime,
            parts,
            at: region.at,
            exchange: false,
            full: alone(1),
            empty: Some(alone(1)),
        }
    };
    // To those that load into each other's stages.
    let beside = |arrivals| match cta.beside() {
        1 => alone(arrivals),
        ctas => told(arrivals, ctas, b.rank(Expr::var("share"), lane())),
    };
    // To those that share the tile.
    let sharing = || b.rank(lane(), Expr::var("half"));
    let one = |name: &str| {
        let bytes = cta.region(name).map_or(0, |region| region.bytes);
        vec![Part {
            name: name.into(),
            bytes,
        }]
    };
    let operands = tiling.operands().iter().map(|operand| Part {
        name: b.kernel.buffers[operand.tensor.index()].name.clone(),
        bytes: operand.bytes,
    });
    let stages = Ring {
        empty: Some(beside(warps * cta.beside())),
        ..ring("stage", operands.collect())
    };
    let panels = Ring {
        full: alone(if cta.ordered() { 4 } else { warps }),
        empty: (!cta.aliased()).then(|| alone(1)),
        ..ring("panel", one("panel"))
    };
    let mut rings = vec![stages, panels];
    if tiling.split() > 1 {
        rings.push(Ring {
            exchange: true,
            // The thread that says how many bytes come; a lane of each warp of the others that read theirs.
            full: Barrier {
                order: Order::Cluster,
                ..alone(1)
            },
            empty: (!cta.aliased()).then(|| Barrier {
                arrivals: (tiling.split() - 1) * 4,
                told: Some(Told {
                    ctas: tiling.split(),
                    peer: sharing(),
                    others: true,
                }),
                order: Order::Cluster,
            }),
            ..ring("sum", one("sum"))
        });
    }
    if cta.aliased() {
        rings.push(Ring {
            name: "tile",
            slots: 1,
            sets: 1,
            // A lane of each warp that multiplies, of all that share the tile; the thread that stores, of all that load
            // into each other's stages.
            full: told(warps * tiling.split(), tiling.split(), sharing()),
            empty: Some(beside(cta.beside())),
            ..ring("stage", Vec::new())
        });
    }
    if cta.region("box").is_some() {
        rings.push(ring("box", one("box")));
    }
    rings
}

/// A barrier of this CTA alone.
const fn alone(arrivals: u32) -> Barrier {
    Barrier {
        arrivals,
        told: None,
        order: Order::Cta,
    }
}

/// A barrier whose arrivals are at that of each of several CTAs: they order what is complete by then.
const fn told(arrivals: u32, ctas: u32, peer: Expr) -> Barrier {
    Barrier {
        arrivals,
        told: Some(Told {
            ctas,
            peer,
            others: false,
        }),
        order: Order::Complete,
    }
}

const _: () = assert!(CONSUMERS == 2);
