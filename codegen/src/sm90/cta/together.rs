//! Rules about the loops of one kernel, which share stages and take turns at them.

use super::asked::{Loop, TileRequest, in_sequence, multiplies};
use super::finding::refuse;
use super::wgmma::Mode;
use crate::diag::Diagnostic;
use crate::kernel::{Op, OpKind, Role, RoleKind, visit_ops};

/// The largest tile that leaves a thread registers for its part of a sum, in ping-pong: 128 rows of so many columns. 64x256 spills.
const MOST_BESIDE_A_SUM: (u32, u32) = (128, 128);

/// Refuses loops that do not have in common with the first what a pipeline needs.
pub(super) fn of_loops(loops: &[TileRequest<'_>]) -> Vec<Diagnostic> {
    let Some((first, others)) = loops.split_first() else {
        return Vec::new();
    };
    let found = others
        .iter()
        .map(|other| unlike_tiles(first, other).or_else(|| unlike(first, other)));
    found.flatten().collect()
}

/// Refuses tiles of a loop that cannot pass through what those of the first do.
fn unlike_tiles(first: &TileRequest<'_>, other: &TileRequest<'_>) -> Option<Diagnostic> {
    if other.passes_with(first) {
        return None;
    }
    let message = format!("{}, beside a loop with {}", other.tiles(), first.tiles());
    let hint = match (
        first.products.is_empty() || first.wgmma.swap_ab(),
        first.wgmma.mode,
    ) {
        (true, _) => "tiles of one shape in all loops",
        (false, Mode::Cooperative) => {
            "tiles of 128 or 256 rows in all loops, as this kernel's warpgroups share each tile: rows and columns may differ"
        }
        (false, Mode::PingPong) => {
            "tiles of 64 or 128 rows in all loops, as each of this kernel's warpgroups has tiles of its own: rows and columns \
                may differ"
        }
    };
    Some(refuse(other.at, message, hint))
}

/// Refuses a loop that differs from the first in what their warps and their stages share.
fn unlike(first: &TileRequest<'_>, other: &TileRequest<'_>) -> Option<Diagnostic> {
    let depth = |asked: &TileRequest<'_>| {
        let [x, _] = *asked.products.first()?;
        Some(asked.kernel.buffers[x.index()].columns)
    };
    let products = [first, other].map(|asked| asked.stages().1);
    let common = products[0].len().min(products[1].len());
    // What fewer products read lies where that of the first of several does.
    if products[0][..common] != products[1][..common] || !within(first, other) {
        let [before, here] = products.map(|of| of.len());
        let message = match here == before {
            true => "products that share other operands than those of the loop before do".into(),
            false => format!("items of {here} products, beside a loop whose items have {before}"),
        };
        let hint = "operands of the tile's rows that each item's products share, or as many products in each loop, \
            which share operands alike: loops have the same stages";
        return Some(refuse(other.at, message, hint));
    }
    if first.dtype != other.dtype {
        let message = format!(
            "a product of {}, beside a loop of {}",
            other.dtype, first.dtype
        );
        let hint = "operands of one type in all loops";
        return Some(refuse(other.at, message, hint));
    }
    if other.wgmma.mode == Mode::PingPong && depth(first) != depth(other) {
        let message = "loops of another depth, with tiles in ping-pong";
        let hint = "cooperative tiles: each warpgroup skips as many steps as the other one's next tile has";
        return Some(refuse(other.at, message, hint));
    }
    if other.wgmma.mode == Mode::PingPong && first.wgmma.tile != other.wgmma.tile {
        let sums = [first, other].map(|asked| !asked.item.sums.is_empty());
        let message = format!(
            "{}, beside a sum of stored tiles in ping-pong",
            other.tiles()
        );
        let hint =
            "tiles of one shape in all loops: subtiles have one size, and the sum registers for it";
        return sums
            .contains(&true)
            .then(|| refuse(other.at, message, hint));
    }
    None
}

/// True if the operands of one of two loops have room where those of the other are: they have as many of the tile's rows.
fn within(one: &TileRequest<'_>, other: &TileRequest<'_>) -> bool {
    let of_rows = |asked: &TileRequest<'_>| {
        let (staged, _) = asked.stages();
        staged.iter().filter(|(_, side)| *side == 0).count()
    };
    one.products.len() == other.products.len() || of_rows(one) == of_rows(other)
}

/// Warpgroups that take tiles by turns skip the steps of each other's: those of a loop without a product have none. A loop's
/// count is known to the launch only, so whoever comes after it may not multiply.
pub(super) fn before_products(
    beside: &[TileRequest<'_>],
    in_sequence: &[Loop<'_>],
    multiplies: impl Fn(&[Op]) -> bool,
) -> Vec<Diagnostic> {
    let last = in_sequence.iter().rposition(|each| multiplies(each.body));
    let before = &in_sequence[..last.unwrap_or(0)];
    let found = beside
        .iter()
        .filter(|asked| before.iter().any(|each| each.items == asked.items));
    let refused = found.map(|asked| {
        let message =
            "a loop that multiplies nothing before one that does, with tiles in ping-pong";
        let hint = "such loops last, or cooperative tiles: of 128 or 256 rows, without `ping_pong`";
        refuse(asked.at, message, hint)
    });
    refused.collect()
}

/// True if warpgroups that take tiles by turns can read the sum of this loop's items. Each passes over the stages of the other's
/// tile, so it must know how many those are: all tiles of one loop have the same sum, nothing is multiplied behind them, and a
/// CTA's tiles are a grid apart.
///
/// A warpgroup has a part of the sum in registers beside all of its tile, and none left for vectors, scales or an amax: with scales
/// of rows it spills.
pub(super) fn summed_by_turns(asked: &TileRequest<'_>) -> bool {
    let (kernel, results) = (asked.kernel, asked.results);
    let of_one_kind = asked.kind.ping_pong
        && asked.kind.split == 1
        && asked.kind.cluster == (1, 1)
        && !asked.wgmma.swap_ab()
        && !results.bytes
        && !results.amax
        && (results.vectors, results.numbers) == ([0, 0], 0)
        && asked.wgmma.tile.rows == MOST_BESIDE_A_SUM.0
        && asked.wgmma.tile.columns <= MOST_BESIDE_A_SUM.1
        && !asked.promotes();
    let [
        Role {
            kind: RoleKind::Gemm(_),
            body,
            ..
        },
    ] = kernel.roles.as_slice()
    else {
        return false;
    };
    let in_sequence = in_sequence(body);
    let summing = in_sequence.iter().filter(|each| sums(each.body) > 0);
    let summing: Vec<&Loop<'_>> = summing.collect();
    let last = in_sequence
        .iter()
        .rfind(|each| multiplies(kernel, each.body));
    match (summing.as_slice(), last) {
        ([sum], Some(last)) => of_one_kind && sum.items == last.items && one_own_sum(sum.body),
        _ => false,
    }
}

/// True if an item has one sum, whichever way it goes: of all others' terms, with its own in its turn.
fn one_own_sum(body: &[Op]) -> bool {
    let own = |op: &Op| matches!(op.kind, OpKind::Reduce { own: Some(_), .. });
    sums(body) == 1 && body.iter().any(own)
}

/// Number of sums of an item, in all of its branches.
fn sums(body: &[Op]) -> usize {
    let mut found = 0;
    visit_ops(body, &mut |op| {
        found += usize::from(matches!(op.kind, OpKind::Reduce { .. }))
    });
    found
}
