//! NVRTC's options, in one place. The cache's key holds the same list.

/// A target of machine code.
///
/// ```
/// use counterflow::jit::Target;
///
/// assert_eq!(Target::from_name("sm_90a"), Some(Target::Sm90a));
/// assert_eq!(Target::default().name(), "sm_90a");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Target {
    /// Hopper with its own instructions. `sm_90` lacks wgmma, and `compute_90` gives no machine code at all.
    #[default]
    Sm90a,
}

impl Target {
    /// Name of the target, as the compiler spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Sm90a => "sm_90a",
        }
    }

    /// The target of that name.
    pub fn from_name(name: &str) -> Option<Target> {
        [Target::Sm90a]
            .into_iter()
            .find(|target| target.name() == name)
    }
}

/// Probes in a kernel, for tests and traces. They are never in a kernel that is used or timed.
///
/// ```no_run
/// use counterflow::jit::{Compiler, Probes};
///
/// let late = Compiler::find()?.with_probes(Probes { jitter: Some(7), trace: false });
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Probes {
    /// Random pauses at every place where two agents might be in order only by luck, and their seed.
    pub jitter: Option<u32>,
    /// A trace of events: the kernel's text has probes, and [`Function::trace`](crate::cuda::Function::trace) reads what
    /// they wrote.
    pub trace: bool,
}

pub(super) fn options(target: Target, probes: Probes, optimises: bool) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={}", target.name()),
        "--std=c++17".into(),
        // Quotients and roots within two units of f32's last place, in a few instructions: see math.cuh.
        "--prec-div=false".into(),
        "--prec-sqrt=false".into(),
        // Registers, stack and spills into the log. One option each: joined by a comma, the second is lost.
        "--ptxas-options=-v".into(),
        "--ptxas-options=--warn-on-spills".into(),
        // So that profilers and sanitizers name lines; the instructions are the same. The lines are in the cubin, so
        // they are in the cache's key: a schedule that moved in its file is compiled again, and tools never show old
        // lines.
        "--generate-line-info".into(),
    ];
    let jitter = probes
        .jitter
        .map(|seed| format!("--define-macro=JITTER={seed}u"));
    options.extend(jitter);
    // Half the time, and code that nobody should run: whether the text is C++ and PTX that the assembler takes.
    let quick = (!optimises).then(|| "--Ofast-compile=max".into());
    options.extend(quick);
    options
}
