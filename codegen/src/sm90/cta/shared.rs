//! Rules about CTAs that share work: what clusters load together, and the steps of a tile that several multiply.

use super::asked::TileRequest;
use super::finding::refuse;
use super::wgmma::{ATOM_ROWS, Mode};
use crate::diag::Diagnostic;
use crate::kernel::{Block, GemmKind, RoleKind};

/// CTAs of a cluster, at most: what every GPU of the architecture can place, and CUDA's portable size.
const MOST_CTAS: u32 = 8;

/// Tiles of nothing multiplied are one CTA's, and of both warpgroups: what they read comes through the stages.
pub(super) fn shared_alone(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if !asked.products.is_empty() {
        return found;
    }
    if asked.kind.ctas() > 1 {
        let message = "clusters of CTAs that multiply nothing";
        let hint = "cluster = (1, 1) and split = 1: they share operands and steps";
        found.push(refuse(asked.at, message, hint));
    }
    if asked.wgmma.mode == Mode::PingPong {
        let (message, hint) = match asked.kind.ping_pong {
            true => (
                format!("{} that multiply nothing, in ping-pong", asked.tiles()),
                "cooperative tiles: of 128 or 256 rows, without `ping_pong`",
            ),
            false => (
                format!("{} that multiply nothing", asked.tiles()),
                "tiles of 128 or 256 rows: both warpgroups share a tile where nothing is multiplied",
            ),
        };
        found.push(refuse(asked.at, message, hint));
    }
    found
}

/// CTAs that load together.
pub(super) fn clusters(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let (down, across) = asked.kind.cluster;
    let ctas = down.saturating_mul(across);
    if ctas > 2 {
        let message = format!("a cluster of {down}x{across}");
        found.push(refuse(asked.at, message, "1x1, 2x1 or 1x2"));
    } else if ctas == 2 && !asked.kernel.counters.is_empty() {
        // A cluster's tiles count as one, and the last may lie outside: no cell of a counter is for it.
        let message = format!("a cluster of {down}x{across} in a kernel that signals");
        found.push(refuse(
            asked.at,
            message,
            "1x1: clusters are for GEMMs alone",
        ));
    }
    found.extend(some_in_cluster(asked));
    let rows = asked.wgmma.tile.rows;
    let [x_rows, _] = asked.kernel.variant.layout.mn_major();
    if across == 2 && !x_rows && !rows.is_multiple_of(2 * ATOM_ROWS) {
        found.push(refuse(
            asked.at,
            format!("a cluster that shares the rows of tiles of {rows}"),
            "a multiple of 16 rows: its CTAs load whole swizzle atoms",
        ));
    }
    found
}

/// Refuses a selection of tiles that a cluster computes together.
pub(super) fn some_in_cluster(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let (down, across) = asked.kind.cluster;
    if !asked.selects || down.saturating_mul(across) <= 1 {
        return Vec::new();
    }
    let message = format!("some of the tiles, in a cluster of {down}x{across}");
    let hint = "1x1: a cluster has neighbouring tiles together";
    vec![refuse(asked.at, message, hint)]
}

/// CTAs that split the K of a tile.
pub(super) fn splits(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let (kernel, kind, at) = (asked.kernel, asked.kind, asked.at);
    let split = kind.split;
    let mut found = Vec::new();
    if split <= 1 {
        return found;
    }
    if split > MOST_CTAS {
        let message = format!("{split} CTAs that split the K of a tile");
        let hint = format!("at most {MOST_CTAS}: a cluster has no more CTAs");
        found.push(refuse(at, message, hint));
    } else if kind.cluster != (1, 1) {
        let (down, across) = kind.cluster;
        let message =
            format!("{split} CTAs that split the K of a tile, in a cluster of {down}x{across}");
        let hint = "cluster = (1, 1), or split = 1: the CTAs of a cluster share operands or steps";
        found.push(refuse(at, message, hint));
    }
    if asked.products.len() > 1 {
        let message = format!("{split} CTAs that split the K of several products");
        found.push(refuse(at, message, "split = 1, or one product an item"));
    }
    let communicates = (kernel.roles.iter()).any(|role| !matches!(role.kind, RoleKind::Gemm(_)));
    if communicates || !kernel.counters.is_empty() {
        let message = format!(
            "{split} CTAs that split the K of a tile, in a kernel that moves data or signals"
        );
        found.push(refuse(at, message, "split = 1: it is for GEMMs alone"));
        return found;
    }
    let loops = (kernel.roles.iter())
        .flat_map(|role| &role.body)
        .filter(|block| !matches!(block, Block::Once { .. } | Block::Join));
    if loops.clone().count() > 1
        || loops
            .clone()
            .any(|block| !matches!(block, Block::Items { .. }))
    {
        // The last tile of a CTA is released differently: the loop must know which one that is.
        let message = format!("{split} CTAs that split the K of a tile, in several loops");
        found.push(refuse(at, message, "split = 1, or one loop over tiles"));
    }
    found
}

/// A cluster that a GPU can place, whatever its tiles.
pub(super) fn cluster_fits(kind: &GemmKind) -> Option<Diagnostic> {
    let (ctas, (down, across)) = (kind.ctas(), kind.cluster);
    if ctas <= MOST_CTAS {
        return None;
    }
    let message = if kind.split > 1 {
        format!("a cluster of {ctas} CTAs")
    } else {
        format!("a cluster of {down}x{across} CTAs")
    };
    let hint = format!("a cluster has at most {MOST_CTAS} CTAs");
    Some(refuse(None, message, hint))
}
