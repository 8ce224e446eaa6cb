//! One warp's walk over a role: loops, names, ranks and cells.

use super::builder::{Builder, refuse};
use super::cta::{Cta, Mode};
use super::either::either;
use super::everywhere::moves_everywhere;
use super::lanes::{stores_by_lanes, stores_in_bulk, without_groups};
use super::leaves::{copies, in_order};
use super::scheduler::GEMM;
use crate::kernel::Block;
use crate::order::Selection;
use crate::program::{HeldRows, Home, Loc, PartitionId, Placement, Side, Slots, TensorId, Var};
use crate::rank::RankExpr;
use crate::tiling::Tiling;
use crate::warp::cells;
use crate::warp::{
    BATCH, Expr, LoopId, Map, MapId, Node, SchedulerId, Symbol, Test, View, Whose, identifier,
    variable,
};
use std::collections::BTreeSet;

/// Warp that walks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WarpRole {
    Load,
    Store,
    Multiply,
    Fetch,
    Send,
    /// A spare warp: waits and signals.
    Spare,
    End,
}

/// Meaning of a loop variable in the text.
#[derive(Clone)]
pub(super) enum Bound {
    Rank(Expr),
    Item {
        partition: PartitionId,
        shard: Option<Expr>,
        row: Expr,
        column: Expr,
    },
}

/// The items that a loop visits.
#[derive(Clone, Copy)]
pub(super) struct ItemsOf<'a> {
    /// The loop's variable.
    pub var: Var,
    /// Partition of the items.
    pub partition: PartitionId,
    /// Shard of the items.
    pub shard: Option<&'a RankExpr>,
    /// Selection of those items.
    pub selection: &'a Selection,
}

pub(super) struct Walk<'b, 'a> {
    pub b: &'b mut Builder<'a>,
    pub which: WarpRole,
    pub scope: Vec<(Var, Bound)>,
    /// The statement that is being lowered.
    pub at: Option<Loc>,
    /// Names declared in the enclosing loops.
    pub declared: Vec<(String, Expr)>,
    /// Index among the CTA's tilings of the loop that it is in: the first outside of all.
    pub tiling: usize,
    /// The columns of its grid, where no other loop has as many.
    pub tiles_n: Option<(PartitionId, Expr)>,
    /// The steps of its products.
    pub steps: Expr,
    /// Batches of a chunk of the loop that it is in, as a number of the plan's.
    pub batches: Expr,
    /// Boxes of such a batch.
    pub boxes: Expr,
    /// Slabs that waits name one at a time, by a variable: the next step's slab.
    pub slab_of: Option<PartitionId>,
    /// Scheduler that gives it its items.
    scheduler: SchedulerId,
    /// The loops over items so far, by their variables.
    loops: Vec<Var>,
    /// Index among the roles that move data.
    pub comm: usize,
    /// True if an item of the loop that it is in accesses every rank's memory at once.
    pub everywhere: bool,
    /// True if one thread of a CTA that moves data does all of its items in order, instead of one that fetches and one that
    /// sends.
    pub in_order: bool,
}

impl<'b, 'a> Walk<'b, 'a> {
    pub fn new(b: &'b mut Builder<'a>, which: WarpRole) -> Self {
        Walk {
            b,
            which,
            tiling: 0,
            tiles_n: None,
            steps: Expr::var("steps"),
            batches: 1.into(),
            boxes: Expr::symbol(Symbol::Batch, BATCH),
            scope: Vec::new(),
            at: None,
            declared: Vec::new(),
            slab_of: None,
            scheduler: GEMM,
            loops: Vec::new(),
            comm: 0,
            in_order: false,
            everywhere: false,
        }
    }

    /// The walk of a role that moves data, by its index among them.
    pub fn of_comm(b: &'b mut Builder<'a>, which: WarpRole, comm: usize) -> Self {
        Walk {
            comm,
            ..Walk::new(b, which)
        }
    }

