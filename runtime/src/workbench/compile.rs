//! `compile`: machine code without a GPU, and what it is made of.

use super::args::Request;
use super::render::{self, Console};
use super::{Outcome, check, emit};
use crate::error::Error;
use crate::jit::sass::Sass;
use crate::jit::{Cached, Compiler, gates};
use crate::launch;
use serde_json::{Map, json};

/// What of the instructions is worth a column: multiplies, loads and stores of the tensor memory accelerator, moves
/// between registers and shared memory, and local memory, of which there should be none.
const SHOWN: [&str; 7] = ["HGMMA", "UTMALDG", "UTMASTG", "STSM", "LDSM", "LDL", "STL"];

pub(super) fn compile(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    let ready = check::ready(request, &request.shape, console)?;
    let source = emit::source(&ready.kernel)?;
    let bar = console.bar(1, "compiling");
    let compiler = Compiler::find()?;
    let compiled = launch::compile(&compiler, &source)?;
    bar.step();
    drop(bar);
    // Nothing but this report needs a disassembler.
    let sass = Sass::of(&compiled.cubin);
    let found = gates::findings(&compiled, sass.as_ref().ok());
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
            (facts.shared + source.shared_bytes).to_string(),
            facts.parameters.to_string(),
            compiled.cubin.len().to_string(),
        ];
        if let Ok(sass) = &sass {
            row.push(sass.instructions.len().to_string());
            row.extend(SHOWN.iter().map(|name| sass.count(name).to_string()));
        }
        rows.push(row);
    }
    if sass.is_ok() {
        heads.push("instructions");
        heads.extend(SHOWN);
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
        console.say("  no spill, no slow code");
    }
    for problem in &found {
        console.say(format!("  **slow**: {problem}"));
    }
    let fields = json!({
        "entry": source.entry,
        "target": source.arch,
        "compiler": compiler.describe(),
        "seconds": took,
        "cached": compiled.cached == Cached::Hit,
        "cubin_bytes": compiled.cubin.len(),
        "registers": compiled.facts.first().map(|facts| facts.registers),
        "frame": compiled.facts.first().map(|facts| facts.frame),
        "instructions": sass.as_ref().ok().map(|sass| {
            SHOWN.iter().map(|name| ((*name).to_owned(), sass.count(name).into())).collect::<Map<_, _>>()
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
