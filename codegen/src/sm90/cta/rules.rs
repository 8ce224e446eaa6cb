//! What keeps a kernel's tiles from being computed: one table of rules, each with the statement it is about.
//!
//! A rule has one of two levels. What does not *fit* the architecture has no plan. What fits may still have no pipeline in
//! this version: it does not *run*.

use super::asked::{Dot, TileRequest, distinct, moves_and_sums};
use super::bytes::{registers_beside_codes, whole_lines_of_bytes};
use super::computed_scales::{
    bytes_beside_scales, partial_sums, registers_beside_scales, scales_of_rows,
};
use super::finding::refuse;
use super::promoted::{has_room_to_promote, promoted_elements, whole_squares};
use super::registers::{RegisterClass, has_registers};
use super::shared::{cluster_fits, clusters, shared_alone, some_in_cluster, splits};
use super::slabs::slabs_of_steps;
use super::together::summed_by_turns;
use super::wgmma::{ATOM_ROWS, MOST_ACCUMULATORS, Mode, Wgmma};
use crate::diag::Diagnostic;
use crate::dtype::Dtype;
use crate::encoding::rule::Fp8;
use crate::kernel::{Kernel, OpKind, Role, RoleKind, visit};
use crate::program::{TensorId, role_words};
use crate::shape::Geometry;
use crate::tiling::{Tile, Tiling};
use crate::variant::Arch;

/// Level that a kernel is to reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    /// The tiles fit the architecture.
    Fits,
    /// This version has a pipeline for what each of its loops multiplies.
    Multiplies,
    /// This version has a pipeline for it.
    Runs,
}

