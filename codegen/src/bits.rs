//! Classes of bits. Two launches of one class give a row of results the same bits, whatever variant and number of rows they have.
//!
//! A variant is *batch-invariant* if a row of a result depends on that row, on the weights and on the world, and on no number of
//! rows: neither on the place of the row in a tile, nor on the rank that owns it. Two batch-invariant variants of one
//! [`BitsClass`] give
//! the same bits, so a launch may have either of them.
//!
//! Facts that decide the class ([`BitsClass::of`]):
//!
//! - types, scales, layout and world: a variant without its choices;
//! - for each pair of operands, the step of the K loop, how many CTAs split K (and, of more than two, whose columns are
//!   added where), whether the operands are swapped, and whether sums are promoted.
//!
//! Tiles, clusters, stages, groups, ping-pong and the CTAs that move data decide none of it.

use crate::checked::Checked;
use crate::diag::{Diagnostic, Rule};
use crate::kernel::{Block, Kernel, Op, OpKind, Region, visit, visit_ops};
use crate::program::{Home, Loc, Pick, StoreMode, TensorId};
use crate::rank::RankExpr;
use crate::sm90::cta::Cta;
use crate::variant::Variant;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Choices that decide a row's bits beside the row: variants of one class agree in all of them.
///
/// ```
/// use counterflow_codegen::bits::BitsClass;
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
///
/// let (series, _) = example::proven();
/// let class = BitsClass::of(series.kernel())?; // an all-gather adds nothing over ranks
/// assert_eq!(class.to_string(), "K in steps of 64");
/// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitsClass {
    /// Without its choices.
    variant: Variant,
    /// Summation of each product, by the names of its operands.
    products: BTreeMap<[String; 2], BTreeSet<Summing>>,
}

/// Sum of a product along K in a loop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Summing {
    /// Depth of a step.
    step: u32,
    /// CTAs that share the steps.
    split: u32,
    /// Columns of a subtile and of a tile, where more than two CTAs share the steps: each adds the others' partials to its own
    /// subtiles, in an order that begins behind its own.
    subtile: Option<(u32, u32)>,
    /// True if the columns' operand is on the instruction's M side.
    swap_ab: bool,
    /// Elements of K whose sum is added in f32 at once, if sums are promoted.
    promoted: Option<u32>,
}

impl BitsClass {
    /// The class of a batch-invariant variant.
    ///
    /// # Errors
    /// Every reason why its rows' bits depend on the number of rows, each at its statement.
    pub fn of(kernel: &Checked<Kernel>) -> Result<BitsClass, crate::diag::Diagnostics> {
        let cta = kernel.decided().fits().ok().flatten();
        let class = BitsClass {
            variant: Variant {
                choices: BTreeMap::new(),
                // Without signals, every rank computes for itself.
                world: match kernel.counters.is_empty() {
                    true => 1,
                    false => kernel.variant.world,
                },
                ..kernel.variant.clone()
            },
            products: products(kernel, cta),
        };
        let mut found = class.differing(kernel);
        if kernel.variant.world > 1 {
            found.extend(over_ranks(kernel));
        }
        crate::diag::Diagnostics::check(found, class)
    }

    /// Parts of its loops that make rows of one launch differ.
    fn differing(&self, kernel: &Kernel) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        for ([a, b], ways) in &self.products {
            let at = multiplied(kernel, [a, b]);
            if ways.len() > 1 {
                let message = format!(
                    "loops sum the product of `{a}` and `{b}` in {} ways",
                    ways.len()
                );
                found.push(varies(at, message, "tiles of one shape for both loops"));
            }
            if ways.iter().any(|way| way.swap_ab && way.split > 2) {
                let message = format!(
                    "{} CTAs split K of tiles whose operands are swapped",
                    self.most_split()
                );
                let hint = "a split of at most 2, or wider tiles: each CTA adds in an order that begins behind its own rows";
                found.push(varies(at, message, hint));
            }
        }
        found
    }

    fn most_split(&self) -> u32 {
        let ways = self.products.values().flatten();
        ways.map(|way| way.split).max().unwrap_or(1)
    }
}

impl fmt::Display for BitsClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: BTreeSet<Summing> = self.products.values().flatten().copied().collect();
        let each = all.into_iter().map(|way| {
            let mut text = format!("K in steps of {}", way.step);
            if way.split > 1 {
                text += &format!(", split over {} CTAs", way.split);
            }
            if let Some((subtile, tile)) = way.subtile {
                text += &format!(" by {subtile} of {tile} columns");
            }
            if let Some(interval) = way.promoted {
                text += &format!(", promoted every {interval}");
            }
            text + if way.swap_ab {
                ", operands swapped"
            } else {
                ""
            }
        });
        let each: Vec<String> = each.collect();
        f.write_str(&match each.is_empty() {
            true => "no product".into(),
            false => each.join("; "),
        })
    }
}

