//! Values: products, sums, loads, and the math after them.

use super::{Chain, Link, NOTHING, Parser, ident, in_capitals, without_receiver, word_call};
use crate::mistakes::Mistake;
use crate::model::{Place, Read, Usage, Value};
use crate::names::{self, Kind};
use quote::ToTokens;
use syn::{BinOp, Expr, ExprMethodCall, GenericArgument, Lit, UnOp};

/// Methods that change one number.
pub const UNARY: [&str; 11] = [
    "gelu",
    "gelu_tanh",
    "silu",
    "relu",
    "sigmoid",
    "tanh",
    "exp",
    "ln",
    "sqrt",
    "abs",
    "erf",
];
/// Methods that join two values.
pub const COMBINE: [&str; 5] = ["bias", "residual", "mul", "max", "min"];

impl Parser<'_> {
    pub(super) fn value(&mut self, expr: &Expr) -> Option<Value> {
        match expr {
            Expr::Paren(paren) => self.value(&paren.expr),
            Expr::Group(group) => self.value(&group.expr),
            Expr::Lit(lit) => match &lit.lit {
                Lit::Float(_) => Some(Value::Number(expr.clone())),
                Lit::Int(int) => {
                    let float = format!("{}.0", int.base10_digits());
                    self.errors.at(expr, Mistake::FloatNeeded { float });
                    None
                }
                _ => {
                    self.errors.at(expr, Mistake::NotAValue);
                    None
                }
            },
            Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => {
                if let Expr::Lit(lit) = &*unary.expr
                    && matches!(lit.lit, Lit::Float(_))
                {
                    return Some(Value::Number(expr.clone()));
                }
                let at = unary.op.to_token_stream();
                let span = syn::spanned::Spanned::span(&at);
                self.value(&unary.expr)
                    .map(|value| Value::Negate(span, Box::new(value)))
            }
            Expr::Binary(binary) => {
                let legal = matches!(
                    binary.op,
                    BinOp::Add(_) | BinOp::Sub(_) | BinOp::Mul(_) | BinOp::Div(_)
                );
                if !legal {
                    self.errors.at(binary.op, Mistake::ValueOperator);
                }
                let (a, b) = (self.value(&binary.left), self.value(&binary.right));
                legal.then_some(())?;
                Some(Value::Binary(Box::new(a?), binary.op, Box::new(b?)))
            }
            Expr::Field(field) => {
                if let syn::Member::Named(method) = &field.member {
                    let method = names::text(method);
                    self.errors
                        .at(&field.member, Mistake::MethodNotCalled { method });
                } else {
                    self.errors.at(expr, Mistake::NotAValue);
                }
                self.value(&field.base);
                None
            }
            Expr::Path(_) => self.value_name(expr),
            Expr::Call(_) => self.value_word(expr),
            Expr::Index(_) | Expr::MethodCall(_) => self.value_chain(expr),
            _ => {
                self.errors.at(expr, Mistake::NotAValue);
                None
            }
        }
    }

    fn value_name(&mut self, expr: &Expr) -> Option<Value> {
        let Some(name) = ident(expr).filter(|_| !self.outer_constant(expr)) else {
            return Some(Value::Number(expr.clone()));
        };
        let fits = |kind: &Kind| matches!(kind, Kind::Value | Kind::Accumulator { .. });
        match self.look_up(name, fits)? {
            Kind::Value | Kind::Accumulator { .. } => Some(Value::Name(name.clone())),
            Kind::Tensor(_) => self.read(name, &[]).0.map(Value::Load),
            other => {
                let (name_text, what) = (names::text(name), other.what().into());
                self.errors.at(
                    name,
                    Mistake::ValueNeeded {
                        name: name_text,
                        what,
                    },
                );
                None
            }
        }
    }

    fn value_word(&mut self, expr: &Expr) -> Option<Value> {
        let Some((word, call)) = word_call(expr) else {
            self.errors.at(expr, Mistake::NotAValue);
            return None;
        };
        match names::text(word).as_str() {
            "dot" => {
                let [a, b] =
                    self.arguments(word, call, &call.args, ("two places", "dot(x[t], w[t])"))?;
                let (a, b) = (self.read_all(a), self.read_all(b));
                Some(Value::Dot {
                    word: word.clone(),
                    a: a?,
                    b: b?,
                })
            }
            "zero" => {
                self.errors.at(expr, Mistake::ZeroAlone);
                None
            }
            found => {
                let mut known = names::offer(found, ["dot"].into_iter());
                if !known.starts_with("did you mean") {
                    known = format!(
                        "products are `dot(x[t], w[t])`; an `#[epilogue] fn` is called by `.map({found})`"
                    );
                }
                let found = found.to_owned();
                self.errors
                    .at(word, Mistake::UnknownFunction { found, known });
                None
            }
        }
    }

    fn value_chain(&mut self, expr: &Expr) -> Option<Value> {
        let chain = Chain::of(expr);
        let root = ident(chain.root).filter(|_| !self.outer_constant(chain.root));
        let kind = match root {
            Some(root) => {
                let fits =
                    |kind: &Kind| matches!(kind, Kind::Tensor(_) | Kind::Value | Kind::Broken);
                Some((root, self.look_up(root, fits)))
            }
            None => None,
        };
        let (mut value, mut rest) = match kind {
            // Its arguments are still read.
            Some((_, None)) => (None, chain.links.as_slice()),
            Some((root, Some(Kind::Tensor(_)))) => self.loaded(root, &chain.links),
            Some((_, Some(Kind::Counters(_)))) => {
                self.errors.at(expr, Mistake::WaitAsValue);
                return None;
            }
            _ => (self.value(chain.root), chain.links.as_slice()),
        };
        let broken_root = value.is_none();
        while let [link, after @ ..] = rest {
            rest = after;
            match link {
                Link::Call(call) => value = self.method(value, call),
                Link::Index(index) => {
                    if !broken_root {
                        self.errors.at(index, Mistake::IndexedValue);
                    }
                    value = None;
                }
            }
        }
        value
    }

    /// Stored data: a load, or a sum where `.sum()` follows.
    fn loaded<'a, 'l>(
        &mut self,
        root: &syn::Ident,
        links: &'l [Link<'a>],
    ) -> (Option<Value>, &'l [Link<'a>]) {
        let (read, rest) = self.read(root, links);
        match rest {
            [Link::Call(call), after @ ..] if call.method == "sum" => {
                let legal = self.call_arguments::<0>(call, NOTHING).is_some();
                let word = call.method.clone();
                let sum = read.filter(|_| legal).map(|from| Value::Sum { word, from });
                (sum, after)
            }
            _ => (read.map(Value::Load), rest),
        }
    }

    fn method(&mut self, receiver: Option<Value>, call: &ExprMethodCall) -> Option<Value> {
        let method = names::text(&call.method);
        let word = call.method.clone();
        match method.as_str() {
            "cast" => {
                let element = self.cast_element(call);
                Some(Value::Cast(Box::new(receiver?), word, element?))
            }
            "scale" => {
                let [factor] = self.call_arguments(call, ("a factor", ".scale(0.5)"))?;
                if !float_constant(factor) {
                    self.errors.at(factor, Mistake::FactorNeeded);
                    return None;
                }
                Some(Value::Scale(Box::new(receiver?), word, factor.clone()))
            }
            "map" => self.map(receiver, call),
            name if UNARY.contains(&name) => {
                let [] = self.call_arguments(call, NOTHING)?;
                Some(Value::Unary(Box::new(receiver?), word))
            }
            name if COMBINE.contains(&name) => {
                let [other] = self.call_arguments(call, ("one value", ".mul(z[t])"))?;
                let other = self.value(other);
                if name == "bias" && other.as_ref().is_some_and(|value| !is_vector(value)) {
                    self.errors.at(&call.args, Mistake::BiasVector);
                    return None;
                }
                Some(Value::Combine(Box::new(receiver?), word, Box::new(other?)))
            }
            "sum" | "wait" => {
                let mistake = Mistake::OfStoredData {
                    word: method.clone(),
                };
                if receiver.is_some() {
                    self.errors.at(without_receiver(call), mistake);
                }
                None
            }
            _ => {
                let known: Vec<&str> = UNARY
                    .iter()
                    .chain(&COMBINE)
                    .chain(&["scale", "cast", "map", "sum"])
                    .copied()
                    .collect();
                self.unknown_method(&call.method, "a value", &known);
                None
            }
        }
    }

    fn cast_element(&mut self, call: &ExprMethodCall) -> Option<syn::Type> {
        let element = call
            .turbofish
            .as_ref()
            .filter(|types| types.args.len() == 1)
            .and_then(|types| match types.args.first() {
                Some(GenericArgument::Type(element)) => Some(element.clone()),
                _ => None,
            });
        if element.is_none() || !call.args.is_empty() {
            self.errors.at(without_receiver(call), Mistake::CastElement);
            return None;
        }
        element
    }

    fn map(&mut self, receiver: Option<Value>, call: &ExprMethodCall) -> Option<Value> {
        let mut arguments = call.args.iter();
        let function = match arguments.next() {
            Some(Expr::Path(path)) if path.qself.is_none() => Some(path.path.clone()),
            other => {
                let tokens =
                    other.map_or_else(|| without_receiver(call), ToTokens::to_token_stream);
                self.errors.at(tokens, Mistake::MapFunction);
                None
            }
        };
        let others: Vec<Option<Value>> = arguments.map(|argument| self.value(argument)).collect();
        Some(Value::Map {
            first: Box::new(receiver?),
            word: call.method.clone(),
            function: function?,
            others: others.into_iter().collect::<Option<_>>()?,
        })
    }
}

/// A literal float, a computation of those, or a constant of the surrounding Rust.
fn float_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Lit(lit) => matches!(lit.lit, Lit::Float(_)),
        Expr::Unary(unary) => matches!(unary.op, UnOp::Neg(_)) && float_constant(&unary.expr),
        Expr::Binary(binary) => float_constant(&binary.left) && float_constant(&binary.right),
        Expr::Paren(paren) => float_constant(&paren.expr),
        Expr::Group(group) => float_constant(&group.expr),
        other => in_capitals(other),
    }
}

fn is_vector(value: &Value) -> bool {
    matches!(
        value,
        Value::Load(Read {
            place: Place {
                usage: Usage::VECTOR,
                ..
            },
            ..
        })
    )
}
