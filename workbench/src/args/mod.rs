//! The command line: words and options. An error names the value, the rule and what is legal.

mod bench;
mod near;
mod request;
mod values;

pub(crate) use bench::{Many, Options};
pub use request::{Families, Schedule};
pub(crate) use request::{Numbers, Ranges, Request, Verb};

use crate::suite;
use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::{Program, Setting};
use counterflow_codegen::rule::{Fp8, ScaleRule};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Arch, Layout, Scales, Variant};
use counterflow_runtime::family::{Candidate, Family};
use counterflow_runtime::{Device, Error};
use near::{choices, near};
use std::ffi::OsString;
use std::path::PathBuf;

const AFTER: &str = "\
Verbs:
  demo     check, run and predict, told in one page (the default)
  check    prove the schedule safe for this world and shape, or print the shortest trace of what goes wrong;
           say whether it has a kernel for GPUs (--emit: refuse it if not);
           with --worlds 1..=8 --rows 1..=4096 every one of these shapes, as a table: for your CI
  run      run it on emulated ranks or on GPUs, and compare every output with an f64 reference
  predict  the timeline on the machine
  trace    what each role of one launch did when, measured on GPUs beside predicted: phases, steps, busiest waits,
           exposed communication. --trace and --svg write files. Without a GPU the prediction alone
  emit     the kernel as CUDA text, for sm90
  compile  that text to machine code, without a GPU: registers, spills, instructions, and what makes code slow
  bench    time it on GPUs beside cuBLASLt, on random data, after checking the results; with --amax or --partial
           also beside the same kernel without them, with --output-scales beside the one with a given scale
           instead: that is what they cost; not with --output alone, and not in a sweep
  list     the schedules of this binary, with what each leaves open
  doctor   whether this machine is ready: driver, GPUs, clocks, power, links, compiler, cache, choices; what is not
           good says what to do. No GPU is not good. Nothing is changed
  profile  measure these GPUs and their links, some seconds, and keep the numbers for this user: choices and predictions
           take them from then on. Nothing else may use the GPUs meanwhile

Exit codes: 0 good, 1 rejected, wrong, not compared or not ready, 2 usage.
DUMP=program,kernel,pipeline,plan,cuda prints those stages to stderr; DUMP=plan:NAME only for that schedule.";

