//! A kernel as text: choices settled, regions spelled out, credits visible.

use super::{Names, Page};
use crate::kernel::{
    Axis, Block, Buffer, Cells, Counter, Dim, DimId, GemmKind, Kernel, Op, OpKind, Partition,
    Purpose, Region, Role, RoleKind, ValueId,
};
use crate::order::TileOrder;
use crate::program::{HeldRows, Home, PartitionId, Slots, StoreMode, Var};
use crate::rank::RankExpr;
use std::fmt;

impl Kernel {
    /// Text of the kernel: variant, dimensions, buffers, partitions, counters, then what each role runs.
    pub fn text(&self) -> String {
        let mut printer = Printer {
            kernel: self,
            names: self.names(),
            page: Page::default(),
            texts: None,
            in_turn: None,
        };
        printer.declarations();
        for role in &self.roles {
            printer.page.line("");
            printer.page.line(format!("#[{}]", role_text(role)));
            printer.in_turn = Some(role.kind.sequential());
            printer.blocks(&role.body);
        }
        printer.page.text
    }

    /// The text of every one-line op, by [`crate::kernel::OpId`]. Loops and branches have none.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    /// let (series, _) = example::proven();
    /// let texts = series.kernel().op_texts();
    /// assert!(texts.iter().any(|text| text.starts_with("wait")), "{texts:?}");
    /// ```
    pub fn op_texts(&self) -> Vec<String> {
        let mut printer = Printer {
            kernel: self,
            names: self.names(),
            page: Page::default(),
            texts: Some(vec![String::new(); self.locs.len()]),
            in_turn: None,
        };
        for role in &self.roles {
            printer.blocks(&role.body);
        }
        printer.texts.unwrap_or_default()
    }

