//! Which statements write a tensor, and what is in the accumulators they store.

use crate::kernel::{Block, Kernel, Op, OpKind};
use crate::program::{StoreMode, TensorId};
use crate::rank::RankExpr;
use crate::value::{AccId, Value};

/// What goes into an accumulator.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Filler {
    Dot { a: TensorId, b: TensorId },
    Load(TensorId),
    Reduce(TensorId),
}

/// A store or copy.
#[derive(Clone, Debug)]
pub(super) struct Writer<'a> {
    pub dst: TensorId,
    pub mode: StoreMode,
    /// The source, for a copy.
    pub copied: Option<TensorId>,
    pub value: &'a Value,
    accs: Vec<(AccId, Filler)>,
    /// An accumulator is filled under a branch or a loop over ranks.
    pub unclear: bool,
    /// It stands in a loop over my own chunk.
    pub mine: bool,
}

impl Writer<'_> {
    pub fn fillers(&self, acc: AccId) -> impl Iterator<Item = &Filler> {
        self.accs
            .iter()
            .filter(move |(id, _)| *id == acc)
            .map(|(_, filler)| filler)
    }

    fn used(&self) -> impl Iterator<Item = &Filler> {
        let accs = self.value.accs();
        self.accs
            .iter()
            .filter(move |(id, _)| accs.contains(id))
            .map(|(_, filler)| filler)
    }

    pub fn reduces(&self) -> bool {
        self.used()
            .any(|filler| matches!(filler, Filler::Reduce(_)))
    }

    pub fn has_dot(&self, acc: AccId) -> bool {
        self.fillers(acc)
            .any(|filler| matches!(filler, Filler::Dot { .. }))
    }

    pub fn any_dot(&self) -> bool {
        self.used()
            .any(|filler| matches!(filler, Filler::Dot { .. }))
    }

    pub fn reduced(&self, acc: AccId) -> Vec<TensorId> {
        let mut found = Vec::new();
        for filler in self.fillers(acc) {
            if let Filler::Reduce(from) = filler
                && !found.contains(from)
            {
                found.push(*from);
            }
        }
        found
    }

    pub fn loads(&self) -> impl Iterator<Item = TensorId> {
        self.used().filter_map(|filler| match filler {
            Filler::Load(from) => Some(*from),
            Filler::Dot { .. } | Filler::Reduce(_) => None,
        })
    }

    /// Whether both store the same thing, whatever their accumulators are called.
    pub fn same(&self, other: &Writer<'_>) -> bool {
        let text = |writer: &Writer<'_>| {
            writer.value.text(&|acc| {
                let fillers: Vec<&Filler> = writer.fillers(acc).collect();
                format!("{fillers:?}")
            })
        };
        self.copied == other.copied && (self.copied.is_some() || text(self) == text(other))
    }
}

/// Every store and copy of the kernel.
pub(super) fn writers(kernel: &Kernel) -> Vec<Writer<'_>> {
    let mut gather = Gather {
        kernel,
        found: Vec::new(),
        accs: Vec::new(),
        unclear: false,
        mine: false,
    };
    for role in &kernel.roles {
        gather.blocks(&role.body);
    }
    gather.found
}

const NOTHING: &Value = &Value::Const(0.0);

struct Gather<'a> {
    kernel: &'a Kernel,
    found: Vec<Writer<'a>>,
    accs: Vec<(AccId, Filler)>,
    unclear: bool,
    mine: bool,
}

impl<'a> Gather<'a> {
    fn blocks(&mut self, body: &'a [Block]) {
        for block in body {
            match block {
                Block::ForRanks { body, .. } => self.blocks(body),
                Block::If {
                    then, otherwise, ..
                } => {
                    self.blocks(then);
                    self.blocks(otherwise);
                }
                Block::Items { body, chunk, .. } => {
                    self.mine = *chunk == Some(RankExpr::Me);
                    self.item(body);
                    self.mine = false;
                }
                Block::Once { body } => self.item(body),
                Block::Join => {}
            }
        }
    }

    fn item(&mut self, body: &'a [Op]) {
        self.accs.clear();
        self.unclear = false;
        self.ops(body, false);
    }

    fn fill(&mut self, acc: AccId, filler: Filler, repeated: bool) {
        // A sum over ranks may be written as a loop over them; anything else would be there several times.
        self.unclear |= repeated && !matches!(filler, Filler::Reduce(_));
        self.accs.push((acc, filler));
    }

    fn ops(&mut self, body: &'a [Op], repeated: bool) {
        for op in body {
            match &op.kind {
                OpKind::ForRanks { body, .. } => self.ops(body, true),
                OpKind::If {
                    then, otherwise, ..
                } => {
                    self.ops(then, true);
                    self.ops(otherwise, true);
                }
                OpKind::Wait { .. } | OpKind::Signal { .. } => {}
                OpKind::Copy { dst, src } => self.found.push(Writer {
                    dst: dst.buffer,
                    mode: StoreMode::Write,
                    copied: Some(src.buffer),
                    value: NOTHING,
                    accs: Vec::new(),
                    unclear: false,
                    mine: self.mine,
                }),
                OpKind::Dot { acc, a, b } => {
                    let (a, b) = (a.buffer, b.buffer);
                    self.fill(*acc, Filler::Dot { a, b }, repeated);
                }
                OpKind::Reduce { acc, from } => {
                    self.fill(*acc, Filler::Reduce(from.buffer), repeated);
                }
                OpKind::Load { acc, from } => {
                    self.fill(*acc, Filler::Load(from.buffer), repeated);
                }
                OpKind::Store { dst, mode, value } => self.found.push(Writer {
                    dst: dst.buffer,
                    mode: *mode,
                    copied: None,
                    value: &self.kernel.values[usize::from(value.0)],
                    accs: self.accs.clone(),
                    unclear: self.unclear,
                    mine: self.mine,
                }),
            }
        }
    }
}