/// Check, run and time schedules.
#[derive(Parser, Debug)]
#[command(disable_help_subcommand = true, allow_negative_numbers = true)]
struct Args {
    /// A verb, and a schedule if there are several: demo, check, run, predict, trace, emit, compile,
    /// bench, list, doctor, profile
    #[arg(value_name = "VERB|SCHEDULE")]
    words: Vec<String>,
    /// The schedule, if there are several
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,
    /// Ranks
    #[arg(long, value_name = "N", default_value = "4", value_parser = values::world)]
    world: u32,
    /// Rows of the product over all ranks
    #[arg(long, value_name = "M", default_value = "1024", value_parser = values::number)]
    m: u32,
    /// Check every number of ranks of a range, such as 1..=8
    #[arg(long, value_name = "A..=B", value_parser = values::worlds, conflicts_with = "world")]
    worlds: Option<Numbers>,
    /// Check every number of rows of a range, such as 1..=4096; with `bench`, rows of a suite's products instead of 512
    /// to 16384, such as 512,2048
    #[arg(long, value_name = "A..=B|M,M", value_parser = values::rows, value_delimiter = ',', conflicts_with = "m")]
    rows: Vec<Numbers>,
    /// Columns of the product on one rank
    #[arg(long, value_name = "N", default_value = "1024", value_parser = values::number)]
    n: u32,
    /// Depth of the product on one rank
    #[arg(long, value_name = "K", default_value = "1024", value_parser = values::number)]
    k: u32,
    /// Size of a further dimension, such as z.rows=512; may be repeated
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = values::named_number)]
    dims: Vec<(String, u32)>,
    /// Leading dimension of a tensor in elements, such as x=1088; may be repeated
    #[arg(long = "ld", value_name = "TENSOR=ELEMENTS", value_parser = values::named_number)]
    lds: Vec<(String, u32)>,
    /// Element type instead of the first parameter's: bf16, f16, f32, e4m3, e5m2
    #[arg(long, value_name = "TYPE", value_parser = values::dtype)]
    dtype: Option<Dtype>,
    /// Type of the second operands of FP8 products, where it is another: e4m3, e5m2
    #[arg(long, value_name = "TYPE", value_parser = values::dtype)]
    second: Option<Dtype>,
    /// Scales of FP8 operands: whole, rows, or of blocks (1D: 1x128, 2D: 128x128): 1d2d, 2d1d, 1d1d
    #[arg(long, value_name = "SCALES", value_parser = values::scales)]
    scales: Option<Scales>,
    /// Type of outputs that have the first parameter's: bf16, f16, f32, e4m3, e5m2
    #[arg(long, value_name = "TYPE", value_parser = values::dtype)]
    output: Option<Dtype>,
    /// Make scales of 1x128 of what such outputs get, of e4m3 or the FP8 type that --output says: te or deepgemm, with +pow2, +eps=X
    #[arg(long, value_name = "RULE", value_parser = values::rule)]
    output_scales: Option<ScaleRule>,
    /// Let partial sums travel in FP8, e4m3 or e5m2, with scales of 1x128 that are powers of two
    #[arg(long, value_name = "TYPE", value_parser = values::fp8)]
    partial: Option<Fp8>,
    /// Write the largest absolute value of each output that has a scale, before it, beside the output
    #[arg(long)]
    amax: bool,
    /// Add sums of FP8 products in f32 every 128 of K, instead of in the tensor cores alone
    #[arg(long)]
    promote: bool,
    /// An input that nobody writes while launches run, such as `w`: kernels without communication load it while the launch before
    /// still runs. `bench` measures them without, too
    #[arg(long, value_name = "TENSOR")]
    constant: Vec<String>,
    /// Layout of the operands: nt, nn, tn
    #[arg(long, value_name = "LAYOUT", default_value = "nt", value_parser = values::layout)]
    layout: Layout,
    /// Target of the kernel: sm90, or cpu for the emulator alone (tiles of any shape)
    #[arg(long, value_name = "ARCH", default_value = "sm90", value_parser = values::arch)]
    arch: Arch,
    /// Set a choice, such as tiles=128x256; may be repeated (bench: also for one choice, to compare)
    #[arg(long = "set", value_name = "CHOICE=VALUE", value_parser = values::setting)]
    set: Vec<(String, Setting)>,
    /// Where to run: cpu, cuda; by default on GPUs, if there are any and the schedule has a kernel for them
    #[arg(long, value_name = "DEVICE", value_parser = values::device)]
    device: Option<Device>,
    /// The machine that the model takes: h100, h200, or this, the first GPU here; by default the GPU it runs on, and an H200
    /// where nothing runs
    #[arg(long, value_name = "MACHINE", value_parser = values::machine)]
    machine: Option<values::Named<values::Chosen>>,
    /// Launches of a run, one after another with different M
    #[arg(long, value_name = "L", default_value = "3", value_parser = values::launches)]
    launches: u32,
    /// Seed of the inputs and of the interleaving of ranks
    #[arg(long, value_name = "S", default_value = "1", value_parser = values::seed)]
    seed: u64,
    /// With `check`: also reject what is safe but has no kernel for GPUs yet
    #[arg(long)]
    emit: bool,
    /// Write the timeline for chrome://tracing or ui.perfetto.dev: with predict and demo the predicted one, with trace also
    /// the measured one
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// With `trace`: draw measured and predicted as an SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// With `predict`: also what NVLink multicast would bring each statement, by rates that others published
    #[arg(long)]
    multicast: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    bench: Options,
}

