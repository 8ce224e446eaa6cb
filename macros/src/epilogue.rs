//! `#[epilogue] fn`: keeps the function, and rebuilds it as an expression of the kernel.
//!
//! An empty type of the same name carries the expression. Types and functions have separate namespaces, so
//! `leaky(x, 0.1)` stays a Rust call, and `.map(leaky)` finds `leaky::scalar()` through any `use`.

use crate::body::private;
use crate::errors::Errors;
use crate::mistakes::Mistake;
use crate::names;
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    BinOp, Block, Expr, ExprIf, ExprMethodCall, FnArg, Item, ItemFn, Lit, Pat, ReturnType,
    Signature, Stmt, Type, UnOp,
};

/// The function, and its expression if it has one.
pub fn expand(item: &ItemFn) -> TokenStream {
    let errors = Errors::new();
    let reader = Reader {
        errors: &errors,
        name: &item.sig.ident,
    };
    let params = reader.signature(&item.sig);
    let body = reader.block(&item.block);
    let (scalar, report) = match errors.check() {
        Ok(()) => (scalar_fn(item, &params, &body), TokenStream::new()),
        Err(error) => (quote!(::core::unreachable!()), error.to_compile_error()),
    };
    let (vis, name) = (&item.vis, &item.sig.ident);
    let cfgs = item.attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
    let cfgs: Vec<_> = cfgs.collect();
    quote! {
        #report
        #item
        #(#cfgs)*
        #[doc(hidden)]
        #[allow(non_camel_case_types, dead_code)]
        #vis enum #name {}
        #(#cfgs)*
        #[allow(dead_code, unused_variables)]
        impl #name {
            #[doc(hidden)]
            #vis fn scalar() -> ::counterflow::__private::ScalarFn {
                #scalar
            }
        }
    }
}

fn scalar_fn(item: &ItemFn, params: &[Ident], body: &TokenStream) -> TokenStream {
    let text = names::text(&item.sig.ident);
    let count = u16::try_from(params.len()).unwrap_or(u16::MAX);
    let indices = 0..count;
    let names = params.iter().map(names::text);
    let at = Span::call_site();
    let (value, function) = (private(at, "Value"), private(at, "ScalarFn"));
    quote! {
        #(let #params = #value::Arg(#indices);)*
        #function {
            name: #text,
            params: &[#(#names),*],
            body: ::core::convert::Into::into(#body),
        }
    }
}

struct Reader<'a> {
    errors: &'a Errors,
    name: &'a Ident,
}

