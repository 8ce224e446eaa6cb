//! `let` outside roles: partitions, counters, scratch, ranks.

use super::constant::Wanted;
use super::{Chain, Link, NOTHING, Parser, ident, without_receiver, word_call};
use crate::mistakes::Mistake;
use crate::model::{Axis, Declaration, Like, Shape, Size, Top, Usage};
use crate::names::{self, Kind};
use proc_macro2::Ident;
use syn::{Expr, ExprCall, ExprMethodCall, GenericArgument, Local, PathArguments};

/// The methods of a tensor that divide it.
pub(super) const DIVIDERS: [&str; 4] = ["chunks", "panels", "tiles", "tiles_across"];

impl Parser<'_> {
    /// A `let` outside roles. Binds the name even if its right side is wrong, so that its uses are not reported too.
    pub(super) fn declaration(&mut self, local: &Local) -> Option<Top> {
        let (name, mutable, init) = self.binding(local)?;
        if mutable {
            self.errors.at(&local.pat, Mistake::NeedlessMut);
        }
        // Nothing else outside roles has operators.
        let operators = matches!(init, Expr::Binary(_) | Expr::Unary(_) | Expr::Paren(_));
        if self.is_rank(init) || operators {
            let rank = self.rank(init);
            let kind = rank.as_ref().map_or(Kind::Broken, |_| Kind::Rank);
            self.scope.declare(name, kind, self.errors);
            return rank.map(|rank| Top::Rank(name.clone(), rank));
        }
        let declared = self.declared(init);
        if let Some(Declaration::Partition {
            shape: Shape::Tiles | Shape::TilesAcross,
            ..
        }) = declared
        {
            self.tiled.insert(names::text(name));
        }
        let kind = match &declared {
            None => Kind::Broken,
            Some(Declaration::Partition { .. }) => Kind::Partition,
            Some(Declaration::Counters { axes, .. }) => Kind::Counters(axes.clone()),
            Some(Declaration::Symmetric { .. }) => Kind::Tensor(Usage::SCRATCH),
        };
        self.scope.declare(name, kind, self.errors);
        declared.map(|declared| Top::Declare(name.clone(), declared))
    }

    fn declared(&mut self, init: &Expr) -> Option<Declaration> {
        if let Some((word, call)) = word_call(init) {
            match names::text(word).as_str() {
                "counters" => return self.counters(word, call),
                "symmetric" => return self.symmetric(word, call),
                "dot" | "zero" => {
                    self.errors.at(init, Mistake::ValueOutsideRole);
                    return None;
                }
                "ranks" | "ring" => {
                    self.errors.at(init, Mistake::OrderInLet);
                    return None;
                }
                "tune" => {
                    self.errors.at(init, Mistake::TuneInLet);
                    return None;
                }
                found => {
                    let known = names::offer(found, ["counters", "symmetric"].into_iter());
                    let found = found.to_owned();
                    self.errors
                        .at(word, Mistake::UnknownDeclaration { found, known });
                    return None;
                }
            }
        }
        let chain = Chain::of(init);
        match (ident(chain.root), chain.links.as_slice()) {
            (Some(tensor), [Link::Call(call)]) => self.partition(tensor, call),
            (Some(root), [_, ..])
                if matches!(self.scope.find(root), Some(Kind::Partition | Kind::Rank)) =>
            {
                self.errors.at(init, Mistake::OrderInLet);
                None
            }
            (Some(tensor), [Link::Call(part), Link::Call(divided)])
                if ["shard", "whole"].contains(&&*names::text(&part.method))
                    && DIVIDERS.contains(&&*names::text(&divided.method)) =>
            {
                let (name, part) = (names::text(tensor), names::text(&part.method));
                let method = names::text(&divided.method);
                self.errors
                    .at(init, Mistake::PartDivided { name, part, method });
                None
            }
            (Some(root), [_, ..])
                if matches!(
                    self.scope.find(root),
                    Some(Kind::Tensor(_) | Kind::Counters(_))
                ) =>
            {
                self.errors.at(init, Mistake::ValueOutsideRole);
                None
            }
            _ => {
                let chained = chain.links.first().and_then(|_| word_call(chain.root));
                let mistake = match chained {
                    Some((word, _)) if *word == "ranks" || *word == "ring" => Mistake::OrderInLet,
                    _ => Mistake::NotADeclaration,
                };
                self.errors.at(init, mistake);
                None
            }
        }
    }

    fn partition(&mut self, tensor: &Ident, call: &ExprMethodCall) -> Option<Declaration> {
        let kind = self.look_up(tensor, |kind| matches!(kind, Kind::Tensor(_)));
        let method = &call.method;
        let found = names::text(method);
        let shape = match found.as_str() {
            "chunks" => Shape::Chunks,
            "panels" => Shape::Panels,
            "tiles" => Shape::Tiles,
            "tiles_across" => Shape::TilesAcross,
            _ => {
                match kind? {
                    Kind::Partition => self.errors.at(call, Mistake::OrderInLet),
                    Kind::Counters(_) | Kind::Tensor(_)
                        if ["wait", "add", "sum"].contains(&found.as_str()) =>
                    {
                        self.errors.at(call, Mistake::ValueOutsideRole);
                    }
                    _ => self.unknown_method(method, "a tensor", &DIVIDERS),
                }
                return None;
            }
        };
        match kind? {
            Kind::Tensor(Usage::VECTOR) => {
                self.errors.at(
                    tensor,
                    Mistake::VectorDivided {
                        name: names::text(tensor),
                    },
                );
                return None;
            }
            Kind::Tensor(_) => {}
            other => {
                let (name, what) = (names::text(tensor), other.what().into());
                self.errors.at(tensor, Mistake::NotDivisible { name, what });
                return None;
            }
        }
        let (argument, wanted) = match shape {
            Shape::Chunks => (Some("rows"), Wanted::Number),
            Shape::Panels => (Some("cols"), Wanted::Number),
            Shape::Tiles | Shape::TilesAcross => (None, Wanted::Pair),
        };
        let known: &[&str] = argument.as_slice();
        let size = match argument {
            Some(name) => {
                let (plain, named) = self.named(method, &call.args, known)?;
                match (plain.as_slice(), named.as_slice()) {
                    ([], [(_, size)]) => *size,
                    _ => {
                        let word = found;
                        let name = name.to_owned();
                        self.errors
                            .at(without_receiver(call), Mistake::NameIt { word, name });
                        return None;
                    }
                }
            }
            None => {
                let example = match shape {
                    Shape::TilesAcross => "tiles_across((128, 256))",
                    Shape::Chunks | Shape::Panels | Shape::Tiles => "tiles((128, 256))",
                };
                let [size] = self.call_arguments(call, ("rows and columns", example))?;
                if shape == Shape::Tiles
                    && let Some(other) = self.partition_named(size)
                {
                    let (tensor, method) = (tensor.clone(), method.clone());
                    let size = Size::Of(other?);
                    return Some(Declaration::Partition {
                        tensor,
                        shape,
                        method,
                        size,
                    });
                }
                size
            }
        };
        let size = Size::Constant(self.constant(size, wanted, &found)?);
        Some(Declaration::Partition {
            tensor: tensor.clone(),
            shape,
            method: method.clone(),
            size,
        })
    }

    /// The partition that gives another one's tiles their size: `None` if it is no partition, and nothing in it if that one
    /// has no tiles.
    fn partition_named(&mut self, size: &Expr) -> Option<Option<Ident>> {
        let name = ident(size)?;
        match self.scope.find(name)? {
            Kind::Partition if self.tiled.contains(&names::text(name)) => Some(Some(name.clone())),
            Kind::Partition => {
                let name = names::text(name);
                self.errors.at(size, Mistake::NoTiles { name });
                Some(None)
            }
            Kind::Broken => Some(None),
            _ => None,
        }
    }

    fn counters(&mut self, word: &Ident, call: &ExprCall) -> Option<Declaration> {
        let axes: Vec<Option<Axis>> = call.args.iter().map(|axis| self.axis(axis)).collect();
        let axes = axes.into_iter().collect::<Option<Vec<Axis>>>()?;
        Some(Declaration::Counters {
            word: word.clone(),
            axes,
        })
    }

    /// `world()`, a partition or a number.
    fn axis(&mut self, expr: &Expr) -> Option<Axis> {
        if let Some((word, _)) = word_call(expr).filter(|(word, _)| *word == "world") {
            return Some(Axis::World(word.clone()));
        }
        if let Some(name) = ident(expr).filter(|_| !self.outer_constant(expr)) {
            return match self.look_up(name, |kind| matches!(kind, Kind::Partition))? {
                Kind::Partition => Some(Axis::Items(name.clone())),
                other => {
                    let (name_text, what) = (names::text(name), other.what().into());
                    self.errors.at(
                        name,
                        Mistake::NotAnAxis {
                            name: name_text,
                            what,
                        },
                    );
                    None
                }
            };
        }
        self.whole(
            expr,
            false,
            "an axis: a partition, `world()` or a number of cells",
        )
        .map(Axis::Count)
    }

    fn symmetric(&mut self, word: &Ident, call: &ExprCall) -> Option<Declaration> {
        let element = match &*call.func {
            Expr::Path(path) => {
                path.path
                    .segments
                    .first()
                    .and_then(|segment| match &segment.arguments {
                        PathArguments::AngleBracketed(arguments) if arguments.args.len() == 1 => {
                            match arguments.args.first() {
                                Some(GenericArgument::Type(element)) => Some(element.clone()),
                                _ => None,
                            }
                        }
                        _ => None,
                    })
            }
            _ => None,
        };
        if element.is_none() {
            self.errors.at(&call.func, Mistake::SymmetricElement);
        }
        if call.args.is_empty() {
            let word = word.clone();
            return Some(Declaration::Symmetric {
                word,
                element: element?,
                like: None,
            });
        }
        let (plain, named) = self.named(word, &call.args, &["slots"])?;
        let ([like], [(_, slots)]) = (plain.as_slice(), named.as_slice()) else {
            self.errors.at(call, Mistake::SymmetricArguments);
            return None;
        };
        let slots = if let Some((word, _)) = word_call(slots).filter(|(word, _)| *word == "world") {
            Some(Axis::World(word.clone()))
        } else if let Some(word) = all_but_one(slots) {
            Some(Axis::Peers(word.clone()))
        } else {
            self.whole(
                slots,
                false,
                "`slots`: `world()`, `world() - 1` or a number",
            )
            .map(Axis::Count)
        };
        let (tensor, extent) = self.like(like)?;
        let like = Like {
            tensor,
            extent,
            slots: slots?,
        };
        Some(Declaration::Symmetric {
            word: word.clone(),
            element: element?,
            like: Some(like),
        })
    }

    /// `y`, `y.shard()` or `y.whole()`.
    fn like(&mut self, expr: &Expr) -> Option<(Ident, Option<Ident>)> {
        let chain = Chain::of(expr);
        let Some(tensor) = ident(chain.root) else {
            self.errors.at(expr, Mistake::SymmetricArguments);
            return None;
        };
        let kind = self.look_up(tensor, |kind| matches!(kind, Kind::Tensor(_)))?;
        if !matches!(kind, Kind::Tensor(_)) {
            let (name, what) = (names::text(tensor), kind.what().into());
            self.errors.at(tensor, Mistake::NotDivisible { name, what });
            return None;
        }
        match chain.links.as_slice() {
            [] => Some((tensor.clone(), None)),
            [Link::Call(call)] if call.method == "shard" || call.method == "whole" => {
                let [] = self.call_arguments(call, NOTHING)?;
                Some((tensor.clone(), Some(call.method.clone())))
            }
            [Link::Call(call), ..] => {
                self.unknown_method(&call.method, "a tensor here", &["shard", "whole"]);
                None
            }
            [Link::Index(_), ..] => {
                self.errors.at(expr, Mistake::SymmetricArguments);
                None
            }
        }
    }
}

/// `world()` of `world() - 1`.
fn all_but_one(slots: &Expr) -> Option<&Ident> {
    let Expr::Binary(syn::ExprBinary {
        left,
        op: syn::BinOp::Sub(_),
        right,
        ..
    }) = slots
    else {
        return None;
    };
    let one = matches!(&**right, Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(int), .. })
        if int.base10_parse::<u32>().is_ok_and(|n| n == 1));
    let (word, _) = word_call(left).filter(|(word, _)| *word == "world" && one)?;
    Some(word)
}
