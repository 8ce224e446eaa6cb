//! The CUDA of an exchange: what the JIT compiles.

use super::{Collective, THREADS};
use crate::error::Error;
use crate::jit::{Compiled, Compiler, Source, Target};
use crate::slots;
use counterflow_codegen::dtype::Dtype;
use counterflow_emitter::{WATCH, WATCH_HEADER};

/// Name of the kernel.
pub(crate) const NAME: &str = "low_latency";

/// Pieces that a thread awaits at once, of all ranks together: as many as hide the way to memory, and stay in registers.
const AWAITED: u32 = 8;

/// What a text depends on.
fn text(collective: Collective, world: u32, dtype: Dtype) -> String {
    let collective = match collective {
        Collective::AllGather => "ALL_GATHER",
        Collective::ReduceScatter => "REDUCE_SCATTER",
        Collective::AllReduce => "ALL_REDUCE",
        Collective::TwoShotAllReduce => "TWO_SHOT_ALL_REDUCE",
    };
    let elements = match dtype {
        Dtype::F16 => "F16",
        _ => "BF16",
    };
    let batch = (AWAITED / world).clamp(1, AWAITED / 2);
    format!(
        "#define WORLD {world}\n#define THREADS {THREADS}\n#define BATCH {batch}\n#define COLLECTIVE {collective}\n#define ELEMENTS {elements}\n#include \"low_latency.cuh\"\n"
    )
}

/// Compiles an exchange of low latency of so many ranks, or takes it from the cache. Loading it does so; tests do it ahead.
///
/// # Errors
/// [`Error::Compile`].
pub fn compile_exchange(
    compiler: &Compiler,
    collective: Collective,
    world: u32,
    dtype: Dtype,
) -> Result<Compiled, Error> {
    let headers = [
        (WATCH_HEADER, WATCH),
        (slots::HEADER, slots::TEXT),
        ("low_latency.cuh", include_str!("low_latency.cuh")),
    ];
    let text = text(collective, world, dtype);
    compiler.compile(&Source::new(NAME, &text).with(&headers), Target::Sm90a)
}

#[cfg(test)]
mod tests {
    /// A launch behind an exchange begins after its end, and none of its CTAs takes an SM before: `launch::low_latency` counts on it.
    #[test]
    fn an_exchange_awaits_the_launch_before_it_and_lets_none_come() {
        let text = include_str!("low_latency.cuh");
        let count = |what: &str| text.matches(what).count();
        assert_eq!(count("griddepcontrol.wait;"), 1);
        assert_eq!(count("griddepcontrol.launch_dependents"), 0);
    }
}
