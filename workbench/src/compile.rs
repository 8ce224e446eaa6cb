//! `compile`: machine code without a GPU, and facts about it.

use super::args::Request;
use super::outcome::Outcome;
use super::ready;
use super::render::{self, Console};
use counterflow_codegen::verify;
use counterflow_emitter::expected;
use counterflow_runtime::Error;
use counterflow_runtime::jit::sass::Sass;
use counterflow_runtime::jit::{Cached, Compiler, sass_checks};
use counterflow_runtime::launch;
use serde_json::{Map, json};

/// Local-memory instructions, of which there should be none. Their columns follow those of the expected instructions.
const LOCAL: [&str; 2] = ["LDL", "STL"];

pub(super) fn compile(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    let ready = ready::ready(request, &request.shape, console)?;
    let pipeline = verify::warps(&ready.kernel)?;
    let source = counterflow_emitter::emit(&pipeline);
    let mut wanted = expected::instructions(&pipeline);
    let bar = console.bar(1, "compiling");
    let compiler = Compiler::find()?;
    let compiled = launch::compile(&compiler, &source)?;
    bar.step();
    drop(bar);
    // Only this report needs a disassembler.
    let sass = Sass::of(compiled.cubin());
    let mut found = sass_checks::findings(&compiled, sass.as_ref().ok());
    if let Ok(sass) = &sass {
        found.extend(sass_checks::in_counts(sass, &wanted));
    }
    wanted.extend(LOCAL.map(|name| (name, 0)));
    let took = compiled.took.as_secs_f64();
    let from = match &compiled.cached {
        Cached::Hit => format!("from the cache in {}", render::seconds(took)),
        Cached::Stored => format!("in {}", render::seconds(took)),
        Cached::Not(why) => format!("in {}, not cached: {why}", render::seconds(took)),
    };
    console.say(format!(
        "**{}** compiled for {} by {}, {from}",
        source.entry,
        source.arch,
        compiler.describe()
    ));
    let mut heads = vec![
        "registers",
        "frame",
        "threads",
        "cluster",
        "shared",
        "parameters",
        "cubin",
    ];
    let mut rows = Vec::new();
    for facts in &compiled.facts {
        let mut row = vec![
            facts.registers.to_string(),
            facts.frame.to_string(),
            facts
                .threads
                .map_or("-".into(), |threads| threads.to_string()),
            facts
                .cluster
                .map_or("-".into(), |size| size.map(|n| n.to_string()).join("x")),
            (facts.shared + source.shared_bytes).to_string(),
            facts.parameters.to_string(),
            compiled.cubin().len().to_string(),
        ];
        if let Ok(sass) = &sass {
            row.push(sass.instructions.len().to_string());
            row.extend(wanted.iter().map(|(name, _)| sass.count(name).to_string()));
        }
        rows.push(row);
    }
    if sass.is_ok() {
        let mut row = vec!["asked for".into()];
        row.resize(8, String::new());
        row.extend(wanted.iter().map(|(_, count)| count.to_string()));
        rows.push(row);
    }
    if sass.is_ok() {
        heads.push("instructions");
        heads.extend(wanted.iter().map(|(name, _)| *name));
    }
    let right: Vec<usize> = (0..heads.len()).collect();
    console.say(render::table(&heads, rows, &right));
    if let Err(error) = &sass {
        console.say(format!(
            "  no instruction counts: {error}; {}",
            error.help().unwrap_or_default()
        ));
    }
    if found.is_empty() {
        console.say("  no spills, no slow code, the expected instructions");
    }
    for problem in &found {
        console.say(format!("  **wrong**: {problem}"));
    }
    let fields = json!({
        "entry": source.entry,
        "target": source.arch,
        "compiler": compiler.describe(),
        "seconds": took,
        "cached": compiled.cached == Cached::Hit,
        "cubin_bytes": compiled.cubin().len(),
        "registers": compiled.facts.first().map(|facts| facts.registers),
        "frame": compiled.facts.first().map(|facts| facts.frame),
        "cluster": compiled.facts.first().and_then(|facts| facts.cluster),
        "instructions": sass.as_ref().ok().map(|sass| {
            wanted.iter().map(|(name, _)| ((*name).to_owned(), sass.count(name).into())).collect::<Map<_, _>>()
        }),
        "slow": found,
        "log": compiled.log,
    });
    let fields = fields.as_object().cloned().unwrap_or_default();
    Ok(Outcome {
        good: found.is_empty(),
        fields,
    })
}
