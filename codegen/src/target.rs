//! Answers of an architecture. [`crate::verify`] asks for them, and judges each before anybody else sees it.

use crate::checked::Checked;
use crate::diag::Diagnostics;
use crate::kernel::Kernel;
use crate::sm90::{self, cta::Decision};
use crate::variant::Arch;
use crate::warp::Pipeline;

/// Steps that compute kernels on an architecture. Each step takes what the one before it made, once that was judged.
///
/// ```
/// use counterflow_codegen::{target::Target, verify};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
///
/// let (series, _) = example::proven();
/// let target = Target::of(series.kernel().variant.arch);
/// let pipeline = verify::pipeline((target.build)(series.kernel())?)?; // `verify::warps` is both
/// println!("{}", pipeline.kernel.name);
/// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Decides how a CTA computes a kernel's tiles, or says what is in the way.
    pub decide: fn(&Kernel) -> Decision,
    /// Builds the work of each warp, with every barrier, fence and signal. It refuses what this version has no
    /// pipeline for.
    pub build: fn(&Checked<Kernel>) -> Result<Pipeline, Diagnostics>,
}

/// Hopper.
const SM90: Target = Target {
    decide: sm90::cta::decide,
    build: sm90::build,
};

impl Target {
    /// The target of an architecture. The emulator's own is decided as Hopper's without limits, and has no pipeline.
    pub const fn of(arch: Arch) -> &'static Target {
        match arch {
            Arch::Sm90 | Arch::Cpu => &SM90,
        }
    }
}
