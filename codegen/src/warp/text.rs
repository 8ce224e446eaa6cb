//! A pipeline as text: what each warp of a CTA does, one line a node.

mod declared;
mod fragment;

use super::spelling::{Spelling, factor, field_name, number, test};
use crate::kernel::DimId;
use crate::print::Page;
use crate::program::{CounterId, StoreMode};
use crate::sm90::cta::dependent_launch;
use crate::tiling::Tiling;
use crate::warp::{
    At, BarrierId, CellNumber, Ctas, Expr, Field, ItemLoop, Node, Phase, Pipeline, RingId, RunBy,
    Side, Slot, Unroll, Whose,
};
use std::fmt;

impl Pipeline {
    /// Text of the pipeline: tile, maps, rings and numbers, then what each role runs, and what all run at the end.
    ///
    /// A line that starts with `#` is the schedule's statement that the lines below are of, or why they are there.
    pub fn text(&self) -> String {
        let mut printer = Printer {
            pipeline: self,
            page: Page::default(),
            at: RunBy::Groups,
            tiling: 0,
        };
        printer.head();
        if !self.start.is_empty() {
            printer.page.line("");
            printer.page.line("start: all warps");
            printer.nested(&self.start);
        }
        for warp in &self.warps {
            let place = match warp.run_by {
                RunBy::Thread { warp: at } => format!("{} warp {at}", warp.lanes().words()),
                RunBy::Threads { first } => {
                    let lanes = warp.lanes().words();
                    format!("{lanes} each warp from {first} on, one a consumer")
                }
                RunBy::Groups => "the warpgroups after the first".into(),
            };
            printer.page.line("");
            printer.page.line(format!("{}: {place}", warp.name));
            printer.at = warp.run_by;
            printer.nested(&warp.body);
        }
        if !self.end.is_empty() {
            printer.page.line("");
            printer.page.line("end: all warps");
            printer.nested(&self.end);
        }
        printer.page.text
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

struct Printer<'a> {
    pipeline: &'a Pipeline,
    page: Page,
    /// Warps that run the nodes.
    at: RunBy,
    /// The tiling of the loop over items that they are in.
    tiling: usize,
}

impl Spelling for Printer<'_> {
    fn field(&self, field: Field) -> String {
        field_name(self.pipeline, field)
    }

    fn ordered(&self, order: super::OrderId, step: &str) -> String {
        format!("{}[{step}]", self.pipeline.order_table(order).name)
    }

    fn rows_of(&self, dim: DimId, shard: &str) -> String {
        format!(
            "{}({shard})",
            field_name(self.pipeline, Field::ShardRows(dim))
        )
    }

    fn block(&self) -> &'static str {
        "cta"
    }

    fn blocks(&self) -> &'static str {
        "ctas"
    }

    fn within(&self) -> &'static str {
        "item"
    }

    fn cell(&self, _: &CellNumber) -> Option<String> {
        None
    }
}

