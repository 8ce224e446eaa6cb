//! Stages that are filled with what nobody writes, while the rows that peers send are awaited, or the end of earlier launches.

use super::cta::{SlotKind, dependent_launch};
use super::nodes::{count, side, why};
use super::passes::Pass;
use super::rings::STAGES;
use super::stages::{Staged, least, loads};
use super::walk::Walk;
use crate::warp::{Expr, Node, Symbol, Unroll, cluster};

impl Walk<'_, '_> {
    /// True if the warp that loads fills stages before it awaits earlier launches.
    pub(super) fn begins_early(&self) -> bool {
        !dependent_launch::loaded_early(self.b.kernel).is_empty()
    }

    /// The wait for earlier launches at the end of the warp that loads, if it fills stages before it awaits them.
    pub(super) fn launches_awaited(&self) -> Vec<Node> {
        let words = "So does a CTA without tiles: the next launch waits for this one alone.";
        match self.begins_early() {
            true => vec![why(words), Node::AwaitLaunches],
            false => Vec::new(),
        }
    }

    /// True if a pass waits for rows of several shards: few rows, behind which all of the other operand is read.
    pub(super) fn in_several_shards(&mut self, pass: &Pass<'_>) -> bool {
        let operands = self.operands_of(pass);
        operands.iter().any(|(_, region)| {
            let rows = self.b.kernel.buffers[region.buffer.index()].rows;
            let item = side(region).and_then(|(_, var)| self.item(var));
            item.is_some_and(|(partition, ..)| self.b.kernel.is_across(partition, rows))
        })
    }

    /// Fills stages with the early operands of a CTA's first tile, before its waits: all stages are empty then. Behind other tiles
    /// the last stage is, too, only when the tile before is done, and that is late. Gives the number of stages.
    pub(super) fn filled_ahead(&mut self, early: &[Staged], nodes: &mut Vec<Node>) -> Expr {
        let of_first_wave = match &self.b.comm {
            Some(comm) => Expr::Blocks - comm.count(),
            None if self.b.cta.ctas() > 1 => Expr::Blocks / cluster(self.b.cta),
            None => Expr::Blocks,
        };
        let later = least(Expr::Within / of_first_wave, 1.into());
        let stages = Expr::symbol(Symbol::Slots(SlotKind::Stage), self.b.cta.stages());
        let filled = least(self.steps.clone(), stages * (Expr::from(1) - later));
        nodes.push(why(match self.begins_early() {
            true => "In its first tile a CTA fills all stages with what is constant, then awaits the launches before.",
            false => "In its first tile a CTA fills all stages with what nobody sends, then waits for the rows.",
        }));
        let filled = self.name(nodes, "filled", filled);
        let mut body = self.empty_stage();
        body.extend(loads(early));
        body.push(Node::Advance {
            ring: STAGES,
            keep: false,
        });
        let fill = count("step", filled.clone(), 1.into(), Unroll::Once, body);
        nodes.push(Node::Ahead {
            ring: STAGES,
            body: vec![fill],
        });
        filled
    }
}