/// The result of a command line.
pub(crate) enum Parsed {
    Request(Box<Request>),
    List,
    Doctor,
    Profile,
    Help(String),
}

/// Reads the command line; the first argument is the binary's name.
pub(crate) fn parse(
    args: impl IntoIterator<Item = OsString>,
    schedules: &[Schedule],
    families: &[Families],
    colour: bool,
) -> Result<Parsed, Error> {
    let colour = if colour {
        ColorChoice::Always
    } else {
        ColorChoice::Never
    };
    let parsed = Args::command()
        .after_help(format!("{AFTER}\n\n{}", suite::help()))
        .color(colour)
        .try_get_matches_from(args)
        .and_then(|matches| Args::from_arg_matches(&matches));
    let args = match parsed {
        Ok(args) => args,
        Err(error) if error.use_stderr() => return Err(refusal(&error)),
        Err(help) => {
            let text = help.render();
            return Ok(Parsed::Help(if colour == ColorChoice::Always {
                text.ansi().to_string()
            } else {
                text.to_string()
            }));
        }
    };
    let programs: Vec<Program> = schedules.iter().map(|schedule| schedule()).collect();
    let families: Vec<Family> = families.iter().map(|family| family()).collect();
    let (verb, named) = words(&args, &programs, &families)?;
    match (verb, named) {
        (Verb::List, _) => return Ok(Parsed::List),
        (Verb::Doctor, None) => return Ok(Parsed::Doctor),
        (Verb::Profile, None) => return Ok(Parsed::Profile),
        (verb @ (Verb::Doctor | Verb::Profile), Some(name)) => {
            let verb = verb.name();
            return Err(Error::Usage {
                what: format!("`{verb}` looks at the machine, not at a schedule such as `{name}`"),
                legal: format!("{verb}, or {verb} --json"),
            });
        }
        _ => {}
    }
    let baseline = programs
        .iter()
        .find(|program| program.name == "gemm")
        .cloned();
    let family = families
        .into_iter()
        .find(|family| Some(family.name()) == named);
    let program = match &family {
        Some(family) => of_family(verb, family)?,
        None => pick(verb, named, programs)?,
    };
    if args.trace.is_some() && !matches!(verb, Verb::Predict | Verb::Demo | Verb::Trace) {
        return Err(Error::Usage {
            what: format!("--trace with `{}`, which predicts no timeline", verb.name()),
            legal: "use predict, demo or trace: they write a trace".into(),
        });
    }
    if args.svg.is_some() && verb != Verb::Trace {
        return Err(Error::Usage {
            what: format!("--svg with `{}`", verb.name()),
            legal: "use it with trace, which draws its page".into(),
        });
    }
    if args.multicast && verb != Verb::Predict {
        return Err(Error::Usage {
            what: format!("--multicast with `{}`", verb.name()),
            legal: "use it with predict, which says what it would bring; no verb runs it".into(),
        });
    }
    if args.emit && args.arch == Arch::Cpu {
        return Err(Error::Usage {
            what: "--emit with --arch cpu, which is for the emulator alone".into(),
            legal: "--arch sm90".into(),
        });
    }
    if args.emit && verb != Verb::Check {
        return Err(Error::Usage {
            what: format!("--emit with `{}`", verb.name()),
            legal: "use --emit with check; the verb `emit` prints the kernel".into(),
        });
    }
    if verb == Verb::Bench && (!args.dims.is_empty() || !args.lds.is_empty()) {
        return Err(Error::Usage {
            what: "--dim or --ld with `bench`".into(),
            legal: "use --shape MxNxK or --suite: rows are contiguous, as in cuBLASLt's operands"
                .into(),
        });
    }
    let mut bench = args.bench;
    let ranges = match verb {
        Verb::Bench => {
            bench.rows = single(&args.rows)?;
            None
        }
        _ => ranges(
            verb,
            args.worlds.clone(),
            &args.rows,
            args.world..=args.world,
            args.m..=args.m,
        )?,
    };
    let set = match verb {
        Verb::Bench => bench.take_open(args.set),
        _ => args.set,
    };
    let mut variant = Variant::new(args.world).layout(args.layout).arch(args.arch);
    variant = args.dtype.into_iter().fold(variant, Variant::dtype);
    variant = args.second.into_iter().fold(variant, Variant::rhs_dtype);
    variant = args.scales.into_iter().fold(variant, Variant::scales);
    if let Some(rule) = args.output_scales {
        let to = args.output.and_then(Fp8::of).unwrap_or(rule.to);
        variant = variant.output_scales(ScaleRule { to, ..rule });
    }
    variant = args.output.into_iter().fold(variant, Variant::output);
    let partial = (args.partial).map(|to| ScaleRule::transformer_engine(to).powers_of_two());
    variant = partial
        .into_iter()
        .fold(variant, Variant::quantised_reduction);
    variant = variant.amax(args.amax);
    variant.promote = args.promote;
    variant.constants = args.constant.into_iter().collect();
    variant.choices = once(set, "--set")?;
    let mut shape = Shape::new(args.m, args.n, args.k);
    shape.dims = once(args.dims, "--dim")?;
    shape.ld = once(args.lds, "--ld")?;
    Ok(Parsed::Request(Box::new(Request {
        verb,
        program,
        family,
        variant,
        shape,
        named: args.machine.is_some(),
        machine: args
            .machine
            .map_or(values::Chosen::default(), |named| named.0)
            .machine()?,
        device: args.device,
        launches: args.launches,
        seed: args.seed,
        trace: args.trace,
        svg: args.svg,
        multicast: args.multicast,
        emit: args.emit,
        ranges,
        bench,
        baseline,
    })))
}

