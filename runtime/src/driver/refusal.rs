//! The refusal of what only a CUDA GPU has.

use crate::device::Device;
use crate::error::Error;

pub(super) fn emulated(what: &str) -> Error {
    Error::NoDevice {
        device: Device::Cuda,
        why: format!("{what} is emulated"),
        help: "make the ranks by `Communicator::local` on a machine with GPUs".into(),
    }
}
