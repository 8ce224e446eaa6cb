//! The guide: short pages whose examples compile and, where they can, run. On the host of the sources it is `docs/guide`.
//!
//! Links lead to files beside the pages, which are in the repository.

macro_rules! pages {
    ($($name:ident)*) => {
        $(
            #[doc = include_str!(concat!("../docs/guide/", stringify!($name), ".md"))]
            pub mod $name {}
        )*
    };
}

pages! { first proofs kernel tuning trace embedding processes fp8 errors coming_from tested }
