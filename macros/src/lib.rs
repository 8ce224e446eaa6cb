//! `#[schedule]` and `#[epilogue]`: Rust tokens to Rust tokens.
//!
//! This crate knows only syntax: no shape, no world size, no machine. It reads a function of the schedule language,
//! reports all of its mistakes together, each at its token with a hint, and writes one builder call for each
//! statement. rustc checks types; the verifier checks legality.
//!
//! Deliberately absent: any dependency on the rest of counterflow, and any decision that could differ between two
//! machines or two calls.
#![forbid(unsafe_code)]

mod body;
mod check;
mod epilogue;
mod errors;
mod expand;
mod launcher;
mod mistakes;
mod model;
mod names;
mod parse;

use errors::Errors;
use mistakes::Mistake;
use proc_macro2::TokenStream;
use syn::ItemFn;

/// Turns a function of the schedule language into one that builds its program.
///
/// ```
/// use counterflow::prelude::*;
///
/// #[schedule]
/// pub fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
///     let tiles = y.tiles(tune((128, 256), (256, 128)));
///     #[gemm(k = 64)]
///     for t in tiles.grouped(8) {
///         y[t] = dot(x[t], w[t]).gelu();
///     }
/// }
/// # assert_eq!(gemm().to_string(), spelled::gemm().to_string());
/// # mod spelled {
/// #     use counterflow::codegen::builder::{GemmOptions, ScheduleBuilder, Tune, tune};
/// #     use counterflow::prelude::{Local, Out, bf16};
/// #     pub fn gemm() -> counterflow::Program {
/// #         let mut s = ScheduleBuilder::new("gemm");
/// #         let x = s.local("x", Local::<bf16>::dtype());
/// #         let w = s.local("w", Local::<bf16>::dtype());
/// #         let y = s.out("y", Out::<bf16>::dtype());
/// #         let tiles = s.tiles("tiles", y, tune([(128, 256), (256, 128)]));
/// #         s.gemm(GemmOptions { k: Some(Tune::from(64)), ..Default::default() }, |s| {
/// #             s.for_items("t", tiles.all().grouped(8), |s, t| {
/// #                 let product = s.dot(x.at(t), w.at(t));
/// #                 s.store(y.at(t), product.gelu());
/// #             });
/// #         });
/// #         s.finish()
/// #     }
/// # }
/// ```
///
/// becomes, up to paths and the names of temporaries,
///
/// ```
/// # use counterflow::codegen::builder::{GemmOptions, ScheduleBuilder, Tune, tune};
/// # use counterflow::prelude::{Local, Out, bf16};
/// pub fn gemm() -> counterflow::Program {
///     let mut s = ScheduleBuilder::new("gemm");
///     let x = s.local("x", Local::<bf16>::dtype());
///     let w = s.local("w", Local::<bf16>::dtype());
///     let y = s.out("y", Out::<bf16>::dtype());
///     let tiles = s.tiles("tiles", y, tune([(128, 256), (256, 128)]));
///     s.gemm(GemmOptions { k: Some(Tune::from(64)), ..Default::default() }, |s| {
///         s.for_items("t", tiles.all().grouped(8), |s, t| {
///             let product = s.dot(x.at(t), w.at(t));
///             s.store(y.at(t), product.gelu());
///         });
///     });
///     s.finish()
/// }
/// ```
///
/// Beside it stands its launcher, `GemmOp`, whose methods `x(&…)`, `w(&…)` and `y(&mut …)` take the tensors of a launch.
///
/// Each call has the span of the user's tokens, so the program and rustc's errors show the user's lines.
///
/// # The language
///
/// | what | how |
/// |---|---|
/// | parameters | `Gathered<T>`, `Local<T>`, `Vector<T>`, `Out<T>`, `Accumulated<T>`, `Scattered<T>`, `Reduced<T>`, `Exchanged<T>`; a `Gathered` one that a statement stores to is an output |
/// | partitions | `let p = x.pieces(rows = 128);` `x.panels(cols = 512)` `y.tiles((128, 256))`; `z.tiles(tiles)` with the shape of other tiles; `y.tiles_across((128, 256))`: of all ranks' rows at once, visited whole. Copies move pieces of whole rows, or slabs of rows and columns: `x.tiles((128, 512))` |
/// | counters | `let c = counters(p);` `counters(world(), tiles)` `counters(4)` `counters()` |
/// | scratch | `let z = symmetric::<bf16>(y, slots = world());` with `y.chunk()` or `y.whole()`; `symmetric::<bf16>()`, whose shape is that of what is stored in it |
/// | choices | `tune(a, b, …)` in place of a number or pair; the first is the default |
/// | roles | `#[gemm(k = 64, cluster = (2, 1), split = 2, stages = 4, subtiles = 2, ping_pong = true)]`, `#[comm(ctas = 4)]`, `#[comm(name = halo, ctas = 2)]`, `#[spare_warps]`, `#[copy_engine]`, on a loop or block; loops of one name are one role and run one after another, `#[comm]` loops of other names run beside them on CTAs of their own |
/// | loops over ranks | `ranks()` with `.from_me()`, `.after_me()`, `.before_me()` or `.by(\|me, step, world\| …)`; `ring(1)`, `ring(-1)`: mine, then what comes around where each passes on to `me() + 1`, `me() - 1`; `.but_last(n)`, where `n` is any rank expression |
/// | loops over items | `p`, `p.of(rank)`, with `.grouped()`, `.grouped(8)`, `.row_major()` or `.column_major()`; then some of each chunk, by their place in that order: `.skip(n)`, `.take(n)`, `.step_by(n)`, where `n` is any rank expression, `.first_half()`, `.second_half()` |
/// | ranks | `me()`, `world()`, loop variables, numbers, `+ - * / % ^`; `let right = (me() + 1) % world();` |
/// | conditions | `if` on comparisons of ranks, with `&&`, `\|\|`, `!` and `else` |
/// | places | `x[t]`, `x.on(rank)[t]`, `x.everywhere()[t]`, `z[slot][t]`, and `y.on(rank)[me()][t]` for `Exchanged`; slots are ranks, `others()` or `everyone()` |
/// | hand-offs | `c.on(rank)[i].add(1);` `c.everywhere()[i].add(1);` `c[i].wait();` `c[i].wait_at_least(2);` with `i` an item, a rank, `t.rows()` or `t.columns()` |
/// | copies | `x.on(peer)[p] = x[p];` moves a tensor with the scales that travel with its rows, where its variant has such; `x.on(peer).data()[p] = x.data()[p];` its elements alone, `x.on(peer).scales()[p] = x.scales()[p];` its scales, which is nothing where none travel |
/// | stores | `y[t] = value;` `y.on(rank)[t] += value;`, and `grad[t] += value;` for `Accumulated` |
/// | products | `dot(x[t], w[t])`; `let mut acc = zero();` `acc += dot(x[t], w[t]);` |
/// | stored values | `z[t]`, `z[slot][t]`, `z[others()][t].sum()`, `z.everywhere()[t].sum()`, each after `.wait(c)` or `.wait(c[i])` |
/// | math | `+ - * /`, `.bias(b)`, `.residual(r[t])`, `.mul(z)`, `.scale(0.5)`, `.max(z)`, `.min(z)`, `.gelu()`, `.gelu_tanh()`, `.silu()`, `.relu()`, `.sigmoid()`, `.tanh()`, `.exp()`, `.ln()`, `.sqrt()`, `.abs()`, `.erf()`, `.cast::<T>()`, `.map(f)`, `.map(f, z[t])` |
///
/// Constants of the surrounding Rust can replace numbers. They are recognised by capitals or by a path.
/// Operands are evaluated from left to right: in `dot(x[t], w[t]) + z[t].wait(c)` the product comes first, and
/// `z[others()][t].wait(c).sum()` waits for a slot and adds it before it waits for the next one.
///
/// # Words in use
///
/// Roles that run beside each other, orders of ranks, hand-offs, and choices:
///
/// ```
/// # use counterflow::prelude::*;
/// #[schedule]
/// fn two_senders(x: Gathered<bf16>, z: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
///     let x_pieces = x.pieces(rows = tune(128, 256));
///     let z_pieces = z.pieces(rows = 128);
///     let tiles = y.tiles(tune((128, 256), (128, 128)));
///     let arrived = counters(x_pieces);
///     let beside = counters(z_pieces);
///
///     #[comm(ctas = tune(4, 2))]
///     for peer in ranks().before_me() {
///         for p in x_pieces.of(me()) {
///             x.on(peer)[p] = x[p];
///             arrived.on(peer)[p].add(1); // after the data
///         }
///     }
///     #[comm(name = halo, ctas = 2)]
///     {
///         for peer in ranks().before_me() {
///             for p in z_pieces.of(me()) {
///                 z.on(peer)[p] = z[p];
///                 beside.on(peer)[p].add(1);
///             }
///         }
///         for chunk in ranks().after_me() {
///             for p in z_pieces.of(chunk) {
///                 beside[p].wait();
///             }
///         }
///     }
///     #[gemm(k = 64, stages = 4, ping_pong = tune(false, true))]
///     for chunk in ranks().from_me() {
///         for t in tiles.of(chunk).grouped(tune(8, 4)) {
///             arrived[t.rows()].wait(); // all pieces that the tile reads
///             y[t] = dot(x[t], w[t]);
///         }
///     }
/// }
/// # counterflow::Communicator::emulated(2)?[0].op(&two_senders()).up_to(64, 16, 16).workspace()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// Arithmetic over ranks, `if`, an order of one's own, and constants of the surrounding Rust:
///
/// ```
/// # use counterflow::prelude::*;
/// const ROWS: u32 = 128;
///
/// /// Mine, then my neighbours' on both sides by turns.
/// fn both_sides(me: u32, step: u32, world: u32) -> u32 {
///     let away = step.div_ceil(2);
///     (if step % 2 == 1 { me + world - away } else { me + away }) % world
/// }
///
/// #[schedule]
/// fn double_ring(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
///     let pieces = x.pieces(rows = ROWS);
///     let tiles = y.tiles((128, 128));
///     let arrived = counters(pieces);
///     let next = (me() + 1) % world();
///     let before = (me() - 1) % world();
///
///     #[comm(ctas = 4)]
///     for step in ranks() {
///         if step < world() / 2 {
///             for p in pieces.of((me() - step) % world()) {
///                 arrived[p].wait(); // mine are here
///                 x.on(next)[p] = x[p];
///                 arrived.on(next)[p].add(1);
///             }
///         }
///         if step < (world() - 1) / 2 {
///             for p in pieces.of((me() + step) % world()) {
///                 arrived[p].wait();
///                 x.on(before)[p] = x[p];
///                 arrived.on(before)[p].add(1);
///             }
///         }
///     }
///     #[gemm]
///     for chunk in ranks().by(both_sides) {
///         for t in tiles.of(chunk).row_major() {
///             arrived[t.rows()].wait();
///             y[t] = dot(x[t], w[t]);
///         }
///     }
/// }
/// # counterflow::Communicator::emulated(3)?[0].op(&double_ring()).up_to(192, 16, 16).workspace()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// Scratch with a slot for each rank, sums of what has landed, an accumulator, and the math of a tile:
///
/// ```
/// # use counterflow::prelude::*;
/// #[schedule]
/// fn mlp_down(x: Local<bf16>, w: Local<bf16>, b: Vector<bf16>, r: Local<bf16>, y: Scattered<bf16>) {
///     let tiles = y.tiles((128, 128));
///     let partial = symmetric::<bf16>(y, slots = world());
///     let landed = counters(world(), tiles);
///
///     #[gemm]
///     for owner in ranks().after_me() {
///         for t in tiles.of(owner).column_major() {
///             let mut acc = zero();
///             acc += dot(x[t], w[t]);
///             partial.on(owner)[me()][t] = acc.cast::<bf16>();
///             landed.on(owner)[me()][t].add(1);
///         }
///     }
///     #[gemm]
///     for t in tiles.of(me()) {
///         let sum = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
///         y[t] = sum.bias(b).scale(0.5).tanh().max(sum.relu()).residual(r[t]);
///     }
/// }
/// # counterflow::Communicator::emulated(2)?[0].op(&mlp_down()).up_to(64, 16, 16).workspace()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// Copies by copy engines, and by warps of the GEMM's CTAs that have nothing else to do:
///
/// ```
/// # use counterflow::prelude::*;
/// #[schedule]
/// fn pulled(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
///     let pieces = x.pieces(rows = 1024);
///     let tiles = y.tiles((128, 128));
///     let arrived = counters(pieces);
///     #[copy_engine] // or `#[spare_warps]`
///     for peer in ranks().after_me() {
///         for p in pieces.of(peer) {
///             x[p] = x.on(peer)[p];
///             arrived[p].add(1);
///         }
///     }
///     #[gemm(subtiles = 2)]
///     for chunk in ranks().from_me() {
///         for t in tiles.of(chunk) {
///             arrived[t.rows()].wait();
///             y[t] = dot(x[t], w[t]);
///         }
///     }
/// }
/// # counterflow::Communicator::emulated(2)?[0].op(&pulled()).up_to(64, 16, 16).workspace()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// A word that is misspelled, or has no meaning where it stands, is an error of rustc at that word, with a hint:
///
/// ```compile_fail
/// # use counterflow::prelude::*;
/// #[schedule]
/// fn gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
///     let tiles = y.tiles((128, 128));
///     #[gem]
///     for t in tiles {
///         y[t] = dot(x[t], w[t]);
///     }
/// }
/// ```
#[proc_macro_attribute]
pub fn schedule(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand_function(
        arguments.into(),
        item.into(),
        Mistake::NotAFunction,
        |item| {
            let errors = Errors::new();
            let schedule = parse::schedule(item, &errors);
            check::schedule(&schedule, &errors);
            match errors.check() {
                Ok(()) => {
                    let mut tokens = expand::schedule(&schedule);
                    tokens.extend(launcher::launcher(&schedule));
                    tokens
                }
                Err(error) => {
                    let mut tokens = error.to_compile_error();
                    tokens.extend(expand::stub(item));
                    tokens
                }
            }
        },
    )
    .into()
}

