//! Walks over nodes and their numbers.

use super::{Expr, FragmentOp, MapId, Node, Pipeline, RingId, Whose};

impl Node {
    /// Calls `f` with this node and all within it, outer ones first.
    pub fn visit(&self, f: &mut impl FnMut(&Node)) {
        f(self);
        self.body().iter().for_each(|node| node.visit(f));
    }

    /// True if it is a loop over items, or has one within it.
    pub fn has_items(&self) -> bool {
        let mut found = false;
        self.visit(&mut |node| found |= matches!(node, Node::Items { .. }));
        found
    }

    /// The nodes it encloses.
    pub fn body(&self) -> &[Node] {
        if let Node::Ranks { body, .. }
        | Node::Others { body, .. }
        | Node::Schedule { body, .. }
        | Node::Items { body, .. }
        | Node::For { body, .. }
        | Node::If { body, .. }
        | Node::Ahead { body, .. }
        | Node::LastCta { body, .. } = self
        {
            body
        } else {
            &[]
        }
    }

    /// As [`Node::body`], to edit; `None` where it encloses none.
    pub fn body_mut(&mut self) -> Option<&mut Vec<Node>> {
        if let Node::Ranks { body, .. }
        | Node::Others { body, .. }
        | Node::Schedule { body, .. }
        | Node::Items { body, .. }
        | Node::For { body, .. }
        | Node::If { body, .. }
        | Node::Ahead { body, .. }
        | Node::LastCta { body, .. } = self
        {
            Some(body)
        } else {
            None
        }
    }

    /// True if it accesses the memory of every rank, by all lanes of its warp.
    pub fn is_everywhere(&self) -> bool {
        matches!(self, Node::Load { at, .. } | Node::Store { at, .. } if at.whose == Whose::Everywhere)
    }

    /// True if it stores a part of a tile, by all lanes of its warp.
    pub fn is_part(&self) -> bool {
        matches!(
            self,
            Node::Store {
                shard_end: Some(_),
                ..
            }
        )
    }

    /// True if all lanes of its warp make its accesses of global memory, instead of TMA.
    pub fn by_lanes(&self) -> bool {
        self.is_everywhere() || self.is_part()
    }

    /// The ring whose slot it reads or writes, if it does.
    pub fn accesses(&self) -> Option<RingId> {
        if let Node::Fragment(op) = self {
            return op.ring();
        }
        if let Node::Load { ring, .. } | Node::Store { ring, .. } | Node::Mma { ring, .. } = self {
            Some(*ring)
        } else {
            None
        }
    }

