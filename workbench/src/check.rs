//! `check`: every stage up to the checked plan, and what was proven, with counts.

use super::args::Request;
use super::emits::Emits;
use super::facts::Facts;
use super::outcome::Outcome;
use super::ranges;
use super::ready::{self, Ready};
use super::render::{self, Console};
use counterflow_codegen::bits::BitsClass;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::program::{Program, Setting};
use counterflow_codegen::variant::Tensors;
use counterflow_codegen::verify;
use counterflow_runtime::Error;
use counterflow_timeline::model::{self, Volume};
use serde_json::{Map, Value as Json, json};

pub(super) fn check(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    if let Some(ranges) = &request.ranges {
        return ranges::check(request, ranges, console);
    }
    let ready = ready::ready(request, &request.shape, console)?;
    let fields = proven(request, &ready, console);
    if request.emit {
        verify::warps(&ready.kernel)?;
    }
    Ok(Outcome::good(fields))
}

/// Prints what was proven, and gives it as JSON fields.
pub(super) fn proven(
    request: &Request,
    ready: &Ready,
    console: &mut Console<'_>,
) -> Map<String, Json> {
    let Ready { kernel, plan, .. } = ready;
    let facts = Facts::of(kernel, plan);
    let volume = Volume::of(kernel, plan);
    let most = |bytes: &[u64]| bytes.iter().copied().max().unwrap_or(0);
    let (sent, received) = (most(&volume.sent), most(&volume.received));
    let grid = plan.grid;
    let world = plan.geometry.world;
    let outputs: Vec<String> = kernel
        .buffers
        .iter()
        .filter(|buffer| !buffer.usage.is_input() && !buffer.is_scratch())
        .map(|buffer| {
            format!(
                "{} {}x{}",
                buffer.name,
                plan.geometry.size(buffer.rows),
                plan.geometry.size(buffer.columns)
            )
        })
        .collect();
    console.say(format!(
        "**{}** is safe: {} {} on {}",
        kernel.name,
        settled(&request.program, kernel),
        plan.shape,
        render::plural(world.into(), "rank")
    ));
    let credits = if facts.credits.is_empty() {
        "no credit needed: nothing remote is reused".into()
    } else {
        format!("credits {}", facts.credits.join(", "))
    };
    let mut ctas = vec![format!("{} GEMM", grid.gemm)];
    if grid.comm > 0 {
        ctas.push(format!("{} comm", grid.comm));
    }
    let rows = [
        (
            "progress",
            "no rank can wait for ever",
            format!(
                "{}, {}, {}",
                render::plural(facts.waits, "wait"),
                render::plural(facts.signals, "signal"),
                render::plural(facts.agents, "agent")
            ),
        ),
        (
            "race",
            "every read follows its write",
            format!(
                "{} by {}",
                render::plural(facts.accesses, "access"),
                render::plural(facts.items, "item")
            ),
        ),
        (
            "coverage",
            "each output once, each term once",
            outputs.join(", "),
        ),
        ("reuse", "no launch overwrites another's data", credits),
        (
            "bounds",
            "tiles, memory and CTAs fit",
            format!(
                "{} CTAs, {} stages, {} shared, {} heap",
                ctas.join(" + "),
                grid.stages,
                render::bytes(grid.shared_memory.into()),
                render::bytes(plan.heap.bytes)
            ),
        ),
        (
            "volume",
            "bytes over the busiest link",
            format!(
                "{} out, {} in; the least is {}",
                render::bytes(sent),
                render::bytes(received),
                render::bytes(volume.least_of_a_link())
            ),
        ),
    ];
    let class = BitsClass::of(kernel);
    let bits = match &class {
        Ok(class) => ["batch-invariant".into(), class.to_string()],
        Err(found) => {
            let why = found
                .first()
                .message
                .trim_start_matches("not batch-invariant: ");
            ["depend on M".into(), why.into()]
        }
    };
    let emits = Emits::of(kernel);
    let rows = rows
        .into_iter()
        .map(|(rule, meaning, amount)| vec![rule.into(), meaning.into(), amount])
        .chain([
            [vec!["bits".into()], bits.to_vec()].concat(),
            emits.row().to_vec(),
        ])
        .collect();
    console.say(render::table(&[], rows, &[]));
    let mut warnings = volume.warnings(kernel, plan);
    warnings.extend(model::joined(kernel, plan, &request.machine()));
    console.warn(&warnings);
    let settled: Map<String, Json> = choices(&request.program, kernel)
        .map(|(name, value)| (name.into(), value.to_string().into()))
        .collect();
    let value = json!({
        "agents": facts.agents,
        "items": facts.items,
        "waits": facts.waits,
        "signals": facts.signals,
        "accesses": facts.accesses,
        "credits": facts.credits,
        "sent_bytes": sent,
        "received_bytes": received,
        "least_link_bytes": volume.least_of_a_link(),
        "warnings": warnings.iter().map(render::diagnostic_json).collect::<Vec<_>>(),
        "grid": {
            "gemm": grid.gemm, "comm": grid.comm, "stages": grid.stages,
            "shared_memory": grid.shared_memory,
        },
        "heap_bytes": plan.heap.bytes,
        "settled": settled,
        "batch_invariant": class.is_ok(),
        "bits": bits[1],
        "kernel": emits.json(),
    });
    Map::from_iter([("proven".into(), value)])
}

/// `tiles=128x256 comm.ctas=4 e4m3 scales=rows nt sm90`
fn settled(program: &Program, kernel: &Kernel) -> String {
    let mut words: Vec<String> = choices(program, kernel)
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if let Some(first) = kernel.buffers.first() {
        words.push(first.dtype.to_string());
    }
    let variant = &kernel.variant;
    let element = |of: Tensors| variant.asked(&of).element;
    let second = element(Tensors::Rhs).map(|dtype| format!("second={dtype}"));
    let scales = variant
        .operand_scales()
        .map(|scales| format!("scales={}", scales.name()));
    let output = element(Tensors::Outputs).map(|dtype| format!("output={dtype}"));
    let made = variant
        .output_rule()
        .map(|rule| format!("output-scales={rule}"));
    let partial = variant
        .partial_rule()
        .map(|rule| format!("partial={}", rule.to.dtype()));
    let amax = variant.asked(&Tensors::Outputs).amax;
    let amax = amax.then(|| "amax".into());
    let said = [second, scales, output, made, partial, amax];
    words.extend(said.into_iter().flatten());
    words.push(kernel.variant.layout.name().into());
    words.push(kernel.variant.arch.name().into());
    words.join(" ")
}

/// Every choice with its value, in source order.
fn choices<'a>(
    program: &'a Program,
    kernel: &'a Kernel,
) -> impl Iterator<Item = (&'a str, Setting)> {
    program.tunables.iter().filter_map(|tunable| {
        let chosen = kernel.variant.choices.get(&tunable.name);
        let setting = chosen.or(tunable.options.first())?;
        Some((tunable.name.as_str(), *setting))
    })
}
