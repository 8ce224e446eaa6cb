//! Compiles what is emitted and passes every SASS check, for the test binaries that do.

#[path = "../../runtime/tests/common/mod.rs"]
pub mod nvidia;

use crate::parallel::in_parallel;
use crate::wide::sampled;
use counterflow::codegen::cuda::{self, CudaSource, expected};
use counterflow::codegen::lower::lower;
use counterflow::codegen::sm90;
use counterflow::codegen::verify;
use counterflow::codegen::warp::{FragmentOp, Node, Pipeline};
use counterflow::jit::sass::Sass;
use counterflow::jit::{Compiled, Compiler, sass_checks};
use counterflow::{Checked, Program, Variant, launch};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Kernels that are disassembled together.
const AT_ONCE: usize = 32;

/// Of two texts that differ in nothing but their 16-bit type, and whose warps read no numbers of it, one is compiled: what they round
/// and store takes the same instructions, but for names. Of the others one in so many is compiled, too, and compared. `BOTH_TYPES=1`
/// compiles all.
const OTHER_TYPES: u8 = 8;

pub fn checked(program: &Program, variant: &Variant) -> Checked<Pipeline> {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let pipeline = kernel
        .and_then(|kernel| sm90::build(&kernel))
        .and_then(verify::pipeline);
    pipeline.unwrap_or_else(|error| panic!("{} {variant}: {error}", program.name))
}

/// What the SASS checks find in a kernel.
pub struct Findings {
    /// Spills, and what the compiler says of slow code.
    pub slow: Vec<String>,
    /// Instructions, registers or parameters that are others than the statements ask for.
    pub wrong: Vec<String>,
}

/// A kernel to compile, and what its machine code must have. What the checks find depends on nothing else.
#[derive(Debug)]
struct Asked {
    source: CudaSource,
    instructions: Vec<(&'static str, u32)>,
    /// Whether its warps do no more with subtiles than to write them.
    writes_alone: bool,
}

impl Asked {
    fn new((program, variant): &(Program, Variant)) -> Asked {
        let pipeline = checked(program, variant);
        let mut writes_alone = true;
        pipeline.visit(|node| {
            if let Node::Fragment(of) = node {
                writes_alone &= matches!(of, FragmentOp::WriteSubtile { .. });
            }
        });
        Asked {
            source: cuda::emit(&pipeline),
            instructions: expected::instructions(&pipeline),
            writes_alone,
        }
    }

    fn key(&self) -> blake3::Hash {
        blake3::hash(format!("{self:?}").as_bytes())
    }

    /// The same for both 16-bit types, if it may be, whatever the text says to people.
    fn key_of_types(&self) -> blake3::Hash {
        if !self.writes_alone {
            return self.key();
        }
        let code = self.source.text.lines().map(|line| {
            let code = line.split("//").next().unwrap_or_default().trim();
            if code.starts_with("#line") { "" } else { code }
        });
        let code: String = code.flat_map(|line| [line, "\n"]).collect();
        let CudaSource {
            params,
            threads,
            shared_bytes,
            ..
        } = &self.source;
        let asked = format!(
            "{code}{params:?}{threads} {shared_bytes}{:?}",
            self.instructions
        );
        blake3::hash(without_types(&asked).as_bytes())
    }

    fn compiled(&self, compiler: &Compiler) -> Compiled {
        let compiled = launch::compile(compiler, &self.source);
        let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
        println!(
            "{:40} {:3} registers, {} bytes shared, {:.0} ms",
            self.source.entry,
            compiled.facts[0].registers,
            self.source.shared_bytes,
            compiled.took.as_secs_f64() * 1000.0
        );
        compiled
    }

    fn findings(&self, compiled: &Compiled, sass: &Sass) -> Findings {
        let slow = sass_checks::findings(compiled, Some(sass));
        let mut wrong = sass_checks::in_counts(sass, &self.instructions);
        let facts = &compiled.facts[0];
        // The ceiling of 384 threads: setmaxnreg reallocates registers from there.
        if facts.registers > 168 || facts.threads != Some(self.source.threads) {
            wrong.push(format!("{facts:?}"));
        }
        let parameters = parameters(&self.source);
        let count = self.source.params.len();
        if facts.parameters != parameters || facts.parameter_count as usize != count {
            wrong.push(format!(
                "{} bytes of parameters, but the host passes {parameters}",
                facts.parameters
            ));
        }
        Findings { slow, wrong }
    }
}

/// A text of one 16-bit type as one of the other.
fn without_types(text: &str) -> String {
    text.replace("bf16", "f16")
        .replace("BF16", "F16")
        .replace("Bf16", "F16")
}

/// What machine code has that is the same for both 16-bit types.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Made {
    registers: u32,
    frame: u32,
    /// How many have which name.
    instructions: BTreeMap<String, u32>,
}

impl Made {
    fn new(compiled: &Compiled, sass: &Sass) -> Made {
        let facts = &compiled.facts[0];
        let mut instructions = BTreeMap::new();
        for instruction in &sass.instructions {
            let name = Sass::name(instruction);
            let name = name.replace(".BF16", "").replace(".F16", "");
            *instructions.entry(name).or_default() += 1;
        }
        Made {
            registers: facts.registers,
            frame: facts.frame,
            instructions,
        }
    }

