//! A program as text: the schedule as written, choices still open.

use super::{Names, Page};
use crate::program::{
    Block, Choice, HeldRows, ItemOrder, Items, Place, Placement, Planes, Program, Role, RoleKind,
    Setting, Slots, Stmt, StmtKind, StoreMode,
};
use crate::value::Value;
use std::fmt;

impl Program {
    /// Text of the program: tensors, partitions, counters, then the loops of each role.
    pub fn text(&self) -> String {
        let names = Names {
            vars: self.vars.iter().map(|var| var.name.clone()).collect(),
            tensors: self.tensors.iter().map(|t| t.name.clone()).collect(),
            partitions: self.partitions.iter().map(|p| p.name.clone()).collect(),
            counters: self.counters.iter().map(|set| set.name.clone()).collect(),
            accs: (0..)
                .zip(&self.accs)
                .map(|(index, acc): (usize, _)| {
                    let name = acc.name.clone();
                    name.unwrap_or_else(|| format!("acc{index}"))
                })
                .collect(),
        };
        let mut printer = Printer {
            program: self,
            names,
            page: Page::default(),
        };
        printer.declarations();
        for role in &self.roles {
            printer.role(role);
        }
        printer.page.text
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

struct Printer<'a> {
    program: &'a Program,
    names: Names,
    page: Page,
}

impl Printer<'_> {
    fn declarations(&mut self) {
        let program = self.program;
        self.page.line(format!("schedule {}", program.name));
        if !program.tunables.is_empty() {
            let choices = program.tunables.iter().map(|tunable| {
                let options: Vec<String> = tunable.options.iter().map(Setting::to_string).collect();
                format!("{}={}", tunable.name, options.join("|"))
            });
            let choices: Vec<String> = choices.collect();
            self.page.line(format!("choices {}", choices.join(" ")));
        }
        self.page.line("");
        for tensor in &program.tensors {
            let (name, kind, dtype) = (&tensor.name, tensor.usage.name(), tensor.dtype);
            let Placement { rows, slots, .. } = tensor.usage.placement;
            let line = match tensor.like.map(|like| self.names.tensor(like)) {
                _ if !tensor.usage.is_scratch() => format!("{name}: {kind}<{dtype}>"),
                None => format!("{name} = {kind}<{dtype}>()"),
                Some(like) => {
                    let rows = match rows {
                        HeldRows::Shard => "shard",
                        HeldRows::Whole => "whole",
                    };
                    let slots = match slots {
                        Slots::Count(count) => count.to_string(),
                        Slots::World => "world".into(),
                        Slots::Peers => "world - 1".into(),
                    };
                    format!("{name} = {kind}<{dtype}>({like}.{rows}, slots = {slots})")
                }
            };
            self.page.line(line);
        }
        for partition in &program.partitions {
            let block = match partition.block {
                Block::Chunks { rows } => format!("chunks(rows = {})", self.choice(rows)),
                Block::Panels { columns } => format!("panels(columns = {})", self.choice(columns)),
                Block::Tiles { shape } if partition.across => {
                    format!("tiles_across({})", self.choice(shape))
                }
                Block::Tiles { shape } => format!("tiles({})", self.choice(shape)),
            };
            let of = self.names.tensor(partition.tensor);
            self.page.line(format!("{} = {of}.{block}", partition.name));
        }
        for set in &program.counters {
            let axes = self.names.axes(&set.dims);
            self.page.line(format!("{} = counters{axes}", set.name));
        }
    }

    fn choice(&self, choice: Choice) -> String {
        match choice {
            Choice::Fixed(setting) => setting.to_string(),
            Choice::Open(index) => {
                let options = self.program.tunables.get(usize::from(index)).map(|open| {
                    let options = open.options.iter().map(Setting::to_string);
                    options.collect::<Vec<_>>().join(", ")
                });
                format!("tune({})", options.unwrap_or_default())
            }
        }
    }

    fn role(&mut self, role: &Role) {
        let settings: Vec<(&str, Option<Choice>)> = match role.kind {
            RoleKind::Gemm {
                k,
                cluster,
                split,
                stages,
                subtiles,
                ping_pong,
            } => {
                vec![
                    ("k", k),
                    ("cluster", cluster),
                    ("split", split),
                    ("stages", stages),
                    ("subtiles", subtiles),
                    ("ping_pong", ping_pong),
                ]
            }
            RoleKind::Comm { ctas } => vec![("ctas", Some(ctas))],
            RoleKind::SpareWarps | RoleKind::CopyEngine => Vec::new(),
        };
        let word = role.kind.word();
        let named = (role.name != word).then(|| format!("name = {}", role.name));
        let settings = settings
            .into_iter()
            .filter_map(|(name, choice)| Some(format!("{name} = {}", self.choice(choice?))));
        let settings: Vec<String> = named.into_iter().chain(settings).collect();
        let settings = match settings.as_slice() {
            [] => String::new(),
            some => format!("({})", some.join(", ")),
        };
        self.page.line("");
        self.page.line(format!("#[{word}{settings}]"));
        self.stmts(&role.body);
    }