impl Reader<'_> {
    fn signature(&self, sig: &Signature) -> Vec<Ident> {
        let qualifiers = [
            (sig.asyncness.map(ToTokens::into_token_stream), "async"),
            (sig.abi.as_ref().map(ToTokens::to_token_stream), "extern"),
        ];
        for (tokens, word) in qualifiers {
            if let Some(tokens) = tokens {
                let word = word.into();
                self.errors.at(tokens, Mistake::EpilogueQualifier { word });
            }
        }
        if let syn::Safety::Unsafe(unsafe_token) = &sig.safety {
            let word = "unsafe".into();
            self.errors
                .at(unsafe_token, Mistake::EpilogueQualifier { word });
        }
        if !sig.generics.params.is_empty() {
            self.errors.at(&sig.generics, Mistake::EpilogueGenerics);
        }
        if sig.inputs.is_empty() {
            self.errors.at(&sig.ident, Mistake::EpilogueNothing);
        }
        match &sig.output {
            ReturnType::Type(_, ty) if is_f32(ty) => {}
            ReturnType::Type(_, ty) => self.errors.at(ty, Mistake::EpilogueSignature),
            ReturnType::Default => self.errors.at(&sig.ident, Mistake::EpilogueSignature),
        }
        let mut params = Vec::new();
        for input in &sig.inputs {
            match input {
                FnArg::Typed(typed) if is_f32(&typed.ty) => match &*typed.pat {
                    Pat::Ident(pat) if pat.by_ref.is_none() && pat.mutability.is_none() => {
                        params.push(pat.ident.clone());
                    }
                    other => self.errors.at(other, Mistake::EpilogueSignature),
                },
                other => self.errors.at(other, Mistake::EpilogueSignature),
            }
        }
        params
    }

    /// `{ let a = …; a + 1.0 }` as a block of the same names that makes a value.
    fn block(&self, block: &Block) -> TokenStream {
        let mut lets = Vec::new();
        let mut last = None;
        for stmt in &block.stmts {
            if let Some(early) = last.take() {
                self.errors.at(early, Mistake::EpilogueStatement);
            }
            match stmt {
                Stmt::Local(local) => match (&local.pat, &local.init) {
                    (Pat::Ident(pat), Some(init))
                        if pat.by_ref.is_none()
                            && pat.mutability.is_none()
                            && init.diverge.is_none() =>
                    {
                        let (name, value) = (&pat.ident, self.value(&init.expr));
                        lets.push(quote!(let #name = #value;));
                    }
                    (Pat::Type(typed), Some(init)) if is_f32(&typed.ty) => {
                        let (pat, value) = (&typed.pat, self.value(&init.expr));
                        lets.push(quote!(let #pat = #value;));
                    }
                    _ => self.errors.at(local, Mistake::EpilogueStatement),
                },
                Stmt::Item(Item::Const(constant)) => lets.push(quote!(#constant)),
                Stmt::Expr(expr, None) => last = Some(expr),
                other => self.errors.at(other, Mistake::EpilogueStatement),
            }
        }
        let Some(last) = last else {
            let end = block.brace_token.span.close();
            self.errors
                .at(quote_spanned!(end=> x), Mistake::EpilogueFinal);
            return TokenStream::new();
        };
        let last = self.value(last);
        if lets.is_empty() {
            last
        } else {
            quote!({ #(#lets)* #last })
        }
    }

    /// An expression. Reports what cannot be computed and gives nothing for it.
    fn value(&self, expr: &Expr) -> TokenStream {
        let at = expr.span();
        let value = private(at, "Value");
        match expr {
            Expr::Paren(paren) => self.value(&paren.expr),
            Expr::Group(group) => self.value(&group.expr),
            Expr::Block(block) if block.attrs.is_empty() && block.label.is_none() => {
                self.block(&block.block)
            }
            Expr::Lit(lit) if matches!(lit.lit, Lit::Float(_)) => {
                quote_spanned!(at=> #value::from(#lit))
            }
            Expr::Path(path) if path.qself.is_none() => match path.path.get_ident() {
                // A constant is converted. A name in scope is a value already.
                Some(name) if names::text(name).chars().any(char::is_lowercase) => {
                    quote_spanned!(at=> #name.clone())
                }
                _ => quote_spanned!(at=> #value::from(#path)),
            },
            Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => {
                if let Expr::Lit(lit) = &*unary.expr
                    && matches!(lit.lit, Lit::Float(_))
                {
                    return quote_spanned!(at=> #value::from(#unary));
                }
                let (operand, function) = (self.value(&unary.expr), private(at, "Unary"));
                quote_spanned!(at=> #operand.apply(#function::Neg))
            }
            Expr::Binary(binary) => {
                let name = match binary.op {
                    BinOp::Add(_) => "Add",
                    BinOp::Sub(_) => "Sub",
                    BinOp::Mul(_) => "Mul",
                    BinOp::Div(_) => "Div",
                    _ => return self.illegal(expr),
                };
                let (a, b) = (self.value(&binary.left), self.value(&binary.right));
                combine(at, name, &a, &b)
            }
            Expr::If(branch) => self.branch(branch),
            Expr::MethodCall(call) => self.method(call),
            Expr::Call(call) => match &*call.func {
                Expr::Path(path) if path.qself.is_none() && !path.path.is_ident(self.name) => {
                    let arguments = call.args.iter().map(|argument| self.value(argument));
                    quote_spanned!(at=>
                        #value::Call(#path::scalar(), ::std::vec![#(#arguments),*])
                    )
                }
                _ => self.illegal(expr),
            },
            _ => self.illegal(expr),
        }
    }

    fn illegal(&self, expr: &Expr) -> TokenStream {
        self.errors.at(expr, Mistake::EpilogueExpression);
        TokenStream::new()
    }

    fn branch(&self, branch: &ExprIf) -> TokenStream {
        let then = self.block(&branch.then_branch);
        let otherwise = match &branch.else_branch {
            Some((_, otherwise)) => self.value(otherwise),
            None => {
                self.errors.at(branch, Mistake::EpilogueElse);
                return TokenStream::new();
            }
        };
        self.select(&branch.cond, &then, &otherwise)
    }

    fn select(&self, cond: &Expr, then: &TokenStream, otherwise: &TokenStream) -> TokenStream {
        let at = cond.span();
        match cond {
            Expr::Paren(paren) => self.select(&paren.expr, then, otherwise),
            Expr::Group(group) => self.select(&group.expr, then, otherwise),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => {
                self.select(&unary.expr, otherwise, then)
            }
            Expr::Binary(binary) => {
                let (left, right) = (&*binary.left, &*binary.right);
                // The kernel has <, <= and ==. The others swap operands or branches, which is right for NaN too.
                let (compare, a, b, swapped) = match binary.op {
                    BinOp::And(_) => {
                        let inner = self.select(right, then, otherwise);
                        return self.select(left, &inner, otherwise);
                    }
                    BinOp::Or(_) => {
                        let inner = self.select(right, then, otherwise);
                        return self.select(left, then, &inner);
                    }
                    BinOp::Lt(_) => ("Lt", left, right, false),
                    BinOp::Le(_) => ("Le", left, right, false),
                    BinOp::Gt(_) => ("Lt", right, left, false),
                    BinOp::Ge(_) => ("Le", right, left, false),
                    BinOp::Eq(_) => ("Eq", left, right, false),
                    BinOp::Ne(_) => ("Eq", left, right, true),
                    _ => return self.no_comparison(cond),
                };
                let (a, b) = (self.value(a), self.value(b));
                let (yes, no) = if swapped {
                    (otherwise, then)
                } else {
                    (then, otherwise)
                };
                let compare = Ident::new(compare, at);
                let (value, ty) = (private(at, "Value"), private(at, "Compare"));
                quote_spanned!(at=> #value::select(#ty::#compare, #a, #b, #yes, #no))
            }
            _ => self.no_comparison(cond),
        }
    }

    fn no_comparison(&self, cond: &Expr) -> TokenStream {
        self.errors.at(cond, Mistake::EpilogueCondition);
        TokenStream::new()
    }

    fn method(&self, call: &ExprMethodCall) -> TokenStream {
        const METHODS: [(&str, &str, usize); 8] = [
            ("exp", "Exp", 0),
            ("ln", "Ln", 0),
            ("sqrt", "Sqrt", 0),
            ("tanh", "Tanh", 0),
            ("abs", "Abs", 0),
            ("max", "Max", 1),
            ("min", "Min", 1),
            ("clamp", "", 2),
        ];
        let (found, at) = (names::text(&call.method), call.method.span());
        let receiver = self.value(&call.receiver);
        let known = METHODS
            .iter()
            .find(|(name, _, arguments)| *name == found && call.args.len() == *arguments);
        let arguments: Vec<TokenStream> = call.args.iter().map(|other| self.value(other)).collect();
        match (known, arguments.as_slice()) {
            (Some((_, name, _)), []) => {
                let (name, unary) = (Ident::new(name, at), private(at, "Unary"));
                quote_spanned!(at=> #receiver.apply(#unary::#name))
            }
            (Some((_, name, _)), [other]) => combine(at, name, &receiver, other),
            // Not by max and min, which would turn NaN into a number.
            (Some(_), [low, high]) => {
                let (value, less) = (private(at, "Value"), private(at, "Compare"));
                let below_high = quote_spanned!(at=>
                    #value::select(#less::Lt, #high, #receiver, #high, #receiver)
                );
                quote_spanned!(at=>
                    #value::select(#less::Lt, #receiver, #low, #low, #below_high)
                )
            }
            _ => {
                let known = names::offer(&found, METHODS.iter().map(|(name, ..)| *name));
                self.errors
                    .at(&call.method, Mistake::EpilogueMethod { found, known });
                TokenStream::new()
            }
        }
    }
}

fn combine(at: Span, name: &str, a: &TokenStream, b: &TokenStream) -> TokenStream {
    let (name, binary) = (Ident::new(name, at), private(at, "Binary"));
    quote_spanned!(at=> #a.combine(#binary::#name, #b))
}

fn is_f32(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.qself.is_none() && path.path.is_ident("f32"))
}