/// Sums of every product.
fn products(kernel: &Kernel, cta: Option<&Cta>) -> BTreeMap<[String; 2], BTreeSet<Summing>> {
    let mut found: BTreeMap<[String; 2], BTreeSet<Summing>> = BTreeMap::new();
    for role in &kernel.roles {
        let crate::kernel::RoleKind::Gemm(gemm) = role.kind else {
            continue;
        };
        each_loop(&role.body, &mut |var, partition, body| {
            let tiling = cta.map(|cta| &cta.tilings()[cta.tiling_of(kernel, var, partition)]);
            let swap_ab = tiling.is_some_and(|tiling| tiling.swap_ab());
            let several = tiling.filter(|_| gemm.split > 2);
            let way = Summing {
                step: gemm.k,
                split: gemm.split,
                subtile: several.map(|it| (it.subtile().columns, it.tile().columns)),
                swap_ab,
                promoted: kernel.variant.promotion_interval(),
            };
            visit_ops(body, &mut |op| {
                if let OpKind::Dot { a, b, .. } = &op.kind {
                    let names = [a, b].map(|of| kernel.buffers[of.buffer.index()].name.clone());
                    found.entry(names).or_default().insert(way);
                }
            });
        });
    }
    found
}

fn each_loop(
    body: &[Block],
    f: &mut impl FnMut(crate::program::Var, crate::program::PartitionId, &[Op]),
) {
    for block in body {
        match block {
            Block::ForRanks { body, .. } => each_loop(body, f),
            Block::If {
                then, otherwise, ..
            } => {
                each_loop(then, f);
                each_loop(otherwise, f);
            }
            Block::Items {
                var,
                partition,
                body,
                ..
            } => f(*var, *partition, body),
            Block::Once { .. } | Block::Join => {}
        }
    }
}

/// Place of a product's first statement.
fn multiplied(kernel: &Kernel, names: [&String; 2]) -> Option<Loc> {
    let mut found = None;
    for role in &kernel.roles {
        visit(&role.body, &mut |op| {
            if let OpKind::Dot { a, b, .. } = &op.kind {
                let here = [a, b].map(|of| &kernel.buffers[of.buffer.index()].name);
                if here == names {
                    found = found.or(Some(kernel.loc(op.id)));
                }
            }
        });
    }
    found
}

fn varies(at: impl Into<Option<Loc>>, message: String, hint: &str) -> Diagnostic {
    Diagnostic::new(Rule::Shape, at, format!("not batch-invariant: {message}")).hint(hint)
}

/// Sums over ranks whose order or roundings depend on the rank that owns a row.
fn over_ranks(kernel: &Kernel) -> Vec<Diagnostic> {
    let sent = sent(kernel);
    let (mut found, mut branches) = (Vec::new(), Vec::new());
    for role in &kernel.roles {
        visit(&role.body, &mut |op| {
            let at = kernel.loc(op.id);
            let name = |region: &Region| &kernel.buffers[region.buffer.index()].name;
            match &op.kind {
                OpKind::Reduce { from, own, .. } => {
                    let (message, hint) = match (&from.home, &from.slot) {
                        (Home::Everywhere, _) => (
                            format!("the switch adds up `{}` in an order of its own", name(from)),
                            "a sum by the rank that owns the rows: `partial[others()][t].sum()`",
                        ),
                        (_, Some(Pick::Others)) if own.is_none() => {
                            match kernel.quantised_reduction() {
                                Some(rule) => (
                                    format!(
                                        "partial sums travel in {}, and this rank's own term does not",
                                        rule.to.dtype()
                                    ),
                                    "partial sums of the schedule's type",
                                ),
                                None => (
                                    format!(
                                        "what is added to the sum of `{}` is not what the others send there",
                                        name(from)
                                    ),
                                    "add what is sent: `dot(x[t], w[t]) + partial[others()][t].sum()`, where peers store `dot(x[t], w[t])`",
                                ),
                            }
                        }
                        (_, Some(Pick::One(_)) | None) if sent.contains(&from.buffer) => {
                            one_by_one(kernel, from)
                        }
                        (_, Some(Pick::Others | Pick::All)) if !by_sender(kernel, from.buffer) => (
                            format!(
                                "slots of `{}` are not those of their senders: who owns the rows decides the order of the sum",
                                name(from)
                            ),
                            "`slots = world()`, and the sender's own slot: `partial.on(owner)[me()][t]`",
                        ),
                        (_, Some(Pick::Others | Pick::All | Pick::One(_)) | None) => return,
                    };
                    found.push(varies(at, message, hint));
                }
                OpKind::Load { from, .. } if sent.contains(&from.buffer) => {
                    let (message, hint) = one_by_one(kernel, from);
                    found.push(varies(at, message, hint));
                }
                OpKind::Store {
                    dst,
                    mode: StoreMode::Add,
                    ..
                } if adds_over_ranks(kernel, dst) => {
                    let message = format!(
                        "ranks add to `{}` in the order in which they come",
                        name(dst)
                    );
                    let hint = "scratch with a slot for each rank, and a sum by the rank that owns the rows";
                    found.push(varies(at, message, hint));
                }
                OpKind::If {
                    then, otherwise, ..
                } if computes(then) || computes(otherwise) => {
                    let message = "an item computes by the rank that it is on".into();
                    let hint =
                        "the same statements on every rank; waits and signals may depend on ranks";
                    branches.push(varies(at, message, hint));
                }
                OpKind::Load { .. }
                | OpKind::Store { .. }
                | OpKind::Dot { .. }
                | OpKind::Copy { .. }
                | OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::ForRanks { .. }
                | OpKind::If { .. } => {}
            }
        });
    }
    // A sum in turns often stands in such a branch, and says more.
    found.append(&mut branches);
    found
}