/// The ranges that `check` covers besides one world and shape, if given.
fn ranges(
    verb: Verb,
    worlds: Option<Numbers>,
    rows: &[Numbers],
    world: Numbers,
    m: Numbers,
) -> Result<Option<Ranges>, Error> {
    if worlds.is_none() && rows.is_empty() {
        return Ok(None);
    }
    if verb != Verb::Check {
        return Err(Error::Usage {
            what: format!("--worlds or --rows with `{}`", verb.name()),
            legal: "only check takes ranges; use one --world and one --m".into(),
        });
    }
    if rows.len() > 1 {
        return Err(Error::Usage {
            what: "several --rows with `check`".into(),
            legal: "give one range, such as --rows 1..=4096".into(),
        });
    }
    Ok(Some(Ranges {
        worlds: worlds.unwrap_or(world),
        rows: rows.first().cloned().unwrap_or(m),
    }))
}

/// Rows of products to measure.
fn single(rows: &[Numbers]) -> Result<Vec<u32>, Error> {
    let one = |rows: &Numbers| match rows.start() == rows.end() {
        true => Ok(*rows.start()),
        false => Err(Error::Usage {
            what: format!("--rows {}..={} with `bench`", rows.start(), rows.end()),
            legal: "list the rows to measure: --rows 512,2048".into(),
        }),
    };
    rows.iter().map(one).collect()
}

/// The parser's own errors in our form: its first line says what is wrong, the rest what is legal.
fn refusal(error: &clap::Error) -> Error {
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let what = lines.next().unwrap_or("invalid command line");
    let what = what.strip_prefix("error: ").unwrap_or(what).to_string();
    let tips: Vec<_> = lines
        .filter_map(|line| line.strip_prefix("tip: "))
        // No value of ours looks like an option.
        .filter(|tip| !tip.starts_with("to pass "))
        .collect();
    let legal = if tips.is_empty() {
        "--help lists all options".into()
    } else {
        format!("{}; --help lists all options", tips.join("; "))
    };
    Error::Usage { what, legal }
}