    pub(super) fn names(&self) -> Names {
        Names {
            vars: self.vars.clone(),
            tensors: self.buffers.iter().map(|b| b.name.clone()).collect(),
            partitions: self.partitions.iter().map(|p| p.name.clone()).collect(),
            counters: self.counters.iter().map(|c| c.name.clone()).collect(),
            accs: self.accs.clone(),
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// One op without the ops it encloses, as in the kernel's text.
pub(crate) fn statement(kernel: &Kernel, op: &Op) -> String {
    let mut printer = Printer {
        kernel,
        names: kernel.names(),
        page: Page::default(),
        texts: None,
        in_turn: None,
    };
    printer.op(op);
    match printer.page.text.trim().split_once("   # ") {
        Some((statement, why)) => format!("{} ({why})", statement.trim_end()),
        None => printer.page.text.trim().into(),
    }
}

/// `gemm(k = 64, cluster = 2x1)`.
fn role_text(role: &Role) -> String {
    match role.kind {
        RoleKind::Gemm(GemmKind {
            k,
            cluster: (rows, columns),
            split,
            stages,
            subtiles,
            ping_pong,
        }) => {
            let stages = stages.map_or_else(String::new, |stages| format!(", stages = {stages}"));
            let subtiles =
                subtiles.map_or_else(String::new, |subtiles| format!(", subtiles = {subtiles}"));
            let ping_pong = if ping_pong { ", ping_pong" } else { "" };
            let split = if split > 1 {
                format!(", split = {split}")
            } else {
                String::new()
            };
            format!("gemm(k = {k}, cluster = {rows}x{columns}{split}{stages}{subtiles}{ping_pong})")
        }
        RoleKind::Comm { ctas } if role.name == role.kind.word() => format!("comm(ctas = {ctas})"),
        RoleKind::Comm { ctas } => format!("comm(name = {}, ctas = {ctas})", role.name),
        RoleKind::SpareWarps | RoleKind::CopyEngine => role.kind.word().into(),
    }
}

struct Printer<'a> {
    kernel: &'a Kernel,
    names: Names,
    page: Page,
    /// Lines of ops without their comments, if requested.
    texts: Option<Vec<String>>,
    /// True if the role reaches every rank in turn, as a copy engine does, where the role is known.
    in_turn: Option<bool>,
}

impl Printer<'_> {
    fn declarations(&mut self) {
        let kernel = self.kernel;
        self.page
            .line(format!("kernel {}  {}", kernel.name, kernel.variant));
        let dims = kernel.dims.iter().filter(|dim| !dim.unit).map(dim_text);
        let dims: Vec<String> = dims.collect();
        self.page.line(format!("dims {}", dims.join(", ")));
        self.page.line("");
        let mut rows: Vec<Vec<String>> = kernel.buffers.iter().map(|b| self.buffer(b)).collect();
        rows.extend(kernel.partitions.iter().map(|p| self.partition(p)));
        rows.extend(kernel.counters.iter().map(|c| self.counter(c)));
        self.page.table(&rows);
    }

    fn dim(&self, dim: DimId) -> &str {
        let dim = &self.kernel.dims[usize::from(dim.0)];
        if dim.unit { "1" } else { &dim.name }
    }

    fn buffer(&self, buffer: &Buffer) -> Vec<String> {
        let (kind, dtype) = (buffer.usage.name(), buffer.dtype);
        let size = format!("{}×{}", self.dim(buffer.rows), self.dim(buffer.columns));
        let mut notes: Vec<String> = Vec::new();
        let placement = buffer.usage.placement;
        if buffer.usage.has_slots() {
            notes.push(match placement.slots {
                Slots::Count(1) => "1 slot".into(),
                Slots::Count(count) => format!("{count} slots"),
                Slots::World => "world slots".into(),
                Slots::Peers => "world - 1 slots".into(),
            });
        }
        match placement.rows {
            HeldRows::Shard => notes.push("own shard".into()),
            HeldRows::Whole if buffer.is_scratch() => notes.push("all rows".into()),
            HeldRows::Whole => {}
        }
        if buffer.mn_major {
            notes.push("rows contiguous".into());
        }
        vec![
            buffer.name.clone(),
            format!("{kind}<{dtype}>"),
            size,
            notes.join(", "),
        ]
    }

    fn partition(&self, partition: &Partition) -> Vec<String> {
        let block = |block: Option<u32>| block.map_or_else(|| "all".into(), |b| b.to_string());
        let size = format!(
            "{}×{}",
            self.dim(partition.rows),
            self.dim(partition.columns)
        );
        vec![
            partition.name.clone(),
            format!(
                "items {}×{}",
                block(partition.row_block),
                block(partition.column_block)
            ),
            size,
        ]
    }

    fn counter(&self, counter: &Counter) -> Vec<String> {
        let lag = counter.purpose.lag();
        let lag = match lag {
            0 => String::new(),
            lag => format!(", waited for {lag} launch later"),
        };
        let buffer = |buffer| self.names.tensor(buffer);
        let meaning = match counter.purpose {
            Purpose::Data => "# data".into(),
            Purpose::Ready(x) => format!("# credit: that rank's {} may be touched", buffer(x)),
            Purpose::Returned(x) => {
                format!("# credit: that rank has done reading my {}", buffer(x))
            }
            Purpose::Free(x) => format!("# credit: that rank has done reading {}{lag}", buffer(x)),
        };
        let axes = self.names.axes(&counter.dims);
        vec![
            counter.name.clone(),
            format!("counters{axes}"),
            String::new(),
            meaning,
        ]
    }

    fn blocks(&mut self, body: &[Block]) {
        for block in body {
            match block {
                Block::ForRanks {
                    var, order, body, ..
                } => {
                    let order = order.text(&|var| self.names.var(var).to_string());
                    self.nested(format!("for {} in {order}", self.names.var(*var)), body);
                }
                Block::If {
                    cond,
                    then,
                    otherwise,
                    ..
                } => {
                    self.nested(format!("if {}", self.names.cond(cond)), then);
                    if !otherwise.is_empty() {
                        self.nested("else".into(), otherwise);
                    }
                }
                Block::Items {
                    var,
                    partition,
                    shard,
                    order,
                    selection,
                    body,
                    ..
                } => {
                    let items = self.items(*partition, shard.as_ref(), *order);
                    let some = selection.text(&|var| self.names.var(var).to_string());
                    let head = format!("for {} in {items}{some}", self.names.var(*var));
                    self.nested_ops(head, body);
                }
                Block::Once { body } => self.nested_ops("once".into(), body),
                Block::Join => self.page.line("join"),
            }
        }
    }

    fn nested(&mut self, head: String, body: &[Block]) {
        self.page.line(head);
        self.page.depth += 1;
        self.blocks(body);
        self.page.depth -= 1;
    }

    fn nested_ops(&mut self, head: String, body: &[Op]) {
        self.page.line(head);
        self.page.depth += 1;
        for op in body {
            self.op(op);
        }
        self.page.depth -= 1;
    }

    fn items(&self, partition: PartitionId, shard: Option<&RankExpr>, order: TileOrder) -> String {
        let partition = self.names.partition(partition);
        let shard = shard.map_or_else(String::new, |shard| format!("[{}]", self.names.rank(shard)));
        match order {
            TileOrder::RowMajor => format!("{partition}{shard}"),
            TileOrder::ColumnMajor | TileOrder::Grouped(_) => {
                format!("{partition}{shard}.{order}")
            }
        }
    }

    fn op(&mut self, op: &Op) {
        let names = &self.names;
        let mut why = String::new();
        let text = |value: ValueId| {
            let value = self.kernel.values.get(usize::from(value.0));
            value.map_or_else(|| "?".into(), |value| value.text(&|acc| names.acc(acc)))
        };
        let line = match &op.kind {
            OpKind::ForRanks { var, order, body } => {
                let order = order.text(&|var| names.var(var).to_string());
                return self.nested_ops(format!("for {} in {order}", names.var(*var)), body);
            }
            OpKind::If {
                cond,
                then,
                otherwise,
            } => {
                self.nested_ops(format!("if {}", names.cond(cond)), then);
                if !otherwise.is_empty() {
                    self.nested_ops("else".into(), otherwise);
                }
                return;
            }
            OpKind::Wait {
                cells,
                at_least,
                slabs,
            } => {
                let least = at_least.map_or_else(String::new, |least| format!(" >= {least}"));
                why = self.why(cells, true);
                let by_slab = slabs.map_or("", |_| " slab by slab");
                format!("wait {}{least}{by_slab}", self.cells(cells))
            }
            OpKind::Signal { cells, amount } => {
                why = self.why(cells, false) + &self.reach(&cells.home, "one instruction");
                format!("signal {} += {amount}", self.cells(cells))
            }
            OpKind::Copy { dst, src } => {
                why = self.reach(&dst.home, "multicast stores");
                format!("{} = {}", self.region(dst), self.region(src))
            }
            OpKind::Dot { acc, a, b } => {
                let (a, b) = (self.region(a), self.region(b));
                format!("{} += dot({a}, {b})", names.acc(*acc))
            }
            OpKind::Reduce { acc, from, own } => {
                let own = own.map_or(String::new(), |own| format!(", own {}", text(own)));
                format!("{} += sum({}{own})", names.acc(*acc), self.region(from))
            }
            OpKind::Load { acc, from } => {
                format!("{} = load({})", names.acc(*acc), self.region(from))
            }
            OpKind::Store {
                dst,
                mode,
                value,
                amax,
            } => {
                let sign = match mode {
                    StoreMode::Write => "=",
                    StoreMode::Add => "+=",
                };
                let measured = amax.map_or(String::new(), |amax| {
                    let to = &self.kernel.buffers[amax.to.index()].name;
                    format!("; {to} = max({to}, |{}|)", text(amax.of))
                });
                let made =
                    self.kernel
                        .computed_scale_of(dst.buffer)
                        .map_or(String::new(), |plane| {
                            let plane = &self.kernel.buffers[plane.index()].name;
                            format!(" / {plane}; {plane} = scales of |{}|", text(*value))
                        });
                format!(
                    "{} {sign} {}{measured}{made}",
                    self.region(dst),
                    text(*value)
                )
            }
        };
        self.page.line(format!("{line}{why}"));
        if let Some(text) = self
            .texts
            .as_mut()
            .and_then(|texts| texts.get_mut(usize::from(op.id.0)))
        {
            *text = line;
        }
    }

    fn cells(&self, cells: &Cells) -> String {
        self.names.cells(cells.counter, &cells.home, &cells.index)
    }

    /// Words for how every rank's memory is reached, if it is.
    fn reach(&self, home: &Home, at_once: &str) -> String {
        match (home, self.in_turn) {
            (Home::Everywhere, Some(false)) => format!("   # to every rank by {at_once}"),
            (Home::Everywhere, Some(true)) => "   # to every rank by a loop of the host's".into(),
            (Home::Everywhere, None) | (Home::Me | Home::On(_), _) => String::new(),
        }
    }

    /// The purpose of a credit, for its wait or signal.
    fn why(&self, cells: &Cells, wait: bool) -> String {
        let Some(counter) = self.kernel.counters.get(cells.counter.index()) else {
            return String::new();
        };
        let what = match (counter.purpose, wait) {
            (Purpose::Data, _) => return String::new(),
            (Purpose::Ready(x), true) => format!("its {} may be touched", self.names.tensor(x)),
            (Purpose::Ready(x), false) => format!("my {} may be touched", self.names.tensor(x)),
            (Purpose::Returned(x), true) => {
                format!("my {} is no longer read", self.names.tensor(x))
            }
            (Purpose::Returned(x), false) => {
                format!("its {} is no longer read", self.names.tensor(x))
            }
            (Purpose::Free(x), true) => {
                format!("{} was read in the last launch", self.names.tensor(x))
            }
            (Purpose::Free(x), false) => {
                format!("{} may be written in the next launch", self.names.tensor(x))
            }
        };
        format!("   # credit: {what}")
    }

    /// `partial.on(owner)[me][t]`, `x[t.rows, :]`.
    fn region(&self, region: &Region) -> String {
        let names = &self.names;
        let mut text = format!(
            "{}{}",
            names.tensor(region.buffer),
            names.home(&region.home)
        );
        if let Some(slot) = &region.slot {
            text.push_str(&format!("[{}]", names.pick(slot)));
        }
        let (rows, columns) = (self.axis(region.rows), self.axis(region.columns));
        match (region.rows, region.columns) {
            (Axis::RowsOf(item), Axis::ColumnsOf(same)) if item == same => {
                text.push_str(&format!("[{}]", names.var(item)));
            }
            (Axis::All | Axis::RowsOf(_) | Axis::ColumnsOf(_), _) => {
                text.push_str(&format!("[{rows}, {columns}]"));
            }
        }
        text
    }

    fn axis(&self, axis: Axis) -> String {
        let var = |var: Var| self.names.var(var);
        match axis {
            Axis::All => ":".into(),
            Axis::RowsOf(item) => format!("{}.rows", var(item)),
            Axis::ColumnsOf(item) => format!("{}.columns", var(item)),
        }
    }
}

/// `m over ranks`.
fn dim_text(dim: &Dim) -> String {
    if dim.sharded {
        format!("{} over ranks", dim.name)
    } else {
        dim.name.clone()
    }
}
