//! The last line of `check`: does the schedule have a kernel for GPUs?

use super::render;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::variant::Arch;
use counterflow_codegen::verify::{self, Checked};
use counterflow_codegen::warp::Pipeline;
use serde_json::{Value as Json, json};

/// A kernel's warp level, or why it has none.
pub(super) enum Emits {
    /// A pipeline that does what the kernel says.
    Yes(Box<Checked<Pipeline>>),
    /// None, for these reasons.
    No(Diagnostics),
    /// None was requested: the variant is for the emulator.
    NotAsked,
}

impl Emits {
    pub(super) fn of(kernel: &Checked<Kernel>) -> Emits {
        match kernel.variant.arch {
            Arch::Cpu => Emits::NotAsked,
            Arch::Sm90 => match verify::warps(kernel) {
                Ok(pipeline) => Emits::Yes(Box::new(pipeline)),
                Err(found) => Emits::No(found),
            },
        }
    }

    /// Line in a table: subject, verdict and figures.
    pub(super) fn row(&self) -> [String; 3] {
        let (verdict, why) = match self {
            Emits::Yes(pipeline) => {
                let shared = render::bytes(pipeline.shared_bytes().into());
                let registers = pipeline.registers().zip(pipeline.registers_at_first());
                let asked = registers.map(|((first, others), all)| {
                    format!(
                        "{all} registers asked ({first} to load and store, {others} to multiply), "
                    )
                });
                (
                    format!("emits for {}", pipeline.kernel.variant.arch.name()),
                    format!("{}{shared} shared", asked.unwrap_or_default()),
                )
            }
            Emits::No(found) => {
                let more = match found.iter().count() - 1 {
                    0 => String::new(),
                    more => format!(", and {more} more"),
                };
                (
                    "not yet on GPUs".into(),
                    format!("{}{more}", found.first().brief()),
                )
            }
            Emits::NotAsked => (
                "not for GPUs".into(),
                "`--arch cpu` is for the emulator alone".into(),
            ),
        };
        ["kernel".into(), verdict, why]
    }

    /// Reasons that there is no pipeline.
    pub(super) fn refused(&self) -> Option<&Diagnostics> {
        match self {
            Emits::No(found) => Some(found),
            Emits::Yes(_) | Emits::NotAsked => None,
        }
    }

    pub(super) fn json(&self) -> Json {
        match self {
            Emits::Yes(pipeline) => json!({
                "emits": true,
                "arch": pipeline.kernel.variant.arch.name(),
                "registers": pipeline.registers_at_first(),
                "registers_to_load_and_store": pipeline.registers().map(|it| it.0),
                "registers_to_multiply": pipeline.registers().map(|it| it.1),
                "shared_bytes": pipeline.shared_bytes(),
            }),
            Emits::No(found) => json!({
                "emits": false,
                "why": found.first().brief(),
                "diagnostics": render::diagnostics_json(found),
            }),
            Emits::NotAsked => json!({ "emits": false, "why": "--arch cpu" }),
        }
    }
}