/// Program that stands for a family: the first of its schedules.
fn of_family(verb: Verb, family: &Family) -> Result<Program, Error> {
    if matches!(verb, Verb::Bench | Verb::Predict) {
        return Ok(family.first().clone());
    }
    let stages = family.candidates().iter().flat_map(Candidate::stages);
    // An exchange of low latency is no schedule.
    let stages = stages.filter(|stage| stage.collective().is_none());
    let mut names: Vec<&str> = stages.map(|stage| &stage.program().name[..]).collect();
    names.sort_unstable();
    names.dedup();
    Err(Error::Usage {
        what: format!(
            "`{}` of {}, a family of schedules",
            verb.name(),
            family.name()
        ),
        legal: format!(
            "bench and predict take families; name one of its schedules: {}",
            names.join(", ")
        ),
    })
}

fn words<'a>(
    args: &'a Args,
    programs: &[Program],
    families: &[Family],
) -> Result<(Verb, Option<&'a str>), Error> {
    let mut verb = None;
    let mut named = args.schedule.as_deref();
    for word in &args.words {
        if let Some(found) = Verb::ALL.into_iter().find(|verb| verb.name() == word) {
            if let Some(other) = verb.replace(found) {
                return Err(Error::Usage {
                    what: format!("both {} and {word} are asked for", other.name()),
                    legal: "give one verb".into(),
                });
            }
        } else if programs.iter().any(|program| program.name == *word)
            || families.iter().any(|family| family.name() == word)
        {
            if let Some(other) = named.replace(word).filter(|other| other != word) {
                return Err(Error::Usage {
                    what: format!("both {other} and {word} are asked for"),
                    legal: "give one schedule".into(),
                });
            }
        } else {
            let schedules = programs.iter().map(|p| p.name.as_str());
            let schedules: Vec<&str> = schedules.chain(families.iter().map(Family::name)).collect();
            let verbs = Verb::ALL.map(Verb::name);
            let both: Vec<&str> = schedules.iter().chain(&verbs).copied().collect();
            let near = near(word, &both)
                .map_or_else(String::new, |name| format!("did you mean `{name}`? "));
            return Err(Error::Usage {
                what: format!("`{word}` is neither a verb nor a schedule of this binary"),
                legal: format!(
                    "{near}verbs: {}; schedules: {}",
                    verbs.join(", "),
                    schedules.join(", ")
                ),
            });
        }
    }
    // With several schedules and no name, list them.
    let unsaid = if named.is_none() && programs.len() > 1 {
        Verb::List
    } else {
        Verb::Demo
    };
    Ok((verb.unwrap_or(unsaid), named))
}

fn pick(verb: Verb, named: Option<&str>, programs: Vec<Program>) -> Result<Program, Error> {
    let names: Vec<String> = programs.iter().map(|p| p.name.clone()).collect();
    let Some(name) = named else {
        let mut programs = programs.into_iter();
        return match (programs.next(), programs.next()) {
            (Some(only), None) => Ok(only),
            (None, _) => Err(Error::Usage {
                what: "this binary has no schedule".into(),
                legal: "pass at least one to counterflow_workbench::main".into(),
            }),
            (Some(_), Some(_)) => Err(Error::Usage {
                what: format!(
                    "`{}` takes one schedule, and this binary has {}",
                    verb.name(),
                    names.len()
                ),
                legal: format!("name one: {}", names.join(", ")),
            }),
        };
    };
    programs
        .into_iter()
        .find(|program| program.name == name)
        .ok_or_else(|| Error::Usage {
            what: format!("`{name}` is not a schedule of this binary"),
            legal: choices(name, &names),
        })
}

fn once<T>(
    pairs: Vec<(String, T)>,
    option: &str,
) -> Result<std::collections::BTreeMap<String, T>, Error> {
    let mut map = std::collections::BTreeMap::new();
    for (name, value) in pairs {
        if map.contains_key(&name) {
            return Err(Error::Usage {
                what: format!("{option} gives `{name}` twice"),
                legal: format!("give each name once: {option} {name}=…"),
            });
        }
        map.insert(name, value);
    }
    Ok(map)
}