/// A rule: what it finds in one loop.
struct Rule {
    /// From which level on it is looked at.
    level: Level,
    /// True if nothing after it means anything where it finds something.
    last: bool,
    /// Findings of the rule.
    finds: fn(&TileRequest<'_>) -> Vec<Diagnostic>,
}

const fn fits(last: bool, finds: fn(&TileRequest<'_>) -> Vec<Diagnostic>) -> Rule {
    let level = Level::Fits;
    Rule { level, last, finds }
}

const fn multiplies(finds: fn(&TileRequest<'_>) -> Vec<Diagnostic>) -> Rule {
    Rule {
        level: Level::Multiplies,
        last: true,
        finds,
    }
}

const fn runs(last: bool, finds: fn(&TileRequest<'_>) -> Vec<Diagnostic>) -> Rule {
    let level = Level::Runs;
    Rule { level, last, finds }
}

/// Every rule, in the order of what they presuppose. How shared memory is divided comes after them.
const RULES: [Rule; 20] = [
    fits(true, multiplied),
    fits(true, whole_swizzles),
    fits(false, registers),
    multiplies(same_products),
    multiplies(of_one_depth),
    multiplies(promoted_elements),
    multiplies(whole_squares),
    multiplies(one_accumulation),
    multiplies(alone_with_sums),
    multiplies(stored_by_rows),
    runs(false, multiplied_elements),
    runs(false, k_major_bytes),
    runs(false, stored_elements),
    runs(true, has_pipeline),
    runs(false, has_room_to_promote),
    runs(false, one_swizzle_atom),
    runs(false, slabs_of_steps),
    runs(true, shared_alone),
    runs(false, clusters),
    runs(false, splits),
];

/// Rules after the division of shared memory: about what an item stores, and reads beside its product.
const ITEMS: [fn(&TileRequest<'_>, &Tiling) -> Option<Diagnostic>; 10] = [
    shared_with_inputs,
    alone_with_inputs,
    whole_lines,
    whole_lines_of_bytes,
    registers_beside_codes,
    inputs_fit,
    scales_of_rows,
    bytes_beside_scales,
    registers_beside_scales,
    partial_sums,
];

/// Findings of the rules for items.
pub(super) fn of_items(asked: &TileRequest<'_>, tiling: &Tiling) -> Vec<Diagnostic> {
    let found = ITEMS.iter().filter_map(|rule| rule(asked, tiling));
    found.chain(split_with_sums(asked)).collect()
}

/// Findings of the rules for items that multiply nothing, of a GEMM's loop beside others: their tiles pass through
/// the same stages.
pub(super) fn of_stores(asked: &TileRequest<'_>, tiling: &Tiling) -> Vec<Diagnostic> {
    let found = [
        stored_by_rows(asked),
        stored_elements(asked),
        some_in_cluster(asked),
    ]
    .concat();
    match found.is_empty() {
        true => of_items(asked, tiling),
        false => found,
    }
}

/// Adds the findings of a level's rules. True if what comes after them means anything.
pub(super) fn find(asked: &TileRequest<'_>, level: Level, found: &mut Vec<Diagnostic>) -> bool {
    for rule in RULES.iter().filter(|rule| rule.level == level) {
        let new = (rule.finds)(asked);
        if rule.last && !new.is_empty() {
            found.extend(new);
            return false;
        }
        found.extend(new);
    }
    true
}

/// Findings that this version has no pipeline for, whatever its tiles.
pub(super) fn unknown(kernel: &Kernel) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if kernel.variant.arch != Arch::Sm90 {
        let message = format!("arch {} has no GPU kernel", kernel.variant.arch.name());
        let hint = "leave out `Arch::Cpu`, or run it on emulated ranks, `Communicator::emulated`: `--arch cpu` and `run --device cpu` of the tool";
        found.push(refuse(kernel.program.at, message, hint));
    }
    found
}

/// The tensor cores have its shape.
fn multiplied(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let hint = asked.wgmma.refused();
    let refused = hint.map(|hint| refuse(asked.at, asked.tiles(), hint));
    refused.into_iter().collect()
}

/// A step is whole lines of the swizzle.
fn whole_swizzles(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let (k, dtype) = (asked.kind.k, asked.dtype);
    let step = k * dtype.bytes();
    if asked.products.is_empty() || step > 0 && step.is_multiple_of(128) {
        return Vec::new();
    }
    vec![refuse(
        asked.at,
        format!("a K step of {k} {dtype} is {step} bytes"),
        "it is a multiple of the 128-byte swizzle: 128 of FP8, 64 bf16 or f16, 32 f32",
    )]
}

/// Accumulators of all products of an item fit: 232 registers a consumer thread, of which some 40 hold addresses and
/// descriptors.
fn registers(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let tile = asked.wgmma.tile;
    let threads = 128 * asked.wgmma.mode.warpgroups();
    let products = asked.products.len() as u64;
    let accumulators =
        products * u64::from(tile.rows) * u64::from(tile.columns) / u64::from(threads);
    if accumulators <= u64::from(MOST_ACCUMULATORS) {
        return Vec::new();
    }
    vec![refuse(
        asked.at,
        format!("{} for {products} products an item", asked.tiles()),
        format!(
            "smaller tiles, or fewer products an item: a thread keeps {MOST_ACCUMULATORS} sums, and these are {accumulators}"
        ),
    )]
}

/// All items of a loop multiply the same tensors, whichever branch they take.
fn same_products(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let known = |dot: &&Dot| asked.products.contains(&dot.tensors);
    let other = asked.ways.iter().flatten().find(|dot| !known(dot));
    // A way without a product stores none: what it lacks has no place of its own.
    let fewer = || {
        let all = |way: &&Vec<Dot>| distinct(way).len() == asked.products.len();
        let way = asked.ways.iter().find(|way| !way.is_empty() && !all(way))?;
        way.first()
    };
    let refused = match (other, fewer()) {
        (Some(dot), _) => Some(refuse(
            dot.at,
            "a second product",
            "all items of a loop multiply the same tensors, or a loop for each product",
        )),
        (None, Some(dot)) => Some(refuse(
            dot.at,
            "an item with fewer products than others",
            "the same products in each branch, or a loop for each",
        )),
        (None, None) => None,
    };
    refused.into_iter().collect()
}

/// Products of an item go through the same steps: their operands are of one type and depth.
fn of_one_depth(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let of = |tensor: TensorId| {
        let buffer = &asked.kernel.buffers[tensor.index()];
        (buffer.dtype, buffer.columns)
    };
    let mut dots = asked.ways.iter().flatten();
    let first = asked.products.first().map(|tensors| tensors.map(of));
    let other = dots.find(|dot| Some(dot.tensors.map(of)) != first);
    let refused = other.map(|dot| {
        let message = "products of another type or depth beside each other";
        let hint = "operands of one type, whose K is the same: they come step by step, together; or store one in a loop of its own, \
            and add its tile: `+ z[t]`";
        refuse(dot.at, message, hint)
    });
    refused.into_iter().collect()
}

/// A product has accumulators of its own.
fn one_accumulation(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let again = asked.ways.iter().find_map(|way| {
        let known = |at: usize| way[..at].iter().any(|dot| dot.acc == way[at].acc);
        (0..way.len()).find(|at| known(*at)).map(|at| way[at].at)
    });
    let refused = again.map(|at| {
        let message = "a second product into an accumulator";
        let hint = "an accumulator each, and their sum in what is stored: `dot(..) + dot(..)`";
        refuse(at, message, hint)
    });
    refused.into_iter().collect()
}

/// Sums of stored tiles are added to the accumulators of the only product.
fn alone_with_sums(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let several = asked.ways.iter().any(|way| way.len() > 1);
    let sum = asked.item.sums.first().filter(|_| several);
    let refused = sum.map(|at| {
        let message = "a sum of stored tiles, beside several products";
        let hint = "one product an item that adds stored tiles, or tiles that are added one by one: `+ z[t]`";
        refuse(*at, message, hint)
    });
    refused.into_iter().collect()
}

/// Tiles are stored and read back by rows: what another loop multiplies is K-major.
fn stored_by_rows(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let buffers = &asked.kernel.buffers;
    let other = asked.item.tensors.iter().find_map(|(tensor, at)| {
        let buffer = &buffers[tensor.index()];
        buffer.mn_major.then_some((&buffer.name, *at))
    });
    let refused = other.map(|(name, at)| {
        let layout = asked.kernel.variant.layout.name();
        let message = format!("tiles of `{name}`, which layout {layout} has by columns");
        let hint =
            "a layout in which the operand that is stored has rows: nt, or nn for the first one";
        refuse(at, message, hint)
    });
    refused.into_iter().collect()
}

/// Operands of types that the tensor cores multiply by each other.
fn multiplied_elements(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let of = |tensor: TensorId| asked.kernel.buffers[tensor.index()].dtype;
    let mut dots = asked.ways.iter().flatten();
    let refused = dots.find_map(|dot| {
        let [a, b] = dot.tensors.map(of);
        let hint = unlike(a, b)?;
        let message = match a == b {
            true => format!("a product of {a}"),
            false => format!("a product of {a} and {b}"),
        };
        Some(refuse(dot.at, message, hint))
    });
    refused.into_iter().collect()
}

/// Reason that two types are not multiplied by each other.
fn unlike(a: Dtype, b: Dtype) -> Option<&'static str> {
    match [a, b].map(Fp8::of) {
        [Some(Fp8::E5M2), Some(Fp8::E5M2)] => {
            Some("make one of the two e4m3: 3 bits of precision in both are too few")
        }
        [Some(_), Some(_)] => None,
        [None, None] if a == b && a.bytes() == 2 => None,
        [None, None] if a == b => Some("bf16, f16 or e4m3"),
        [Some(_) | None, Some(_) | None] => {
            Some("operands of one type, or one e4m3 and the other e5m2")
        }
    }
}

/// The tensor cores transpose operands of 16 bits only.
fn k_major_bytes(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let buffers = &asked.kernel.buffers;
    let mut dots = asked.ways.iter().flatten();
    let refused = dots.find_map(|dot| {
        let mut operands = dot.tensors.iter().map(|tensor| &buffers[tensor.index()]);
        let other = operands.find(|it| it.dtype.is_fp8() && it.mn_major)?;
        let layout = asked.kernel.variant.layout.name();
        let message = format!(
            "`{}` of {}, whose K is not contiguous in layout {layout}",
            other.name, other.dtype
        );
        let hint = "layout nt: keep a transposed copy of it, and multiply that";
        Some(refuse(dot.at, message, hint))
    });
    refused.into_iter().collect()
}

/// Tiles in registers are rounded to any type, and read from 16 or 32 bits.
fn stored_elements(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let refused = asked.item.narrow.map(|(tensor, at)| {
        let buffer = &asked.kernel.buffers[tensor.index()];
        let message = format!(
            "`{}` of {}, which a tile is added to or read from",
            buffer.name, buffer.dtype
        );
        let hint = "bf16, f16 or f32: FP8 is multiplied, copied and stored";
        refuse(at, message, hint)
    });
    refused.into_iter().collect()
}

/// Accumulators leave a thread registers for the rest.
fn has_pipeline(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let hint = room(asked.wgmma, asked.company());
    let refused = hint.map(|hint| {
        let products = asked.products.len();
        if products > 1 {
            let message = format!("{} of {products} products", asked.tiles());
            let hint = match most(asked.wgmma, asked.company()) {
                Some(Tile { rows, columns, .. }) => {
                    format!("{products} products an item have tiles of up to {rows}x{columns}")
                }
                None => hint.into(),
            };
            return refuse(asked.at, message, hint);
        }
        refuse(asked.at, asked.tiles(), hint)
    });
    refused.into_iter().collect()
}

/// A step is one atom of the swizzle.
fn one_swizzle_atom(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let (k, atom) = (asked.kind.k, 128 / asked.dtype.bytes());
    if k == atom || asked.products.is_empty() {
        return Vec::new();
    }
    let message = format!("a K step of {k}");
    let hint = format!("{atom}: one 128-byte swizzle atom");
    vec![refuse(asked.at, message, hint)]
}

/// A tile that is read, in words.
fn stored_tile(asked: &TileRequest<'_>) -> &'static str {
    match asked.products.is_empty() {
        true => "a stored tile where nothing is multiplied",
        false => "a stored tile beside the product",
    }
}

/// Description of warpgroups that take tiles by turns: as the author asked, or because a tile has work for one of
/// them only.
fn by_turns(asked: &TileRequest<'_>) -> String {
    match asked.kind.ping_pong {
        true => "with tiles in ping-pong".into(),
        false => format!("with {}, which one warpgroup computes", asked.tiles()),
    }
}

/// Description of the tiles that may have stored ones beside them.
fn cooperative(asked: &TileRequest<'_>) -> &'static str {
    match asked.kind.ping_pong {
        true => "no `ping_pong`: warpgroups that take tiles by turns cannot read a stored tile",
        false => {
            "tiles that both warpgroups share, such as those of 128 or 256 rows: one alone cannot read a stored tile"
        }
    }
}

/// Stored tiles come through the stages after the order barrier was passed.
fn shared_with_inputs(asked: &TileRequest<'_>, _: &Tiling) -> Option<Diagnostic> {
    let at = *asked.item.inputs.first()?;
    let message = format!("{}, {}", stored_tile(asked), by_turns(asked));
    (asked.wgmma.mode == Mode::PingPong).then(|| refuse(at, message, cooperative(asked)))
}

/// Stored tiles are read by ordinary loads, which a relaxed arrival in the other CTA does not order.
fn alone_with_inputs(asked: &TileRequest<'_>, _: &Tiling) -> Option<Diagnostic> {
    let at = *asked.item.inputs.first()?;
    let (down, across) = asked.kind.cluster;
    let message = format!("{}, in a cluster", stored_tile(asked));
    let hint = "`cluster = (1, 1)`: CTAs of a cluster cannot read a stored tile";
    (down * across > 1).then(|| refuse(at, message, hint))
}

/// A row of a subtile of 16-bit elements is a line of the narrowest swizzle, at least.
fn whole_lines(asked: &TileRequest<'_>, tiling: &Tiling) -> Option<Diagnostic> {
    let at = asked.item.halves?;
    let columns = tiling.subtile().columns;
    let bytes = columns * 4;
    let message =
        format!("16-bit subtiles of {columns} columns, beside f32 of {bytes} bytes a row");
    let wanted = 16 * asked.kind.split;
    let hint = match asked.wgmma.tile.columns.is_multiple_of(wanted) {
        false => format!("tiles of a multiple of {wanted} columns: 16 for each CTA that splits K"),
        true => "results of one width in all items, 16-bit or f32, or fewer stored tiles beside a product: there is no room for \
            wider subtiles"
            .into(),
    };
    (columns < 16).then(|| refuse(at, message, hint))
}

/// A slot holds a subtile of each stored tile.
fn inputs_fit(asked: &TileRequest<'_>, tiling: &Tiling) -> Option<Diagnostic> {
    let inputs = &asked.item.inputs;
    let most: u32 = tiling.input_places().iter().sum();
    let at = *inputs.get(most as usize)?;
    let message = format!("{} stored tiles in one item", inputs.len());
    let hint = format!("at most {most}: as many subtiles as a stage has room for");
    Some(refuse(at, message, hint))
}

/// As stored tiles do, those of a sum come through the stages.
fn split_with_sums(asked: &TileRequest<'_>) -> impl Iterator<Item = Diagnostic> {
    let unread = asked.wgmma.mode == Mode::PingPong && !summed_by_turns(asked);
    let sums = asked.item.sums.iter().filter(move |_| unread);
    sums.map(|at| {
        let message = format!("a sum of stored tiles, {}", by_turns(asked));
        refuse(*at, message, alone_with_a_sum(asked))
    })
}

/// Description of the sums that a warpgroup alone can read.
fn alone_with_a_sum(asked: &TileRequest<'_>) -> &'static str {
    match asked.kind.ping_pong {
        true => {
            "no `ping_pong`. It works for items of the last loop that have one sum with this rank's own term and nothing else beside the \
                product, in tiles of 128 rows by up to 128 columns, without clusters and roles"
        }
        false => cooperative(asked),
    }
}

/// Findings in what CTAs that move data compute.
pub(super) fn of_role(kernel: &Kernel, role: &Role) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    visit(moves_and_sums(&role.body).1, &mut |op| {
        if matches!(op.kind, OpKind::Copy { .. }) {
            let words = role_words(role.kind.word(), &role.name);
            let message = format!("a copy behind what a {words} role computes");
            let hint = "copies first, or in a role of their own: `#[comm(name = halo, ctas = 2)]`";
            found.push(refuse(kernel.loc(op.id), message, hint));
        }
    });
    found
}

/// Findings in a loop of such CTAs, whose tiles pass through the stages and subtiles of one of the GEMM.
pub(super) fn of_sums(asked: &TileRequest<'_>, tilings: &[Tiling]) -> Vec<Diagnostic> {
    let Some(first) = tilings.first() else {
        return Vec::new();
    };
    let chunks = &asked.kernel.partitions[asked.partition.index()];
    let Some(tiling) = tilings.iter().find(|it| chunks.is_tile(it.tile())) else {
        let (message, of_gemm) = (
            format!("{} in CTAs that move data", asked.tiles()),
            first.tile(),
        );
        let hint = format!(
            "tiles as those of #[gemm], whose stages they pass through: {}x{}",
            of_gemm.rows, of_gemm.columns
        );
        return vec![refuse(asked.at, message, hint)];
    };
    let mut found = [
        shared_alone(asked),
        stored_by_rows(asked),
        stored_elements(asked),
    ]
    .concat();
    if found.is_empty() {
        found.extend(of_items(asked, tiling));
    }
    found
}

/// Findings that keep the launches of a shape from the GPU: clusters that it cannot place, and fewer K steps than
/// CTAs that share them (each has one).
pub(crate) fn placed(kernel: &Kernel, geometry: &Geometry) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for role in &kernel.roles {
        let RoleKind::Gemm(kind) = role.kind else {
            continue;
        };
        found.extend(cluster_fits(&kind));
        if kind.split <= 1 || kernel.variant.arch == Arch::Cpu {
            continue;
        }
        visit(&role.body, &mut |op| {
            if let OpKind::Dot { a, .. } = &op.kind {
                let depth = geometry.size(kernel.buffers[a.buffer.index()].columns);
                // Of no depth there is a step of zeros.
                let steps = depth.div_ceil(kind.k.max(1)).max(1);
                if steps < kind.split {
                    let message = format!(
                        "{} CTAs split {steps} steps of {} of a K of {depth}",
                        kind.split, kind.k
                    );
                    let hint = format!("a step each: `split` is at most {steps}");
                    found.push(refuse(kernel.loc(op.id), message, hint));
                }
            }
        });
    }
    found
}

/// The largest tile with the same M side that has a pipeline.
fn most(wgmma: Wgmma, company: RegisterClass) -> Option<Tile> {
    let sides = (ATOM_ROWS..wgmma.sides().1).rev();
    let smaller = sides.map(|n| {
        let mut tile = wgmma.tile;
        *(if wgmma.swap_ab() {
            &mut tile.rows
        } else {
            &mut tile.columns
        }) = n;
        Wgmma { tile, ..wgmma }
    });
    let same = |other: &Wgmma| other.swap_ab() == wgmma.swap_ab();
    let mut fits = smaller.filter(|other| same(other) && room(*other, company).is_none());
    fits.next().map(|other| other.tile)
}

/// Hint at tiles that have a pipeline, where this one has no room.
fn room(wgmma: Wgmma, company: RegisterClass) -> Option<&'static str> {
    if wgmma.swap_ab() {
        let hint = "rows that are no multiple of 64, by 64 columns in ping-pong or 128 cooperative up to 248 rows; \
            by 128 in ping-pong up to 160, 256 cooperative up to 160 (152 beside a sum over ranks that is not just added, 176 by \
            CTAs alone, 200 of their plain products), 192 and 256 in ping-pong up to 104 and 80";
        return (wgmma.refused()).or_else(|| (!has_registers(wgmma, company)).then_some(hint));
    }
    let (rows, how): (&[u32], _) = match wgmma.mode {
        Mode::PingPong => (
            &[64, 128],
            "64 or 128 rows in ping-pong by a multiple of 16 columns: at most 256, of 128 rows 160",
        ),
        Mode::Cooperative => (
            &[128, 256],
            "128 or 256 shared rows by a multiple of 16 columns: at most 256, of 256 rows 160 (128 where tiles of \
            ranks are added, 176 without clusters, 192 of plain products by CTAs alone)",
        ),
    };
    let known = rows.contains(&wgmma.tile.rows)
        && wgmma.refused().is_none()
        && has_registers(wgmma, company);
    (!known).then_some(how)
}
