//! One warp's walk over a role: loops, names, ranks and cells.

use super::builder::{Builder, refuse};
use super::chosen::ItemsOf;
use super::comm::{copies, in_order};
use super::cta::{Cta, Mode};
use super::either::either;
use super::scheduler::GEMM;
use crate::kernel::{Block, Region};
use crate::program::{Home, Loc, PartitionId, TensorId, TensorKind, Var};
use crate::tiling::Tiling;
use crate::warp::{
    Expr, Field, LoopId, Map, MapId, Node, SchedulerId, Test, View, identifier, variable,
};
use std::collections::BTreeSet;

/// Which warp walks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    Load,
    Store,
    Multiply,
    Fetch,
    Send,
    /// A spare warp: waits and signals.
    Spare,
    End,
}

/// What a loop variable stands for in the text.
#[derive(Clone)]
pub(super) enum Bound {
    Rank(Expr),
    Item {
        partition: PartitionId,
        chunk: Option<Expr>,
        row: Expr,
        column: Expr,
    },
}

pub(super) struct Walk<'b, 'a> {
    pub b: &'b mut Builder<'a>,
    pub which: Which,
    pub scope: Vec<(Var, Bound)>,
    /// The statement that is being lowered.
    pub at: Option<Loc>,
    /// Names declared in the enclosing loops.
    pub declared: Vec<(String, Expr)>,
    /// Which of the CTA's tilings the loop that it is in has: the first outside of all.
    pub tiling: usize,
    /// The columns of its grid, where no other loop has as many.
    pub tiles_n: Option<(PartitionId, Expr)>,
    /// The steps of its products.
    pub steps: Expr,
    /// What gives it its items.
    scheduler: SchedulerId,
    /// The loops over items so far, by their variables.
    loops: Vec<Var>,
    /// Which of the roles that move data, by its index among them.
    pub comm: usize,
    /// Whether one thread of a CTA that moves data does all of its items in order, instead of one that fetches and one that
    /// sends.
    pub in_order: bool,
}

impl<'b, 'a> Walk<'b, 'a> {
    pub fn new(b: &'b mut Builder<'a>, which: Which) -> Self {
        Walk {
            b,
            which,
            tiling: 0,
            tiles_n: None,
            steps: Expr::var("steps"),
            scope: Vec::new(),
            at: None,
            declared: Vec::new(),
            scheduler: GEMM,
            loops: Vec::new(),
            comm: 0,
            in_order: false,
        }
    }

    /// The walk of a role that moves data, by its index among them.
    pub fn of_comm(b: &'b mut Builder<'a>, which: Which, comm: usize) -> Self {
        Walk {
            comm,
            ..Walk::new(b, which)
        }
    }

