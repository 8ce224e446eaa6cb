//! How many instructions of each kind a kernel's machine code must have: worked out from the tile, not from the text.

use crate::kernel::{OpKind, RoleKind, visit};
use crate::pipeline::Pipeline;
use crate::program::StoreMode;

/// (SASS mnemonic, the count is a multiple of, and at least). ptxas peels and unrolls loops, so only what cannot be
/// split has an exact count.
pub fn instructions(pipeline: &Pipeline) -> Vec<(&'static str, u32, u32)> {
    let tile = pipeline.tile;
    // Two warpgroups share a tile, or each has one of its own.
    let in_turn =
        pipeline.kernel.roles.iter().any(
            |role| matches!(role.kind, RoleKind::Gemm(gemm) if gemm.ping_pong || tile.rows == 64),
        );
    let rows = if in_turn { tile.rows } else { tile.rows / 2 };
    // wgmma multiplies 64 rows at a time, 16 deep.
    let mma = rows / 64 * (tile.k / 16);
    // stmatrix.x4 writes 16 rows by 16 columns of a warp, of which four have the rows.
    let writes = rows * tile.columns / (4 * 256);
    let (mut stores, mut adds, mut sums, mut copies) = (0, 0, 0, 0);
    for role in &pipeline.kernel.roles {
        visit(&role.body, &mut |op| {
            if let OpKind::Store { mode, .. } = op.kind {
                match mode {
                    StoreMode::Write => stores += 1,
                    StoreMode::Add => adds += 1,
                }
            }
            sums += u32::from(matches!(op.kind, OpKind::Reduce { .. }));
            copies += u32::from(matches!(op.kind, OpKind::Copy { .. }) && !role.kind.sequential());
        });
    }
    let loads = 2 + sums + copies;
    let mut all = vec![
        ("HGMMA", mma, mma),
        ("UTMALDG", 1, loads),
        ("UTMASTG", 1, stores + copies),
        ("STSM", writes, writes),
        ("USETMAXREG", 2, 2),
    ];
    if adds > 0 {
        all.push(("UTMAREDG", 1, adds));
    }
    if sums > 0 {
        all.push(("LDSM", writes, writes));
    }
    all
}
