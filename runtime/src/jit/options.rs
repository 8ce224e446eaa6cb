//! What NVRTC is told, in one place: the cache's key holds the same list.

/// What machine code is made for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Target {
    /// Hopper with its own instructions. `sm_90` lacks wgmma, and `compute_90` gives no machine code at all.
    #[default]
    Sm90a,
}

impl Target {
    /// Its name, as the compiler spells it.
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

/// What is compiled into a kernel to test it, and never into one that is used or timed. The kernel's text is the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Probes {
    /// Random pauses wherever only luck could put two agents in order; the seed of their draws.
    pub jitter: Option<u32>,
    /// A record of what happened when: [`Function::trace`](crate::cuda::Function::trace) reads it.
    pub trace: bool,
}

pub(super) fn options(target: Target, probes: Probes) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={}", target.name()),
        "--std=c++17".into(),
        // Quotients and roots within two units of f32's last place, in a few instructions: see math.cuh.
        "--prec-div=false".into(),
        "--prec-sqrt=false".into(),
        // Registers, stack and spills into the log. One option each: joined by a comma, the second is lost.
        "--ptxas-options=-v".into(),
        "--ptxas-options=--warn-on-spills".into(),
        // So that profilers and sanitizers name lines; the instructions are the same. The lines are in the cubin, so the
        // cache's key has them: a schedule that moved in its file is compiled again, rather than blamed at old lines.
        "--generate-line-info".into(),
    ];
    let jitter = probes.jitter.map(|seed| format!("JITTER={seed}u"));
    let trace = probes.trace.then(|| "TRACE".to_owned());
    let defines = jitter.into_iter().chain(trace);
    options.extend(defines.map(|define| format!("--define-macro={define}")));
    options
}
