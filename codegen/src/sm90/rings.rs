//! The rings of a pipeline: the parts of their slots, and the arrivals that their barriers count. The CTA says where they lie.

use super::builder::Builder;
use super::cta::{Cta, Region, SlotKind};
use crate::kernel::Kernel;
use crate::tiling::{StagedScale, strides};
use crate::warp::{
    Barrier, Buffer, CONSUMERS, MulticastArrivals, Part, Ring, RingId, Scope, identifier,
};

/// The ring of operands.
pub(super) const STAGES: RingId = RingId(0);
/// The ring of output subtiles.
pub(super) const SUBTILES: RingId = RingId(1);
/// The ring of partials that CTAs which split a tile's K send each other. Such a kernel moves no boxes.
pub(super) const PARTIALS: RingId = RingId(2);
/// The stages together, where partials and subtiles lie in them, as barriers alone: a tile in between is full when all CTAs that
/// share it are done with its steps, and empty when all its subtiles were read.
pub(super) const TILES: RingId = RingId(3);
/// The ring of staging buffers on their way to a peer: behind those of tiles, if any are computed.
pub(super) fn staging(cta: &Cta) -> RingId {
    RingId(if cta.computes() { 2 } else { 0 })
}

/// The ring of boxes that spare warps copy: behind that of CTAs that move data, if there are any.
pub(super) fn spare_staging(cta: &Cta) -> RingId {
    RingId(2 + u16::from(cta.region(SlotKind::Staging).is_some()))
}

/// The rings: one for each region of shared memory. One more hands the stages' memory over, if partials and subtiles lie there.
pub(super) fn lay_out(b: &Builder<'_>) -> Vec<Ring> {
    let cta = b.cta;
    let mut rings = of_tiles(b);
    if let Some(staging) = cta.region(SlotKind::Staging) {
        let (full, empty) = (landing("staging_full"), barrier("staging_empty", 1));
        rings.push(over(staging, full, Some(empty)));
    }
    if let Some(staging) = cta.region(SlotKind::SpareStaging) {
        // Who sends a box is who loads the next one: nobody has to be told that its place is empty.
        let full = landing("spare_staging_full");
        rings.push(over(staging, full, None));
    }
    rings
}

/// Rings that tiles pass through, if any are computed.
fn of_tiles(b: &Builder<'_>) -> Vec<Ring> {
    let cta = b.cta;
    let Some(stages) = b.stage.clone() else {
        return Vec::new();
    };
    let split = cta.split();
    let region = |of| cta.region(of).expect("a region for each ring");
    // One lane of each warp that takes part in a tile arrives for it.
    let warps = cta.mode().warpgroups() * 4;
    let mut stage_empty = barrier("stage_empty", warps * cta.multicast_group());
    if cta.multicast_group() > 1 {
        stage_empty = multicast(stage_empty, cta.multicast_group());
        // Threads read scales of blocks there, which this CTA alone loads.
        if cta.tilings().iter().any(|it| !it.scales().is_empty()) {
            stage_empty.scope = Scope::Own;
        }
    }
    let stage = Ring {
        buffer: Some(stages),
        ..over(
            region(SlotKind::Stage),
            landing("stage_full"),
            Some(stage_empty),
        )
    };
    let subtile = over(
        region(SlotKind::Subtile),
        barrier("subtile_full", if cta.ordered() { 4 } else { warps }),
        (!cta.aliased()).then(|| barrier("subtile_empty", 1)),
    );
    let mut rings = vec![stage, subtile];
    if split > 1 {
        let full = Barrier {
            scope: Scope::Cluster,
            ..landing("split_partial_full")
        };
        // A lane of each warp of the others that read theirs.
        let empty = || Barrier {
            multicast: Some(MulticastArrivals {
                ctas: split,
                others: true,
            }),
            scope: Scope::Cluster,
            ..barrier("split_partial_empty", (split - 1) * 4)
        };
        let empty = (!cta.aliased()).then(empty);
        rings.push(over(region(SlotKind::SplitPartial), full, empty));
    }
    if cta.aliased() {
        rings.push(Ring {
            of: SlotKind::Tile,
            slots: 1,
            sets: 1,
            buffer: None,
            // A lane of each warp that multiplies, of all that share the tile; the thread that stores.
            full: multicast(barrier("tile_full", warps * split), split),
            empty: Some(barrier("tile_empty", 1)),
        });
    }
    rings
}