/// Reason that the order of a sum which a schedule spells out depends on the rank that owns the rows.
fn one_by_one(kernel: &Kernel, from: &Region) -> (String, &'static str) {
    let name = &kernel.buffers[from.buffer.index()].name;
    match is_passed_on(kernel, from.buffer) {
        true => (
            format!(
                "`{name}` holds sums of the ranks before, and each rank adds to them in its turn"
            ),
            "scratch with a slot for each rank, and a sum by the rank that owns the rows",
        ),
        false => (
            format!(
                "what came in `{name}` is added one by one: who owns the rows decides the order of the sum"
            ),
            "`.sum()`, which adds in the order of ranks, as in `dot(x[t], w[t]) + partial[others()][t].sum()`",
        ),
    }
}

/// True if an item reads a tensor and sends it on.
fn is_passed_on(kernel: &Kernel, tensor: TensorId) -> bool {
    let mut found = false;
    for role in &kernel.roles {
        each_loop(&role.body, &mut |_, _, body| {
            let (mut read, mut sent) = (false, false);
            visit_ops(body, &mut |op| {
                if let OpKind::Load { from, .. } | OpKind::Reduce { from, .. } = &op.kind {
                    read |= from.buffer == tensor;
                }
                if let OpKind::Store { dst, .. } = &op.kind {
                    sent |= dst.buffer == tensor && dst.home.is_remote();
                }
            });
            found |= read && sent;
        });
    }
    found
}

/// Scratch that other ranks write.
fn sent(kernel: &Kernel) -> BTreeSet<TensorId> {
    let mut found = BTreeSet::new();
    for role in &kernel.roles {
        visit(&role.body, &mut |op| {
            if let OpKind::Store { dst, .. } | OpKind::Copy { dst, .. } = &op.kind
                && dst.home.is_remote()
                && kernel.buffers[dst.buffer.index()].is_scratch()
            {
                found.insert(dst.buffer);
            }
        });
    }
    found
}

/// True if each rank has a slot of a tensor, which holds what that rank sent, or what was fetched from it.
fn by_sender(kernel: &Kernel, tensor: TensorId) -> bool {
    let buffer = &kernel.buffers[tensor.index()];
    let mut by_sender = buffer.has_slot_for_each_rank();
    let own = Some(Pick::One(RankExpr::Me));
    for role in &kernel.roles {
        visit(&role.body, &mut |op| {
            if let OpKind::Store { dst, .. } = &op.kind
                && dst.buffer == tensor
            {
                by_sender &= dst.slot == own;
            }
            if let OpKind::Copy { dst, src } = &op.kind
                && dst.buffer == tensor
            {
                let sender = match &src.home {
                    Home::On(rank) => Some(Pick::One(rank.clone())),
                    Home::Me => own.clone(),
                    Home::Everywhere => None,
                };
                by_sender &= dst.slot == sender;
            }
        });
    }
    by_sender
}

fn adds_over_ranks(kernel: &Kernel, dst: &Region) -> bool {
    let usage = kernel.buffers[dst.buffer.index()].usage;
    dst.home.is_remote() || usage.is_sum()
}

fn computes(body: &[Op]) -> bool {
    let mut found = false;
    visit_ops(body, &mut |op| found |= op.kind.computes());
    found
}
