//! A loop over tiles, as each of the three GEMM roles runs it.

use super::build::{steps, tiles_n};
use super::builder::clustered;
use super::cta::{self, SlotKind};
use super::leaves::leaves;
use super::nodes::{all_empty, why};
use super::passes::{Pass, passes};
use super::rings::STAGES;
use super::stores::amount;
use super::walk::{Bound, ItemsOf, Walk, WarpRole};
use crate::kernel::{Block, Op, OpKind, visit_ops};
use crate::program::{PartitionId, Side};
use crate::rank::RankExpr;
use crate::warp::{Expr, Grid, LoopId, Node, Symbol};

impl Walk<'_, '_> {
    /// A loop over tiles.
    pub fn tiles(&mut self, of: LoopId, items: ItemsOf<'_>, body: &[Op]) -> Vec<Node> {
        let ItemsOf {
            var,
            partition,
            shard,
            ..
        } = items;
        self.tiling = self.b.cta.tiling_of(self.b.kernel, var, partition);
        let mine = shard == Some(&RankExpr::Me);
        let shard = shard.map(|shard| self.rank(shard));
        let tile = self.tiling().tile();
        let (down, across) = self.b.cta.cluster();
        let block = &self.b.kernel.partitions[partition.index()];
        if !block.is_tile(tile) {
            let message = format!(
                "items of `{}` beside tiles of {}x{}",
                block.name, tile.rows, tile.columns
            );
            let hint = "items without a product are tiles as those of a loop with one";
            self.refuse(message, hint);
        }
        let leaves = leaves(self.b.kernel, body);
        let mut passes = passes(self, &leaves);
        self.epilogues(&mut passes);
        let mut nodes = Vec::new();
        let [rows, columns] = self.shard_sides(partition, shard.as_ref());
        self.own_steps(&mut nodes, multiplies(body));
        let tiles_n = self.own_columns(&mut nodes, partition, columns);
        let rows = rows.ceil_div(clustered(self.b.tile_rows(self.tiling), down));
        let whose = if mine { "my_" } else { "" };
        let tiles_m = self.name(&mut nodes, &format!("{whose}tiles_m"), rows);
        let all = match self.has_all_columns(partition) {
            true => format!("{whose}tiles"),
            false => format!("{whose}{}", block.name),
        };
        let count = tiles_m.clone() * tiles_n.clone();
        let tiles = self.name(&mut nodes, &all, count);
        let some = self.chosen(&mut nodes, items, tiles);
        let tiles = some.count.clone();
        let name = self.ident(var);
        let (row, column) = (
            self.of_cta(format!("{name}.row"), down),
            self.of_cta(format!("{name}.column"), across),
        );
        self.bind(
            var,
            Bound::Item {
                partition,
                shard: shard.clone(),
                row: row.clone(),
                column: column.clone(),
            },
        );
        let before = match self.which {
            WarpRole::Store => self.hoisted_of_stores(&mut passes[0], &tiles),
            WarpRole::Load => self.hoisted(&mut passes[0].scale_waits, &tiles),
            WarpRole::Multiply => self.past_the_first_sum(&passes),
            _ => Vec::new(),
        };
        nodes.extend(before);
        let lag = match &passes[..] {
            [pass] => may_lag(self, pass),
            _ => false,
        };
        let mut item = Vec::new();
        for pass in &passes {
            item.extend(match self.which {
                WarpRole::Load => {
                    let mut nodes = self.waits(&pass.scale_waits);
                    nodes.append(&mut self.load(pass));
                    nodes
                }
                WarpRole::Store => self.store(pass, lag, passes.len() == 1),
                WarpRole::Multiply => self.multiply(pass, var, tiles.clone()),
                WarpRole::Fetch | WarpRole::Send | WarpRole::Spare | WarpRole::End => Vec::new(),
            });
        }
        // Who multiplies rarely asks where its tile is.
        let placed = self.which != WarpRole::Multiply || mentions(&item, &[&row, &column]);
        let grid = (placed && !item.is_empty()).then_some(Grid {
            var: name,
            index: some.at(Expr::Within),
            rows: tiles_m,
            columns: tiles_n,
        });
        self.scope.pop();
        self.tiles_n = None;
        nodes.push(Node::Items {
            of,
            count: tiles,
            grid,
            body: item,
        });
        if self.which == WarpRole::Store && lag {
            nodes.push(why(
                "Nothing stays unsignalled past the loop: what comes next may wait for a peer that waits for this.",
            ));
            nodes.push(Node::AwaitStores { pending: 0.into() });
            nodes.push(Node::Flush {
                amount: amount(&passes[0].signals[0]),
            });
        }
        nodes
    }