/// Lets a schedule apply a function after the product: `dot(x[t], w[t]).map(leaky)`.
///
/// ```
/// use counterflow::prelude::*;
///
/// #[epilogue]
/// fn leaky(x: f32) -> f32 {
///     if x > 0.0 { x } else { 0.1 * x }
/// }
///
/// /// Several arguments, other epilogues, and methods of `f32`.
/// #[epilogue]
/// fn gated(x: f32, gate: f32) -> f32 {
///     let open = 1.0 / (1.0 + (-gate).exp());
///     leaky(x) * open.clamp(0.0, 0.9)
/// }
///
/// #[schedule]
/// fn layer(x: Local<bf16>, w: Local<bf16>, gate: Local<bf16>, y: Out<bf16>) {
///     let tiles = y.tiles((128, 128));
///     #[gemm]
///     for t in tiles {
///         y[t] = dot(x[t], w[t]).map(gated, gate[t]);
///     }
/// }
///
/// assert_eq!(leaky(-1.0), -0.1); // it is still a function
/// # counterflow::Communicator::emulated(1)?[0].op(&layer()).up_to(64, 16, 16).workspace()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// `leaky` stays a Rust function, which serves as its reference, and gains what the kernel computes:
///
/// ```
/// # use counterflow::codegen::value::{Binary, Compare, ScalarFn, Value};
/// # #[allow(non_camel_case_types)]
/// enum leaky {}
/// impl leaky {
///     fn scalar() -> ScalarFn {
///         let x = Value::Arg(0);
///         ScalarFn {
///             name: "leaky",
///             params: &["x"],
///             body: Value::select(
///                 Compare::Lt, Value::from(0.0), x.clone(),
///                 x.clone(), Value::from(0.1).combine(Binary::Mul, x.clone()),
///             )
///             .into(),
///         }
///     }
/// }
/// # leaky::scalar();
/// ```
///
/// Parameters and result are `f32`. Allowed in the body: `let`, `+ - * /`, unary `-`, `if … else …` on comparisons
/// (joined by `&&`, `||`, `!`), float literals, constants in capitals, calls of other epilogues, and the methods
/// `exp`, `ln`, `sqrt`, `tanh`, `abs`, `max`, `min` and `clamp`.
///
/// `.map(..)` also takes what has a `scalar()` that is another language's: the crate `counterflow-cube` makes those from cubecl's
/// `#[cube]` functions.
#[proc_macro_attribute]
pub fn epilogue(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand_function(
        arguments.into(),
        item.into(),
        Mistake::EpilogueItem,
        epilogue::expand,
    )
    .into()
}

/// Passes a function to `expand`. Keeps anything else unchanged, beside the report.
fn expand_function(
    arguments: TokenStream,
    item: TokenStream,
    no_function: Mistake,
    expand: impl FnOnce(&ItemFn) -> TokenStream,
) -> TokenStream {
    let errors = Errors::new();
    if !arguments.is_empty() {
        errors.at(&arguments, Mistake::AttributeArguments);
    }
    let mut tokens = match syn::parse2::<ItemFn>(item.clone()) {
        Ok(function) => expand(&function),
        Err(_) => {
            errors.at(&item, no_function);
            item
        }
    };
    if let Err(error) = errors.check() {
        tokens.extend(error.to_compile_error());
    }
    tokens
}