    /// Where another one, of the other type, is not the same.
    fn unlike(&self, other: &Made) -> String {
        let [one, two] = [self, other].map(|it| (it.registers, it.frame));
        let [those, these] =
            [self, other].map(|it| it.instructions.iter().collect::<BTreeSet<_>>());
        let [those, these] = [&those - &these, &these - &those];
        format!(
            "types differ in more than their names: {one:?} and {two:?}, {those:?} and {these:?}"
        )
    }
}

/// Bytes of the parameters as the host lays them out. They start at 0x210 of the constant bank, and are aligned there.
fn parameters(source: &cuda::CudaSource) -> u32 {
    const BASE: u32 = 0x210;
    let end = source.params.iter().fold(BASE, |at: u32, param| {
        let (bytes, align) = match param {
            cuda::Param::Map { .. } => (128, 128),
            cuda::Param::EveryCopy { .. } => (cuda::EVERY_COPY_BYTES as u32, 8),
            cuda::Param::EachRank { .. } => (cuda::EACH_RANK_BYTES as u32, 8),
            cuda::Param::Plan { bytes, fields } => (
                *bytes,
                if fields.iter().any(|at| at.field.wide()) {
                    8
                } else {
                    4
                },
            ),
            cuda::Param::Watch => (cuda::WATCH_BYTES as u32, 8),
        };
        at.next_multiple_of(align) + bytes
    });
    end - BASE
}

/// What is known of kernels that some test of this program asked for.
#[derive(Default)]
struct Known {
    /// By their text: what is found, of it or of one that differs in its type alone.
    found: HashMap<blake3::Hash, Findings>,
    /// By the text of either type: the first that was compiled.
    made: HashMap<blake3::Hash, (blake3::Hash, Made)>,
}

/// What the checks find in each case, with its name. `None` where there is no compiler. Several tests have some kernels in
/// common: each is compiled once, and of two that differ in their 16-bit type alone, one, but for some: see [`OTHER_TYPES`].
pub fn each(cases: &[(Program, Variant)]) -> Option<Vec<Findings>> {
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let compiler = nvidia::caching_compiler()?;
    let asked = in_parallel(cases.len(), |case| Asked::new(&cases[case]));
    let keys: Vec<_> = asked
        .iter()
        .map(|of| (of.key(), of.key_of_types()))
        .collect();
    let both = std::env::var_os("BOTH_TYPES").is_some();
    let (mut fresh, mut of_types) = (BTreeMap::new(), HashSet::new());
    {
        let known = known();
        for (asked, (key, types)) in asked.iter().zip(&keys) {
            let is_first = !known.made.contains_key(types) && !of_types.contains(types);
            let chosen = both || key.as_bytes()[0].is_multiple_of(OTHER_TYPES);
            if !known.found.contains_key(key) && (is_first || chosen) {
                of_types.insert(*types);
                fresh.insert(*key.as_bytes(), (asked, *types));
            }
        }
    }
    let fresh: Vec<_> = fresh.into_iter().collect();
    let compiled = in_parallel(fresh.len(), |at| fresh[at].1.0.compiled(&compiler));
    let compiled: Vec<_> = compiled.chunks(AT_ONCE).collect();
    let sass = in_parallel(compiled.len(), |at| {
        let cubins: Vec<&[u8]> = compiled[at].iter().map(Compiled::cubin).collect();
        nvidia::kept_sass_of_all(&cubins)
    });
    let sass: Vec<Vec<Sass>> = sass.into_iter().collect::<Option<_>>()?;
    let judged = compiled
        .concat()
        .into_iter()
        .zip(sass.into_iter().flatten());
    for ((key, (asked, types)), (compiled, sass)) in fresh.into_iter().zip(judged) {
        let (key, made) = (key.into(), Made::new(&compiled, &sass));
        let mut findings = asked.findings(&compiled, &sass);
        let mut known = known();
        let (first, other) = known
            .made
            .entry(types)
            .or_insert_with(|| (key, made.clone()));
        if *first != key && *other != made {
            findings.wrong.push(other.unlike(&made));
        }
        known.found.insert(key, findings);
    }
    let known = known();
    let all = cases
        .iter()
        .zip(&keys)
        .map(|((program, variant), (key, types))| {
            let found = known.found.get(key);
            let Findings { slow, wrong } =
                found.unwrap_or_else(|| &known.found[&known.made[types].0]);
            let named = |found: &Vec<String>| {
                let named = found
                    .iter()
                    .map(|found| format!("{} {variant}: {found}", program.name));
                named.collect()
            };
            Findings {
                slow: named(slow),
                wrong: named(wrong),
            }
        });
    Some(all.collect())
}

/// Without `WIDE` a fourth of a long list: each of the first compilation takes half a second.
pub fn all_pass(cases: &[(Program, Variant)]) {
    let step = if cases.len() > 16 { 4 } else { 1 };
    let cases: Vec<_> = sampled(cases.iter().cloned(), step).collect();
    let Some(found) = each(&cases) else { return };
    let found = found
        .into_iter()
        .flat_map(|Findings { slow, wrong }| [slow, wrong].concat());
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}
