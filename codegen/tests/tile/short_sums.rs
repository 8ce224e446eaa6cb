//! Sums of FP8 products as tensor cores make them: their own tests stand beside them.

use counterflow_codegen::dtype::Dtype;

#[path = "../../src/interp/data/short.rs"]
#[allow(dead_code, reason = "the emulator uses the rest")]
mod short;