impl Printer<'_> {
    fn head(&mut self) {
        let pipeline = self.pipeline;
        let kernel = &pipeline.kernel;
        self.page
            .line(format!("pipeline {}  {}", kernel.name, kernel.variant));
        let (threads, shared) = (pipeline.threads(), pipeline.shared_bytes());
        self.page.line(match pipeline.registers() {
            Some((give, take)) => {
                let dtype = pipeline.types();
                let tiles = pipeline.tiles().into_iter();
                let tiles =
                    tiles.map(|tile| format!("{}×{}×{}", tile.rows, tile.columns, tile.k));
                let tiles = tiles.collect::<Vec<_>>().join(" and ");
                let swapped = match pipeline.tiling().swap_ab() {
                    true => ", its columns on the M side",
                    false => "",
                };
                format!(
                    "tile {tiles} {dtype}{swapped}, {threads} threads, {give} and {take} registers, {shared} B shared"
                )
            }
            None => format!("{threads} threads that move data, {shared} B shared"),
        });
        let (rows, columns) = pipeline.cta.cluster();
        match (pipeline.cta.multicast_group(), pipeline.cta.split()) {
            (1, 1) => {}
            (1, split) => self.page.line(format!(
                "clusters of {split} CTAs that split a tile's K, `split_rank` is which"
            )),
            (_, _) => self.page.line(format!(
                "clusters of {rows}x{columns} CTAs, `multicast_rank` is which"
            )),
        }
        if pipeline.dependent_launch {
            self.page
                .line("programmatic dependent launch: its CTAs may be there before the launch before has ended");
        }
        let early = dependent_launch::loaded_early(&pipeline.kernel);
        if !early.is_empty() {
            let names = early.iter();
            let names = names.map(|tensor| &*pipeline.kernel.buffers[tensor.index()].name);
            let names = names.collect::<Vec<_>>().join(", ");
            self.page
                .line(format!("constant, loaded before that end: {names}"));
        }
        declared::comm(pipeline)
            .into_iter()
            .for_each(|line| self.page.line(line));
        self.page.line("");
        let mut rows: Vec<Vec<String>> = pipeline.maps.iter().map(declared::map).collect();
        rows.extend(pipeline.rings.iter().map(declared::ring));
        self.page.table(&rows);
        for (name, value) in &pipeline.lets {
            let value = number(value, self);
            self.page.line(format!("{name} = {value}"));
        }
        for (counter, by) in &pipeline.scale {
            let (name, by) = (self.counter(*counter), number(by, self));
            self.page
                .line(format!("{name}: {by} arrivals for each of the kernel's"));
        }
    }

    fn nested(&mut self, body: &[Node]) {
        self.page.depth += 1;
        for node in body {
            let line = self.node(node);
            self.page.line(line);
            match node {
                // What a role does stands below what it is scheduled by, not within.
                Node::Schedule { body, .. } => {
                    self.page.depth -= 1;
                    self.nested(body);
                    self.page.depth += 1;
                }
                Node::Items { of, grid, .. } => {
                    let ItemLoop { order, tiling } = self.pipeline.item_loop(*of);
                    if let Some(grid) = grid {
                        let [rows, columns] =
                            [&grid.rows, &grid.columns].map(|side| factor(side, self));
                        let index = match &grid.index {
                            Expr::Within => "item".into(),
                            index => factor(index, self),
                        };
                        self.page.depth += 1;
                        self.page.line(format!(
                            "{} = {order} of {rows}×{columns} at {index}",
                            grid.var
                        ));
                        self.page.depth -= 1;
                    }
                    let outer = std::mem::replace(&mut self.tiling, tiling);
                    self.nested(node.body());
                    self.tiling = outer;
                }
                other => self.nested(other.body()),
            }
            if let Node::LastCta { advance, .. } = node {
                self.page.depth += 1;
                for (counter, cells) in advance {
                    let (name, cells) = (self.counter(*counter), number(cells, self));
                    self.page.line(format!("advance {name}[0..{cells}]"));
                }
                self.page.depth -= 1;
            }
        }
        self.page.depth -= 1;
    }

    /// A node without those it encloses.
    fn node(&self, node: &Node) -> String {
        let number = |expr: &Expr| number(expr, self);
        match node {
            Node::Note(note) => format!("# {}", note.words),
            Node::Let { name, value } => format!("{name} = {}", number(value)),
            Node::Schedule { scheduler, .. } => {
                let scheduler = self.pipeline.scheduler(*scheduler);
                let to = match &scheduler.ctas {
                    Ctas::All => "all CTAs".into(),
                    Ctas::Comm { .. } => {
                        match self.pipeline.comm.as_ref().map(|comm| comm.roles.len()) {
                            Some(2..) => {
                                format!(
                                    "the CTAs of {}",
                                    self.pipeline.kernel.roles[scheduler.role].name
                                )
                            }
                            Some(_) | None => "the CTAs that move data".into(),
                        }
                    }
                    Ctas::Others(_) => "the CTAs that move no data".into(),
                    Ctas::Spare => "the spare warps of all CTAs".into(),
                    Ctas::LateComm(_) => format!(
                        "the CTAs that move no data, after {} waves to all",
                        self.field(Field::LateJoin)
                    ),
                };
                let ping_pong = if scheduler.alternates(self.at) {
                    ", their consumers in ping-pong"
                } else {
                    ""
                };
                format!("tile scheduler over {to}{ping_pong}")
            }
            Node::Ranks {
                step,
                count,
                var,
                rank,
                ..
            } => format!(
                "for {step} in 0..{}, {var} = {}",
                factor(count, self),
                number(rank)
            ),
            Node::Others { var, own, .. } => {
                let own = own.as_ref().map_or(String::new(), |own| {
                    format!(", in my turn {}", self.fragment(own))
                });
                format!("for {var} in others{own}")
            }
            Node::Items { count, .. } => format!("for item in my share of {}", number(count)),
            Node::For {
                var,
                from,
                to,
                by,
                unroll,
                ..
            } => {
                let by = match by {
                    Expr::Const(1) => String::new(),
                    by => format!(" by {}", number(by)),
                };
                let unrolled = match unroll {
                    Unroll::Once => String::new(),
                    Unroll::Times(times) => format!(", unrolled {times} times"),
                    Unroll::Fully => ", unrolled".into(),
                };
                format!(
                    "for {var} in {}..{}{by}{unrolled}",
                    factor(from, self),
                    factor(to, self)
                )
            }
            Node::If { test: asked, .. } => format!("if {}", test(asked, self)),
            Node::Await { barrier, phase } => {
                let phase = match phase {
                    Phase::ThisPhase => "",
                    Phase::PreviousPhase => " of the previous phase",
                    Phase::Staggered => " as staggered",
                };
                format!("await {}{phase}", self.barrier(*barrier))
            }
            Node::TestWait { ring } => format!("test {}", self.barrier(ring.full())),
            Node::AwaitTested { ring } => {
                format!("await {} unless it was over", self.barrier(ring.full()))
            }
            Node::Expect { barrier, bytes } => {
                let full = self.barrier(*barrier);
                format!("expect {} at {full}", number(bytes))
            }
            Node::Arrive { barrier, slot } => {
                let slot = match slot {
                    Slot::Current => "",
                    Slot::Previous => " of the slot before",
                    Slot::NextSet => " of the next set",
                };
                let multicast = self.pipeline.barrier(*barrier).multicast.as_ref();
                let everywhere = match multicast {
                    None => "",
                    Some(multicast) if multicast.others => ", in the others of the cluster",
                    Some(_) => ", in all of the cluster",
                };
                format!("arrive {}{slot}{everywhere}", self.barrier(*barrier))
            }
            Node::Advance { ring, keep } => {
                let keep = if *keep { ", keep the slot" } else { "" };
                format!("next {}{keep}", self.ring(*ring))
            }
            Node::Ahead { ring, .. } => format!("ahead in {}, and back", self.ring(*ring)),
            Node::Skip { ring, by } => format!(
                "skip {} of {}: the other consumer's",
                number(by),
                self.ring(*ring)
            ),
            Node::AwaitOrder => "await the order barrier".into(),
            Node::ArriveOrder => "arrive at the order barrier".into(),
            Node::Release { ring, held } => {
                let held = factor(held, self);
                format!("release all but {held} of {}", self.ring(*ring))
            }
            Node::Load {
                ring,
                part,
                index,
                slice,
                map,
                at,
                multicast,
                partial_boxes,
            } => format!(
                "load {}{}{} <- {}{}{}",
                self.part(*ring, *part, index),
                self.slice(slice),
                match multicast {
                    false => "",
                    true => ", a share of it, in all of the cluster",
                },
                self.pipeline.map(*map).name,
                self.at(at),
                partial_boxes
                    .as_ref()
                    .map_or(String::new(), |partial_boxes| format!(
                        ", or by partial boxes {} of its {} rows",
                        number(&partial_boxes.rows),
                        number(&partial_boxes.all)
                    ))
            ),
            Node::Store {
                ring,
                slice,
                map,
                at,
                mode,
                shard_end,
            } => {
                let sign = match mode {
                    StoreMode::Write => "->",
                    StoreMode::Add => "-> +",
                };
                let (name, at) = (&self.pipeline.map(*map).name, self.at(at));
                let slice = self.slice(slice);
                let rows = match shard_end {
                    Some(end) => format!(", by all lanes, rows 0 to {}", factor(end, self)),
                    None => String::new(),
                };
                format!("store {}{slice} {sign} {name}{at}{rows}", self.ring(*ring))
            }
            Node::Commit => "commit stores".into(),
            Node::AwaitRead { pending } => {
                format!("await reads of all but {} stores", factor(pending, self))
            }
            Node::AwaitStores { pending } => {
                format!("await all but {} stores", factor(pending, self))
            }
            Node::MmaFence => "fence registers".into(),
            Node::Mma {
                ring,
                multiply,
                piece,
                fresh,
            } => {
                let tiling = self.tiling();
                let multiply = &tiling.multiplies()[*multiply];
                let fresh = number(fresh);
                let part = |part: usize| self.part(*ring, part, &Expr::Const(0));
                let products = multiply.on_n.iter().zip(multiply.first..);
                let products = products.map(|(on_n, product)| {
                    let (x, w) = tiling.sides(multiply.on_m, *on_n);
                    let acc = self.accumulators(product);
                    match piece {
                        None => format!("{acc} += {} · {}", part(x), part(w)),
                        Some(piece) => {
                            format!("short = {piece} of {} · {}", part(x), part(w))
                        }
                    }
                });
                let products = products.collect::<Vec<_>>().join(", ");
                match piece {
                    None => format!("{products}, from zero where {fresh} == 0"),
                    Some(_) => products,
                }
            }
            Node::MmaCommit => "commit products".into(),
            Node::MmaWait { pending } => format!("await all but {pending} products"),
            Node::Accumulators => {
                let products = 0..self.tiling().products().len();
                let names = products.map(|product| self.accumulators(product));
                let names = names.collect::<Vec<_>>().join(", ");
                match self.tiling().promotion() {
                    None => names,
                    Some(_) => format!("{names} = 0"),
                }
            }
            Node::Fragment(op) => self.fragment(op),
            Node::FenceShared => "fence shared memory for TMA".into(),
            Node::SyncWarp => "sync the warp".into(),
            Node::CounterWait {
                counter,
                cell,
                lag,
                at_least,
            } => {
                let what = match (lag, at_least) {
                    (0, None) => String::new(),
                    (0, Some(amount)) => format!(" >= {amount}"),
                    _ => " of the launches before".into(),
                };
                format!("wait {}[{}]{what}", self.counter(*counter), number(cell))
            }
            Node::CopyScales {
                tensor,
                from,
                to,
                row,
                rows,
            } => {
                let name = &self.pipeline.kernel.buffers[tensor.index()].name;
                let [from, to, row, rows] = [from, to, row, rows].map(number);
                format!("copy {rows} of {name} from row {row} on, rank {from} to rank {to}")
            }
            Node::FenceGlobal => "fence global memory for TMA".into(),
            Node::FenceAlias => "fence the ranks' own addresses from multicast ones".into(),
            Node::CounterAdvance { counter, cell } => {
                format!("advance {}[{}]", self.counter(*counter), number(cell))
            }
            Node::CounterAdd {
                counter,
                whose,
                cell,
                amount,
            } => match whose {
                Whose::Rank(rank) => {
                    format!("signal {}", self.signal(*counter, rank, cell, *amount))
                }
                Whose::Everywhere => format!(
                    "signal {}.everywhere[{}] += {amount}, by one instruction",
                    self.counter(*counter),
                    number(cell)
                ),
            },
            Node::Defer {
                counter,
                rank,
                cell,
                amount,
            } => format!(
                "remember to signal {}",
                self.signal(*counter, rank, cell, *amount)
            ),
            Node::Flush { amount } => format!("signal what is remembered, += {amount}"),
            Node::AwaitLaunches => "await the launches before".into(),
            Node::SyncCta => "sync the CTA".into(),
            Node::SyncCluster => "sync the cluster".into(),
            Node::LastCta { of, .. } => format!("in the last of {} CTAs", number(of)),
        }
    }

    fn ring(&self, ring: RingId) -> &'static str {
        self.pipeline.ring(ring).of.name()
    }

    fn tiling(&self) -> &Tiling {
        self.pipeline.tiling_of(self.tiling)
    }

    fn accumulators(&self, product: usize) -> String {
        self.pipeline.accumulators(self.tiling, product)
    }

    fn counter(&self, counter: CounterId) -> &str {
        &self.pipeline.kernel.counters[counter.index()].name
    }

    /// `stage.full`.
    fn barrier(&self, barrier: BarrierId) -> String {
        let side = match barrier.side {
            Side::Full => "full",
            Side::Empty => "empty",
        };
        format!("{}.{side}", self.ring(barrier.ring))
    }

    /// `stage.x`, or a box within it.
    fn part(&self, ring: RingId, part: usize, index: &Expr) -> String {
        let ring = self.pipeline.ring(ring);
        let part = &ring.part(self.tiling, part).name;
        let whole = if part == ring.of.name() {
            part.clone()
        } else {
            format!("{}.{part}", ring.of.name())
        };
        if *index == Expr::Const(0) {
            whole
        } else {
            format!("{whole}[{}]", number(index, self))
        }
    }

    /// Slice of a subtile, if it has several.
    fn slice(&self, slice: &Expr) -> String {
        if *slice == Expr::Const(0) {
            String::new()
        } else {
            format!(" slice {}", number(slice, self))
        }
    }

    /// `{column, row, shard, whose}`.
    fn at(&self, at: &At) -> String {
        let At {
            column,
            row,
            shard,
            whose,
        } = at;
        let [column, row, shard] = [column, row, shard].map(|expr| number(expr, self));
        let whose = match whose {
            Whose::Rank(rank) => number(rank, self),
            Whose::Everywhere => "everywhere".into(),
        };
        format!("{{{column}, {row}, {shard}, {whose}}}")
    }

    fn signal(&self, counter: CounterId, rank: &Expr, cell: &Expr, amount: u32) -> String {
        let (name, rank, cell) = (
            self.counter(counter),
            number(rank, self),
            number(cell, self),
        );
        format!("{name}.on({rank})[{cell}] += {amount}")
    }
}
