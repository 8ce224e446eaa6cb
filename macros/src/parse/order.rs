//! The sequence that a loop visits: ranks in an order, or items of a partition. The root of the expression decides which.

use super::constant::Wanted;
use super::{Chain, Link, NOTHING, Parser, ident, identifiers, word_call};
use crate::mistakes::Mistake;
use crate::model::{Items, Order, OrderArgument, OrderCall, Rank};
use crate::names::{self, Kind};
use proc_macro2::Ident;
use quote::ToTokens;
use syn::{Expr, ExprMethodCall, Lit};

pub(super) enum Iterable {
    Ranks(Order),
    Items(Items),
}

const RANK_METHODS: [&str; 5] = ["from_me", "after_me", "before_me", "but_last", "by"];
const ITEM_METHODS: [&str; 9] = [
    "of",
    "grouped",
    "row_major",
    "column_major",
    "skip",
    "take",
    "step_by",
    "first_half",
    "second_half",
];

impl Parser<'_> {
    pub(super) fn iterable(&mut self, expr: &Expr) -> Option<Iterable> {
        let chain = Chain::of(expr);
        if let Some((word, call)) = word_call(chain.root) {
            match names::text(word).as_str() {
                "ranks" => {
                    let [] = self.arguments(word, call, &call.args, NOTHING)?;
                    return self.order(word, None, &chain.links);
                }
                "ring" => {
                    let [step] = self.arguments(word, call, &call.args, ("a step", "ring(1)"))?;
                    let step = self.whole(step, true, "the step of `ring`")?;
                    if is_zero(&step) {
                        self.errors.at(step, Mistake::RingOfZero);
                        return None;
                    }
                    return self.order(word, Some(step), &chain.links);
                }
                found => {
                    let known = names::offer(found, ["ranks", "ring"].into_iter());
                    let found = found.to_owned();
                    self.errors.at(word, Mistake::UnknownOrder { found, known });
                    return None;
                }
            }
        }
        let Some(root) = ident(chain.root) else {
            self.errors.at(expr, Mistake::NotIterable);
            return None;
        };
        match self.look_up(root, |kind| matches!(kind, Kind::Partition))? {
            Kind::Partition => self.items(root, &chain.links),
            other => {
                let (name, what) = (names::text(root), other.what().into());
                self.errors.at(expr, Mistake::LoopOver { name, what });
                None
            }
        }
    }

    fn order(&mut self, root: &Ident, step: Option<Expr>, links: &[Link]) -> Option<Iterable> {
        let mut calls = Vec::<OrderCall>::new();
        // The order so far. `ring` is one from the start. Only orders that start at me can be shortened.
        let mut ordered_by = step.as_ref().map(|_| names::text(root));
        for link in links {
            let call = self.link_call(link)?;
            let method = names::text(&call.method);
            if ITEM_METHODS.contains(&method.as_str()) {
                self.errors
                    .at(&call.method, Mistake::ItemsOfRanks { method });
                return None;
            }
            let argument = match method.as_str() {
                "from_me" | "after_me" | "before_me" => {
                    let [] = self.call_arguments(call, NOTHING)?;
                    OrderArgument::Nothing
                }
                "by" => {
                    let [order] = self.call_arguments(
                        call,
                        ("a function", ".by(|me, step, world| (me + step) % world)"),
                    )?;
                    self.order_function(order)?;
                    OrderArgument::Function(order.clone())
                }
                "but_last" => {
                    let wanted = ("how many ranks to leave out", ".but_last(1)");
                    let [n] = self.call_arguments(call, wanted)?;
                    if matches!(n, Expr::Unary(_)) {
                        self.errors.at(n, Mistake::ButLastOfFewer);
                        return None;
                    }
                    let n = self.rank(n)?;
                    let mistake = match ordered_by.as_deref() {
                        None => Some(Mistake::ButLastOfWhat),
                        Some("by") => Some(Mistake::ButLastOfTable),
                        Some(_) => None,
                    };
                    if let Some(mistake) = mistake {
                        self.errors.at(&call.method, mistake);
                        return None;
                    }
                    calls.push(OrderCall {
                        method: call.method.clone(),
                        argument: OrderArgument::Ranks(n),
                    });
                    continue;
                }
                _ => {
                    self.unknown_method(&call.method, "an order of ranks", &RANK_METHODS);
                    return None;
                }
            };
            if let Some(first) = ordered_by {
                self.errors.at(
                    &call.method,
                    Mistake::OrderedTwice {
                        first,
                        second: method,
                    },
                );
                return None;
            }
            ordered_by = Some(method);
            calls.push(OrderCall {
                method: call.method.clone(),
                argument,
            });
        }
        Some(Iterable::Ranks(Order {
            root: root.clone(),
            step,
            calls,
        }))
    }

    /// A closure `|me, step, world| …` that captures nothing of the schedule, or the path of a function.
    fn order_function(&mut self, order: &Expr) -> Option<()> {
        let closure = match order {
            Expr::Path(_) => return Some(()),
            Expr::Closure(closure) => closure,
            other => {
                self.errors.at(other, Mistake::OrderFunction);
                return None;
            }
        };
        if closure.inputs.len() != 3 {
            self.errors.at(&closure.inputs, Mistake::OrderArguments);
            return None;
        }
        let mut own = identifiers(closure.inputs.to_token_stream());
        let body = identifiers(closure.body.to_token_stream());
        // Names that it binds itself: those after `let`, until the next keyword or use.
        own.extend(
            body.windows(2)
                .filter(|pair| pair[0] == "let" || pair[0] == "mut")
                .map(|pair| pair[1].clone()),
        );
        let captured = body
            .into_iter()
            .find(|name| !own.contains(name) && self.scope.find(name).is_some());
        if let Some(name) = captured {
            let name_text = names::text(&name);
            self.errors
                .at(&name, Mistake::OrderCaptures { name: name_text });
            return None;
        }
        Some(())
    }

    fn items(&mut self, partition: &Ident, links: &[Link]) -> Option<Iterable> {
        let mut items = Items {
            partition: partition.clone(),
            shard: None,
            order: None,
            cuts: Vec::new(),
        };
        for link in links {
            let call = self.link_call(link)?;
            let method = names::text(&call.method);
            match method.as_str() {
                "of" => {
                    if items.shard.is_some() || items.order.is_some() || !items.cuts.is_empty() {
                        self.errors.at(&call.method, Mistake::OfFirst);
                        return None;
                    }
                    let [shard] = self.call_arguments(call, ("a rank", ".of(me())"))?;
                    items.shard = Some((call.method.clone(), self.rank(shard)?));
                    continue;
                }
                "skip" | "take" | "step_by" | "first_half" | "second_half" => {
                    let number = self.cut(call, &items.cuts)?;
                    items.cuts.push((call.method.clone(), number));
                    continue;
                }
                "grouped" | "row_major" | "column_major" => {}
                _ if RANK_METHODS.contains(&method.as_str()) => {
                    let partition = names::text(partition);
                    self.errors
                        .at(&call.method, Mistake::RanksOfItems { method, partition });
                    return None;
                }
                _ => {
                    self.unknown_method(&call.method, "a partition", &ITEM_METHODS);
                    return None;
                }
            }
            if let Some((first, _)) = items.cuts.first() {
                let (order, cut) = (method, names::text(first));
                let mistake = Mistake::OrderAfterCut { order, cut };
                self.errors.at(&call.method, mistake);
                return None;
            }
            if let Some((first, _)) = &items.order {
                let first = names::text(first);
                self.errors.at(
                    &call.method,
                    Mistake::OrderedTwice {
                        first,
                        second: method,
                    },
                );
                return None;
            }
            let group = if method == "grouped" && !call.args.is_empty() {
                let [group] =
                    self.call_arguments(call, ("the rows of a group, or nothing", ".grouped(8)"))?;
                Some(self.constant(group, Wanted::Number, "grouped")?)
            } else {
                let [] = self.call_arguments(call, NOTHING)?;
                None
            };
            items.order = Some((call.method.clone(), group));
        }
        Some(Iterable::Items(items))
    }

    /// The number of a selection's step, after `others`.
    fn cut(
        &mut self,
        call: &ExprMethodCall,
        others: &[(Ident, Option<Rank>)],
    ) -> Option<Option<Rank>> {
        let wanted = match names::text(&call.method).as_str() {
            "skip" => ("how many items to leave out", ".skip(1)"),
            "take" => ("how many items to visit", ".take(4)"),
            "step_by" => ("a step", ".step_by(2)"),
            _ => {
                let [] = self.call_arguments(call, NOTHING)?;
                return Some(None);
            }
        };
        let [number] = self.call_arguments(call, wanted)?;
        let steps = call.method == "step_by";
        if matches!(number, Expr::Unary(_)) || steps && is_zero(number) {
            let method = names::text(&call.method);
            self.errors.at(number, Mistake::CutOfNothing { method });
            return None;
        }
        if steps && others.iter().any(|(method, _)| method == "step_by") {
            self.errors.at(&call.method, Mistake::StepTwice);
            return None;
        }
        Some(Some(self.rank(number)?))
    }

    /// A link of an order, which is never indexed.
    fn link_call<'a>(&mut self, link: &Link<'a>) -> Option<&'a ExprMethodCall> {
        match link {
            Link::Call(call) => Some(call),
            Link::Index(index) => {
                self.errors.at(index, Mistake::NotIterable);
                None
            }
        }
    }
}

fn is_zero(expr: &Expr) -> bool {
    match expr {
        Expr::Lit(lit) => {
            matches!(&lit.lit, Lit::Int(int) if int.base10_parse::<u32>().is_ok_and(|n| n == 0))
        }
        _ => false,
    }
}
