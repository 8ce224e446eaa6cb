//! What a plan can run on.

use crate::error::Error;

/// One kind of device. An enum, since there are two and no generic parameter should spread through the API.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Device {
    /// The emulator: every rank in this process, in exact arithmetic of the element types.
    #[default]
    Cpu,
    /// A CUDA GPU.
    Cuda,
}

impl Device {
    /// Every device, in the order they are offered to a user.
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

    /// Whether this build can run on it.
    ///
    /// # Errors
    /// [`Error::NoDevice`], with what to do instead.
    pub fn open(self) -> Result<Device, Error> {
        match self {
            Device::Cpu => Ok(self),
            Device::Cuda => Err(Error::NoDevice {
                device: self,
                why: "not yet: this build has no CUDA device".into(),
                help: "use --device cpu: the emulator runs the same checked plan; `predict` times it for a GPU".into(),
            }),
        }
    }
}
