//! The emulator as a device: every rank of a plan in this process.
