//! Devices that a plan can run on.

use serde::{Deserialize, Serialize};

/// A kind of device. It is an enum, so that no generic parameter spreads through the API.
///
/// ```
/// use counterflow::{Communicator, Device};
///
/// let device = Device::from_name("cuda").expect("a device");
/// assert_eq!(Device::ALL.map(Device::name), ["cpu", "cuda"]);
/// let ranks = match device.open() {
///     Ok(_) => Communicator::loopback(2)?,
///     Err(why) => {
///         println!("{why}"); // no driver, no GPU, or not Hopper
///         Communicator::emulated(2)?
///     }
/// };
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Device {
    /// The emulator: every rank in this process, in exact arithmetic of the element types.
    #[default]
    Cpu,
    /// A CUDA GPU.
    Cuda,
}

impl Device {
    /// Every device, in the order shown to a user.
    pub const ALL: [Device; 2] = [Device::Cpu, Device::Cuda];

    /// The name a user types.
    pub const fn name(self) -> &'static str {
        match self {
            Device::Cpu => "cpu",
            Device::Cuda => "cuda",
        }
    }

    /// The device of that name.
    pub fn from_name(name: &str) -> Option<Device> {
        Device::ALL.into_iter().find(|device| device.name() == name)
    }
}
