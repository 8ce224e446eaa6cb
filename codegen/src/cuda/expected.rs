//! How many instructions of each kind a kernel's machine code must have: worked out from the variant's tile and the
//! schedule's statements, not from the text. Loops say whether they are unrolled, so the counts are exact.

use crate::kernel::{OpKind, RoleKind, visit};
use crate::pipeline::Pipeline;
use crate::program::StoreMode;

/// (SASS mnemonic, how many).
pub fn instructions(pipeline: &Pipeline) -> Vec<(&'static str, u32)> {
    let tile = pipeline.tile;
    // Two warpgroups share a tile, or each has one of its own.
    let in_turn =
        pipeline.kernel.roles.iter().any(
            |role| matches!(role.kind, RoleKind::Gemm(gemm) if gemm.ping_pong || tile.rows <= 64),
        );
    let rows = if in_turn {
        tile.rows.max(64)
    } else {
        tile.rows / 2
    };
    // wgmma multiplies 64 rows at a time, 16 deep.
    let mma = rows / 64 * (tile.k / 16);
    // stmatrix.x4 writes, and ldmatrix.x4 reads, 16 rows by 16 columns of a warp, of which four have the rows.
    let blocks = rows * tile.columns / (4 * 256);
    let (mut products, mut writes, mut adds, mut sums, mut copies) = (0, 0, 0, 0, 0);
    for role in &pipeline.kernel.roles {
        visit(&role.body, &mut |op| match &op.kind {
            OpKind::Dot { .. } => products += 1,
            OpKind::Reduce { .. } => sums += 1,
            OpKind::Store { mode, .. } => match mode {
                StoreMode::Write => writes += 1,
                StoreMode::Add => adds += 1,
            },
            // The host copies for a role without CTAs.
            OpKind::Copy { .. } => copies += u32::from(!role.kind.sequential()),
            OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Load { .. }
            | OpKind::ForRanks { .. }
            | OpKind::ForSplits { .. }
            | OpKind::If { .. } => {}
        });
    }
    vec![
        ("HGMMA", products * mma),
        // Two operands a step, a panel of another rank's sum, a box.
        ("UTMALDG", 2 * products + sums + copies),
        ("UTMASTG", writes + copies),
        ("UTMAREDG", adds),
        ("STSM", products * blocks),
        ("LDSM", sums * blocks),
        // One gives registers, the others take them.
        ("USETMAXREG", 2),
    ]
}
