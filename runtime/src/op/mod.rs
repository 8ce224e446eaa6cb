//! A built schedule, and its launches.
//!
#![doc = include_str!("soundness.md")]

mod argument;
#[cfg(test)]
mod beside;
mod builder;
mod built;
#[cfg(test)]
mod captured;
#[cfg(test)]
mod ends;
mod given;
mod launch;
mod part;
mod planes;
mod quantised;
mod sizes;
mod spare;
#[cfg(test)]
mod stages;
mod step;
mod typed;
mod workspace;

pub use crate::caller::Caller;
pub use crate::driver::Element;
pub use argument::{Needs, ScaleUse};
pub use builder::OpBuilder;
pub use built::{ByName, Op};
pub use counterflow_codegen::encoding::{Granularity, ScaleBlock};
pub use given::{Argument, HeapInput, HeapOutput, Input, Output};
pub use launch::Launch;
pub use part::Part;
pub use quantised::{Code, Handle, Memory, QuantTensor};
pub use sizes::Sizes;
pub(crate) use step::Together;
pub use step::{Running, Step};
pub use typed::{Computes, Launcher, Schedule};
pub use workspace::Workspace;
