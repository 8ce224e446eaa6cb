//! Text of work that one lane of a warp does while all of its lanes run.

use super::Text;
use counterflow_codegen::warp::Node;

impl Text<'_> {
    /// Work of one lane of a warp for all of them. It is the same lane each time: groups of stores are its own.
    pub(super) fn one_lane(&mut self, nodes: &[Node]) {
        self.block("if (elect_one())", |text| {
            text.all_lanes = false;
            nodes.iter().for_each(|node| text.node(node));
            text.all_lanes = true;
        });
    }
}

/// True if one lane does it where all lanes of a warp run: what belongs to a thread, or is done once for all of them.
pub(super) fn by_one_lane(node: &Node) -> bool {
    match node {
        Node::Load { .. } | Node::Store { .. } => !node.by_lanes(),
        Node::Expect { .. }
        | Node::Arrive { .. }
        | Node::Release { .. }
        | Node::Commit
        | Node::AwaitRead { .. }
        | Node::AwaitStores { .. }
        | Node::CopyScales { .. }
        | Node::CounterWait { .. }
        | Node::FenceGlobal
        | Node::CounterAdvance { .. }
        | Node::CounterAdd { .. }
        | Node::Defer { .. }
        | Node::Flush { .. } => true,
        Node::Note(_)
        | Node::Let { .. }
        | Node::Schedule { .. }
        | Node::Ranks { .. }
        | Node::Others { .. }
        | Node::Items { .. }
        | Node::For { .. }
        | Node::If { .. }
        | Node::Ahead { .. }
        | Node::Await { .. }
        | Node::TestWait { .. }
        | Node::AwaitTested { .. }
        | Node::Advance { .. }
        | Node::Skip { .. }
        | Node::AwaitOrder
        | Node::ArriveOrder
        | Node::MmaFence
        | Node::Mma { .. }
        | Node::MmaCommit
        | Node::MmaWait { .. }
        | Node::Accumulators
        | Node::Fragment(_)
        | Node::FenceShared
        | Node::FenceAlias
        | Node::SyncWarp
        | Node::AwaitLaunches
        | Node::SyncCta
        | Node::SyncCluster
        | Node::LastCta { .. } => false,
    }
}