    /// Tiling of the loop that it is in.
    pub fn tiling(&self) -> &'a Tiling {
        let cta: &'a Cta = self.b.cta;
        &cta.tilings()[self.tiling]
    }

    /// Refuses the statement that is being lowered.
    pub fn refuse(&mut self, message: impl Into<String>, hint: impl Into<String>) {
        let found = refuse(self.at, message, hint);
        self.b.found.push(found);
    }

    /// Nodes of a warp for one role. `scheduler` gives it the items.
    pub fn role(mut self, scheduler: SchedulerId, body: &[Block]) -> Vec<Node> {
        self.scheduler = scheduler;
        self.in_order = in_order(self.b.kernel, body);
        let mut nodes = match self.which {
            WarpRole::Load | WarpRole::Store | WarpRole::Multiply => self.own_sizes(body),
            WarpRole::Fetch | WarpRole::Send | WarpRole::Spare | WarpRole::End => Vec::new(),
        };
        nodes.extend(self.blocks(body));
        without_groups(&mut nodes);
        trim(&mut nodes);
        only_used(&mut nodes);
        let scheduled = nodes.iter().any(Node::has_items);
        let ping_pong = self.b.cta.mode() == Mode::PingPong;
        if scheduled && ping_pong && self.which == WarpRole::Multiply {
            let test = Test::Differ(Expr::var("consumer"), 0.into());
            let body = vec![self.skip()];
            nodes.insert(0, Node::If { test, body });
        }
        match self.which {
            WarpRole::Load => {
                nodes.extend(self.launches_awaited());
                nodes.extend(self.all_stages_empty());
            }
            WarpRole::Multiply | WarpRole::Spare | WarpRole::End => {}
            WarpRole::Store if nodes.iter().any(stores_in_bulk) => {
                nodes.push(Node::AwaitStores { pending: 0.into() })
            }
            WarpRole::Store => {}
            // One thread does all: what it sent has left when its last item is done.
            WarpRole::Fetch | WarpRole::Send if self.in_order => {}
            WarpRole::Fetch => nodes.extend(self.drained()),
            // All lanes have read each place, and it was released then.
            WarpRole::Send if stores_by_lanes(&nodes) => {}
            WarpRole::Send => nodes.extend(self.all_released()),
        }
        if scheduled {
            let body = nodes;
            vec![Node::Schedule { scheduler, body }]
        } else {
            nodes
        }
    }

    /// A loop over items. The copies of one loop in lifted branches have the same id.
    fn loop_over(&mut self, var: Var) -> LoopId {
        let known = self.loops.iter().position(|known| *known == var);
        let nth = known.unwrap_or_else(|| {
            self.loops.push(var);
            self.loops.len() - 1
        });
        LoopId {
            scheduler: self.scheduler,
            nth: nth as u16,
        }
    }

    pub fn blocks(&mut self, body: &[Block]) -> Vec<Node> {
        let mut nodes = Vec::new();
        for block in body {
            self.at = self.b.kernel.block_loc(block);
            match block {
                Block::ForRanks {
                    var, order, body, ..
                } => {
                    if let Some(node) = self.ranks(*var, order, |walk| walk.blocks(body)) {
                        nodes.push(node);
                    }
                }
                Block::If {
                    cond,
                    then,
                    otherwise,
                    ..
                } => {
                    let test = self.cond(cond);
                    let [then, otherwise] = [then, otherwise].map(|blocks| {
                        let names = self.declared.len();
                        let nodes = self.blocks(blocks);
                        self.declared.truncate(names);
                        nodes
                    });
                    for node in either(&test, then, otherwise) {
                        // What both name stands before the branches, for what comes after them too.
                        if let Node::Let { name, value } = &node {
                            self.declared.push((name.clone(), value.clone()));
                        }
                        nodes.push(node);
                    }
                }
                Block::Items {
                    var,
                    partition,
                    shard,
                    selection,
                    body,
                    ..
                } => {
                    let of = self.loop_over(*var);
                    self.everywhere = moves_everywhere(body);
                    let items = ItemsOf {
                        var: *var,
                        partition: *partition,
                        shard: shard.as_ref(),
                        selection,
                    };
                    nodes.extend(match self.which {
                        WarpRole::Spare if !copies(body) => self.beside(of, items, body),
                        WarpRole::Fetch | WarpRole::Send | WarpRole::Spare => {
                            self.chunks(of, items, body)
                        }
                        WarpRole::Load | WarpRole::Store | WarpRole::Multiply | WarpRole::End => {
                            self.tiles(of, items, body)
                        }
                    });
                }
                Block::Once { body } => {
                    if matches!(
                        self.which,
                        WarpRole::Load | WarpRole::Fetch | WarpRole::Spare
                    ) {
                        let first = match (self.which, &self.b.comm) {
                            (WarpRole::Load, Some(comm)) if self.scheduler == GEMM => comm.count(),
                            (WarpRole::Load | WarpRole::Fetch, Some(comm)) => {
                                comm.before(self.comm)
                            }
                            _ => Expr::Const(0),
                        };
                        let body = self.once(body);
                        nodes.push(Node::If {
                            test: Test::Equal(Expr::Block, first),
                            body,
                        });
                    }
                }
                Block::Join => {}
            }
        }
        nodes
    }

    /// A number with a name, unless that name already has it.
    pub fn name(&mut self, nodes: &mut Vec<Node>, name: &str, value: Expr) -> Expr {
        let mut name = name.to_string();
        loop {
            let tensor = |name: &str| {
                let kernel = self.b.kernel;
                let mut tensors = kernel.buffers.iter();
                let mut vars = kernel.vars.iter();
                tensors.any(|buffer| identifier(&buffer.name) == name)
                    || vars.any(|var| variable(var) == name)
            };
            match self.declared.iter().find(|(known, _)| *known == name) {
                None if tensor(&name) => name.push('_'),
                None => break,
                Some((_, known)) if *known == value => return Expr::Var(name),
                Some(_) => name.push('_'),
            }
        }
        self.declared.push((name.clone(), value.clone()));
        nodes.push(Node::Let {
            name: name.clone(),
            value,
        });
        Expr::Var(name)
    }

    pub fn ident(&self, var: Var) -> String {
        variable(&self.b.kernel.vars[var.index()])
    }

    pub fn whose(&mut self, home: &Home) -> Whose {
        match home {
            Home::Me => Expr::me().into(),
            Home::On(rank) => self.rank(rank).into(),
            Home::Everywhere => Whose::Everywhere,
        }
    }

    /// Owner of the memory that scales are in, which go to one rank after another.
    pub fn home_of_scales(&mut self, home: &Home) -> Expr {
        match self.whose(home) {
            Whose::Rank(rank) => rank,
            Whose::Everywhere => {
                let message = "scales in every rank's memory at once";
                let hint = "a loop over ranks, `.on(rank)`; elements go everywhere without them: `x.everywhere().data()[c]`";
                self.refuse(message, hint);
                Expr::me()
            }
        }
    }

    pub fn item(&self, var: Var) -> Option<(PartitionId, Option<Expr>, Expr, Expr)> {
        self.scope
            .iter()
            .rev()
            .find_map(|(known, bound)| match bound {
                Bound::Item {
                    partition,
                    shard,
                    row,
                    column,
                } if *known == var => {
                    Some((*partition, shard.clone(), row.clone(), column.clone()))
                }
                Bound::Item { .. } | Bound::Rank(_) => None,
            })
    }

    /// Columns of the grid of cells that every shard of a partition has along a counter axis over it: those of the tiles that the
    /// loop computes have a name.
    pub fn cell_columns(&self, partition: PartitionId) -> Expr {
        let kernel = self.b.kernel;
        let item = &kernel.partitions[partition.index()];
        if item.column_block.is_some() && !kernel.is_sharded_along(partition, Side::Columns) {
            match &self.tiles_n {
                Some((of, tiles_n)) if *of == partition => return tiles_n.clone(),
                None if self.b.alike.columns && partition == self.tiling().partition() => {
                    return Expr::var("tiles_n");
                }
                Some(_) | None => {}
            }
        }
        cells::columns(kernel, partition)
    }

    /// Layout of a tensor in the map of an item's boxes.
    fn view(&mut self, tensor: TensorId, item: Var) -> View {
        let (kernel, view) = (self.b.kernel, self.b.view(tensor));
        let buffer = &kernel.buffers[tensor.index()];
        let partition = self.item(item).map(|(partition, ..)| partition);
        if !partition.is_some_and(|partition| kernel.is_across(partition, buffer.rows)) {
            return view;
        }
        let across = view.across();
        if across != view && buffer.mn_major {
            let message = format!(
                "a tile of `{}` in several shards, whose rows are contiguous: each is a matrix of its own",
                buffer.name
            );
            self.refuse(
                message,
                "a layout with contiguous K, or tiles of each shard",
            );
        }
        across
    }

    /// The map of a tensor with boxes of that size, of which an item has some.
    pub fn map(&mut self, tensor: TensorId, item: Var, (rows, columns): (u32, u32)) -> MapId {
        let what = match self.which {
            WarpRole::Load => "_tiles",
            WarpRole::Store
            | WarpRole::Multiply
            | WarpRole::Fetch
            | WarpRole::Send
            | WarpRole::Spare
            | WarpRole::End => "_boxes",
        };
        let view = self.view(tensor, item);
        self.map_as(tensor, view, (rows, columns), what)
    }

    /// The map that an operand of a product is loaded by: K goes through all of its columns.
    pub fn operand_map(
        &mut self,
        (tensor, item): (TensorId, Var),
        boxed: (u32, u32),
        what: &str,
    ) -> MapId {
        let view = match self.view(tensor, item) {
            View::ColumnShards => View::Flat,
            view @ (View::Flat
            | View::Shards
            | View::SharedShards
            | View::SharedSlots
            | View::SharedSlotShards
            | View::SharedShard
            | View::SharedRows) => view,
        };
        self.map_as(tensor, view, boxed, what)
    }

    /// Map of a tensor, with a name of its own where the tensor's is taken.
    fn map_as(
        &mut self,
        tensor: TensorId,
        view: View,
        (rows, columns): (u32, u32),
        what: &str,
    ) -> MapId {
        let maps = &mut self.b.maps;
        let same = |map: &Map| {
            let boxed = (map.box_rows, map.box_columns);
            (map.tensor, map.view, boxed) == (tensor, view, (rows, columns))
        };
        if let Some(known) = maps.iter().position(same) {
            return MapId(known as u16);
        }
        let buffers = &self.b.kernel.buffers;
        let mut name = identifier(&buffers[tensor.index()].name.replace('.', "_"));
        let another = |name: &str| {
            let mut tensors = buffers.iter().enumerate();
            maps.iter().any(|map| map.name == name)
                || tensors
                    .any(|(at, other)| at != tensor.index() && identifier(&other.name) == name)
        };
        while another(&name) {
            name.push_str(what);
        }
        maps.push(Map {
            name,
            tensor,
            view,
            box_columns: columns,
            box_rows: rows,
            partial_shard: false,
        });
        let id = MapId((maps.len() - 1) as u16);
        self.b.clips(id, false);
        id
    }
}

