//! Which statements write a tensor, and what is in the accumulators they store.

use crate::program::{Home, Items, Program, Stmt, StmtKind, StoreMode, TensorKind};
use crate::rank::RankExpr;
use crate::value::{AccId, Value};

/// What goes into an accumulator.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Filler {
    Dot(usize, usize),
    /// A sum of stored tiles.
    Sum(usize),
    Load(usize),
}

/// A statement that writes a tensor.
pub(super) struct Writer<'p> {
    pub dst: usize,
    /// To this rank's memory, rows of the chunk it owns.
    pub own: bool,
    pub what: What<'p>,
}

pub(super) enum What<'p> {
    Copy(usize),
    Store {
        mode: StoreMode,
        value: &'p Value,
        accs: Vec<(AccId, Filler)>,
    },
}

/// Every statement of a program that writes a tensor, and whether any statement multiplies.
pub(super) fn writers(program: &Program) -> (Vec<Writer<'_>>, bool) {
    let mut gather = Gather {
        program,
        item: None,
        accs: Vec::new(),
        found: Vec::new(),
        products: false,
    };
    for role in &program.roles {
        gather.stmts(&role.body);
    }
    (gather.found, gather.products)
}

struct Gather<'p> {
    program: &'p Program,
    item: Option<&'p Items>,
    accs: Vec<(AccId, Filler)>,
    found: Vec<Writer<'p>>,
    products: bool,
}

impl<'p> Gather<'p> {
    fn stmts(&mut self, body: &'p [Stmt]) {
        for stmt in body {
            match &stmt.kind {
                StmtKind::ForItems { items, body, .. } => {
                    self.accs.clear();
                    self.item = Some(items);
                    self.stmts(body);
                    self.item = None;
                }
                StmtKind::ForRanks { body, .. } => {
                    self.stmts(body);
                }
                StmtKind::If {
                    then, otherwise, ..
                } => {
                    self.stmts(then);
                    self.stmts(otherwise);
                }
                StmtKind::Wait { .. } | StmtKind::Signal { .. } => {}
                StmtKind::Copy { dst, src } => {
                    let what = What::Copy(src.tensor.index());
                    self.write(dst.tensor.index(), &dst.home, what);
                }
                StmtKind::Dot { acc, a, b } => {
                    self.products = true;
                    let filler = Filler::Dot(a.tensor.index(), b.tensor.index());
                    self.accs.push((*acc, filler));
                }
                StmtKind::Sum { acc, from } => {
                    self.accs.push((*acc, Filler::Sum(from.tensor.index())));
                }
                StmtKind::Load { acc, from } => {
                    self.accs.push((*acc, Filler::Load(from.tensor.index())));
                }
                StmtKind::Store { dst, mode, value } => {
                    let what = What::Store {
                        mode: *mode,
                        value,
                        accs: self.accs.clone(),
                    };
                    self.write(dst.tensor.index(), &dst.home, what);
                }
            }
        }
    }

    fn write(&mut self, dst: usize, home: &Home, what: What<'p>) {
        let mine = matches!(home, Home::Me | Home::On(RankExpr::Me));
        let chunk = self
            .item
            .is_some_and(|items| items.chunk == Some(RankExpr::Me));
        // Of what is scattered a rank holds no other rows than its own.
        let scattered = self.program.tensors[dst].kind == TensorKind::Scattered;
        self.found.push(Writer {
            dst,
            own: mine && (chunk || scattered),
            what,
        });
    }
}
