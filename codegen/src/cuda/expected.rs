//! How many instructions of each kind a kernel's machine code must have: worked out from the variant's tile and the
//! schedule's statements, not from the text. Loops say whether they are unrolled, so the counts are exact.

use crate::kernel::{OpKind, visit};
use crate::pipeline::{CONSUMERS, Pipeline};
use crate::program::StoreMode;

/// (SASS mnemonic, how many).
pub fn instructions(pipeline: &Pipeline) -> Vec<(&'static str, u32)> {
    let tile = pipeline.tile;
    // A consumer multiplies 64 rows of a tile at a time, 16 deep.
    let mma = tile.rows / CONSUMERS / 64 * (tile.k / 16);
    // stmatrix.x4 writes, and ldmatrix.x4 reads, 16 rows by 16 columns of a warp.
    let blocks = tile.rows * tile.columns / (CONSUMERS * 4 * 256);
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