    /// How the tiles of the loop that it is in are computed.
    pub fn tiling(&self) -> &'a Tiling {
        let cta: &'a Cta = self.b.cta;
        &cta.tilings()[self.tiling]
    }

    /// Refuses the statement that is being lowered.
    pub fn refuse(&mut self, message: impl Into<String>, hint: impl Into<String>) {
        let found = refuse(self.at, message, hint);
        self.b.found.push(found);
    }

    /// All a warp does of a role, whose items this scheduler gives it.
    pub fn role(mut self, scheduler: SchedulerId, body: &[Block]) -> Vec<Node> {
        self.scheduler = scheduler;
        self.in_order = in_order(self.b.kernel, body);
        let mut nodes = match self.which {
            Which::Load | Which::Store | Which::Multiply => self.own_sizes(body),
            Which::Fetch | Which::Send | Which::Spare | Which::End => Vec::new(),
        };
        nodes.extend(self.blocks(body));
        trim(&mut nodes);
        only_used(&mut nodes);
        let scheduled = nodes.iter().any(Node::has_items);
        let ping_pong = self.b.cta.mode() == Mode::PingPong;
        if scheduled && ping_pong && self.which == Which::Multiply {
            let test = Test::Differ(Expr::var("consumer"), 0.into());
            let body = vec![self.skip()];
            nodes.insert(0, Node::If { test, body });
        }
        match self.which {
            Which::Load => nodes.extend(self.all_stages_empty()),
            Which::Multiply | Which::Spare | Which::End => {}
            Which::Store if nodes.iter().any(has_stores) => {
                nodes.push(Node::AwaitStores { pending: 0.into() })
            }
            Which::Store => {}
            // One thread does all: what it sent has left when its last item is done.
            Which::Fetch | Which::Send if self.in_order => {}
            Which::Fetch => nodes.extend(self.drained()),
            Which::Send => nodes.extend(self.all_released()),
        }
        if scheduled {
            let body = nodes;
            vec![Node::Schedule { scheduler, body }]
        } else {
            nodes
        }
    }

    /// A loop over items. What was one loop before branches were lifted is the same one in each of them.
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
                    chunk,
                    selection,
                    body,
                    ..
                } => {
                    let of = self.loop_over(*var);
                    let items = ItemsOf {
                        var: *var,
                        partition: *partition,
                        chunk: chunk.as_ref(),
                        selection,
                    };
                    nodes.extend(match self.which {
                        Which::Spare if !copies(body) => self.beside(of, items, body),
                        Which::Fetch | Which::Send | Which::Spare => self.pieces(of, items, body),
                        Which::Load | Which::Store | Which::Multiply | Which::End => {
                            self.tiles(of, items, body)
                        }
                    });
                }
                Block::Once { body } => {
                    if matches!(self.which, Which::Load | Which::Fetch | Which::Spare) {
                        let first = match (self.which, &self.b.comm) {
                            (Which::Load, Some(comm)) if self.scheduler == GEMM => comm.count(),
                            (Which::Load | Which::Fetch, Some(comm)) => comm.before(self.comm),
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
        once(nodes)
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

    pub fn home(&mut self, home: &Home) -> Expr {
        match home {
            Home::Me => Expr::me(),
            Home::On(rank) => self.rank(rank),
            Home::Everywhere => {
                self.refuse("a multicast address", "one rank at a time: `.on(rank)`");
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
                    chunk,
                    row,
                    column,
                } if *known == var => {
                    Some((*partition, chunk.clone(), row.clone(), column.clone()))
                }
                Bound::Item { .. } | Bound::Rank(_) => None,
            })
    }

    /// Columns of the grid of items.
    pub fn grid_columns(&self, partition: PartitionId) -> Expr {
        let item = &self.b.kernel.partitions[partition.index()];
        match item.column_block {
            None => Expr::Const(1),
            Some(block) => match &self.tiles_n {
                Some((of, tiles_n)) if *of == partition => tiles_n.clone(),
                None if self.b.alike.columns && partition == self.tiling().partition() => {
                    Expr::var("tiles_n")
                }
                Some(_) | None => Expr::Field(Field::Size(item.columns)).ceil_div(block),
            },
        }
    }

    pub(super) fn chunks(&self, partition: PartitionId) -> Expr {
        let item = &self.b.kernel.partitions[partition.index()];
        if self.b.kernel.dims[usize::from(item.rows.0)].chunked {
            Expr::world()
        } else {
            Expr::Const(1)
        }
    }

    /// The map of a tensor with boxes of that size.
    pub fn map(&mut self, tensor: TensorId, rows: u32, columns: u32) -> MapId {
        let what = match self.which {
            Which::Load => "_tiles",
            Which::Store
            | Which::Multiply
            | Which::Fetch
            | Which::Send
            | Which::Spare
            | Which::End => "_boxes",
        };
        self.map_as(tensor, (rows, columns), what)
    }

    /// The same, with what it is called where the tensor's name is taken.
    pub fn map_as(&mut self, tensor: TensorId, (rows, columns): (u32, u32), what: &str) -> MapId {
        let view = self.b.view(tensor);
        let maps = &mut self.b.maps;
        let same =
            |map: &Map| map.tensor == tensor && (map.box_rows, map.box_columns) == (rows, columns);
        if let Some(known) = maps.iter().position(same) {
            return MapId(known as u16);
        }
        let buffers = &self.b.kernel.buffers;
        let mut name = identifier(&buffers[tensor.index()].name);
        let another = |name: &str| {
            let mut tensors = buffers.iter().enumerate();
            maps.iter().any(|map| map.name == name)
                || tensors
                    .any(|(at, other)| at != tensor.index() && identifier(&other.name) == name)
        };
        while another(&name) {
            name.push_str(what);
        }
        // Only stores mind a short chunk's end: what a load has beyond it is multiplied into rows that nobody stores.
        let stored = matches!(
            self.b.kernel.buffers[tensor.index()].kind,
            TensorKind::Out | TensorKind::Accumulated
        );
        let partial_chunk = view == View::Chunks && stored;
        maps.push(Map {
            name,
            tensor,
            view,
            box_columns: columns,
            box_rows: rows,
            partial_chunk,
        });
        MapId((maps.len() - 1) as u16)
    }

    /// Where a region's rows start in its map, in blocks of `block` rows: (row, chunk or slot, rank).
    pub fn place(
        &mut self,
        region: &Region,
        map: MapId,
        item: Var,
        row: Expr,
        slot: Option<Expr>,
    ) -> (Expr, Expr, Expr) {
        let view = self.b.maps[usize::from(map.0)].view;
        let buffer = &self.b.kernel.buffers[region.buffer.index()];
        let (rows, held) = (buffer.rows, buffer.chunk_only());
        let chunk = self.item(item).and_then(|(_, chunk, ..)| chunk);
        let rank = self.home(&region.home);
        let of_chunk = chunk.clone().unwrap_or(Expr::Const(0));
        match view {
            View::Flat => match chunk {
                Some(chunk) if !held => (
                    chunk * Expr::Field(Field::ChunkRows(rows)) + row,
                    0.into(),
                    0.into(),
                ),
                Some(_) | None => (row, 0.into(), 0.into()),
            },
            View::Chunks => (row, of_chunk, 0.into()),
            View::SharedChunks => (row, of_chunk, rank),
            View::SharedChunk => (row, 0.into(), rank),
            View::SharedSlots => (row, slot.unwrap_or(Expr::Const(0)), rank),
            View::SharedSlotChunks => {
                let before = slot.unwrap_or(Expr::Const(0)) * Expr::world();
                (row, before + of_chunk, rank)
            }
        }
    }
}

impl Builder<'_> {
    fn view(&self, tensor: TensorId) -> View {
        let buffer = &self.kernel.buffers[tensor.index()];
        let chunked = self.kernel.dims[usize::from(buffer.rows.0)].chunked;
        match buffer.kind {
            // Where an operand is MN-major, every chunk is a matrix of its own.
            TensorKind::Local if chunked && buffer.mn_major => View::Chunks,
            TensorKind::Local | TensorKind::Vector => View::Flat,
            TensorKind::Out | TensorKind::Accumulated if chunked => View::Chunks,
            TensorKind::Out | TensorKind::Accumulated => View::Flat,
            TensorKind::Gathered | TensorKind::Reduced => View::SharedChunks,
            TensorKind::Scattered => View::SharedChunk,
            TensorKind::Exchanged => View::SharedSlots,
            TensorKind::Scratch { .. } if chunked && !buffer.chunk_only() => View::SharedSlotChunks,
            TensorKind::Scratch { .. } => View::SharedSlots,
        }
    }
}

fn has_stores(node: &Node) -> bool {
    let mut found = false;
    node.visit(&mut |node| found |= matches!(node, Node::Store { .. }));
    found
}

/// The nodes of a list, in which each map is chosen once.
fn once(nodes: Vec<Node>) -> Vec<Node> {
    let mut chosen: Vec<Node> = Vec::new();
    let mut is_new = |node: &Node| {
        let choice = matches!(node, Node::PartialChunk { .. });
        let new = !choice || !chosen.contains(node);
        if choice && new {
            chosen.push(node.clone());
        }
        new
    };
    nodes.into_iter().filter(|node| is_new(node)).collect()
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
        matches!(
            node,
            Node::Note(_) | Node::Let { .. } | Node::PartialChunk { .. }
        ) || looped && node.body().iter().all(idle)
    }
    while nodes.last().is_some_and(idle) {
        nodes.pop();
    }
}