    /// The numbers of this node itself.
    pub fn exprs(&self) -> Vec<&Expr> {
        match self {
            Node::Let { value, .. } => vec![value],
            Node::Ranks { count, rank, .. } => vec![count, rank],
            Node::Items { count, grid, .. } => {
                let grid = (grid.iter()).flat_map(|grid| [&grid.index, &grid.rows, &grid.columns]);
                [count].into_iter().chain(grid).collect()
            }
            Node::For { from, to, by, .. } => vec![from, to, by],
            Node::Others { own, .. } => own.iter().flat_map(FragmentOp::exprs).collect(),
            Node::If { test, .. } => test.exprs(),
            Node::Expect { bytes, .. } => vec![bytes],
            Node::Skip { by, .. } => vec![by],
            Node::Release { held, .. } => vec![held],
            Node::AwaitRead { pending } | Node::AwaitStores { pending } => vec![pending],
            Node::Load {
                index,
                slice,
                at,
                partial_boxes,
                ..
            } => {
                let mut all = vec![index, slice, &at.column, &at.row, &at.shard];
                all.extend(at.whose.rank());
                all.extend(
                    partial_boxes
                        .iter()
                        .flat_map(|partial_boxes| [&partial_boxes.rows, &partial_boxes.all]),
                );
                all
            }
            Node::Store {
                slice,
                at,
                shard_end,
                ..
            } => {
                let mut all = vec![slice, &at.column, &at.row, &at.shard];
                all.extend(at.whose.rank());
                all.extend(shard_end);
                all
            }
            Node::CopyScales {
                from,
                to,
                row,
                rows,
                ..
            } => vec![from, to, row, rows],
            Node::Mma { fresh, .. } => vec![fresh],
            Node::Fragment(op) => op.exprs(),
            Node::CounterWait { cell, .. } | Node::CounterAdvance { cell, .. } => vec![cell],
            Node::CounterAdd { whose, cell, .. } => {
                whose.rank().into_iter().chain([cell]).collect()
            }
            Node::Defer { rank, cell, .. } => vec![rank, cell],
            Node::LastCta { of, advance, .. } => {
                let mut all = vec![of];
                all.extend(advance.iter().map(|(_, cells)| cells));
                all
            }
            Node::Note(_)
            | Node::Schedule { .. }
            | Node::Ahead { .. }
            | Node::Await { .. }
            | Node::TestWait { .. }
            | Node::AwaitTested { .. }
            | Node::Arrive { .. }
            | Node::Advance { .. }
            | Node::AwaitOrder
            | Node::ArriveOrder
            | Node::Commit
            | Node::MmaFence
            | Node::MmaCommit
            | Node::MmaWait { .. }
            | Node::Accumulators
            | Node::FenceShared
            | Node::SyncWarp
            | Node::FenceGlobal
            | Node::FenceAlias
            | Node::Flush { .. }
            | Node::AwaitLaunches
            | Node::SyncCta
            | Node::SyncCluster => Vec::new(),
        }
    }
}

/// Ways in which a map's tensor is accessed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Reaches {
    /// By TMA, which needs the map.
    pub by_tma: bool,
    /// In every rank's memory at once.
    pub everywhere: bool,
    /// Parts of tiles, at each rank's own address.
    pub parts: bool,
}

impl Pipeline {
    /// Calls `f` with every node.
    pub fn visit(&self, mut f: impl FnMut(&Node)) {
        let warps = self.warps.iter().flat_map(|warp| &warp.body);
        let all = self.start.iter().chain(warps).chain(&self.end);
        all.for_each(|node| node.visit(&mut f));
    }

    /// Who uses a map.
    pub fn reaches(&self, id: MapId) -> Reaches {
        let mut reaches = Reaches::default();
        self.visit(|node| {
            if let Node::Load {
                map, partial_boxes, ..
            } = node
            {
                reaches.by_tma |= partial_boxes.as_ref().is_some_and(|boxes| boxes.map == id);
                reaches.by_tma |= *map == id && !node.by_lanes();
            }
            if let Node::Store { map, .. } = node {
                reaches.by_tma |= *map == id && !node.by_lanes();
                reaches.parts |= *map == id && node.is_part();
            }
            if let Node::Load { map, .. } | Node::Store { map, .. } = node {
                reaches.everywhere |= *map == id && node.is_everywhere();
            }
        });
        reaches
    }

    /// Calls `f` with every number and its parts.
    pub fn visit_exprs(&self, mut f: impl FnMut(&Expr)) {
        self.lets.iter().for_each(|(_, value)| value.visit(&mut f));
        self.scale.iter().for_each(|(_, by)| by.visit(&mut f));
        self.visit(|node| node.exprs().into_iter().for_each(|expr| expr.visit(&mut f)));
    }

    /// Every list of nodes, to edit: tests take a good pipeline and change one thing.
    pub fn lists(&mut self, f: &mut impl FnMut(&mut Vec<Node>)) {
        fn walk(list: &mut Vec<Node>, f: &mut impl FnMut(&mut Vec<Node>)) {
            f(list);
            for node in list {
                if let Some(body) = node.body_mut() {
                    walk(body, f);
                }
            }
        }
        walk(&mut self.start, f);
        for warp in &mut self.warps {
            walk(&mut warp.body, f);
        }
        walk(&mut self.end, f);
    }
}
