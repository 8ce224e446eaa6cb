//! The calls of the driver that a multicast view is made of. Programs that are built without the feature `multicast` have
//! nobody who makes them.

use crate::error::Error;
use crate::shared::{Handed, Handles};
use std::fmt;

/// A multicast object of the driver, by its handle in this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Object(pub u64);

/// GPUs and bytes that a multicast object is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Team {
    /// GPUs whose memory is bound to it: one a rank.
    pub gpus: u32,
    /// Bytes of its addresses.
    pub bytes: u64,
    /// Form in which its memory goes to other processes.
    pub handles: Handles,
}

/// Of how many bytes things are multiples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Granularity {
    /// Memory that is bound: its place and its size.
    pub least: u64,
    /// An object's size, and where it is mapped.
    pub recommended: u64,
}

/// Memory of a rank that is bound to an object. It is unbound by the same numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// The rank's GPU, as CUDA counts.
    pub gpu: u32,
    /// Bytes from the start of the object, and from that of the rank's slot.
    pub offset: u64,
    /// Address on the rank.
    pub address: u64,
    /// Bytes of it.
    pub bytes: u64,
}

/// The driver. Each call may be refused, for whatever reason the driver has.
pub(crate) trait Calls: fmt::Debug + Send + Sync {
    /// Granularity of sizes and places.
    fn granularity(&self, team: &Team) -> Result<Granularity, Error>;

    /// A new object, which has no GPU.
    fn create(&self, team: &Team) -> Result<Object, Error>;

    /// For other processes.
    fn export(&self, object: Object) -> Result<Handed, Error>;

    /// Another process's object.
    fn import(&self, handed: &Handed, team: &Team) -> Result<Object, Error>;

    /// Adds a GPU of this process.
    fn add(&self, object: Object, gpu: u32) -> Result<(), Error>;

    /// Binds memory of a GPU of this process. **The driver waits here until all GPUs of the team are added.**
    fn bind(&self, object: Object, part: &Part) -> Result<(), Error>;

    /// Maps the whole object, where these GPUs of this process reach it. It waits as [`Calls::bind`] does.
    fn map(&self, object: Object, place: (&Team, Granularity), gpus: &[u32]) -> Result<u64, Error>;

    /// Takes the object from its addresses.
    fn unmap(&self, address: u64, team: &Team) -> Result<(), Error>;

    /// Takes memory from the object. It must be mapped still.
    fn unbind(&self, object: Object, part: &Part) -> Result<(), Error>;

    /// Lets go of the handle.
    fn release(&self, object: Object) -> Result<(), Error>;
}