    /// Waits of the storing warp that all items have in common, before the first of them.
    fn hoisted_of_stores(&mut self, pass: &mut Pass<'_>, tiles: &Expr) -> Vec<Node> {
        if pass.stores.is_empty() {
            return Vec::new();
        }
        self.hoisted(&mut pass.store_waits, tiles)
    }

    /// Names the sizes that loops over tiles do not share, in front of all loops.
    pub(super) fn own_sizes(&mut self, body: &[Block]) -> Vec<Node> {
        let mut nodes = Vec::new();
        for each in cta::loops(body) {
            self.tiling = (self.b.cta).tiling_of(self.b.kernel, each.items, each.partition);
            self.own_steps(&mut nodes, multiplies(each.body));
            // Those of a shard are known where its rank is.
            let kernel = self.b.kernel;
            if !kernel.is_sharded_along(each.partition, Side::Columns) {
                let columns = self.span(each.partition, Side::Columns, None);
                self.own_columns(&mut nodes, each.partition, columns);
            }
        }
        self.tiles_n = None;
        nodes
    }

    /// Names the steps of this loop's products, if loops differ in them, in the roles that use them: a name takes a register.
    fn own_steps(&mut self, nodes: &mut Vec<Node>, multiplies: bool) {
        let (b, tiling) = (&*self.b, self.tiling());
        let own = steps(b, tiling).filter(|_| !b.alike.steps && multiplies);
        let multiplied = matches!(self.which, WarpRole::Load | WarpRole::Multiply);
        if let (Some(own), true) = (own, multiplied) {
            let name = format!("{}_steps", b.staged(self.tiling, 0));
            self.steps = self.name(nodes, &name, own);
        }
    }

    /// Names the columns of this loop's grid, which it gives, if they are its own.
    fn own_columns(
        &mut self,
        nodes: &mut Vec<Node>,
        partition: PartitionId,
        columns: Expr,
    ) -> Expr {
        if self.has_all_columns(partition) {
            return Expr::var("tiles_n");
        }
        let name = format!("{}_n", self.b.kernel.partitions[partition.index()].name);
        let columns = tiles_n(self.b, columns, self.tiling);
        let columns = self.name(nodes, &name, columns);
        self.tiles_n = Some((partition, columns.clone()));
        columns
    }

    /// True if the columns of a partition's grid are those of all loops.
    fn has_all_columns(&self, partition: PartitionId) -> bool {
        let columns = |id: PartitionId| self.b.kernel.partitions[id.index()].columns;
        self.b.alike.columns && columns(partition) == columns(self.tiling().partition())
    }

    /// At the end of loading, where CTAs load into each other: then none of that is under way, nor are the consumers'
    /// arrivals, and the CTA may leave.
    pub fn all_stages_empty(&self) -> Vec<Node> {
        let cta = self.b.cta;
        if cta.multicast_group() == 1 {
            return Vec::new();
        }
        vec![
            why(
                "All of the cluster is done with what was loaded here: nothing of it is still on its way to this CTA.",
            ),
            all_empty(
                STAGES,
                Expr::symbol(Symbol::Slots(SlotKind::Stage), cta.stages()),
            ),
        ]
    }

    /// A tile's row or column among all: with `ctas` of a cluster along it, a place is theirs together.
    fn of_cta(&self, place: String, ctas: u32) -> Expr {
        if ctas > 1 {
            Expr::var(place) * Expr::symbol(Symbol::Cluster, ctas) + Expr::var("multicast_rank")
        } else {
            Expr::var(place)
        }
    }
}

fn multiplies(body: &[Op]) -> bool {
    let mut found = false;
    visit_ops(body, &mut |op| {
        found |= matches!(op.kind, OpKind::Dot { .. })
    });
    found
}

/// True if a tile may be announced after the next one was stored: nobody is waited for meanwhile.
fn may_lag(walk: &Walk<'_, '_>, pass: &Pass<'_>) -> bool {
    let [signal] = pass.signals.as_slice() else {
        return false;
    };
    signal.around.is_empty()
        && matches!(&signal.op.kind, OpKind::Signal { cells, .. } if walk.one_cell(cells))
        && !pass.stores.iter().all(|leaf| walk.by_lanes(leaf))
        && !pass.awaits_operands()
        && pass.store_waits.is_empty()
        && pass.sums.is_empty()
        && pass.loads.iter().all(|(waits, _)| waits.is_empty())
}

/// True if a number of these nodes has one of those within it.
fn mentions(nodes: &[Node], wanted: &[&Expr]) -> bool {
    let mut found = false;
    for node in nodes {
        node.visit(&mut |node| {
            for expr in node.exprs() {
                expr.visit(&mut |expr| found |= wanted.contains(&expr));
            }
        });
    }
    found
}
