//! The CUDA of an all-reduce with a norm: what the JIT compiles, and loads.

use super::row::threads;
use crate::kernels::{HEADERS, Recipe, Scaling};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::Granularity;
use counterflow_codegen::rule::{Fp8, ScaleRule};
use counterflow_emitter::{WATCH, WATCH_HEADER};
use counterflow_runtime::cuda::Function;
use counterflow_runtime::jit::{Compiler, Source, Target};
use counterflow_runtime::slots;
use counterflow_runtime::{Communicator, Error};
use std::fmt;

/// Name of the kernel.
pub(super) const NAME: &str = "all_reduce_norm";

/// Bytes of a sender's rows.
pub(super) fn each(rows: usize, columns: usize) -> u64 {
    rows as u64 * columns as u64 * 2
}

/// What a text depends on.
pub(super) struct Text {
    pub world: usize,
    pub eps: f32,
    pub recipe: Option<Recipe>,
    pub columns: usize,
}

/// All headers of a text.
pub(super) fn headers() -> Vec<(&'static str, &'static str)> {
    let own = include_str!("../kernels/all_reduce_norm.cuh");
    let more = [
        (WATCH_HEADER, WATCH),
        (slots::HEADER, slots::TEXT),
        ("all_reduce_norm.cuh", own),
    ];
    HEADERS.into_iter().chain(more).collect()
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (threads, held) = threads(self.columns);
        // The header of quantisers asks for a rule, also where there are no codes.
        let plain = ScaleRule::transformer_engine(Fp8::E4M3);
        let plain = Recipe::new(plain, Scaling::Delayed, Dtype::Bf16);
        let out = match self.recipe.map(|recipe| recipe.scaling) {
            None => "BFLOAT",
            Some(Scaling::Current(Granularity::PerRow)) => "EACH_ROW",
            Some(Scaling::Current(Granularity::BLOCK_1X128)) => "EACH_BLOCK",
            Some(Scaling::Current(_) | Scaling::Delayed) => "GIVEN",
        };
        let lines = [
            ("WORLD", self.world.to_string()),
            ("THREADS", threads.to_string()),
            ("HELD", held.to_string()),
            // Those of all ranks have 16 registers at once, or 4 for each rank.
            ("BATCH", (4 / self.world).clamp(1, held).to_string()),
            ("OUT", out.to_owned()),
            (
                "NORM_EPS",
                format!("__uint_as_float({:#010x}u)", self.eps.to_bits()),
            ),
        ];
        f.write_str(&self.recipe.unwrap_or(plain).rules())?;
        for (name, value) in lines {
            writeln!(f, "#define {name} {value}")?;
        }
        writeln!(f, "#include \"all_reduce_norm.cuh\"")
    }
}

/// The kernel on a GPU.
#[derive(Clone, Debug)]
pub(super) struct Loaded(pub Function);

impl Loaded {
    /// Compiles it, or takes it from the cache, and loads it. None: the rank is emulated.
    pub fn load(rank: &Communicator, text: &str) -> Result<Option<Loaded>, Error> {
        let compile = || {
            rank.gpu().cuda()?.must_be_hopper()?;
            let headers = headers();
            let source = Source::new(NAME, text).with(&headers);
            Compiler::find()?.compile(&source, Target::Sm90a)
        };
        let module = rank.load(compile)?;
        let kernel = module.map(|module| module.function(NAME, 0).map(Loaded));
        kernel.transpose()
    }
}
