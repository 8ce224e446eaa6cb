//! Places of data and counter cells: `partial.on(owner)[me()][t]`.

use super::{Chain, Link, NOTHING, Parser, ident, word_call};
use crate::mistakes::Mistake;
use crate::model::{Cells, Home, Index, IndexKind, Pick, Place, Read, ReadWait, WaitCells};
use crate::names::{self, Kind};
use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::Expr;

impl Parser<'_> {
    /// The left side of a store or copy.
    pub(super) fn destination(&mut self, expr: &Expr) -> Option<Place> {
        let chain = Chain::of(expr);
        let Some(root) = ident(chain.root) else {
            self.errors.at(expr, Mistake::NotAPlace);
            return None;
        };
        match self.look_up(root, |kind| matches!(kind, Kind::Tensor(_)))? {
            Kind::Tensor(_) => {}
            Kind::Counters(_) => {
                let name = names::text(root);
                self.errors.at(expr, Mistake::AssignToCounter { name });
                return None;
            }
            other => {
                let (name, what) = (names::text(root), other.what().into());
                self.errors.at(expr, Mistake::AssignToName { name, what });
                return None;
            }
        }
        let (place, rest) = self.place(root, &chain.links);
        if let (Some(_), Some(link)) = (&place, rest.first()) {
            self.errors.at(link.expr(), Mistake::NotAPlace);
            return None;
        }
        place
    }

    /// True if an expression is stored data, perhaps with a wait: what a copy takes.
    pub(super) fn is_bare_place(&self, expr: &Expr) -> bool {
        let chain = Chain::of(expr);
        let tensor = ident(chain.root).and_then(|root| self.scope.find(root));
        let plain = |link: &Link| match link {
            Link::Index(_) => true,
            Link::Call(call) => ["on", "everywhere", "data", "scales", "wait"]
                .contains(&names::text(&call.method).as_str()),
        };
        match tensor {
            Some(Kind::Tensor(crate::model::Usage::VECTOR)) => false,
            Some(Kind::Tensor(_)) => chain.links.iter().all(plain),
            _ => false,
        }
    }

    /// An expression that must be stored data.
    pub(super) fn read_all(&mut self, expr: &Expr) -> Option<Read> {
        let chain = Chain::of(expr);
        let Some(root) = ident(chain.root) else {
            self.errors.at(expr, Mistake::OperandPlace);
            return None;
        };
        match self.look_up(root, |kind| matches!(kind, Kind::Tensor(_)))? {
            Kind::Tensor(_) => {}
            _ => {
                self.errors.at(expr, Mistake::OperandPlace);
                return None;
            }
        }
        let (read, rest) = self.read(root, &chain.links);
        if let Some(link) = rest.first() {
            if read.is_some() {
                self.errors.at(link.expr(), Mistake::OperandPlace);
            }
            return None;
        }
        read
    }

    /// Data and the waits for it, and the links that follow.
    pub(super) fn read<'a, 'l>(
        &mut self,
        root: &Ident,
        links: &'l [Link<'a>],
    ) -> (Option<Read>, &'l [Link<'a>]) {
        let (mut place, mut rest) = self.place(root, links);
        let mut waits = Vec::new();
        while let [Link::Call(call), after @ ..] = rest {
            if call.method != "wait" {
                break;
            }
            rest = after;
            match self.read_wait(call) {
                Some(wait) => waits.push(wait),
                None => place = None,
            }
        }
        (place.map(|place| Read { place, waits }), rest)
    }

    fn read_wait(&mut self, call: &syn::ExprMethodCall) -> Option<ReadWait> {
        let [argument] = self.call_arguments(call, ("a counter", ".wait(landed)"))?;
        let chain = Chain::of(argument);
        let fits = |kind: &Kind| matches!(kind, Kind::Counters(_));
        let Some(root) = ident(chain.root) else {
            self.errors.at(argument, Mistake::WaitForWhat);
            return None;
        };
        let axes = match self.look_up(root, fits)? {
            Kind::Counters(axes) => axes,
            other => {
                let (name, what) = (names::text(root), other.what().into());
                let known = self.scope.offer(root, fits);
                self.errors
                    .at(argument, Mistake::NotACounter { name, what, known });
                return None;
            }
        };
        let cells = if chain.links.is_empty() {
            WaitCells::Same {
                counter: root.clone(),
                axes,
            }
        } else {
            let (cells, rest) = self.cells(root, &chain.links);
            if let Some(link) = rest.first() {
                self.errors.at(link.expr(), Mistake::WaitForWhat);
                return None;
            }
            WaitCells::Given(cells?)
        };
        Some(ReadWait {
            word: call.method.clone(),
            cells,
        })
    }

    /// A name known to be a tensor, with its home and indices, and the links that follow.
    fn place<'a, 'l>(
        &mut self,
        root: &Ident,
        links: &'l [Link<'a>],
    ) -> (Option<Place>, &'l [Link<'a>]) {
        let Some(Kind::Tensor(usage)) = self.scope.find(root).cloned() else {
            return (None, links);
        };
        let mut planes = None;
        let (home, indices, tokens, rest) = self.home_and_indices(root, links, Some(&mut planes));
        let place = home.zip(indices).map(|(home, indices)| Place {
            tensor: root.clone(),
            usage,
            home,
            planes,
            indices,
            tokens,
        });
        (place, rest)
    }

    /// A name known to be a counter, with its home and indices, and the links that follow.
    pub(super) fn cells<'a, 'l>(
        &mut self,
        root: &Ident,
        links: &'l [Link<'a>],
    ) -> (Option<Cells>, &'l [Link<'a>]) {
        let Some(Kind::Counters(axes)) = self.scope.find(root).cloned() else {
            return (None, links);
        };
        let (home, indices, tokens, rest) = self.home_and_indices(root, links, None);
        let cells = home.zip(indices).map(|(home, indices)| Cells {
            counter: root.clone(),
            axes,
            home,
            indices,
            tokens,
        });
        (cells, rest)
    }

    fn home_and_indices<'a, 'l>(
        &mut self,
        root: &Ident,
        links: &'l [Link<'a>],
        planes: Option<&mut Option<Ident>>,
    ) -> (
        Option<Home>,
        Option<Vec<Index>>,
        TokenStream,
        &'l [Link<'a>],
    ) {
        let mut rest = links;
        let mut tokens = root.to_token_stream();
        let mut home = Some(Home::Me);
        if let [Link::Call(call), after @ ..] = rest {
            if call.method == "on" {
                home = self
                    .call_arguments(call, ("a rank", ".on(peer)"))
                    .and_then(|[rank]| self.rank(rank))
                    .map(|rank| Home::On(call.method.clone(), rank));
                (tokens, rest) = (call.to_token_stream(), after);
            } else if call.method == "everywhere" {
                home = self
                    .call_arguments(call, NOTHING)
                    .map(|[]| Home::Everywhere(call.method.clone()));
                (tokens, rest) = (call.to_token_stream(), after);
            }
        }
        let of_tensor = planes.is_some();
        if let (Some(planes), [Link::Call(call), after @ ..]) = (planes, rest)
            && is_plane(&call.method)
        {
            if self.call_arguments::<0>(call, NOTHING).is_none() {
                home = None;
            }
            *planes = Some(call.method.clone());
            (tokens, rest) = (call.to_token_stream(), after);
        }
        let mut indices = Some(Vec::new());
        while let [Link::Index(index), after @ ..] = rest {
            (tokens, rest) = (index.to_token_stream(), after);
            match self.index(&index.index) {
                Some(index) => {
                    if let Some(indices) = &mut indices {
                        indices.push(index);
                    }
                }
                None => indices = None,
            }
        }
        if let [Link::Call(call), ..] = rest
            && (call.method == "on" || call.method == "everywhere")
        {
            let word = names::text(&call.method);
            self.errors.at(&call.method, Mistake::HomeFirst { word });
            home = None;
        }
        if let [Link::Call(call), ..] = rest
            && of_tensor
            && is_plane(&call.method)
        {
            let word = names::text(&call.method);
            self.errors.at(&call.method, Mistake::PlaneFirst { word });
            home = None;
        }
        (home, indices, tokens, rest)
    }

    /// Something in brackets.
    fn index(&mut self, expr: &Expr) -> Option<Index> {
        let tokens = expr.to_token_stream();
        let kind = self.index_kind(expr)?;
        Some(Index { tokens, kind })
    }

    fn index_kind(&mut self, expr: &Expr) -> Option<IndexKind> {
        if let Expr::Tuple(_) = expr {
            self.errors.at(expr, Mistake::IndexTuple);
            return None;
        }
        if let Expr::Range(_) = expr {
            self.errors.at(expr, Mistake::IndexRange);
            return None;
        }
        let chain = Chain::of(expr);
        if let Some((word, call)) = word_call(chain.root) {
            match names::text(word).as_str() {
                "others" | "everyone" if chain.links.is_empty() => {
                    let [] = self.arguments(word, call, &call.args, NOTHING)?;
                    return Some(IndexKind::Rank(Pick::Several(word.clone())));
                }
                "ranks" | "ring" => {
                    self.errors.at(expr, Mistake::OrderAsIndex);
                    return None;
                }
                _ => {}
            }
        }
        let Some(root) = ident(chain.root) else {
            return self.rank(expr).map(|rank| IndexKind::Rank(Pick::One(rank)));
        };
        match self.scope.find(root).cloned() {
            Some(Kind::Item { partition }) => self.item_index(root, partition, &chain.links),
            Some(Kind::Partition) => {
                let partition = names::text(root);
                self.errors
                    .at(expr, Mistake::PartitionAsIndex { partition });
                None
            }
            Some(other @ (Kind::Tensor(_) | Kind::Counters(_) | Kind::Value)) => {
                let (name, what) = (names::text(root), other.what().into());
                self.errors.at(expr, Mistake::NotAnIndex { name, what });
                None
            }
            _ => {
                let known = |kind: &Kind| matches!(kind, Kind::Item { .. } | Kind::Rank);
                if !self.outer_constant(expr) {
                    self.look_up(root, known)?;
                }
                self.rank(expr).map(|rank| IndexKind::Rank(Pick::One(rank)))
            }
        }
    }

    /// `t`, `t.rows()` or `t.columns()`.
    fn item_index(&mut self, var: &Ident, partition: Ident, links: &[Link]) -> Option<IndexKind> {
        let var = var.clone();
        let [first, rest @ ..] = links else {
            return Some(IndexKind::Item { var, partition });
        };
        let side = match first {
            Link::Call(call) if call.method == "rows" || call.method == "columns" => call,
            Link::Call(call) => {
                self.unknown_method(&call.method, "an item", &["rows", "columns"]);
                return None;
            }
            Link::Index(index) => {
                self.errors.at(index, Mistake::IndexTuple);
                return None;
            }
        };
        let [] = self.call_arguments(side, NOTHING)?;
        let side = side.method.clone();
        match rest {
            [] => Some(IndexKind::Along { var, side }),
            [Link::Call(call), ..] => {
                self.unknown_method(&call.method, &format!("an index by {side}"), &[]);
                None
            }
            [Link::Index(index), ..] => {
                self.errors.at(index, Mistake::IndexTuple);
                None
            }
        }
    }
}

/// True if a method names one plane of a tensor.
fn is_plane(method: &Ident) -> bool {
    method == "data" || method == "scales"
}

impl Link<'_> {
    /// The tokens of a link for a message: a call without its receiver, an index with it.
    fn expr(&self) -> TokenStream {
        match self {
            Link::Index(index) => index.to_token_stream(),
            Link::Call(call) => super::without_receiver(call),
        }
    }
}
