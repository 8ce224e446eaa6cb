//! Nodes as statements.

use super::Text;
use super::lanes::by_one_lane;
use super::words::ONCE;
use counterflow_codegen::program::CounterId;
use counterflow_codegen::sm90::cta::Mode;
use counterflow_codegen::warp::{
    At, Expr, Field, Lanes, MapId, Node, Phase, RingId, RunBy, Slot, SlotKind, Test, Unroll, Warp,
    Whose,
};
use counterflow_codegen::warp::{Spelling, counter_name, factor};

impl Text<'_> {
    /// All that one role does.
    pub(super) fn warp(&mut self, warp: &Warp) {
        self.role = warp.name;
        self.run_by = warp.run_by;
        self.group = warp.run_by == RunBy::Groups;
        self.all_lanes = !self.group && warp.lanes() == Lanes::All;
        self.probe_start();
        self.list(&warp.body);
        self.probe_end();
        self.all_lanes = false;
    }

    pub(super) fn list(&mut self, nodes: &[Node]) {
        let (origin, more_loops) = (self.origin, self.more_loops);
        // What the node before asked, if it has no `else` yet and is none itself.
        let mut asked: Option<&Test> = None;
        let mut named = false;
        // Nodes that one lane ran for all, behind the first of them.
        let mut done = 0;
        for (at, node) in nodes.iter().enumerate() {
            if at < done {
                continue;
            }
            if !named && fills(node) {
                named = self.name_barrier(&nodes[at..]);
            }
            named &= !matches!(node, Node::Advance { .. });
            self.more_loops = more_loops || nodes[at + 1..].iter().any(Node::has_items);
            let before = asked.take();
            if let (Some(before), Node::If { test, body }) = (before, node)
                && before.clone().negate() == *test
            {
                self.otherwise(node, body);
                continue;
            }
            let alone = match self.all_lanes {
                true => nodes[at..]
                    .iter()
                    .take_while(|node| by_one_lane(node))
                    .count(),
                false => 0,
            };
            if alone > 0 {
                done = at + alone;
                self.one_lane(&nodes[at..done]);
                continue;
            }
            self.node(node);
            if let Node::If { test, .. } = node {
                asked = Some(test);
            }
        }
        (self.origin, self.more_loops) = (origin, more_loops);
    }

    /// Names the barrier that a stage's loads complete on and its thread arrives at, if that is in the list before the next stage.
    fn name_barrier(&mut self, nodes: &[Node]) -> bool {
        let ends = |node: &&Node| has(node, |node| matches!(node, Node::Advance { .. }));
        let mut stage = nodes.iter().take_while(|node| !ends(node));
        let arrival = stage.find_map(|node| {
            if let Node::Expect { barrier, .. } = node {
                Some(*barrier)
            } else {
                None
            }
        });
        let goes_on = nodes
            .iter()
            .any(|node| matches!(node, Node::Advance { .. }));
        let later = self.ahead.filter(|_| goes_on).map(RingId::full);
        let arrival = arrival.or(later);
        if let Some(barrier) = arrival.filter(|_| self.run_by != RunBy::Groups) {
            let barrier = self.barrier(barrier, Slot::Current);
            self.line(format!("const auto full = {barrier};"));
        }
        arrival.is_some()
    }

    /// Body that runs where the test of the block before does not hold.
    fn otherwise(&mut self, node: &Node, body: &[Node]) {
        let block = self.out.trim_end_matches('\n');
        let Some(before) = block
            .strip_suffix('}')
            .map(|text| text.trim_end_matches(' ').len())
        else {
            return self.node(node);
        };
        self.out.truncate(before);
        self.origins.pop();
        self.block("} else", |text| text.list(body));
    }

    pub(super) fn node(&mut self, node: &Node) {
        match node {
            Node::Note(note) => {
                self.origin = note.loc;
                self.line(format!("// {}", note.words));
                if self.traced {
                    self.statement.clone_from(&note.words);
                }
            }
            Node::Let { name, value } => {
                self.line(format!("const u32 {name} = {};", self.expr(value)))
            }
            Node::Schedule { scheduler, body } => self.schedule(*scheduler, body),
            Node::Ranks {
                step,
                count,
                var,
                rank,
                body,
            } => {
                let count = self.expr(count);
                self.line(ONCE);
                self.block(
                    format!("for (u32 {step} = 0; {step} < {count}; ++{step})"),
                    |text| {
                        if body.iter().any(|node| uses(node, var)) {
                            text.line(format!("const u32 {var} = {};", text.expr(rank)));
                        }
                        text.more_loops = true;
                        text.list(body);
                    },
                );
            }
            Node::Others { var, own, body } => {
                self.line(ONCE);
                self.block(
                    format!("for (u32 {var} = 0; {var} < world; ++{var})"),
                    |text| {
                        let mine = format!("if ({var} == me)");
                        match own {
                            None => text.line(format!("{mine} continue;")),
                            Some(own) => text.block(mine, |text| {
                                text.fragment(own);
                                text.line("continue;");
                            }),
                        }
                        text.list(body);
                    },
                );
            }
            Node::Items {
                of,
                count,
                grid,
                body,
            } => self.items(*of, count, grid.as_ref(), body),
            Node::For {
                var,
                from,
                to,
                by,
                unroll,
                body,
            } => {
                // That of a stage is declared with the accumulators.
                let result = |ring| self.pipeline.ring(ring).of != SlotKind::Stage;
                let keeps = |node: &Node| matches!(node, Node::Advance { ring, keep: true } if result(*ring));
                if body.iter().any(keeps) {
                    self.line("u32 previous = 0;");
                }
                match unroll {
                    Unroll::Once => self.line(ONCE),
                    Unroll::Times(times) => self.line(format!("#pragma unroll {times}")),
                    Unroll::Fully => self.line("#pragma unroll"),
                }
                let step = match by {
                    Expr::Const(1) => format!("++{var}"),
                    by => format!("{var} += {}", self.expr(by)),
                };
                let (from, to) = (self.expr(from), self.expr(to));
                self.block(
                    format!("for (u32 {var} = {from}; {var} < {to}; {step})"),
                    |text| text.list(body),
                );
            }
            Node::If { test, body } => {
                let test = self.test(test);
                if let ([Node::Arrive { barrier, slot }], true) = (body.as_slice(), self.group) {
                    let (lanes, arrive) = self.arrive(*barrier, *slot);
                    self.line(format!("if ({test} && {lanes}) {arrive}"));
                } else {
                    self.block(format!("if ({test})"), |text| text.list(body));
                }
            }
            Node::Await { barrier, phase } => {
                let name = self.pipeline.ring(barrier.ring).of.name();
                let flip = match phase {
                    Phase::ThisPhase => "",
                    Phase::PreviousPhase => " ^ 1",
                    // The first consumer has it first.
                    Phase::Staggered => " ^ consumer ^ 1",
                };
                let (at, role) = (
                    self.barrier(*barrier, Slot::Current),
                    self.role.to_uppercase(),
                );
                self.line(format!("{at}.wait({name}.phase{flip}, watch, {role});"));
                self.probe_full(*barrier == barrier.ring.full());
            }
            Node::TestWait { ring } => {
                let name = self.pipeline.ring(*ring).of.name();
                let at = self.barrier(ring.full(), Slot::Current);
                self.line(format!(
                    "{name}.token = {at}.test({name}.phase);  // meanwhile the last sums are added"
                ));
            }
            Node::AwaitTested { ring } => {
                let name = self.pipeline.ring(*ring).of.name();
                let (at, role) = (
                    self.barrier(ring.full(), Slot::Current),
                    self.role.to_uppercase(),
                );
                self.line(format!(
                    "if (!{name}.token) {at}.wait({name}.phase, watch, {role});"
                ));
                self.probe_full(true);
            }
            Node::Expect { barrier, bytes } => {
                let (barrier, bytes) = (self.barrier(*barrier, Slot::Current), self.expr(bytes));
                self.line(match self.run_by == RunBy::Groups {
                    true => format!("if (warp % 4 == 0 && lane == 0) {barrier}.expect({bytes});"),
                    false => format!("full.expect({bytes});"),
                });
            }
            Node::Arrive { barrier, slot } => {
                let (lanes, arrive) = self.arrive(*barrier, *slot);
                if self.group {
                    self.line(format!("if ({lanes}) {arrive}"));
                } else if self.pipeline.barrier(*barrier).multicast.is_some() {
                    self.line(ONCE);
                    self.line(format!("for (u32 lane = 0; {lanes}; ++lane) {arrive}"));
                } else {
                    self.line(arrive);
                }
            }
            Node::Advance { ring, keep } => {
                let name = self.pipeline.ring(*ring).of.name();
                if *keep {
                    self.line(format!("previous = {name}.index;"));
                }
                self.line(format!("{name}.advance();"));
            }
            Node::Ahead { ring, body } => self.run_ahead(*ring, body),
            Node::Skip { ring, by } => {
                let (name, by) = (self.pipeline.ring(*ring).of.name(), self.expr(by));
                self.line(format!(
                    "{name}.advance({by});  // past the other consumer's tile"
                ));
            }
            Node::AwaitOrder => {
                let role = self.role.to_uppercase();
                if self.pipeline.cta.mode() == Mode::PingPong {
                    self.line("// From here on, the waits below are within one round of the stages, where a parity names one phase.");
                }
                self.line(format!("order.wait(watch, {role}, ORDER);"));
            }
            Node::ArriveOrder => self.line("if (lane == 0) order.arrive();"),
            Node::Release { ring, held } => self.release(*ring, held),
            Node::Load {
                ring,
                part,
                index,
                slice,
                map,
                at,
                multicast,
                partial_boxes,
            } => {
                let mn_major = self.pipeline.mn_major(*map);
                let mut shared = self.shared(*ring, *part, index, mn_major);
                shared.push_str(&self.slice(slice));
                if *multicast {
                    let loaded_by_all = if mn_major {
                        "BLOCK".into()
                    } else {
                        let ring = self.pipeline.ring(*ring);
                        ring.part(self.tiling, *part).name.to_uppercase()
                    };
                    shared.push_str(&format!(
                        " + multicast_rank * ({loaded_by_all}_BYTES / CLUSTER)"
                    ));
                }
                let Whose::Rank(rank) = &at.whose else {
                    let copies = self.every_copy(*map, at, false);
                    let place = self.place(at);
                    let of = self.box_of(*map);
                    return self.line(format!("multicast_sum<{of}>({shared}, {copies}, {place});"));
                };
                // The contiguous dimension comes first.
                let [inner, outer] = if mn_major {
                    [&at.row, &at.column]
                } else {
                    [&at.column, &at.row]
                };
                let place = self.coordinates([inner, outer, &at.shard, rank]);
                let map = self.clipped(*map, at, false);
                let (of, boxes) = match partial_boxes {
                    None => (String::new(), map),
                    Some(partial_boxes) => {
                        let partial_box = self.clipped(partial_boxes.map, at, false);
                        let [rows, all] =
                            [&partial_boxes.rows, &partial_boxes.all].map(|expr| self.expr(expr));
                        let of = format!("_partial<PARTIAL_BOX_ROWS, {all}>");
                        (of, format!("{map}, {partial_box}, {rows}"))
                    }
                };
                self.line(match multicast {
                    false => format!("tma_load{of}({shared}, {boxes}, full.at, {place});"),
                    true => {
                        let verb = format!("tma_load_multicast{of}");
                        format!("{verb}({shared}, {boxes}, full.at, (1 << CLUSTER) - 1, {place});")
                    }
                });
            }
            Node::Store { .. } => self.store(node),
            Node::Commit => self.line("tma_commit();"),
            Node::AwaitRead { pending } => {
                let why = if *pending == Expr::Const(0) {
                    ""
                } else {
                    "  // the latest stores may still read what they send"
                };
                self.line(format!("tma_wait_read<{}>();{why}", self.expr(pending)));
            }
            Node::AwaitStores { pending } => {
                let why = if *pending == Expr::Const(0) {
                    ""
                } else {
                    "  // all but the latest item's stores are complete"
                };
                self.line(format!("tma_wait<{}>();{why}", self.expr(pending)));
            }
            Node::MmaFence => self.line("wgmma_fence();"),
            Node::Mma {
                ring,
                multiply,
                piece,
                fresh,
            } => self.mma(*ring, *multiply, *piece, fresh),
            Node::MmaCommit => self.line("wgmma_commit();"),
            Node::MmaWait { pending } => {
                let why = if *pending == 0 {
                    ""
                } else {
                    "  // the step before this one is done with its stage"
                };
                self.line(format!("wgmma_wait<{pending}>();{why}"));
            }
            Node::Accumulators => self.declare_accumulators(),
            Node::Fragment(op) => self.fragment(op),
            Node::FenceShared => self.line("fence_async_shared();"),
            Node::SyncWarp => self.line("__syncwarp();"),
            Node::CounterWait {
                counter,
                cell,
                lag,
                at_least,
            } => {
                let mut cell = self.cell(*counter, cell);
                let (own, all) = (cell.clone(), (lag, at_least) == (&0, &None));
                self.probe_waits(*counter, &own);
                let verb = match (lag, at_least) {
                    (0, None) => "counter_wait",
                    (0, Some(arrivals)) => {
                        cell = format!("{cell}, {arrivals}");
                        "counter_wait_for"
                    }
                    _ => "counter_wait_before",
                };
                let (role, what) = (
                    self.role.to_uppercase(),
                    counter_name(&self.pipeline.kernel, *counter).to_uppercase(),
                );
                self.line(format!(
                    "{verb}(plan.cells, me, {cell}, watch, {role}, {what});"
                ));
                self.probe_met(*counter, &own, all);
            }
            Node::CopyScales {
                tensor,
                from,
                to,
                row,
                rows,
            } => {
                let mine = self.field(Field::Vector(*tensor));
                let [from, to, row, rows] = [from, to, row, rows].map(|number| self.expr(number));
                let on = |rank| format!("scales_on({mine}, plan.cells, me, {rank}) + {row}");
                self.line(format!("scales_copy({}, {}, {rows});", on(to), on(from)));
            }
            Node::FenceGlobal => self.line("fence_async_global();"),
            Node::FenceAlias => self.line("fence_alias();"),
            Node::CounterAdvance { counter, cell } => {
                let cell = self.cell(*counter, cell);
                self.line(format!(
                    "counter_advance(plan.cells, me, {cell});  // no one else waits for it"
                ));
            }
            Node::CounterAdd {
                counter,
                whose,
                cell,
                amount,
            } => {
                let cell = self.cell(*counter, cell);
                if let Whose::Rank(rank) = whose {
                    let at = format!("counter_on(plan.cells, {}, {cell})", self.expr(rank));
                    self.probe_signals(Some(*counter), &at, false);
                }
                self.line(match whose {
                    Whose::Rank(rank) => {
                        let rank = self.expr(rank);
                        format!("counter_add(plan.cells, {rank}, {cell}, {amount});")
                    }
                    Whose::Everywhere => {
                        let heap = self.field(Field::HeapEverywhere);
                        format!("counter_add_everywhere({heap}, plan.cells, {cell}, {amount});")
                    }
                });
            }
            Node::Defer {
                counter,
                rank,
                cell,
                ..
            } => {
                let (rank, cell) = (self.expr(rank), self.cell(*counter, cell));
                self.line(format!(
                    "unsignalled = counter_on(plan.cells, {rank}, {cell});"
                ));
            }
            Node::Flush { amount } => {
                self.probe_signals(None, "unsignalled", true);
                self.line(format!(
                    "if (unsignalled) counter_add(unsignalled, {amount});"
                ));
                self.line("unsignalled = nullptr;");
            }
            Node::AwaitLaunches => self.line("wait_prerequisites();"),
            Node::SyncCta => {
                self.line("__syncwarp();  // the one thread of a role meets its warp again");
                self.line("__syncthreads();");
            }
            Node::SyncCluster => {
                self.line("__syncwarp();");
                self.line("cluster_sync();");
            }
            Node::LastCta { of, body, advance } => self.last_cta(of, body, advance),
        }
    }

    fn last_cta(&mut self, of: &Expr, body: &[Node], advance: &[(CounterId, Expr)]) {
        let of = self.expr(of);
        self.block("if (warp == 0)", |text| {
            text.line("// Every CTA is done with its waits, loads and stores when the last one comes here.");
            // Not by `lane`, which all roles would then keep in a register to the end: it was the one that had no room.
            text.line(format!("const bool last = __shfl_sync(~0u, threadIdx.x == 0 && last_of(plan.cells.finished, {of}), 0);"));
            text.block("if (last)", |text| {
                if !body.is_empty() {
                    text.role = "load";
                    text.group = false;
                    text.block("if (threadIdx.x == 0)", |text| text.list(body));
                    text.line("__syncwarp();");
                }
                for (counter, cells) in advance {
                    let (first, cells) = (text.cell(*counter, &Expr::Const(0)), text.expr(cells));
                    text.line(format!("counters_advance(plan.cells, me, {first}, {cells}, threadIdx.x);"));
                }
            });
        });
    }

    /// The map that a box is stored or loaded by.
    pub(super) fn clipped(&self, id: MapId, at: &At, stored: bool) -> String {
        self.of_shard(self.pipeline.map(id).name.clone(), id, at, stored)
    }

    /// Address of a box in every rank's memory.
    pub(super) fn every_copy(&self, id: MapId, at: &At, stored: bool) -> String {
        let name = format!("{}_everywhere", self.pipeline.map(id).name);
        self.of_shard(name, id, at, stored)
    }

    /// `bf16, 128, 64`: a box of a map.
    pub(super) fn box_of(&self, id: MapId) -> String {
        let map = self.pipeline.map(id);
        let element = self.element(self.pipeline.kernel.buffers[map.tensor.index()].dtype);
        format!("{element}, {}, {}", map.box_rows, map.box_columns)
    }

    /// Coordinates of a box, without those at the end that are zero.
    pub(super) fn coordinates(&self, at: [&Expr; 4]) -> String {
        let places = at.iter().rposition(|expr| **expr != Expr::Const(0));
        let places = at[..places.map_or(2, |last| (last + 1).max(2))].iter();
        let places: Vec<String> = places.map(|expr| self.expr(expr)).collect();
        places.join(", ")
    }

    /// Column, row and shard.
    pub(super) fn place(&self, at: &At) -> String {
        [&at.column, &at.row, &at.shard]
            .map(|expr| self.expr(expr))
            .join(", ")
    }

    /// Name that a box goes by, or its sibling for the partial shard.
    fn of_shard(&self, name: String, id: MapId, at: &At, stored: bool) -> String {
        let (map, kernel) = (self.pipeline.map(id), &self.pipeline.kernel);
        let clips = map.clips(kernel.buffers[map.tensor.index()].usage, stored);
        let Some(shard) = map.shard_at(at).filter(|_| clips) else {
            return name;
        };
        let shard = self.factor(shard);
        let partial_shard = self.field(Field::PartialShard(map.divided(kernel)));
        format!("{shard} == {partial_shard} ? {name}_partial_shard : {name}")
    }

    /// A number as a factor.
    pub(super) fn factor(&self, expr: &Expr) -> String {
        factor(expr, self)
    }

    fn cell(&self, counter: CounterId, cell: &Expr) -> String {
        let first = Expr::Field(Field::First(counter));
        self.expr(&(first + cell.clone()))
    }
}

/// True if a node or one within it reads a variable.
fn uses(node: &Node, var: &str) -> bool {
    let mut found = false;
    node.visit(&mut |node| {
        for expr in node.exprs() {
            expr.visit(&mut |part| found |= matches!(part, Expr::Var(name) if name == var));
        }
    });
    found
}

/// True if a node is a load or announces one, or has one within.
fn fills(node: &Node) -> bool {
    has(node, |node| {
        matches!(node, Node::Load { .. } | Node::Expect { .. })
    })
}

fn has(node: &Node, is: impl Fn(&Node) -> bool) -> bool {
    let mut found = false;
    node.visit(&mut |node| found |= is(node));
    found
}
