//! The rings of a pipeline: what their slots hold, and whose arrivals they count. Where they lie is the CTA's to say.

use super::super::{CONSUMERS, Expr, Part, Ring, Scope};
use super::Builder;

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
            ctas: 1,
            peer: lane(),
            exchange: None,
            full: 1,
            all_full: None,
            empty: 1,
        }
    };
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
        ctas: cta.beside(),
        peer: b.rank(Expr::var("share"), lane()),
        empty: warps * cta.beside(),
        ..ring("stage", operands.collect())
    };
    let panels = Ring {
        full: if cta.ordered() { 4 } else { warps },
        empty: u32::from(!cta.aliased()),
        ..ring("panel", one("panel"))
    };
    let mut rings = vec![stages, panels];
    if tiling.split() > 1 {
        rings.push(Ring {
            ctas: tiling.split(),
            peer: b.rank(lane(), Expr::var("half")),
            exchange: Some(Scope::Cluster),
            // The thread that says how many bytes come; a lane of each warp of the others that read theirs.
            empty: if cta.aliased() {
                0
            } else {
                (tiling.split() - 1) * 4
            },
            ..ring("sum", one("sum"))
        });
    }
    if cta.aliased() {
        rings.push(Ring {
            name: "tile",
            slots: 1,
            sets: 1,
            ctas: cta.beside(),
            peer: b.rank(Expr::var("share"), lane()),
            // A lane of each warp that multiplies, of all that share the tile; the thread that stores, of all that load
            // into each other's stages.
            full: warps * tiling.split(),
            all_full: Some((tiling.split(), b.rank(lane(), Expr::var("half")))),
            empty: cta.beside(),
            ..ring("stage", Vec::new())
        });
    }
    if cta.region("box").is_some() {
        rings.push(ring("box", one("box")));
    }
    rings
}

const _: () = assert!(CONSUMERS == 2);