/// Contents of a stage: each loop's operands, and which of these parts they are by the loop's tiling. Loops that
/// multiply other tensors have them in the same places; what one instruction reads for several products lies one
/// behind the other. `None` without tiles.
pub(super) fn stage(kernel: &Kernel, cta: &Cta) -> Option<Buffer> {
    let stage = cta.region(SlotKind::Stage)?;
    // Parts as their tensors are called, then by names of their own.
    let (mut parts, mut named): (Vec<Part>, Vec<Part>) = Default::default();
    let (mut of_loops, mut tiles) = (Vec::new(), Vec::new());
    // An array has the same places in all loops.
    let strides = strides(cta.tilings());
    for tiling in cta.tilings() {
        let (mut at, mut own) = (0, Vec::new());
        for (array, stride) in tiling.arrays().into_iter().zip(&strides) {
            let stride = *stride;
            let mut within = at;
            let parted = array.iter().enumerate().map(|(nth, operand)| {
                let part = Part {
                    name: identifier(&kernel.buffers[operand.tensor.index()].name),
                    bytes: operand.bytes,
                    at: within,
                    stride,
                    behind: nth > 0,
                };
                within += operand.bytes;
                part
            });
            let parted: Vec<Part> = parted.collect();
            // Constants are named after the part that has the tile's columns, so other tiles have another one.
            let has_columns = array.iter().any(|operand| operand.columns);
            let tile = has_columns.then(|| tiling.tile());
            let mut known = parts.windows(parted.len()).zip(&tiles);
            let known = known.position(|(known, of)| known == parted && *of == tile);
            let first = known.unwrap_or_else(|| {
                for part in parted {
                    tiles.push(tile);
                    named.push(named_apart(part.clone(), &named));
                    parts.push(part);
                }
                parts.len() - array.len()
            });
            own.extend(first..first + array.len());
            at += stage.places() * stride;
        }
        // Scales lie behind all of them.
        at = stage.places() * strides.iter().sum::<u32>();
        for (nth, scale) in tiling.scales().iter().enumerate() {
            let of_loops = cta.tilings().iter().filter_map(|it| it.scales().get(nth));
            let part = Part {
                name: identifier(&kernel.buffers[scale.tensor.index()].name.replace('.', "_")),
                bytes: scale.bytes(),
                at,
                stride: of_loops.map(StagedScale::bytes).max().unwrap_or(0),
                behind: false,
            };
            at += stage.places() * part.stride;
            let known = parts.iter().position(|known| *known == part);
            own.push(known.unwrap_or_else(|| {
                tiles.push(None);
                named.push(named_apart(part.clone(), &named));
                parts.push(part);
                parts.len() - 1
            }));
        }
        of_loops.push(own);
    }
    if parts.is_empty() {
        let stored = vec![whole("stored", stage)];
        return Some(Buffer::of(stage, stored, Vec::new()));
    }
    Some(Buffer::of(stage, named, of_loops))
}

/// A part by another name than those of its tensor that lie elsewhere.
fn named_apart(mut part: Part, others: &[Part]) -> Part {
    while others.iter().any(|other| other.name == part.name) {
        part.name.push('_');
    }
    part
}

/// A part that is all of a slot.
fn whole(name: &str, region: &Region) -> Part {
    Part {
        name: name.into(),
        bytes: region.bytes,
        at: 0,
        stride: region.bytes,
        behind: false,
    }
}

/// A ring over a region, whose slots hold one part.
fn over(region: &Region, full: Barrier, empty: Option<Barrier>) -> Ring {
    Ring {
        of: region.of,
        slots: region.slots,
        sets: region.sets,
        buffer: Some(Buffer::of(
            region,
            vec![whole(region.of.name(), region)],
            Vec::new(),
        )),
        full,
        empty,
    }
}

/// A barrier of this CTA alone.
const fn barrier(name: &'static str, arrivals: u32) -> Barrier {
    Barrier {
        name,
        arrivals,
        multicast: None,
        scope: Scope::Cta,
        tx: false,
    }
}

/// A barrier of this CTA on which bytes land: one thread says how many.
fn landing(name: &'static str) -> Barrier {
    Barrier {
        tx: true,
        ..barrier(name, 1)
    }
}

/// A barrier with multicast arrivals: each arrives at that barrier of several CTAs. They are relaxed, since the reads that they
/// announce are complete.
fn multicast(barrier: Barrier, ctas: u32) -> Barrier {
    Barrier {
        multicast: Some(MulticastArrivals {
            ctas,
            others: false,
        }),
        scope: Scope::Relaxed,
        ..barrier
    }
}

const _: () = assert!(CONSUMERS == 2);
