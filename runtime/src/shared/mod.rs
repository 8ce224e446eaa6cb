//! State that processes of one host share: memory, and connections that carry it and tell who is alive.

mod handed;
mod links;
mod peer;
mod segment;

pub(crate) use handed::{FABRIC, Handed, Handles, no_fabric};
pub(crate) use links::{Links, Lost, Parcel};
pub(crate) use segment::{Segment, another};
