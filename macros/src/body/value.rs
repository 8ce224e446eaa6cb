//! Values: calls that must come first are made in the user's order; the rest is one expression.

use super::place::{cell_ref, index, place};
use super::words::{builder, dtype, private};
use crate::model::{Read, Value, WaitCells};
use crate::names;
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::BinOp;

/// The calls a statement makes before its own, in the order in which the user wrote them.
#[derive(Default)]
pub struct Steps {
    calls: Vec<TokenStream>,
    temporaries: usize,
}

impl Steps {
    pub fn push(&mut self, call: TokenStream) {
        self.calls.push(call);
    }

    pub fn done(self) -> TokenStream {
        self.calls.into_iter().collect()
    }

    /// Keeps a call's result under a name that no user code has.
    fn keep(&mut self, call: TokenStream) -> TokenStream {
        let name = format_ident!("__v{}", self.temporaries, span = Span::mixed_site());
        self.temporaries += 1;
        self.push(quote!(let #name = #call;));
        name.into_token_stream()
    }

    /// Waits for a place, then names it.
    pub fn read(&mut self, read: &Read) -> TokenStream {
        self.read_after("wait", read)
    }

    /// Waits for the operand of a product, by slabs of K where those are counted, then names it.
    pub fn operand_of_dot(&mut self, read: &Read) -> TokenStream {
        self.read_after("wait_by_slab", read)
    }

    fn read_after(&mut self, call: &str, read: &Read) -> TokenStream {
        let s = builder();
        for wait in &read.waits {
            let cells = match &wait.cells {
                WaitCells::Given(cells) => cell_ref(cells),
                WaitCells::Same { counter, .. } => {
                    let same = read.place.indices.iter().map(index);
                    quote!(#counter #(.at(#same))*)
                }
            };
            let at = wait.word.span();
            let call = Ident::new(call, at);
            self.push(quote_spanned!(at=> #s.#call(#cells);));
        }
        place(&read.place)
    }

    pub fn value(&mut self, value: &Value) -> TokenStream {
        let s = builder();
        match value {
            Value::Dot { word, a, b } => {
                let (a, b) = (self.operand_of_dot(a), self.operand_of_dot(b));
                self.keep(quote_spanned!(word.span()=> #s.dot(#a, #b)))
            }
            Value::Sum { word, from } => {
                let from = self.read(from);
                self.keep(quote_spanned!(word.span()=> #s.sum(#from)))
            }
            Value::Load(from) => {
                let at = from.place.tensor.span();
                let from = self.read(from);
                self.keep(quote_spanned!(at=> #s.load(#from)))
            }
            Value::Name(name) => quote_spanned!(name.span()=> #name.clone()),
            Value::Number(number) => {
                let at = syn::spanned::Spanned::span(number);
                let value = private(at, "Value");
                quote_spanned!(at=> #value::from(#number))
            }
            Value::Negate(at, value) => {
                let (value, unary) = (self.operand(value), private(*at, "Unary"));
                quote_spanned!(*at=> #value.apply(#unary::Neg))
            }
            Value::Binary(a, op, b) => {
                let (a, b) = (self.operand(a), self.operand(b));
                match op {
                    BinOp::Div(slash) => {
                        let at = slash.span;
                        let binary = private(at, "Binary");
                        quote_spanned!(at=> #a.combine(#binary::Div, #b))
                    }
                    _ => quote!(#a #op #b),
                }
            }
            Value::Unary(value, method) => {
                let (value, at) = (self.operand(value), method.span());
                match names::text(method).as_str() {
                    "gelu" | "gelu_tanh" | "silu" | "relu" => quote_spanned!(at=> #value.#method()),
                    name => {
                        let unary = private(at, "Unary");
                        let variant = Ident::new(&capitalised(name), at);
                        quote_spanned!(at=> #value.apply(#unary::#variant))
                    }
                }
            }
            Value::Combine(value, method, other) => {
                let (value, at) = (self.operand(value), method.span());
                let other = self.value(other);
                match names::text(method).as_str() {
                    "bias" | "residual" => quote_spanned!(at=> #value.#method(#other)),
                    name => {
                        let binary = private(at, "Binary");
                        let variant = Ident::new(&capitalised(name), at);
                        quote_spanned!(at=> #value.combine(#binary::#variant, #other))
                    }
                }
            }
            Value::Scale(value, method, factor) => {
                let (value, at) = (self.operand(value), method.span());
                quote_spanned!(at=> #value.#method(#factor))
            }
            Value::Cast(value, method, element) => {
                let (value, at) = (self.operand(value), method.span());
                let dtype = dtype(element);
                quote_spanned!(at=> #value.#method(#dtype))
            }
            Value::Map {
                first,
                word,
                function,
                others,
            } => {
                let at = word.span();
                let first = self.operand(first);
                let others: Vec<TokenStream> =
                    others.iter().map(|other| self.value(other)).collect();
                // rustc counts the parameters, at the name that the user wrote.
                let parameters = std::iter::repeat_n(quote!(f32), others.len() + 1);
                self.push(quote_spanned!(at=> let _: fn(#(#parameters),*) -> f32 = #function;));
                quote_spanned!(at=> #first.call(#function::scalar(), [#(#others),*]))
            }
        }
    }

    /// A value that an operator or a method follows.
    fn operand(&mut self, value: &Value) -> TokenStream {
        let tokens = self.value(value);
        match value {
            Value::Binary(_, op, _) if !matches!(op, BinOp::Div(_)) => quote!((#tokens)),
            _ => tokens,
        }
    }
}

fn capitalised(name: &str) -> String {
    let mut letters = name.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}
