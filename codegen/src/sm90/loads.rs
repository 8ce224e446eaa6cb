//! The operands of a product: how a tile of one lies in a stage, and the loads that put it there.
//!
//! Where it is K-major, a tile is one box, its rows 128 bytes each, or as many of the box's partial boxes as have rows that
//! exist. Where it is MN-major (`w` of a dgrad, both operands of a wgrad), it is blocks of [`BLOCK_ROWS`] rows,
//! each a box of a 128-byte line for every K, or as many of the blocks as have rows that exist.
//!
//! CTAs of a cluster share a tile's operand: each loads a part of it into all of them. The part is some rows of the box, or in
//! every block the lines of some of the step's K. Either part is whole swizzle atoms.

use super::builder::refuse;
use super::leaves::Leaf;
use super::nodes::{Operand, count, side, why};
use super::passes::Pass;
use super::rings::STAGES;
use super::stages::{Staged, expected, least, loads, summed};
use super::walk::Walk;
use crate::dtype::Dtype;
use crate::kernel::{OpKind, Region};
use crate::program::{Home, Pick, Side, Slots};
use crate::tiling::{self, Major, StagedScale};
use crate::warp::{
    At, BLOCK_ROWS, Expr, FragmentOp, MapId, Node, PARTIAL_BOX_ROWS, PartialBoxes, Phase, Symbol,
    Test, TileNumber, Unroll, Whose, identifier,
};

/// Place of a tile along its rows (of `w`: along columns of the product), and the CTAs that load it.
struct TileSide {
    /// Rows of the tile.
    tile: Expr,
    /// First row of the tile, and the first row that no longer exists.
    from: Expr,
    end: Expr,
    /// True if the tile may lie outside, as a cluster's last may.
    outside: bool,
    /// Number of CTAs that load a part of it each.
    ctas: u32,
}

impl Walk<'_, '_> {
    /// Waits for a stage that may be written. Scales of blocks are read from it by ordinary loads: one fence here is one for all
    /// warps that read them, and none of those waits for it before it multiplies again.
    pub(super) fn empty_stage(&self) -> Vec<Node> {
        let mut tilings = self.b.cta.tilings().iter();
        let scales = tilings.any(|tiling| !tiling.scales().is_empty());
        let mut nodes = vec![Node::Await {
            barrier: STAGES.empty(),
            phase: Phase::PreviousPhase,
        }];
        nodes.extend(scales.then_some(Node::FenceShared));
        nodes
    }

