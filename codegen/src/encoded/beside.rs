//! Scales and amaxes beside the tensors that they belong to, and their loads.

use crate::encoding::{Along, Scaling};
use crate::program::{
    AccDecl, Home, Loc, Numbers, Place, Plane, Planes, Program, Stmt, StmtKind, Tensor, TensorId,
    Usage,
};
use crate::value::AccId;

impl Program {
    /// Adds numbers that belong to a tensor.
    pub(super) fn beside(&mut self, of: TensorId, numbers: Numbers) -> TensorId {
        let tensor = &self.tensors[of.index()];
        let (what, usage) = match numbers {
            Numbers::Amax => ("amax", Usage::OUT),
            Numbers::Scale(Scaling::Computed(_)) if tensor.usage.is_scratch() => {
                ("scale", tensor.usage)
            }
            Numbers::Scale(Scaling::Computed(_)) => ("scale", Usage::OUT),
            Numbers::Scale(Scaling::Given(along)) => {
                let travels = tensor.usage.is_gathered() && along != Along::All;
                let usages = [Usage::LOCAL, Usage::GATHERED];
                ("scale", usages[usize::from(travels)])
            }
        };
        self.tensors.push(Tensor {
            name: format!("{}.{what}", tensor.name),
            usage: usage.beside(of, numbers),
            like: Some(of).filter(|_| usage.is_scratch()),
            dtype: numbers.element(),
            at: tensor.at,
        });
        TensorId(self.tensors.len() as u16 - 1)
    }
}

/// Loads of an item: a tensor, the accumulator that it is loaded into, and the statement.
pub(super) type Loads = Vec<(TensorId, AccId, Loc)>;

/// Numbers beside the tensors of a program, and its accumulators in the making.
pub(super) struct Numbered {
    planes: Vec<(TensorId, Plane, String)>,
    pub(super) accs: Vec<AccDecl>,
}

impl Numbered {
    /// Numbers of a program's accumulators, which they take.
    pub(super) fn of(program: &mut Program) -> Numbered {
        let tensors = (0..).map(TensorId).zip(&program.tensors);
        let planes = tensors.filter_map(|(id, it)| Some((id, it.usage.plane?, it.name.clone())));
        Numbered {
            planes: planes.collect(),
            accs: std::mem::take(&mut program.accs),
        }
    }

    /// The numbers of that kind that belong to a tensor.
    pub(super) fn find(&self, of: TensorId, is: impl Fn(Numbers) -> bool) -> Option<TensorId> {
        let mut planes = self.planes.iter();
        let found = planes.find(|(_, plane, _)| plane.of == of && is(plane.numbers));
        found.map(|(id, ..)| *id)
    }

    /// The accumulator that an item loads a scale into: one, however often it needs it.
    pub(super) fn load(&mut self, scale: TensorId, loads: &mut Loads, at: Loc) -> AccId {
        if let Some((_, acc, _)) = loads.iter().find(|(known, ..)| *known == scale) {
            return *acc;
        }
        let acc = AccId(self.accs.len() as u16);
        let name = self.planes.iter().find(|(id, ..)| *id == scale);
        let name = name.map(|(.., name)| name.clone());
        self.accs.push(AccDecl { name });
        loads.push((scale, acc, at));
        acc
    }
}

/// True for a product, and for a wait by its slabs, which stands directly before it.
pub(super) fn begins_product(stmt: &StmtKind) -> bool {
    matches!(
        stmt,
        StmtKind::Dot { .. } | StmtKind::Wait { by_slab: true, .. }
    )
}

/// Loads scales before the first statement of an item that is such a one, or has one within it.
pub(super) fn load_before(item: &mut Vec<Stmt>, such: impl Fn(&StmtKind) -> bool, loads: Loads) {
    let first = item
        .iter()
        .position(|stmt| stmt.all().any(|stmt| such(&stmt.kind)));
    let first = first.unwrap_or(item.len());
    let load = |(tensor, acc, at)| {
        let from = Place {
            tensor,
            home: Home::Me,
            slot: None,
            item: None,
            planes: Planes::All,
        };
        let kind = StmtKind::Load { acc, from };
        Stmt { kind, at }
    };
    item.splice(first..first, loads.into_iter().map(load));
}
