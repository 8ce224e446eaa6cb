//! One tiny program a feature, at each stage: read a slice from `@1` on, and stop at the first stage that surprises.

use crate::fixtures::features as schedules;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_codegen::warp::Node;
use counterflow_emitter as cuda;
use std::collections::BTreeSet;

/// The most lines a slice may have; most have fewer than 60.
const MOST_LINES: usize = 120;
/// The most lines of CUDA, of at most 120 columns.
const MOST_CUDA: usize = 190;

fn slice(program: &Program, shape: &Shape) {
    let variant = Variant::new(4);
    let kernel = lower(program, &variant).unwrap_or_else(|found| panic!("{found}"));
    let plan =
        Plan::new(&kernel, shape, &Machine::h200()).unwrap_or_else(|found| panic!("{found}"));
    let (warps, cuda) = warp_level(&kernel);
    for (stage, text) in [
        ("1-program", program.to_string()),
        ("2-kernel", kernel.to_string()),
        ("3-pipeline", warps.clone()),
        ("4-cuda", cuda.clone()),
        ("5-plan", plan.text(&kernel)),
    ] {
        let lines = text.lines().count();
        let most = if stage == "4-cuda" {
            MOST_CUDA
        } else {
            MOST_LINES
        };
        assert!(lines <= most, "{} {stage}: {lines} lines", program.name);
        assert!(!text.contains(".rs:"), "{text}");
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path("snapshots");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.set_snapshot_suffix(stage);
        settings.set_description(format!("{variant}, shape {shape}"));
        settings.bind(|| insta::assert_snapshot!(program.name.as_str(), text));
    }
}

/// What each statement becomes on each warp, as nodes and as CUDA; whole kernels are in `kernels_generated`. What Hopper
/// cannot do says so instead.
fn warp_level(kernel: &Kernel) -> (String, String) {
    let pipeline = verify::kernel(kernel.clone())
        .and_then(|kernel| sm90::build(&kernel))
        .and_then(verify::pipeline);
    let pipeline = match pipeline {
        Ok(pipeline) => pipeline,
        Err(found) => {
            let verdict = found.first().text(&|_| String::new());
            let verdict = verdict.lines().filter(|line| !line.contains(".rs:"));
            let verdict: String = verdict.map(|line| format!("{line}\n")).collect();
            return (verdict.clone(), verdict);
        }
    };
    let mut statements = BTreeSet::new();
    for warp in &pipeline.warps {
        for node in &warp.body {
            node.visit(&mut |node| {
                if let Node::Note(note) = node
                    && note.loc.is_some()
                {
                    statements.insert(note.words.clone());
                }
            });
        }
    }
    let nodes = excerpts(&pipeline.text(), "# ", &statements, |line| {
        let (role, _) = line.split_once(": ")?;
        (!role.starts_with(' ')).then_some(role)
    });
    let cuda = excerpts(&cuda::emit(&pipeline).text, "// ", &statements, |line| {
        line.split_once(" {  // ").map(|(_, role)| role)
    });
    (nodes, cuda)
}

/// Each statement with the lines below it, up to the next one or the end of its block, under the role they are in. Lines
/// that an earlier statement of the role became are not repeated.
fn excerpts(
    text: &str,
    mark: &str,
    statements: &BTreeSet<String>,
    role: impl Fn(&str) -> Option<&str>,
) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let depth = |line: &str| line.len() - line.trim_start().len();
    let note = |line: &str| line.trim_start().starts_with(mark);
    let (mut verdict, mut shown, mut current) = (String::new(), "", "");
    let mut known: Vec<Vec<&str>> = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        current = role(line).unwrap_or(current);
        at += 1;
        let words = line.trim_start().strip_prefix(mark);
        if !words.is_some_and(|words| statements.contains(words)) {
            continue;
        }
        if shown != current {
            verdict.push_str(&format!("{current}\n"));
            shown = current;
            known.clear();
        }
        let ends =
            |next: &&str| depth(next) < depth(line) || depth(next) == depth(line) && note(next);
        let count = lines[at..].iter().position(ends).unwrap_or(0);
        let became = &lines[at..at + count];
        let became: Vec<&str> = became.iter().map(|next| &next[depth(line)..]).collect();
        at += count;
        verdict.push_str(&format!("    {}\n", line.trim_start()));
        if known.contains(&became) {
            verdict.push_str("    as above\n");
            continue;
        }
        for next in &became {
            verdict.push_str(&format!("    {next}\n"));
        }
        known.push(became);
    }
    verdict
}

#[test]
fn push_all_gather() {
    slice(&schedules::push_all_gather(), &Shape::new(1000, 512, 256));
}

#[test]
fn pull() {
    slice(&schedules::pull(), &Shape::new(1024, 512, 256));
}

#[test]
fn ring() {
    slice(&schedules::ring_all_gather(), &Shape::new(1024, 512, 256));
}

#[test]
fn slots_sum() {
    slice(&schedules::slots_sum(), &Shape::new(1024, 512, 256));
}

#[test]
fn reduce_add() {
    slice(&schedules::reduce_add(), &Shape::new(1024, 512, 256));
}

#[test]
fn two_shot() {
    slice(&schedules::two_shot(), &Shape::new(1000, 512, 256));
}

#[test]
fn gated_pair() {
    slice(&schedules::gated_pair(), &Shape::new(1024, 512, 256));
}

#[test]
fn rank_if() {
    slice(&schedules::rank_if(), &Shape::new(1024, 512, 256));
}