    fn stmts(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.stmt(&stmt.kind);
        }
    }

    fn nested(&mut self, head: String, body: &[Stmt]) {
        self.page.line(head);
        self.page.depth += 1;
        self.stmts(body);
        self.page.depth -= 1;
    }

    fn stmt(&mut self, stmt: &StmtKind) {
        let names = &self.names;
        let line = match stmt {
            StmtKind::ForRanks { var, order, body } => {
                let order = order.text(&|var| names.var(var).to_string());
                return self.nested(format!("for {} in {order}", names.var(*var)), body);
            }
            StmtKind::ForItems { var, items, body } => {
                let head = format!("for {} in {}", names.var(*var), self.items(items));
                return self.nested(head, body);
            }
            StmtKind::If {
                cond,
                then,
                otherwise,
            } => {
                self.nested(format!("if {}", names.cond(cond)), then);
                if !otherwise.is_empty() {
                    self.nested("else".into(), otherwise);
                }
                return;
            }
            StmtKind::Wait {
                cells,
                at_least,
                by_slab,
            } => {
                let cells = names.cells(cells.counter, &cells.home, &cells.index);
                let least = at_least.map_or_else(String::new, |least| format!(" >= {least}"));
                let by_slab = if *by_slab { " slab by slab" } else { "" };
                format!("wait {cells}{least}{by_slab}")
            }
            StmtKind::Signal { cells, amount } => {
                let cells = names.cells(cells.counter, &cells.home, &cells.index);
                format!("signal {cells} += {amount}")
            }
            StmtKind::Copy { dst, src } => format!("{} = {}", self.place(dst), self.place(src)),
            StmtKind::Dot { acc, a, b } => {
                let (a, b) = (self.place(a), self.place(b));
                format!("{} += dot({a}, {b})", names.acc(*acc))
            }
            StmtKind::Sum { acc, from, own } => {
                let own = own.as_ref().map_or(String::new(), |own| {
                    format!(", own {}", own.text(&|acc| names.acc(acc)))
                });
                format!("{} += sum({}{own})", names.acc(*acc), self.place(from))
            }
            StmtKind::Load { acc, from } => {
                format!("{} = load({})", names.acc(*acc), self.place(from))
            }
            StmtKind::Store {
                dst,
                mode,
                value,
                amax,
            } => {
                let sign = match mode {
                    StoreMode::Write => "=",
                    StoreMode::Add => "+=",
                };
                let text = |value: &Value| value.text(&|acc| names.acc(acc));
                let measured = amax.as_ref().map_or(String::new(), |amax| {
                    let to = &self.program.tensors[amax.to.index()].name;
                    format!("; {to} = max({to}, |{}|)", text(&amax.of))
                });
                let made = self.program.computed_scale_of(dst.tensor);
                let made = made.map_or(String::new(), |(plane, _)| {
                    let plane = &self.program.tensors[plane.index()].name;
                    format!(" / {plane}; {plane} = scales of |{}|", text(value))
                });
                format!("{} {sign} {}{measured}{made}", self.place(dst), text(value))
            }
        };
        self.page.line(line);
    }

    fn items(&self, items: &Items) -> String {
        let shard = items
            .shard
            .as_ref()
            .map_or_else(String::new, |shard| format!("[{}]", self.names.rank(shard)));
        let order = match items.order {
            ItemOrder::Tile(order) => order.to_string(),
            ItemOrder::Grouped(group) => format!("grouped({})", self.choice(group)),
        };
        let partition = self.names.partition(items.partition);
        let some = (items.selection).text(&|var| self.names.var(var).to_string());
        if order == "row_major" {
            format!("{partition}{shard}{some}")
        } else {
            format!("{partition}{shard}.{order}{some}")
        }
    }

    /// `partial.on(owner)[me][t]`.
    fn place(&self, place: &Place) -> String {
        let names = &self.names;
        let planes = match place.planes {
            Planes::All => "",
            Planes::Data => ".data",
            Planes::Scales => ".scales",
        };
        let (tensor, home) = (names.tensor(place.tensor), names.home(&place.home));
        let mut text = format!("{tensor}{home}{planes}");
        let slot = place.slot.as_ref().map(|pick| names.pick(pick));
        let item = place.item.map(|item| names.var(item));
        for index in [slot, item].into_iter().flatten() {
            text.push_str(&format!("[{index}]"));
        }
        text
    }
}
