//! The launcher of a schedule: a type whose methods are the schedule's parameters.

use crate::model::{Param, Schedule, Usage};
use crate::names;
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::ext::IdentExt;

/// Methods that every launcher has. A parameter of such a name is given by `tensor`.
const TAKEN: [&str; 6] = ["rows", "columns", "depth", "beside", "tensor", "launch"];

/// `struct NameOp` with a method for each parameter.
pub fn launcher(schedule: &Schedule) -> TokenStream {
    let Schedule { vis, name, .. } = schedule;
    let launcher = named(name);
    let methods = schedule.params.iter().filter_map(method);
    let about = format!(
        "Launches [`{name}`], each tensor by a method of its name: `Communicator::op_of::<{launcher}>()` builds it."
    );
    quote! {
        #[doc = #about]
        #[derive(Debug)]
        #[allow(dead_code, non_camel_case_types)]
        #[must_use = "nothing is enqueued before `launch`"]
        #vis struct #launcher<'a>(::counterflow::op::Launch<'a>);

        impl ::counterflow::op::Launcher for #launcher<'_> {
            type Launch<'a> = #launcher<'a>;

            fn from_named<'a>(launch: ::counterflow::op::Launch<'a>) -> #launcher<'a> {
                #launcher(launch)
            }
        }

        impl ::counterflow::op::Schedule for #launcher<'_> {
            fn program() -> ::counterflow::Program {
                #name()
            }
        }

        #[allow(dead_code, non_snake_case)]
        impl<'a> #launcher<'a> {
            #(#methods)*

            /// Gives the tensor of that name.
            pub fn tensor(self, name: &str, memory: impl ::core::convert::Into<::counterflow::op::Argument<'a>>) -> Self {
                #launcher(self.0.tensor(name, memory))
            }

            /// The rows of this launch over all ranks.
            pub fn rows(self, m: usize) -> Self {
                #launcher(self.0.rows(m))
            }

            /// The columns of this launch on a rank.
            pub fn columns(self, n: usize) -> Self {
                #launcher(self.0.columns(n))
            }

            /// The depth of this launch on a rank.
            pub fn depth(self, k: usize) -> Self {
                #launcher(self.0.depth(k))
            }

            /// The rows of what moves beside the product, over all ranks.
            pub fn beside(self, rows: usize) -> Self {
                #launcher(self.0.beside(rows))
            }

            /// Enqueues it and returns at once.
            ///
            /// # Errors
            /// As `counterflow::op::Launch::launch`.
            pub fn launch(self) -> ::core::result::Result<::counterflow::Pending, ::counterflow::Error> {
                self.0.launch()
            }
        }
    }
}

fn method(param: &Param) -> Option<TokenStream> {
    let Param { name, usage, .. } = param;
    let text = names::text(name);
    if TAKEN.contains(&text.as_str()) {
        return None;
    }
    let about = format!("Gives `{text}`.");
    let memory = match (usage.shared, usage.output) {
        (false, false) => quote!(Input),
        (false, true) => quote!(Output),
        (true, false) => quote!(HeapInput),
        // Peers address it in hardly any schedule: a launch asks for the heap where they do.
        (true, true) if *usage == Usage::REDUCE_SCATTERED => quote!(Output),
        (true, true) => quote!(HeapOutput),
    };
    Some(quote! {
        #[doc = #about]
        pub fn #name(self, memory: impl ::counterflow::op::#memory<'a>) -> Self {
            Self(self.0.tensor(#text, memory))
        }
    })
}

/// `ag_gemm` → `AgGemmOp`.
fn named(schedule: &Ident) -> Ident {
    let text = schedule.unraw().to_string();
    let words = text.split('_').map(|word| {
        let mut letters = word.chars();
        let first = letters.next().into_iter().flat_map(char::to_uppercase);
        first.chain(letters).collect::<String>()
    });
    format_ident!("{}Op", words.collect::<String>(), span = schedule.span())
}
