//! The part of lowering that no choice changes, made once for thousands of variants.

use super::choices::MOST;
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::encoded::{distinct_operands, encoded};
use crate::order::TileOrder;
use crate::own_terms::with_own_terms;
use crate::program::{
    Block, Choice, ItemOrder, Program, RoleKind, Setting, StmtKind, Tunable, Var,
};
use crate::shape::MAX_WORLD;
use crate::variant::Variant;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A schedule with the types, layout and world of its variants. [`Written::lower`] settles the choices.
///
/// ```
/// use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, tune};
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_codegen::lower::{Written, lower};
/// use counterflow_codegen::variant::Variant;
///
/// let mut s = ScheduleBuilder::new("gemm");
/// let [x, w] = ["x", "w"].map(|name| s.local(name, Dtype::Bf16));
/// let y = s.out("y", Dtype::Bf16);
/// let tiles = s.tiles("tiles", y, tune([(128, 256), (128, 128)]));
/// s.gemm(GemmOptions::default(), |s| {
///     s.for_items("t", tiles.grouped(tune([8, 4])), |s, t| {
///         let product = s.dot(x.at(t), w.at(t));
///         s.store(y.at(t), product);
///     });
/// });
/// let program = s.finish();
/// let base = Variant::new(1);
/// let written = Written::new(&program, &base)?;
/// for tile in [(128, 256), (128, 128)] {
///     let variant = base.clone().set("tiles", tile);
///     assert_eq!(written.lower(&variant.choices)?.text(), lower(&program, &variant)?.text());
/// }
/// assert!(written.orders_only("t.grouped") && !written.orders_only("tiles"));
/// let orders = written.orders(&base.set("t.grouped", 4).choices);
/// assert_eq!(format!("{:?}", orders[0].1), "Grouped(4)");
/// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
/// ```
#[derive(Clone, Debug)]
pub struct Written {
    pub(super) program: Arc<Program>,
    pub(super) base: Variant,
    /// Loops over items whose order is an open choice, with the choice's index.
    orders: Vec<(Var, u16)>,
}

impl Written {
    /// `program` with the types, layout and world of `base`. The choices of `base` count for nothing.
    ///
    /// # Errors
    /// Mistakes that no choice mends: a world or a program that is too large, types and scales that the program has no place for.
    pub fn new(program: &Program, base: &Variant) -> Result<Written, Diagnostics> {
        let mut found = Vec::new();
        if base.world == 0 || base.world > MAX_WORLD {
            found.push(
                Diagnostic::new(Rule::Shape, None, format!("the world is {}", base.world))
                    .hint(format!("a world has 1 to {MAX_WORLD} ranks")),
            );
        }
        oversized(program, &mut found);
        Diagnostics::check(std::mem::take(&mut found), ())?;
        let program = &*program.tabulated(base.world);
        found.extend(distinct_operands(program, base).err());
        Diagnostics::check(found, ())?;
        let program = with_own_terms(encoded(program, base)?).into_owned();
        let orders = program.stmts().filter_map(|stmt| match &stmt.kind {
            StmtKind::ForItems { var, items, .. } => match items.order {
                ItemOrder::Grouped(Choice::Open(choice)) => Some((*var, choice)),
                ItemOrder::Grouped(Choice::Fixed(_)) | ItemOrder::Tile(_) => None,
            },
            StmtKind::ForRanks { .. }
            | StmtKind::If { .. }
            | StmtKind::Wait { .. }
            | StmtKind::Signal { .. }
            | StmtKind::Copy { .. }
            | StmtKind::Dot { .. }
            | StmtKind::Sum { .. }
            | StmtKind::Load { .. }
            | StmtKind::Store { .. } => None,
        });
        Ok(Written {
            orders: orders.collect(),
            program: Arc::new(program),
            base: base.clone(),
        })
    }

    /// True if kernels that differ in the choice of that name alone differ only in the order of their tiles, and every option is a
    /// legal order.
    pub fn orders_only(&self, name: &str) -> bool {
        let all = (0..).zip(&self.program.tunables);
        let named: Vec<_> = all.filter(|(_, tunable)| tunable.name == name).collect();
        let is_order = |(choice, tunable): &(u16, &Tunable)| {
            let mut options = tunable.options.iter();
            self.orders.iter().any(|(_, of)| of == choice)
                && !self.decides(*choice)
                && options.all(|option| matches!(option, Setting::One(1..=MOST)))
        };
        !named.is_empty() && named.iter().all(is_order)
    }

    /// The order of tiles of each loop that leaves it open, by the loop's variable, with these choices.
    pub fn orders(&self, choices: &BTreeMap<String, Setting>) -> Vec<(Var, TileOrder)> {
        let each = self.orders.iter().filter_map(|(var, choice)| {
            let Tunable { name, options, .. } = self.program.tunables.get(usize::from(*choice))?;
            match choices.get(name).or(options.first())? {
                Setting::One(group) => Some((*var, TileOrder::Grouped(*group))),
                Setting::Pair(..) => None,
            }
        });
        each.collect()
    }

    /// True if an open choice is anything but an order: a side of items, or an option of CTAs.
    fn decides(&self, choice: u16) -> bool {
        let is = |of: &Choice| *of == Choice::Open(choice);
        let sides = self.program.partitions.iter().any(|of| match &of.block {
            Block::Chunks { rows: of }
            | Block::Panels { columns: of }
            | Block::Tiles { shape: of } => is(of),
        });
        let mut roles = self.program.roles.iter();
        sides
            || roles.any(|role| match &role.kind {
                RoleKind::Gemm {
                    k,
                    cluster,
                    split,
                    stages,
                    subtiles,
                    ping_pong,
                } => {
                    let all = [k, cluster, split, stages, subtiles, ping_pong];
                    all.into_iter().flatten().any(is)
                }
                RoleKind::Comm { ctas } => is(ctas),
                RoleKind::SpareWarps | RoleKind::CopyEngine => false,
            })
    }
}

/// Ids are 16 bits wide. A program that does not fit is rejected before any of them is used.
fn oversized(program: &Program, found: &mut Vec<Diagnostic>) {
    let tables = [
        ("tensors", program.tensors.len()),
        ("partitions", program.partitions.len()),
        ("counter sets", program.counters.len()),
        ("open choices", program.tunables.len()),
        ("loops", program.vars.len()),
        ("accumulators", program.accs.len()),
    ];
    const MOST: usize = 4096;
    for (what, count) in tables.into_iter().filter(|(_, count)| *count > MOST) {
        found.push(
            Diagnostic::new(
                Rule::Language,
                program.at,
                format!("{} has {count} {what}", program.name),
            )
            .hint(format!("at most {MOST}")),
        );
    }
}
