//! The compiler's stages, the emulator of what they make, and its timelines: each is a crate, and all of it may change.

pub use counterflow_codegen::*;
pub use counterflow_emitter as cuda;
pub use counterflow_emulator as interp;
pub use counterflow_timeline::{model, trace};

/// What an architecture answers, and the text for its compiler.
pub mod target {
    pub use counterflow_codegen::target::*;
    pub use counterflow_emitter::emit;
}