    /// A tile's loads: its product's operands, then what is added to it or read beside it.
    pub(super) fn load(&mut self, pass: &Pass<'_>) -> Vec<Node> {
        let begins_early = self.begins_early();
        if pass.dots.is_empty() {
            let mut nodes = self.waits(&pass.load_waits);
            nodes.extend(begins_early.then_some(Node::AwaitLaunches));
            nodes.extend(self.load_operands(pass));
            return nodes;
        }
        let names = self.declared.len();
        let notes: Vec<Node> = pass.dots.iter().map(|dot| self.note(dot.op)).collect();
        // What the waits are not for is loaded before them: operands that nobody writes meanwhile, but for `x`. So are constant
        // ones before earlier launches are awaited.
        let (mut early, mut late) = (Vec::new(), Vec::new());
        for (part, region) in self.operands_of(pass) {
            let columns = self.tiling().operands()[part].columns;
            let handed_over = self.b.kernel.is_handed_over(region);
            let constant = begins_early && self.b.kernel.is_constant(region.buffer);
            let Some(staged) = self.operand(part, region) else {
                return Vec::new();
            };
            if constant || columns && !handed_over && pass.awaits_operands() {
                early.push(staged);
            } else {
                late.push(staged);
            }
        }
        for (at, scale) in self.tiling().scales().iter().enumerate() {
            let staged = self.scale(pass, at, *scale);
            // Nobody writes those that stay on their rank.
            match !pass.awaits_operands() || scale.travels {
                true => late.extend(staged),
                false => early.extend(staged),
            }
        }
        let mut ahead = Vec::new();
        let fills = begins_early || self.in_several_shards(pass);
        let filled = match !early.is_empty() && fills {
            true => self.filled_ahead(&early, &mut ahead),
            false => 0.into(),
        };
        ahead.extend(begins_early.then_some(Node::AwaitLaunches));
        self.declared.truncate(names);
        let all = || late.iter().chain(&early);
        let bytes = all().map(|staged| staged.bytes.clone());
        let mut body = self.empty_stage();
        let waits = self.waits(&pass.load_waits);
        body.extend(loads(&early));
        if filled != 0.into() {
            let test = Test::AtLeast(Expr::var("step"), filled);
            body = vec![Node::If { test, body }];
        }
        if !waits.is_empty() {
            body.push(Node::If {
                test: Test::Equal(Expr::var("step"), 0.into()),
                body: waits,
            });
        }
        body.extend(self.each_slab(pass));
        // Behind the waits, so that who multiplies comes after them, too: a load's completion passes on nothing that its thread
        // saw. Bytes of the early loads may land before they are announced, as another CTA's multicast may: a barrier counts them
        // below zero, and its phase cannot end without this arrival.
        body.push(Node::Expect {
            barrier: STAGES.full(),
            bytes: bytes.reduce(|all, more| all + more).unwrap_or(0.into()),
        });
        body.extend(loads(&late));
        body.push(Node::Advance {
            ring: STAGES,
            keep: false,
        });
        let mut nodes = self.stages_free();
        nodes.extend(notes);
        // A remark that is of several is made once.
        let mut sizes: Vec<Node> = Vec::new();
        for node in all().flat_map(|staged| &staged.sizes) {
            if !sizes.contains(node) {
                sizes.push(node.clone());
            }
        }
        nodes.extend(sizes);
        nodes.extend(ahead);
        nodes.push(self.each_step(Unroll::Once, body));
        for (waits, sum) in pass.sums.iter().filter(|_| !pass.apart) {
            nodes.push(self.note(sum.op));
            nodes.extend(self.others(sum, waits));
        }
        nodes.extend(self.load_operands(pass));
        nodes
    }

