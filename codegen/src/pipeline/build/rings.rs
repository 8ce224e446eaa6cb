//! The rings of a pipeline: what their slots hold, where they lie, and whose arrivals they count.

use super::super::{BOX_COLUMNS, CONSUMERS, Expr, Part, Ring, Scope};
use super::{Product, comm, operand};
use crate::kernel::Kernel;
use crate::program::TensorId;

/// The rings, laid out one after another; boxes on their way lie where the others will be, before those are used.
pub(super) fn lay_out(product: &Product, comm: bool, kernel: &Kernel) -> Vec<Ring> {
    let tile = product.tile;
    let name = |id: TensorId| kernel.buffers[id.index()].name.clone();
    let [x_rows, w_rows] = kernel.variant.layout.rows_contiguous();
    // One lane of each warp that takes part in a tile arrives for it.
    let warps = if product.in_turn { 4 } else { CONSUMERS * 4 };
    let stages = Ring {
        name: "stage",
        slots: product.fit.stages,
        sets: 1,
        handed_on: false,
        parts: vec![
            Part {
                name: name(product.x),
                bytes: operand::bytes(tile.rows, tile.k, x_rows),
            },
            Part {
                name: name(product.w),
                bytes: operand::bytes(tile.columns, tile.k, w_rows),
            },
        ],
        at: 0,
        ctas: product.beside(),
        peer: product.rank(Expr::var("share"), Expr::var("lane")),
        exchange: None,
        full: 1,
        all_full: None,
        empty: warps * product.beside(),
    };
    // Each warpgroup has panels of its own.
    let own = product.in_turn || product.fit.staggered;
    let panels = Ring {
        name: "panel",
        slots: product.fit.panels,
        sets: if own { CONSUMERS } else { 1 },
        handed_on: product.fit.staggered,
        parts: vec![Part {
            name: "panel".into(),
            bytes: product.panel_bytes(),
        }],
        at: if product.over_stages {
            stages.at
        } else {
            stages.slots * stages.slot_bytes()
        },
        ctas: 1,
        peer: Expr::var("lane"),
        exchange: None,
        full: if own { 4 } else { warps },
        all_full: None,
        empty: u32::from(!product.over_stages),
    };
    let room = panels.at + panels.places() * panels.slot_bytes();
    let mut rings = vec![stages, panels];
    if product.split > 1 {
        rings.push(Ring {
            name: "sum",
            slots: 1,
            sets: CONSUMERS,
            handed_on: false,
            parts: vec![Part {
                name: "sum".into(),
                bytes: product.sum_bytes / CONSUMERS,
            }],
            at: room,
            ctas: product.split,
            peer: product.rank(Expr::var("lane"), Expr::var("half")),
            exchange: Some(Scope::Cluster),
            // The thread that says how many bytes come; a lane of each warp of the others that read theirs.
            full: 1,
            all_full: None,
            empty: if product.over_stages {
                0
            } else {
                (product.split - 1) * 4
            },
        });
    }
    if product.over_stages {
        let lane = || Expr::var("lane");
        rings.push(Ring {
            name: "tile",
            slots: 1,
            sets: 1,
            handed_on: false,
            parts: Vec::new(),
            at: 0,
            ctas: product.beside(),
            peer: product.rank(Expr::var("share"), lane()),
            exchange: None,
            // A lane of each warp that multiplies, of all that share the tile; the thread that stores, of all that load
            // into each other's stages.
            full: warps * product.split,
            all_full: Some((product.split, product.rank(lane(), Expr::var("half")))),
            empty: product.beside(),
        });
    }
    if comm {
        let bytes = comm::box_rows(kernel) * BOX_COLUMNS * 2;
        rings.push(Ring {
            name: "box",
            slots: (room / bytes).min(12),
            sets: 1,
            handed_on: false,
            parts: vec![Part {
                name: "box".into(),
                bytes,
            }],
            at: 0,
            ctas: 1,
            peer: Expr::var("lane"),
            exchange: None,
            full: 1,
            all_full: None,
            empty: 1,
        });
    }
    rings
}
