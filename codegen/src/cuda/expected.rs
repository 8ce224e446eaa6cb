//! How many instructions of each kind a kernel's machine code must have: worked out from the tile, not from the text.

use crate::kernel::{OpKind, Region, visit};
use crate::pipeline::{CONSUMERS, Pipeline};
use crate::program::{StoreMode, TensorKind};

/// (SASS mnemonic, the count is a multiple of, and at least). ptxas peels and unrolls loops, so only what cannot be
/// split has an exact count.
pub fn instructions(pipeline: &Pipeline) -> Vec<(&'static str, u32, u32)> {
    let tile = pipeline.tile;
    // A consumer multiplies 64 rows of a tile at a time, 16 deep.
    let mma = tile.rows / CONSUMERS / 64 * (tile.k / 16);
    // stmatrix.x4 writes 16 rows by 16 columns of a warp.
    let writes = tile.rows * tile.columns / (CONSUMERS * 4 * 256);
    let (mut stores, mut adds, mut sums, mut copies, mut tiles) = (0, 0, 0, 0, 0);
    // Matrix instructions move 16-bit elements; f32 goes by ordinary ones.
    let (mut halves_out, mut halves_in) = (false, false);
    let half = |region: &Region| pipeline.kernel.buffers[region.buffer.index()].dtype.bytes() == 2;
    for role in &pipeline.kernel.roles {
        visit(&role.body, &mut |op| {
            if let OpKind::Store { mode, dst, .. } = &op.kind {
                halves_out |= half(dst);
                match mode {
                    StoreMode::Write => stores += 1,
                    StoreMode::Add => adds += 1,
                }
            }
            sums += u32::from(matches!(op.kind, OpKind::Reduce { .. }));
            if let OpKind::Load { from, .. } = &op.kind
                && pipeline.kernel.buffers[from.buffer.index()].kind != TensorKind::Vector
            {
                tiles += 1;
                halves_in |= half(from);
            }
            copies += u32::from(matches!(op.kind, OpKind::Copy { .. }) && !role.kind.sequential());
        });
    }
    let loads = 2 + sums + tiles + copies;
    let mut all = vec![
        ("HGMMA", mma, mma),
        ("UTMALDG", 1, loads),
        ("UTMASTG", 1, stores + copies),
        ("USETMAXREG", 2, 2),
    ];
    if halves_out {
        all.push(("STSM", writes, writes));
    }
    if adds > 0 {
        all.push(("UTMAREDG", 1, adds));
    }
    if sums > 0 || halves_in {
        all.push(("LDSM", writes, writes));
    }
    all
}