    /// The operands of an item's products, by their parts of a stage.
    pub(super) fn operands_of<'a>(&mut self, pass: &Pass<'a>) -> Vec<(usize, &'a Region)> {
        let mut found: Vec<(usize, &Region)> = Vec::new();
        for leaf in &pass.dots {
            let OpKind::Dot { a, b, .. } = &leaf.op.kind else {
                continue;
            };
            for (region, columns) in [(a, false), (b, true)] {
                let mut operands = self.tiling().operands().iter();
                let is = |operand: &tiling::Operand| {
                    (operand.tensor, operand.columns) == (region.buffer, columns)
                };
                let Some(part) = operands.position(is) else {
                    continue;
                };
                match found.iter().find(|(known, _)| *known == part) {
                    None => found.push((part, region)),
                    Some((_, known)) if *known == region => {}
                    Some(_) => {
                        let name = &self.b.kernel.buffers[region.buffer.index()].name;
                        let message = format!("two places of `{name}` in the products of one item");
                        let at = Some(self.b.kernel.loc(leaf.op.id));
                        let hint = "one place of a tensor: products share what is loaded of it";
                        self.b.found.push(refuse(at, message, hint));
                    }
                }
            }
        }
        found.sort_by_key(|(part, _)| *part);
        found
    }

    /// Loads stored tiles through the stages: as many subtiles as fit where the larger operand would be.
    fn others(&mut self, sum: &Leaf<'_>, waits: &[Leaf<'_>]) -> Vec<Node> {
        let subtiles = Expr::var("part") + Expr::var("i");
        let Some((map, at, dtype)) = self.term(sum, subtiles) else {
            return Vec::new();
        };
        let OpKind::Reduce { from, .. } = &sum.op.kind else {
            return Vec::new();
        };
        let scaled = self.b.kernel.computed_scale_of(from.buffer).is_some();
        if dtype.bytes() != self.tiling().widest() && !scaled {
            self.b.found.push(refuse(
                self.b.kernel.loc(sum.op.id).into(),
                format!("a sum of stored tiles of {dtype} into f32"),
                "outputs of the operands' type, or tiles that are added one by one: `dot(x[t], w[t]) + z[t]`",
            ));
            return Vec::new();
        }
        let subtile = match scaled {
            true => self.subtile_elements() * dtype.bytes(),
            false => self.b.subtile_bytes(self.tiling),
        };
        let (part, _) = self.tiling().reused_stage();
        let everywhere = at.whose == Whose::Everywhere;
        let load = self.each_slice(dtype, at.column.clone(), |slice, column| Node::Load {
            ring: STAGES,
            part,
            index: Expr::var("i"),
            slice,
            map,
            at: At {
                column,
                ..at.clone()
            },
            multicast: false,
            partial_boxes: None,
        });
        let mut part = self.empty_stage();
        let loads = vec![count(
            "i",
            self.stage_subtiles(),
            1.into(),
            Unroll::Once,
            vec![load],
        )];
        part.extend(match everywhere {
            true => summed(loads),
            false => expected(self.stage_subtiles() * subtile, loads),
        });
        // The same `others` as the sum's: one at a time, so that the first to arrive is loaded first. What else is waited for
        // comes once, before all of them.
        let (each, before): (Vec<_>, Vec<_>) =
            waits.iter().cloned().partition(|wait| wait.slot_by_slot);
        let mut nodes = self.waits(&before);
        let mut body = Vec::new();
        for leaf in &each {
            if let OpKind::Wait {
                cells, at_least, ..
            } = &leaf.op.kind
            {
                body.extend(
                    self.wait(cells, *at_least)
                        .into_iter()
                        .flat_map(|node| match node {
                            Node::Others { body, .. } | Node::For { body, .. } => body,
                            other => vec![other],
                        }),
                );
            }
        }
        body.extend(self.after_waits());
        body.push(count(
            "part",
            self.subtiles(),
            self.stage_subtiles(),
            Unroll::Once,
            part,
        ));
        nodes.extend(self.each_slot(sum, None, body));
        nodes
    }

    /// Repeats work for each slot of a sum, by its number `from`, and for this rank's own term in its turn. Every
    /// rank's copies come as one term, their sum.
    pub(super) fn each_slot(
        &self,
        sum: &Leaf<'_>,
        own: Option<FragmentOp>,
        body: Vec<Node>,
    ) -> Vec<Node> {
        let var = "from".to_string();
        let OpKind::Reduce { from, .. } = &sum.op.kind else {
            return vec![Node::Others { var, own, body }];
        };
        if from.home == Home::Everywhere {
            return body;
        }
        if from.slot != Some(Pick::All) {
            return vec![Node::Others { var, own, body }];
        }
        let to = match self.b.kernel.buffers[from.buffer.index()].slots_by() {
            Slots::Count(count) => count.into(),
            Slots::World => Expr::world(),
            Slots::Peers => Expr::world() - 1,
        };
        vec![Node::For {
            var,
            from: 0.into(),
            to,
            by: 1.into(),
            unroll: Unroll::Once,
            body,
        }]
    }

    /// Place of a subtile of a sum's term, that of the slot `from`, and its type.
    pub(super) fn term(&mut self, sum: &Leaf<'_>, subtile: Expr) -> Option<(MapId, At, Dtype)> {
        let OpKind::Reduce { from, .. } = &sum.op.kind else {
            return None;
        };
        let buffer = &self.b.kernel.buffers[from.buffer.index()];
        let name = &buffer.name;
        let refused = match (&from.slot, &from.home) {
            (Some(Pick::Others | Pick::All), Home::Everywhere) => Some((
                "a sum of several slots over the memory of all ranks".into(),
                format!("one slot of every rank: `{name}.everywhere()[slot][t].sum()`"),
            )),
            (_, Home::Everywhere) => None,
            (_, home) if home.is_remote() => Some((
                "a sum of slots in another rank's memory".into(),
                format!(
                    "copy them to this rank first: it adds its own slots, `{name}[others()][t].sum()`"
                ),
            )),
            (Some(Pick::One(_)) | None, _) => Some((
                "a sum of one slot".into(),
                format!("a stored tile as it is, without `.sum()`: `{name}[slot][t]`"),
            )),
            (Some(Pick::Others), _) if !buffer.has_slot_for_each_rank() => Some((
                format!("a sum of the slots of all others, of which `{name}` has none"),
                format!("`slots = world()`, or all of its slots: `{name}[everyone()][t].sum()`"),
            )),
            (Some(Pick::Others | Pick::All), _) => None,
        };
        if let Some((message, hint)) = refused {
            let (message, hint): (String, String) = (message, hint);
            let at = self.b.kernel.loc(sum.op.id);
            self.b.found.push(refuse(at.into(), message, hint));
            return None;
        }
        let (_, var) = side(from)?;
        let (_, _, row, column) = self.item(var)?;
        let map = self.subtile_map(from.buffer, var);
        let place = self.subtile_at(row, column, subtile);
        let slot = match (&from.home, &from.slot) {
            (Home::Everywhere, Some(Pick::One(slot))) => Some(self.rank(slot)),
            (Home::Everywhere, _) => None,
            (Home::Me | Home::On(_), _) => Some(Expr::var("from")),
        };
        let at = self.place(from, map, var, place, slot);
        let dtype = self.b.kernel.buffers[from.buffer.index()].dtype;
        Some((map, at, dtype))
    }

    /// Subtiles of a stored tile that a reused stage holds.
    pub(super) fn stage_subtiles(&self) -> Expr {
        self.b
            .constant(self.tiling, TileNumber::StageSubtiles, |tiling| {
                tiling.reused_stage().1
            })
    }

    /// Index of this step among all K steps.
    pub(super) fn step(&self) -> Expr {
        if self.b.cta.split() > 1 {
            Expr::var("first_step") + Expr::var("step")
        } else {
            Expr::var("step")
        }
    }

    /// A product's tile of `region` in that part of the stage; `None` where it is no tile's.
    pub(super) fn operand(&mut self, part: usize, region: &Region) -> Option<Staged> {
        let tile = self.tiling().tile();
        let operand = self.tiling().operands()[part];
        let (axis, var) = side(region)?;
        let (partition, shard, row, column) = self.item(var)?;
        let (down, across) = self.b.cta.cluster();
        let ctas = operand.multicast;
        let tile_side = match axis {
            Operand::Rows => TileSide {
                tile: self.tile_rows(),
                from: row * self.tile_rows(),
                end: self.span(partition, Side::Rows, shard.as_ref()),
                outside: down > 1,
                ctas,
            },
            Operand::Columns => TileSide {
                tile: self.tile_columns(),
                from: column * self.tile_columns(),
                end: self.span(partition, Side::Columns, shard.as_ref()),
                outside: across > 1,
                ctas,
            },
        };
        let buffer = &self.b.kernel.buffers[region.buffer.index()];
        let (name, mn_major) = (identifier(&buffer.name), operand.major == Major::Mn);
        let staged = self.b.staged(self.tiling, part);
        let all_bytes = Expr::symbol(Symbol::OperandBytes(staged.into()), operand.bytes);
        let boxes = operand.boxes;
        let block = if mn_major {
            Expr::var("block")
        } else {
            0.into()
        };
        let map = self.operand_map((region.buffer, var), (boxes.rows, boxes.k), "_tiles");
        let (mut mine, mut k) = (
            tile_side.from.clone(),
            self.step() * Expr::symbol(Symbol::TileK, tile.k),
        );
        if tile_side.ctas > 1 {
            let multicast_rank = Expr::var("multicast_rank");
            if mn_major {
                let cluster = Expr::symbol(Symbol::Cluster, tile_side.ctas);
                k = k + multicast_rank * (Expr::symbol(Symbol::TileK, tile.k) / cluster);
            } else {
                mine = mine + multicast_rank * tile_side.mine();
            }
        }
        let mut staged = Staged {
            sizes: Vec::new(),
            bytes: all_bytes,
            loads: Vec::new(),
        };
        let partial_boxes = (!mn_major && boxes.partial).then(|| {
            let boxed = (PARTIAL_BOX_ROWS, tile.k);
            let map = self.operand_map((region.buffer, var), boxed, "_partial_box");
            let (come, mine) = self.rows_that_come(&name, &tile_side, &mut staged.sizes);
            staged.bytes = come * Expr::symbol(Symbol::TileK, tile.k) * operand.element.bytes();
            PartialBoxes {
                map,
                rows: mine,
                all: tile_side.mine(),
            }
        });
        let mut come = Expr::from(boxes.count);
        if mn_major && boxes.partial {
            come = self.blocks_that_come(&name, boxes.count, &tile_side, &mut staged.sizes);
            let each = BLOCK_ROWS * tile.k * operand.element.bytes();
            staged.bytes = come.clone() * Expr::symbol(Symbol::BlockBytes, each);
        }
        let start = mine + block.clone() * Expr::symbol(Symbol::BlockRows, BLOCK_ROWS);
        let at = self.place(region, map, var, (start, k), None);
        let load = Node::Load {
            ring: STAGES,
            part,
            index: block,
            slice: 0.into(),
            map,
            at,
            multicast: tile_side.ctas > 1,
            partial_boxes,
        };
        staged.loads.push(if mn_major {
            count("block", come, 1.into(), Unroll::Once, vec![load])
        } else {
            load
        });
        Some(staged)
    }

    /// A step's scales of an operand's blocks, in their part of the stage. They come for a tile outside, too: so few that leaving
    /// them out would cost more.
    fn scale(&mut self, pass: &Pass<'_>, at: usize, scale: StagedScale) -> Option<Staged> {
        let region = self.operands_of(pass).into_iter();
        let (_, region) = region
            .into_iter()
            .find(|(part, _)| *part == scale.operand)?;
        let (axis, var) = side(region)?;
        let (partition, shard, row, column) = self.item(var)?;
        let (of, nth, each) = match axis {
            Operand::Rows => (Side::Rows, row, self.tile_rows()),
            Operand::Columns => (Side::Columns, column, self.tile_columns()),
        };
        let (item, first) = ((partition, shard.as_ref()), nth * each.clone());
        let begin = self.begin(item, of, first.clone());
        let (first, shard, rank) = match begin.shard {
            Some(shard) if scale.travels => (begin.first, shard, Expr::me()),
            // In several shards, which are one matrix.
            None if scale.travels => (begin.first, 0.into(), Expr::me()),
            Some(_) | None => (self.among_all(item, of, first), 0.into(), 0.into()),
        };
        let (rows, columns) = scale.boxed();
        let map = self.operand_map((scale.tensor, var), (rows, columns), "_blocks");
        let block = self.first_block(&scale);
        let numbers = match scale.depth {
            1 => each,
            depth => each * depth,
        };
        let (row, column, numbers) = match scale.block.is_1d() {
            true if scale.travels => (first, block, numbers),
            true => (block, first, numbers),
            false => {
                let side = Expr::symbol(Symbol::ScaleBlock, scale.block.rows);
                // TMA begins at multiples of 16 bytes of a line: the step's number is one of four.
                let four = block / columns * columns;
                (first / side, four, (rows * columns).into())
            }
        };
        let load = Node::Load {
            ring: STAGES,
            part: self.tiling().operands().len() + at,
            index: 0.into(),
            slice: 0.into(),
            map,
            at: At {
                column,
                row,
                shard,
                whose: rank.into(),
            },
            multicast: false,
            partial_boxes: None,
        };
        Some(Staged {
            sizes: Vec::new(),
            bytes: numbers * scale.block.element.bytes(),
            loads: vec![load],
        })
    }

    /// Offset in a block of several rows at which a tile begins, by scale: 0 where no block crosses its edges. Ranks
    /// divide rows between blocks.
    pub(super) fn begins_in_blocks(&mut self, pass: &Pass<'_>) -> Vec<Expr> {
        let scales = self.tiling().scales().to_vec();
        if !scales.iter().any(StagedScale::crosses) {
            return vec![0.into(); scales.len()];
        }
        let regions = self.operands_of(pass);
        let begin = scales.iter().map(|scale| {
            let of = regions.iter().find(|(part, _)| *part == scale.operand);
            let (axis, var) = side(of.filter(|_| scale.crosses())?.1)?;
            let (.., row, column) = self.item(var)?;
            let first = match axis {
                Operand::Rows => row * self.tile_rows(),
                Operand::Columns => column * self.tile_columns(),
            };
            Some(first % Expr::symbol(Symbol::ScaleBlock, scale.block.rows))
        });
        begin.map(|begin| begin.unwrap_or(0.into())).collect()
    }

    /// Number of blocks of a tile that have a row which exists. The others are not loaded: what lies wholly outside a
    /// tensor comes from no memory, and still takes time, of all SMs together (`notes/tiles`). What is in their place
    /// is multiplied into rows, or columns, that nobody stores.
    fn blocks_that_come(
        &mut self,
        name: &str,
        blocks: u32,
        tile_side: &TileSide,
        sizes: &mut Vec<Node>,
    ) -> Expr {
        let exist = tile_side
            .exist()
            .ceil_div(Expr::symbol(Symbol::BlockRows, BLOCK_ROWS));
        let come = least(exist, blocks.into());
        sizes.push(why("Blocks outside the tensor do not come: nobody stores what they would be multiplied into."));
        self.name(sizes, &format!("{name}_blocks"), come)
    }

    /// Rows of the partial boxes with a row that exists: those of the stage, and those that this CTA loads. Each CTA of a
    /// cluster loads whole partial boxes.
    fn rows_that_come(
        &mut self,
        name: &str,
        tile_side: &TileSide,
        sizes: &mut Vec<Node>,
    ) -> (Expr, Expr) {
        let partial_box = || Expr::symbol(Symbol::PartialBoxRows, PARTIAL_BOX_ROWS);
        let partial_boxes = tile_side.exist().ceil_div(partial_box()) * partial_box();
        let come = least(partial_boxes, tile_side.tile.clone());
        let come = self.name(sizes, &format!("{name}_rows"), come);
        if tile_side.ctas == 1 {
            return (come.clone(), come);
        }
        let each = tile_side.mine();
        let before = least(Expr::var("multicast_rank") * each.clone(), come.clone());
        let mine = least(come.clone() - before, each);
        let mine = self.name(sizes, &format!("my_{name}_rows"), mine);
        (come, mine)
    }
}

impl TileSide {
    /// Number of rows that exist from the tile's first on, of its own and of the tiles behind it.
    fn exist(&self) -> Expr {
        let (from, end) = (self.from.clone(), self.end.clone());
        let before = if self.outside {
            least(from, end.clone())
        } else {
            from
        };
        end - before
    }

    /// Number of rows that this CTA loads.
    fn mine(&self) -> Expr {
        if self.ctas > 1 {
            self.tile.clone() / Expr::symbol(Symbol::Cluster, self.ctas)
        } else {
            self.tile.clone()
        }
    }
}
