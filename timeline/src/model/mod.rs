//! Prediction: the time of a plan on a machine, and how much of its communication is exposed.
//!
//! An event-driven simulation over the steps that the verifier and the emulator use ([`counterflow_codegen::unroll`]). [`timeline`]
//! says what it models and what it does not.

mod band;
mod batches;
mod cost;
mod event;
pub mod gantt;
mod joined;
mod links;
mod outline;
mod sim;
mod start;
mod state;
mod stores;
mod switch;
pub mod timeline;
pub mod trace;
mod traffic;
pub mod volume;
mod workers;

pub use band::{Band, band};
pub use counterflow_codegen::machine::{
    Curve, FORMAT, Link, Machine, Number, Probed, ProductTime, Profile, Refused, Sm, Source,
    Sustained, shipped,
};
pub use event::{Event, EventKind, Flow};
pub use joined::joined;
pub use outline::{Outline, Outlines, outline};
pub use switch::{Brings, IN_SWITCH, Multicast, UNICAST, Way, multicast};
pub use timeline::{Lane, Timeline, predict, seconds};
pub use traffic::{Traffic, traffic};
pub use volume::Volume;