impl Builder<'_> {
    /// A map that something is stored by.
    pub fn stores_by(&mut self, id: MapId) {
        self.clips(id, true);
    }

    /// Gives a map its sibling, if it needs one. Loads mind a short shard's end only where the memory may end, too: what
    /// they have beyond it is multiplied into rows that nobody stores.
    fn clips(&mut self, id: MapId, stored: bool) {
        let map = &mut self.maps[usize::from(id.0)];
        let usage = self.kernel.buffers[map.tensor.index()].usage;
        let divided = self.kernel.is_sharded(map.divided(self.kernel));
        map.partial_shard |= divided && map.ends_with_shards(usage, stored);
    }

    fn view(&self, tensor: TensorId) -> View {
        let buffer = &self.kernel.buffers[tensor.index()];
        let [sharded, by_columns] =
            [buffer.rows, buffer.columns].map(|dim| self.kernel.is_sharded(dim));
        let written = buffer.usage.is_output();
        let Placement {
            symmetric,
            rows,
            slots,
        } = buffer.usage.placement;
        let one = slots == Slots::Count(1);
        match rows {
            // Where an operand is MN-major, every shard is a matrix of its own.
            _ if !symmetric && sharded && (written || buffer.mn_major) => View::Shards,
            _ if !symmetric && by_columns && written => View::ColumnShards,
            _ if !symmetric => View::Flat,
            HeldRows::Whole if buffer.is_scratch() && sharded => View::SharedSlotShards,
            _ if buffer.is_scratch()
                && one
                && by_columns
                && !self.kernel.is_reached_by_peers(tensor) =>
            {
                View::ColumnShards
            }
            _ if buffer.usage.has_slots() => View::SharedSlots,
            HeldRows::Whole => View::SharedShards,
            HeldRows::Shard => View::SharedShard,
        }
    }
}

/// Drops numbers of a list that nothing in it uses.
fn only_used(nodes: &mut Vec<Node>) {
    let mut used = BTreeSet::new();
    for node in &*nodes {
        node.visit(&mut |node| {
            for expr in node.exprs() {
                expr.visit(&mut |expr| {
                    if let Expr::Var(name) = expr {
                        used.insert(name.clone());
                    }
                });
            }
        });
    }
    nodes.retain(|node| !matches!(node, Node::Let { name, .. } if !used.contains(name)));
}

/// Drops loops at the end that do nothing.
fn trim(nodes: &mut Vec<Node>) {
    fn idle(node: &Node) -> bool {
        let looped = matches!(
            node,
            Node::Items { .. } | Node::Ranks { .. } | Node::If { .. }
        );
        matches!(node, Node::Note(_) | Node::Let { .. }) || looped && node.body().iter().all(idle)
    }
    while nodes.last().is_some_and(idle) {
        nodes.pop();
    }
}
