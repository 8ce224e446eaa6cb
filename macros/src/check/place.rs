//! Rules about one place or one cell: its home, its indices, and how it is used.

use super::uses::Checker;
use crate::mistakes::Mistake;
use crate::model::{Axis, Home, Index, IndexKind, Pick, Place, Usage};
use crate::names;
use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::{Expr, Lit};

/// Use of a place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Operand,
    Load,
    Sum,
    CopyFrom,
    CopyTo,
    Store,
    Add,
}

impl Access {
    fn writes(self) -> bool {
        match self {
            Access::CopyTo | Access::Store | Access::Add => true,
            Access::Operand | Access::Load | Access::Sum | Access::CopyFrom => false,
        }
    }
}

impl Checker<'_> {
    /// Reports indices that do not fit their axis.
    pub(super) fn axes(
        &mut self,
        counter: &Ident,
        axes: &[Axis],
        indices: &[&Index],
        tokens: &TokenStream,
    ) {
        let name = names::text(counter);
        if axes.len() != indices.len() {
            let shown: Vec<String> = axes.iter().map(axis_text).collect();
            self.errors.at(
                tokens,
                Mistake::AxisCount {
                    declared: format!("counters({})", shown.join(", ")),
                    wanted: count(axes.len()),
                    found: indices.len().to_string(),
                    name,
                },
            );
            return;
        }
        for (axis, index) in axes.iter().zip(indices) {
            let (name, mistake_at) = (name.clone(), &index.tokens);
            match (axis, &index.kind) {
                (Axis::Items(_), IndexKind::Along { .. })
                | (Axis::World(_) | Axis::Peers(_) | Axis::Count(_), IndexKind::Rank(_)) => {}
                (Axis::Items(wanted), IndexKind::Item { var, partition }) => {
                    if wanted != partition {
                        let (wanted, found, var) = (
                            names::text(wanted),
                            names::text(partition),
                            names::text(var),
                        );
                        let mistake = Mistake::AxisPartition {
                            name,
                            wanted,
                            found,
                            var,
                        };
                        self.errors.at(mistake_at, mistake);
                    }
                }
                (Axis::Items(wanted), IndexKind::Rank(_)) => {
                    let wanted = names::text(wanted);
                    self.errors
                        .at(mistake_at, Mistake::AxisItem { name, wanted });
                }
                (
                    Axis::World(_) | Axis::Peers(_) | Axis::Count(_),
                    IndexKind::Item { .. } | IndexKind::Along { .. },
                ) => self.errors.at(mistake_at, Mistake::AxisRank { name }),
            }
        }
    }

    /// Indices that fit the axes of a counter, one for each, among more.
    pub(super) fn cell_among<'i>(
        &self,
        axes: &[Axis],
        indices: &[&'i Index],
    ) -> Option<Vec<&'i Index>> {
        if indices.len() <= axes.len() || axes.is_empty() {
            return None;
        }
        let mut rest = indices.iter();
        let cell = axes.iter().map(|axis| {
            let fits = |index: &&&Index| match (axis, &index.kind) {
                (Axis::Items(wanted), IndexKind::Item { partition, .. }) => wanted == partition,
                (Axis::World(_) | Axis::Peers(_) | Axis::Count(_), IndexKind::Rank(_)) => true,
                (Axis::Items(_), IndexKind::Rank(_) | IndexKind::Along { .. })
                | (
                    Axis::World(_) | Axis::Peers(_) | Axis::Count(_),
                    IndexKind::Item { .. } | IndexKind::Along { .. },
                ) => false,
            };
            rest.find(fits).copied()
        });
        cell.collect()
    }

    /// A wait for the cell at the index of what is read, whose counter has fewer axes.
    pub(super) fn axis_of_read(
        &mut self,
        counter: &Ident,
        (axes, indices): (&[Axis], &[&Index]),
        cell: &[&Index],
    ) {
        let name = names::text(counter);
        let index = |index: &&Index| {
            let text = index.tokens.to_string();
            format!("[{}]", text.replace(" ()", "()"))
        };
        let cell: String = cell.iter().map(index).collect();
        let mistake = Mistake::AxisOfRead {
            wanted: count(axes.len()),
            found: indices.len().to_string(),
            offer: format!("{name}{cell}"),
            name,
        };
        self.errors.at(counter.to_token_stream(), mistake);
    }

    pub(super) fn place(&mut self, place: &Place, access: Access) {
        if access.writes() {
            self.writes(&place.tensor, &place.tokens);
        } else {
            self.reads(&place.tensor, &place.tokens);
        }
        let name = names::text(&place.tensor);
        let kind = place.usage.name.to_owned();
        match (place.usage, access) {
            (Usage::LOCAL | Usage::VECTOR, _) if access.writes() => {
                self.errors.at(&place.tokens, Mistake::Input { name, kind });
                return;
            }
            (Usage::GATHERED, Access::Add) => {
                self.errors
                    .at(&place.tokens, Mistake::GatheredAdded { name });
                return;
            }
            (Usage::ALL_TO_ALL, Access::Add) => {
                self.errors
                    .at(&place.tokens, Mistake::AllToAllAdded { name });
                return;
            }
            (Usage::ACCUMULATED, Access::Add) => {}
            (Usage::ACCUMULATED, _) => {
                let mistake = if access.writes() {
                    Mistake::AccumulatedWritten { name }
                } else {
                    Mistake::AccumulatedRead { name }
                };
                self.errors.at(&place.tokens, mistake);
                return;
            }
            (Usage::VECTOR, Access::Load) => {
                if let Some(index) = place.indices.first() {
                    self.errors
                        .at(&index.tokens, Mistake::VectorIndexed { name });
                }
                return;
            }
            (Usage::VECTOR, _) => {
                self.errors
                    .at(&place.tokens, Mistake::VectorOperand { name });
                return;
            }
            _ => {}
        }
        self.planes(place, access);
        self.home(place, access);
        self.indices(place, access);
    }

    /// Only copies tell planes apart, of what is gathered.
    fn planes(&mut self, place: &Place, access: Access) {
        let Some(word) = &place.planes else {
            return;
        };
        if !matches!(access, Access::CopyFrom | Access::CopyTo) {
            let mistake = Mistake::PlaneNotCopied {
                word: names::text(word),
            };
            self.errors.at(word, mistake);
        } else if place.usage != Usage::GATHERED {
            let name = names::text(&place.tensor);
            let kind = place.usage.name.to_owned();
            self.errors.at(word, Mistake::NoPlanes { name, kind });
        }
    }

    /// A copy takes what it fills.
    pub(super) fn same_planes(&mut self, dst: &Place, src: &Place) {
        let words = |place: &Place| match &place.planes {
            Some(word) => format!("`.{}()`", names::text(word)),
            None => "all planes".into(),
        };
        let (from, to) = (words(src), words(dst));
        if from != to {
            self.errors
                .at(&dst.tokens, Mistake::PlanesDiffer { from, to });
        }
    }

    fn home(&mut self, place: &Place, access: Access) {
        let (Home::On(word, _) | Home::Everywhere(word)) = &place.home else {
            return;
        };
        if !place.usage.shared {
            let name = names::text(&place.tensor);
            let kind = place.usage.name.to_owned();
            self.errors.at(word, Mistake::NotShared { name, kind });
        } else if matches!(place.home, Home::Everywhere(_))
            && matches!(access, Access::Operand | Access::Load | Access::CopyFrom)
        {
            self.errors.at(word, Mistake::ReadEverywhere);
        }
    }

    fn indices(&mut self, place: &Place, access: Access) {
        let name = names::text(&place.tensor);
        // 0: slot, 1: item. Each at most once, in this order.
        let mut next = 0;
        let (mut slot, mut item) = (false, false);
        for index in &place.indices {
            let name = name.clone();
            let (level, mistake) = match &index.kind {
                IndexKind::Rank(pick) => {
                    slot = true;
                    (0, self.slot_mistake(place, pick, access))
                }
                IndexKind::Item { .. } => {
                    item = true;
                    (1, None)
                }
                IndexKind::Along { var, side } => {
                    let (var, side) = (names::text(var), names::text(side));
                    item = true;
                    (1, Some(Mistake::SideOfTensor { var, side }))
                }
            };
            if let Some(mistake) = mistake {
                self.errors.at(&index.tokens, mistake);
            } else if level < next {
                self.errors.at(&index.tokens, Mistake::IndexOrder { name });
            }
            next = next.max(level + 1);
        }
        let exchanged = place.usage == Usage::ALL_TO_ALL;
        let several_slots = exchanged || self.slots.get(&name).is_some_and(several);
        if !item {
            self.errors
                .at(&place.tokens, Mistake::MissingIndex { name });
        } else if several_slots && !slot {
            self.errors.at(&place.tokens, Mistake::MissingSlot { name });
        }
    }

    fn slot_mistake(&self, place: &Place, pick: &Pick, access: Access) -> Option<Mistake> {
        let name = names::text(&place.tensor);
        match pick {
            _ if !place.usage.slots => Some(Mistake::NoSlots { name }),
            Pick::Several(word) if access != Access::Sum => {
                let word = names::text(word);
                Some(if access.writes() {
                    Mistake::WriteSeveral { word }
                } else {
                    Mistake::ReadSeveral { word }
                })
            }
            Pick::Several(_) | Pick::One(_) => None,
        }
    }
}

/// True if a slot must be named: unless it is `slots = 1` or a constant that only rustc knows.
fn several(slots: &Axis) -> bool {
    match slots {
        Axis::World(_) | Axis::Peers(_) => true,
        Axis::Items(_) => false,
        Axis::Count(Expr::Lit(lit)) => {
            matches!(&lit.lit, Lit::Int(int) if int.base10_parse::<u32>().is_ok_and(|n| n > 1))
        }
        Axis::Count(_) => false,
    }
}

fn axis_text(axis: &Axis) -> String {
    match axis {
        Axis::World(_) => "world()".into(),
        Axis::Peers(_) => "world() - 1".into(),
        Axis::Items(partition) => names::text(partition),
        Axis::Count(count) => count.to_token_stream().to_string(),
    }
}

fn count(n: usize) -> String {
    match n {
        0 => "no index".into(),
        1 => "one index".into(),
        n => format!("{n} indices"),
    }
}
