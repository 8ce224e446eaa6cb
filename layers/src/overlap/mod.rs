//! How each product of a layer's training step overlaps its communication: TransformerEngine's `ub_cfgs` and layer flags.
//!
//! A configuration names products, `qkv_fprop`, and gives each a method and numbers. It comes from code, YAML or TOML; files that
//! Megatron's `--tp-comm-overlap-cfg` takes load unchanged. What a file leaves out has TransformerEngine's default.
//!
//! ```
//! use counterflow_layers::overlap::{Config, Method, Parallel};
//!
//! let config = Config::from_yaml("proj_fprop: {method: pipeline, num_sm: 24, cga_size: 2}")?;
//! let proj = config.gemm("proj_fprop", Parallel::Row)?;
//! assert_eq!((proj.method, proj.schedule().name()), (Method::Pipeline, "gemm_rs"));
//! for notice in config.notices() {
//!     println!("{notice}"); // proj_fprop.cga_size is without effect: ..
//! }
//!
//! let error = Config::from_yaml("qkv_dgrad:\n  num_sms: 4").unwrap_err();
//! assert_eq!(error.to_string(), "line 2: qkv_dgrad has no key `num_sms`; did you mean `num_sm`?");
//! # Ok::<(), counterflow::Error>(())
//! ```
//!
//! Here every product is one kernel that holds its communication, so some settings choose between schedules, and some have
//! nothing to act on:
//!
//! | setting | what it does here |
//! |---|---|
//! | `method`, `use_ce`, `aggregate` | choose the schedule, or with `auto` the family that does: [`Gemm::schedule`] says which |
//! | `num_sm` | CTAs that communicate, where a schedule has such: `ag_gemm_ring`, `ag_gemm_double_ring`, `bulk`, `wgrad_rs` |
//! | `is_reduce_scatter` | must be what the product does |
//! | `atomic_gemm` | always on, for every type: tiles wait for, and add to, counters |
//! | `fp8_buf` | without FP8: no effect, as in TransformerEngine |
//! | `num_splits`, `num_max_streams`, `cga_size`, `set_sm_margin`, `comm_priority`, `gemm_priority`, `pipeline_rs_overlap_first_gemm` | no effect; [`Config::notices`] says why |

mod config;
mod document;
mod flags;
mod gemm;
mod name;
mod read;
mod settings;

pub use config::{Config, Notice};
pub use flags::{Flags, ModuleFlags, Overlap};
pub use gemm::{Gemm, Schedule};
pub use name::{GemmName, Pass};
pub use settings::{Comm, Method, Parallel, Settings};
