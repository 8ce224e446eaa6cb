//! [cubecl](https://docs.rs/cubecl)'s functions in counterflow's schedules: what a `#[cube]` function of f32 computes may follow
//! a product, as an `#[epilogue]` function does.
//!
//! ```
//! use counterflow::prelude::*;
//!
//! mod caps {
//!     use counterflow_cube::cubecl::{self, prelude::*};
//!
//!     #[cube]
//!     pub fn soft_cap(x: f32, limit: f32) -> f32 {
//!         limit * (x / limit).tanh()
//!     }
//! }
//! counterflow_cube::epilogue! {
//!     /// A soft bound.
//!     pub fn capped(x, limit) = caps::soft_cap;
//! }
//!
//! #[schedule]
//! fn logits(x: Local<bf16>, w: Local<bf16>, limit: Vector<bf16>, y: Out<bf16>) {
//!     let tiles = y.tiles((128, 128));
//!     #[gemm]
//!     for t in tiles {
//!         y[t] = dot(x[t], w[t]).map(capped, limit);
//!     }
//! }
//!
//! assert_eq!(capped(1e9, 30.0), 30.0); // its twin on the host
//! # counterflow::Communicator::emulated(1)?[0].op(&logits()).up_to(64, 16, 16).workspace()?;
//! # Ok::<(), counterflow::Error>(())
//! ```
//!
//! cubecl-core and cubecl-cpp make the text; no runtime of cubecl takes part. [`ScalarFn`] holds it: the kernel calls it, and
//! whoever lowers the schedule refuses text that is more than arithmetic on the arguments, with the reason: what needs headers,
//! memory or other threads, loops that `#[unroll]` did not unroll, other numbers than `f32`, `i32`, `u32` and `bool` inside.
//!
//! cubecl has no functions on the host, so emulated ranks compute a twin: plain Rust. A `#[cube]` function is its own if all
//! that it calls is Rust's, too, and means the same there; [`epilogue!`] takes another one otherwise.
#![forbid(unsafe_code)]

mod expand;
mod rename;

pub use counterflow_codegen::value::{Foreign, ScalarFn};
/// What `#[cube]` and its text come from: `use counterflow_cube::cubecl::{self, prelude::*};`, since `#[cube]` names `cubecl`.
pub use cubecl_core as cubecl;
pub use expand::{Number, Refused, function};

/// Makes functions that a schedule may call by `.map(..)` from `#[cube]` functions.
///
/// ```
/// mod activations {
///     use counterflow_cube::cubecl::{self, prelude::*};
///     use std::f32::consts::FRAC_1_SQRT_2;
///
///     #[cube]
///     pub fn cdf(x: f32) -> f32 {
///         0.5f32 + 0.5f32 * Erf::erf(x * FRAC_1_SQRT_2)
///     }
/// }
/// /// As cubecl's, which Rust has not.
/// fn erf(x: f32) -> f32 {
///     counterflow_codegen::value::Unary::Erf.eval(x.into()) as f32
/// }
/// counterflow_cube::epilogue! {
///     /// The share of a normal distribution that is below `x`.
///     pub fn below(x) = activations::cdf, twin |x| 0.5 + 0.5 * erf(x / 2f32.sqrt());
/// }
/// assert_eq!(below(0.0), 0.5);
/// println!("{:?}", below::scalar().body); // what schedules take of it
/// ```
///
/// Without `twin`, the `#[cube]` function is called as it is. It cannot be where it calls what only cubecl has (`Erf::erf`), and
/// it means something else where cubecl rounds otherwise (`round`, to even). Arguments and result are f32:
///
/// ```compile_fail
/// mod shifts {
///     use counterflow_cube::cubecl::{self, prelude::*};
///
///     #[cube]
///     pub fn shifted(x: f32, by: u32) -> f32 {
///         x * f32::cast_from(by)
///     }
/// }
/// counterflow_cube::epilogue! {
///     pub fn shifted(x, by) = shifts::shifted;
/// }
/// ```
///
/// # Panics
/// The function that it makes for schedules does, where cubecl has no text for a function, with cubecl's reason.
#[macro_export]
macro_rules! epilogue {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($param:ident),+ $(,)?) =
        $($cube:ident)::+ $(, twin $twin:expr)?;)+) => {$(
        $(#[$meta])*
        $vis fn $name($($param: f32),+) -> f32 {
            let twin: fn($($crate::epilogue!(@f32 $param)),+) -> f32 =
                $crate::epilogue!(@twin $($cube)::+ $(, $twin)?);
            twin($($param),+)
        }

        #[doc(hidden)]
        #[allow(non_camel_case_types, dead_code)]
        $vis enum $name {}

        #[allow(dead_code)]
        impl $name {
            #[doc(hidden)]
            $vis fn scalar() -> $crate::ScalarFn {
                static MADE: ::std::sync::OnceLock<$crate::ScalarFn> = ::std::sync::OnceLock::new();
                let make = || {
                    $crate::function(
                        ::core::stringify!($name),
                        &[$(::core::stringify!($param)),+],
                        |scope, [$($param),+]| $($cube)::+::expand(scope, $($param),+),
                        |numbers| match *numbers {
                            [$($param),+] => $name($($param),+),
                            _ => f32::NAN,
                        },
                    )
                };
                MADE.get_or_init(|| make().unwrap_or_else(|refused| ::core::panic!("{refused}"))).clone()
            }
        }
    )+};
    (@f32 $param:ident) => { f32 };
    (@twin $($cube:ident)::+) => { $($cube)::+ };
    (@twin $($cube:ident)::+, $twin:expr) => { $twin };
}
