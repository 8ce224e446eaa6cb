//! Random schedules down to machine code: the first that the tile level accepts, but for the few that have no pipeline.
//! `RANDOM_CASES` says how many, 3 by default and 100 in `.ci/run`. How far 1,000 get is a test of its own.

use crate::generator::warps::{Accepted, Warps, accepted, accepted_of_several, rule, warps};
use crate::parallel::in_parallel;
use crate::sass::{each, nvidia};
use crate::wide::wide;
use counterflow::codegen::cuda::{self, CudaSource};
use counterflow::jit::{Compiler, Source, Target, sass_checks};
use counterflow::{Variant, launch};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::sync::{Mutex, Once};
use std::thread::available_parallelism;

const SEED: u64 = 18;

/// Texts that NVRTC reads as one where it optimises little: half of what each would take alone is functions that all of them have.
const TOGETHER: usize = 16;

/// Whether it is compiled. Warps that are built are right, or the schedule has no small case in which all of them run.
fn has_kernel(found: &Accepted) -> bool {
    match warps(&found.kernel) {
        Warps::Right(_) => true,
        Warps::Refused(_) => false,
        Warps::Wrong(found) => panic!("{found}"),
    }
}

/// As many instructions of each sort as their statements ask for. The largest tiles leave few registers for branches and
/// several loops, so one in twenty may spill: each is printed. A sample of fewer says nothing of that.
#[test]
fn random_schedules_pass_the_sass_checks() {
    let count = number("RANDOM_CASES", if wide() { 100 } else { 3 });
    let cases = accepted(SEED, |_, _| {}).take(count);
    let cases: Vec<_> = cases
        .filter(has_kernel)
        .map(|found| (found.case.program, Variant::new(found.case.world)))
        .collect();
    let have = cases.len();
    println!("{have} of {count} accepted schedules have a kernel");
    assert!(have * 100 >= count * 95, "{have} of {count} have a kernel");
    let Some(found) = each(&cases) else { return };
    let slow: Vec<_> = found
        .iter()
        .filter(|found| !found.slow.is_empty())
        .collect();
    slow.iter()
        .for_each(|found| println!("{}", found.slow.join("\n")));
    let wrong: Vec<String> = found.iter().flat_map(|found| found.wrong.clone()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let slow = slow.len();
    assert!(have < 20 || slow * 20 <= have, "{slow} of {have} are slow");
}

/// Adds to a report what becomes of the accepted schedules from number `RANDOM_FROM` to before `RANDOM_TO`, but for those that
/// are in it, and prints what all of it says. So a long count may be made in parts. With `RANDOM_SEVERAL` they are kernels of
/// several gathers, products and sums. With `RANDOM_COMPILED=n` one in `n`, chosen by a hash of its number, is compiled to machine
/// code, and of the others it says `emitted`. The report is `random_schedules.tsv`, or `several.tsv`, in the tests' folder for
/// files; remove it when the compiler or the generator changed. With `RANDOM_QUICK`
/// NVRTC optimises little and reads several texts as one, in a fourth of the time: the front end and the assembler read the same texts,
/// and what it says of slow code is of no kernel that users have. It is an option of the process: no other test of machine code may run
/// in it.
#[test]
#[ignore = "a second of compiling for each schedule"]
fn how_far_random_schedules_get() {
    let Some(compiler) = nvidia::caching_compiler() else {
        return;
    };
    let (compiler, together) = match std::env::var_os("RANDOM_QUICK") {
        Some(_) => (launch::unoptimised(compiler), TOGETHER),
        None => (compiler, 1),
    };
    let several = std::env::var("RANDOM_SEVERAL").is_ok();
    let report = match several {
        true => concat!(env!("CARGO_TARGET_TMPDIR"), "/several.tsv"),
        false => concat!(env!("CARGO_TARGET_TMPDIR"), "/random_schedules.tsv"),
    };
    let known = fs::read_to_string(report).unwrap_or_default();
    let known: BTreeSet<usize> = known
        .lines()
        .filter_map(|line| line.split('\t').next()?.parse().ok())
        .collect();
    let (from, to) = (number("RANDOM_FROM", 0), number("RANDOM_TO", 1000));
    let one_in = number("RANDOM_COMPILED", 1).max(1) as u64;
    let options = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(report);
    let out = options.unwrap_or_else(|error| panic!("{report}: {error}"));
    let cases: Box<dyn Iterator<Item = Accepted> + Send> = match several {
        true => Box::new(accepted_of_several(SEED, |_, _| {})),
        false => Box::new(accepted(SEED, |_, _| {})),
    };
    let cases = cases.enumerate().take(to).skip(from);
    let cases = cases.filter(|(nth, _)| !known.contains(nth));
    // One core draws the next schedule while others compile. The report has what was said so far, should this end early.
    let (cases, out) = (Mutex::new(cases), Mutex::new(out));
    let next = || -> Vec<(usize, Accepted)> {
        let mut cases = cases.lock().expect("no panic beside");
        cases.by_ref().take(together).collect()
    };
    let wrong_is_told = Once::new();
    in_parallel(available_parallelism().map_or(1, usize::from), |_| {
        loop {
            let found = next();
            if found.is_empty() {
                return;
            }
            let texts: Vec<Result<CudaSource, String>> = found
                .iter()
                .map(|(nth, found)| {
                    let text = text(found)?;
                    let chosen = (*nth as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                    match chosen.is_multiple_of(one_in) {
                        true => Ok(text),
                        false => Err("emitted".into()),
                    }
                })
                .collect();
            let right: Vec<&CudaSource> = texts.iter().flatten().collect();
            if together > 1 && !right.is_empty() {
                wrong_is_told.call_once(|| tells_which_is_wrong(&compiler, right[0]));
            }
            let mut compiled = compiled(&compiler, &right).into_iter();
            let mut out = out.lock().expect("no panic beside");
            for ((nth, found), text) in found.iter().zip(&texts) {
                let became = match text {
                    Ok(_) => compiled.next().expect("one for each text"),
                    Err(became) => became.clone(),
                };
                writeln!(out, "{nth}\t{}\t{became}", found.number)
                    .unwrap_or_else(|error| panic!("{report}: {error}"));
            }
        }
    });
    let all = fs::read_to_string(report).unwrap_or_default();
    let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
    for became in all.lines().filter_map(|line| line.split('\t').nth(2)) {
        *outcomes.entry(became).or_default() += 1;
    }
    println!("{report}:");
    for (became, count) in &outcomes {
        println!("{count:6}  {became}");
    }
    let of = |word: &str| {
        let such = outcomes
            .iter()
            .filter(|(became, _)| became.starts_with(word));
        such.map(|(_, count)| count).sum::<usize>()
    };
    let (compiled, emitted, all) = (of("compiled"), of("emitted"), all.lines().count());
    println!(
        "{} of {all} pass the warp verifier and have a text; {compiled} of these were compiled, and have machine code",
        compiled + emitted
    );
    let wrong = outcomes.keys().find(|became| became.starts_with("wrong"));
    assert_eq!(wrong, None);
}

/// The text of an accepted schedule, or what becomes of it without one, without the names and numbers of its own.
fn text(found: &Accepted) -> Result<CudaSource, String> {
    match warps(&found.kernel) {
        Warps::Right(pipeline) => Ok(cuda::emit(&pipeline)),
        Warps::Refused(found) => Err(format!("refused: {}", rule(&found.first().message))),
        Warps::Wrong(found) => Err(format!("wrong warps: {}", rule(&found.first().message))),
    }
}

/// What becomes of texts. Several are read as one; if that is refused, each alone, so that it is known which.
fn compiled(compiler: &Compiler, texts: &[&CudaSource]) -> Vec<String> {
    if texts.len() > 1 && read_as_one(compiler, texts) {
        return vec!["compiled".into(); texts.len()];
    }
    let alone = texts
        .iter()
        .map(|text| match launch::compile(compiler, text) {
            Err(error) => format!("wrong text: {}", rule(&error.to_string())),
            Ok(compiled) => match sass_checks::findings(&compiled, None).first() {
                None => "compiled".into(),
                Some(slow) => format!("compiled, slow: {}", rule(slow)),
            },
        });
    alone.collect()
}

/// Whether NVRTC takes all of them behind one prelude, each in a namespace of its own, and gives machine code for each.
fn read_as_one(compiler: &Compiler, texts: &[&CudaSource]) -> bool {
    let headers = cuda::headers(texts[0]);
    if texts.iter().any(|text| cuda::headers(text) != headers) {
        return false;
    }
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, text)| (*name, &**text))
        .collect();
    let included = |name: &str| format!("#include \"{name}\"\n");
    let mut all: String = headers.iter().map(|(name, _)| included(name)).collect();
    for (nth, text) in texts.iter().enumerate() {
        let mut own = text.with_lines();
        for (name, _) in &headers {
            own = own.replace(&included(name), "\n");
        }
        // Kernels have the names of their schedules, which may be the same.
        let own = own.replace("extern \"C\" __global__", "__global__");
        all += &format!("namespace text_{nth} {{\n{own}\n}}\n");
    }
    let source = Source::new("several", &all).with(&headers);
    match compiler.compile(&source, Target::Sm90a) {
        // By its mangled name. What is not inlined has machine code, too.
        Ok(made) => texts.iter().enumerate().all(|(nth, text)| {
            let (space, entry) = (format!("text_{nth}"), &text.entry);
            let name = format!("_ZN{}{space}{}{entry}E", space.len(), entry.len());
            let mut kernels = made
                .facts
                .iter()
                .filter(|kernel| kernel.name.starts_with(&name));
            kernels.next().is_some()
        }),
        Err(error) => {
            println!("{error}");
            false
        }
    }
}

/// One text that the front end refuses, and one that the assembler refuses, are told from the others that are read with them.
fn tells_which_is_wrong(compiler: &Compiler, right: &CudaSource) {
    let kernel = right.text.find("__global__").expect("a kernel");
    let body = kernel + right.text[kernel..].find("{\n").expect("its body") + 2;
    for statement in ["no_such_name();", "asm volatile(\"no_such_instruction;\");"] {
        let mut wrong = right.clone();
        wrong.text.insert_str(body, statement);
        let told = compiled(compiler, &[right, &wrong, right]);
        let told = [0, 1, 2].map(|at| told[at].starts_with("compiled"));
        assert_eq!(told, [true, false, true], "{statement}");
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |number| number.parse().expect("a number"))
}
